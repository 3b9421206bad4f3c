//! The commands `run` and `leave`: calls the parts of a worker in the right order.

use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};

use tokio::process::Command;

use yoke_api::join_token::JoinLine;
use yoke_supervisor::cgroups::vacate_root_group;

use crate::arguments::{FolderOptions, MachineOptions, NodeOptions, RunOptions, WorkerOptions};
use crate::error::Error;
use crate::host::facts;
use crate::host::gpus::{self, Gpus};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::output::progress;
use crate::preflight::facts::Purpose;
use crate::preflight::{self, row};
use crate::process::signals::Signals;
use crate::state::{Lock, Worker};
use crate::unit::Unit;
use crate::{cleanup, clock, node_lifecycle, root, sandbox, setup, systemd, uplink};

/// The command `run`.
pub(crate) async fn run(options: &RunOptions, line: Option<&JoinLine>) -> Result<(), Error> {
    // Listening starts first: a signal during setup ends the worker as soon as the worker can be
    // ended.
    let mut signals = Signals::listen()?;
    let layout = root::open(&options.worker.machine.root)?;
    vacate_root_group();
    let Some(line) = line else {
        let (mut worker, _lock) = open(&layout)?;
        worker.netns = Some(Netns::current()?);
        worker.write(&layout)?;
        return node_lifecycle::run_permanent(&layout, &worker, &mut signals).await;
    };
    let name = setup::choose_name(&options.worker)?;
    let with_gpus = options.gpus == Gpus::All;
    if with_gpus && !gpus::find().any {
        return Err(Error::NoGpu);
    }
    if options.rm && line.address.is_some_and(|address| address.to_canonical().is_ipv6()) {
        return Err(Error::Uplink(
            "the API server has an IPv6 address, but that network supports IPv4 only".to_owned(),
        ));
    }
    let purpose = if options.rm { Purpose::Sandbox } else { Purpose::Any };
    check(&options.worker, line, purpose).await?;
    let (id, lock) = setup::claim_folder(&layout).await?;
    let mut worker = setup::build_worker(name, id, Netns::current()?, line, &options.worker, options.rm);
    worker.gpus = with_gpus;
    let port = if options.rm && worker.pod_network {
        let port = uplink::reserve_port(options.worker.machine.wireguard_port)?;
        worker.wireguard_port = port.number;
        Some(port)
    } else {
        None
    };
    let set_up = setup::set_up(&layout, &worker, line, &options.worker.machine.bundle).await;
    if !worker.ephemeral {
        set_up?;
        return node_lifecycle::run_permanent(&layout, &worker, &mut signals).await;
    }
    let ended = match &set_up {
        Ok(()) => sandbox::run(&layout, &mut worker, options.ttl, &lock, &mut signals).await,
        Err(_) => Ok(()),
    };
    if ended.is_err() {
        // Cleanup removes the only credentials that can delete the Node. Processes in the sandbox
        // may have written the Node's UID to the state file, so read it again.
        let worker = read(&layout).unwrap_or_else(|_| worker.clone());
        tokio::select! {
            forgotten = node_lifecycle::delete_leftover_node(&layout, &worker) => forgotten?,
            () = signals.next() => progress(&format!("Node {} is not deleted", worker.name)),
        }
    }
    cleanup::remove_worker(&layout, &worker).await?;
    drop(port);
    progress("the worker was removed from this machine");
    set_up.and(ended)
}

/// The command `leave`: runs the worker again, to drain it.
pub(crate) async fn leave(options: &FolderOptions) -> Result<(), Error> {
    let layout = root::open(&options.root)?;
    let worker = read(&layout)?;
    worker.check_netns(&layout)?;
    systemd::remove(&Unit::new(&layout, &worker.id)).await?;
    let (worker, lock) = open(&layout)?;
    if worker.ephemeral {
        node_lifecycle::delete_leftover_node(&layout, &worker).await?;
    } else if layout.kubeconfig().exists() && !drain(&layout, &lock).await?.success() {
        progress("cannot drain the worker; removing it without a drain");
        node_lifecycle::delete_leftover_node(&layout, &read(&layout)?).await?;
    }
    cleanup::remove_worker(&layout, &worker).await?;
    progress(
        "the worker was removed from this machine; folders that Kubernetes programs share, such as /var/lib/kubelet, remain",
    );
    Ok(())
}

/// Runs the worker until it exits, as a child process. This process itself is in no control group
/// that is killed.
async fn drain(layout: &Layout, lock: &Lock) -> Result<ExitStatus, Error> {
    let own = std::env::current_exe().map_err(Error::Start)?;
    let mut node = Command::new("setpriv");
    // If this process is killed, the child dies too. Until then no other process takes the lock.
    node.args(["--pdeathsig", "KILL", "--"])
        .arg(own)
        .args(["node", "--leave", "--root"])
        .arg(layout.root())
        .stdin(Stdio::null())
        .stdout(lock.share().map_err(Error::Start)?)
        .kill_on_drop(true);
    node.status().await.map_err(Error::Start)
}

/// Runs as process 1 of a sandbox.
pub(crate) fn init(options: &FolderOptions) -> Result<ExitCode, Error> {
    sandbox::wait_network()?;
    let layout = root::open(&options.root)?;
    let _held = sandbox::mount_replacements(&layout, &read(&layout)?)?;
    sandbox::init(layout.root())
}

/// Runs the worker's main process in the sandbox.
pub(crate) async fn node(options: &NodeOptions) -> Result<(), Error> {
    let layout = root::open(&options.folder.root)?;
    let worker = read(&layout)?;
    if options.leave {
        return node_lifecycle::leave(&layout, &worker).await;
    }
    let end = async {
        if let Err(error) = sandbox::wait_stdin_closed().await {
            progress(&format!("cannot read the stop signal from standard input: {error}"));
        }
    };
    node_lifecycle::run(&layout, &worker, end).await
}

/// Reads the worker of a folder and takes its lock.
fn open(layout: &Layout) -> Result<(Worker, Lock), Error> {
    read(layout)?;
    let lock = Lock::take(layout)?;
    // The previous holder of the lock may have changed or removed the worker, so read it again.
    let worker = read(layout)?;
    worker.check_netns(layout)?;
    Ok((worker, lock))
}

fn read(layout: &Layout) -> Result<Worker, Error> {
    Worker::read(layout)?.ok_or_else(|| Error::NoWorker(layout.root().to_owned()))
}

/// Checks the machine and prints the checks that did not pass.
pub(crate) async fn check(options: &WorkerOptions, line: &JoinLine, purpose: Purpose) -> Result<(), Error> {
    let limits = options.limits();
    let has = facts::read_capacity(Path::new("/"), &limits)?;
    if let Some(excess) = has.and_then(|has| limits.find_excess(has)) {
        return Err(Error::Excess(excess));
    }
    if options.no_preflight {
        return Ok(());
    }
    let rows = observe(&options.machine, Some(line), purpose).await;
    if !row::is_fit(&rows) {
        let bad: Vec<_> = rows.into_iter().filter(|row| row.verdict != row::Verdict::Ok).collect();
        progress(&preflight::report::to_text(&bad));
        return Err(Error::Unfit);
    }
    Ok(())
}

/// Runs all preflight checks; returns one row per check.
pub(crate) async fn observe(options: &MachineOptions, line: Option<&JoinLine>, purpose: Purpose) -> Vec<row::Row> {
    let mut facts = facts::observe(options).await;
    facts.purpose = purpose;
    facts.uplink = uplink::check_support().await;
    if let Some(line) = line {
        facts.pod_network = line.pod_network;
        facts.skew = Some(clock::observe_skew(line).await);
    }
    preflight::inspect(&facts)
}
