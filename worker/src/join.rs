//! `join`: a worker that systemd starts with the machine, and again when it fails.
//!
//! ```text
//!  token ─▶ preflight ─▶ setup.rs, and this program beside the others ─▶ unit ─▶ `systemctl enable --now` ─▶ Node Ready
//!                           └ what fails before the unit has started leaves nothing
//! ```
//!
//! Called again for the same cluster it does what is missing of that.

use std::time::Duration;

use tokio::time::Instant;
use yoke_api::join_token::JoinLine;

use crate::arguments::JoinOptions;
use crate::boxed::Signals;
use crate::clock::to_line;
use crate::layout::Layout;
use crate::output::say;
use crate::place::Place;
use crate::state::{Lock, Worker};
use crate::unit::Unit;
use crate::{Error, certificate, clean, commands, node, refusal, root, setup, systemd};

/// From the start of the unit to a Node that is ready.
const LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(1);

/// Makes this machine a worker for good.
pub(crate) async fn join(options: &JoinOptions, line: Option<&JoinLine>) -> Result<(), Error> {
    // From the very start, as with `run`.
    let mut signals = Signals::listen()?;
    let layout = root::open(&options.worker.machine.root)?;
    let found = Worker::read(&layout)?.filter(|worker| !worker.ephemeral);
    let has_joined = certificate::has_joined(&layout);
    let worker = match (found, line) {
        (None, None) => return Err(Error::NoWorker(layout.root().to_owned())),
        (Some(worker), Some(line)) if has_joined && worker.server != line.server => {
            return Err(setup::taken(&layout, worker));
        }
        (Some(worker), None) => take_up(&layout, worker).await?,
        (Some(worker), Some(_)) if has_joined => take_up(&layout, worker).await?,
        // One that was never let in may try again, with another token, and so may one whose certificate has ended.
        (found, Some(line)) => {
            if let Some(worker) = found {
                systemd::stop(&Unit::new(&layout, &worker.id)).await?;
            }
            begin(&layout, options, line, &mut signals).await?
        }
    };
    let unit = Unit::new(&layout, &worker.id);
    tokio::select! {
        ready = wait_ready(&layout, &worker, &unit) => ready,
        refused = refusal::wait(&layout, &worker) => {
            undo(&layout, &worker, &unit).await;
            Err(refused)
        }
        () = signals.next() => {
            say(&format!("{} goes on; `yoke-worker leave` removes it", unit.name()));
            Err(Error::Interrupted)
        }
    }
}

/// Goes on with a worker that is there. One that runs by its unit is left as it is.
async fn take_up(layout: &Layout, worker: Worker) -> Result<Worker, Error> {
    check_systemd()?;
    worker.check_place(layout)?;
    let unit = Unit::new(layout, &worker.id);
    if systemd::is_installed(&unit)? && systemd::is_active(&unit).await {
        say(&format!("{} runs already; nothing is changed", unit.name()));
        return Ok(worker);
    }
    // Nobody runs it by hand.
    drop(Lock::take(layout)?);
    setup::install_self(layout)?;
    start(&unit).await?;
    Ok(worker)
}

/// Makes a worker, and its unit. What fails is undone.
async fn begin(
    layout: &Layout,
    options: &JoinOptions,
    line: &JoinLine,
    signals: &mut Signals,
) -> Result<Worker, Error> {
    let name = setup::choose_name(&options.worker)?;
    commands::check(&options.worker, line, true).await?;
    check_systemd()?;
    let (id, lock) = setup::make_room(layout).await?;
    let worker = setup::build_worker(name, id, Place::here()?, line, &options.worker, false);
    let unit = Unit::new(layout, &worker.id);
    let mut made = setup::set_up(layout, &worker, line, &options.worker.bundle).await;
    if made.is_ok() {
        made = setup::install_self(layout).map_err(Error::from);
    }
    // The unit takes it.
    drop(lock);
    if made.is_ok() {
        made = tokio::select! {
            biased;
            () = signals.next() => Err(Error::Interrupted),
            started = start(&unit) => started,
        };
    }
    match made {
        Ok(()) => Ok(worker),
        Err(error) => {
            undo(layout, &worker, &unit).await;
            Err(error)
        }
    }
}

async fn undo(layout: &Layout, worker: &Worker, unit: &Unit) {
    let undone = async {
        systemd::remove(unit).await?;
        let _lock = Lock::take(layout)?;
        clean::clean(layout, worker).await
    };
    match undone.await {
        Ok(()) => say("nothing of the worker is left on this machine"),
        Err(error) => say(&format!(
            "{}; `yoke-worker leave` removes what is left",
            to_line(&error)
        )),
    }
}

fn check_systemd() -> Result<(), Error> {
    if systemd::is_running() {
        Ok(())
    } else {
        Err(Error::NoSystemd)
    }
}

async fn start(unit: &Unit) -> Result<(), Error> {
    systemd::install(unit).await?;
    say(&format!(
        "starting {0}; `journalctl -u {0}` shows what it says",
        unit.name()
    ));
    systemd::start(unit, LIMIT).await
}

/// Waits until the Node is ready, and says what that waits for whenever it is something else.
async fn wait_ready(layout: &Layout, worker: &Worker, unit: &Unit) -> Result<(), Error> {
    let deadline = Instant::now() + LIMIT;
    let mut said = String::new();
    loop {
        let Some(missing) = node::find_missing(layout, worker).await else {
            say(&format!(
                "this machine is Node {} of {}, and ready; {} keeps it so",
                worker.name,
                worker.server,
                unit.name()
            ));
            return Ok(());
        };
        if missing != said {
            say(&format!("waiting: {missing}"));
            said = missing;
        }
        if Instant::now() > deadline {
            return Err(Error::NotReady {
                name: worker.name.clone(),
                limit: LIMIT,
                missing: said,
                unit: unit.name().to_owned(),
                logs: layout.logs(),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
