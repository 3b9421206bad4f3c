//! The error of a command, printed as `error: …` with a `hint: …` where one is known.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use yoke_api::join_token::LineError;
use yoke_pki::kubeconfig::KubeconfigError;

use crate::bundle::BundleError;
use crate::error_chain::format_chain;
use crate::host::files::FileError;
use crate::output::progress;
use crate::root::RootError;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The join token is malformed.
    #[error("cannot use the join token")]
    Token(#[source] LineError),
    /// Standard input cannot be read.
    #[error("cannot read the join token from standard input")]
    Input(#[source] std::io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The worker's folder cannot be used.
    #[error("cannot use the folder of --root")]
    Root(#[from] RootError),
    /// The bundle cannot be used.
    #[error("cannot use the bundle")]
    Bundle(#[from] BundleError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kubeconfig cannot be written.
    #[error("cannot make the kubelet's kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// A state file cannot be parsed.
    #[error("{} is damaged", .0.display())]
    State(PathBuf, #[source] serde_json::Error),
    /// The folder already has another worker.
    #[error("{} belongs to Node {name} of {server}", root.display())]
    OtherWorker {
        /// The worker's folder.
        root: PathBuf,
        /// Name of the Node of the worker in that folder.
        name: String,
        /// API server of the worker in that folder.
        server: String,
    },
    /// The machine has less CPU or memory than requested.
    #[error("{0}")]
    Excess(String),
    /// GPUs were requested, but the machine has none.
    #[error(
        "this machine has no GPU: no CDI specification names one, and there is no /dev/nvidia0, /dev/dri/renderD128 or /dev/kfd"
    )]
    NoGpu,
    /// The folder has files that no worker wrote.
    #[error("{} is not empty, and no worker's", .0.display())]
    NotEmpty(PathBuf),
    /// The worker's control group already has processes of another program.
    #[error("{} has processes of somebody else", .0.display())]
    Populated(PathBuf),
    /// The name is not valid for a Node.
    #[error("{0:?} cannot be a Node's name")]
    Name(String),
    /// Another machine now has a Node of this name.
    #[error("Node {0} is not the one that this machine joined as")]
    Replaced(String),
    /// The Node was deleted, by a user or by the node reaper.
    #[error("Node {0} was removed from the cluster")]
    Removed(String),
    /// The Node was removed while this machine did not reach the API.
    #[error("Node {0} was removed while this machine was silent")]
    RemovedWhileSilent(String),
    /// The Node was removed, and the kubelet has registered a new one.
    #[error("Node {0} was removed, and this machine has another")]
    NewNode(String),
    /// The folder has no worker.
    #[error("{} has no worker", .0.display())]
    NoWorker(PathBuf),
    /// The worker's resources are in another network namespace.
    #[error(
        "the worker in {} is in another network namespace: call this by `nsenter --net={} yoke-worker …`",
        root.display(),
        net.display()
    )]
    OtherNetns {
        /// The worker's folder.
        root: PathBuf,
        /// A file that leads to the worker's network namespace, for `nsenter`.
        net: PathBuf,
    },
    /// This process cannot see any control groups.
    #[error("no control groups are mounted at /sys/fs/cgroup")]
    NoCgroups,
    /// Another process holds the lock of the worker's folder.
    #[error("the worker in {} runs, or is being changed", .0.display())]
    Busy(PathBuf),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for SIGTERM, SIGINT and SIGHUP")]
    Signals(#[source] std::io::Error),
    /// A program cannot be started.
    #[error("cannot start the worker")]
    Start(#[source] std::io::Error),
    /// The cluster rejects the join token or the certificate request.
    #[error("the cluster does not let this machine in: {0}")]
    Rejected(String),
    /// The worker exited without being stopped.
    #[error("the worker ended ({0})")]
    Ended(ExitStatus),
    /// containerd does not start in time.
    #[error("containerd does not answer within {limit:?}; see {}", log.display())]
    Containerd {
        /// How long the worker waited.
        limit: Duration,
        /// The log file of containerd.
        log: PathBuf,
    },
    /// A container image cannot be imported.
    #[error("cannot load {}: {why}", image.display())]
    Image {
        /// The image archive.
        image: PathBuf,
        /// The reason, as containerd reports it.
        why: String,
    },
    /// The Pod network cannot be created.
    #[error("cannot make the network of Pods: {0}")]
    Network(String),
    /// The network of an ephemeral worker cannot be created.
    #[error("cannot make a network for the worker: {0}")]
    Uplink(String),
    /// The init system of the machine is not systemd.
    #[error("systemd does not run this machine")]
    NoSystemd,
    /// A unit of this name exists that this program did not write.
    #[error("{} is somebody else's", .0.display())]
    UnitOfOther(PathBuf),
    /// A `systemctl` command failed.
    #[error("`systemctl {arguments}` failed: {why}")]
    Systemctl {
        /// The arguments of `systemctl`.
        arguments: String,
        /// The reason, as `systemctl` reports it.
        why: String,
    },
    /// The Node is not Ready in time.
    #[error("Node {name} is not ready after {limit:?}: {missing}; see `journalctl -u {unit}` and {}", logs.display())]
    NotReady {
        /// Name of the Node.
        name: String,
        /// How long the command waited.
        limit: Duration,
        /// The last known reason why the Node is not Ready.
        missing: String,
        /// The systemd unit, which keeps running.
        unit: String,
        /// Folder with the logs of containerd and the kubelet.
        logs: PathBuf,
    },
    /// A signal interrupted the command.
    #[error("interrupted")]
    Interrupted,
    /// Files or mounts cannot be removed.
    #[error("cannot remove {}", join_paths(.0))]
    Leftover(Vec<PathBuf>),
    /// At least one preflight check failed.
    #[error("this machine cannot be a worker")]
    Unfit,
}

impl Error {
    /// Prints the error, its causes and the hint, and returns the exit code of the process.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            // `yoke-worker preflight | head` ends like this. The reader has gone, so there is
            // nothing to print.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            // The preflight table already shows the reason.
            Self::Unfit => return ExitCode::from(3),
            _ => progress(&format!("error: {}", format_chain(self))),
        }
        if let Some(hint) = self.hint() {
            progress(&format!("hint: {hint}"));
        }
        ExitCode::FAILURE
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Token(_) => Some(
                "whoever gave it to you can make another; `-` reads it from standard input, --token-file from a file",
            ),
            Self::Bundle(error) => Some(error.hint()),
            Self::OtherWorker { .. } => {
                Some("`yoke-worker leave` removes that worker, or choose another folder with --root")
            }
            Self::NotEmpty(_) => {
                Some("choose a folder with --root that is the worker's alone: it is removed in the end")
            }
            Self::Excess(_) => Some("ask for less with --cpus and --memory, or leave them out: then it may take all"),
            Self::NoGpu => Some("install its driver, or leave --gpus out"),
            Self::Populated(_) => Some(
                "perhaps a worker's whose folder was removed by hand: end its processes, or choose another folder with --root",
            ),
            Self::Name(_) => Some("give one of lower-case letters, digits, `-` and `.` with --name"),
            Self::Replaced(_) => Some(
                "another machine may have its name: `yoke-worker leave` removes this worker, and a new token makes another",
            ),
            Self::Removed(_) => Some(
                "somebody deleted it, or this machine was not heard of for longer than its join token allows; a new token makes another",
            ),
            Self::NoWorker(_) => Some("a join token makes one: `yoke-worker join TOKEN`, or `yoke-worker run TOKEN`"),
            Self::Uplink(_) => Some(
                "`yoke-worker preflight` says what the machine lacks for it; without --rm, a worker uses the machine's own network",
            ),
            Self::NoSystemd => Some("`yoke-worker run` makes it a worker as long as that runs"),
            Self::UnitOfOther(_) => Some("remove it, or choose another folder with --root: its unit has another name"),
            Self::NotReady { .. } => {
                Some("it goes on trying: `yoke-worker join` waits once more, and `yoke-worker leave` removes it")
            }
            Self::Rejected(_) => Some(
                "a token is for as many workers as it says, and for a short time: get another; or give another --name",
            ),
            Self::Busy(_) => Some("end it first"),
            Self::NoCgroups => {
                Some("`nsenter --net=FILE` calls it in another network without hiding them, as `ip netns exec` does")
            }
            Self::Leftover(_) => Some("end what uses it, and call `yoke-worker leave`"),
            _ => None,
        }
    }
}

fn join_paths(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}
