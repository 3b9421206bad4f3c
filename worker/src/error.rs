//! What can go wrong, said as `error: …` with a `hint: …` where one is known.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use yoke_api::join_token::LineError;
use yoke_pki::kubeconfig::KubeconfigError;

use crate::bundle::BundleError;
use crate::clock::to_line;
use crate::files::FileError;
use crate::output::say;
use crate::root::RootError;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token is none.
    #[error("cannot use the join token")]
    Token(#[source] LineError),
    /// Standard input failed.
    #[error("cannot read the join token from standard input")]
    Input(#[source] std::io::Error),
    /// Standard output failed.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The folder cannot be used.
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
    /// What was remembered cannot be read.
    #[error("{} is damaged", .0.display())]
    State(PathBuf, #[source] serde_json::Error),
    /// Another worker is there.
    #[error("{} belongs to Node {name} of {server}", root.display())]
    Taken {
        /// The worker's folder.
        root: PathBuf,
        /// Its Node.
        name: String,
        /// Its API.
        server: String,
    },
    /// There is not as much as the worker is to have.
    #[error("{0}")]
    Excess(String),
    /// There is no GPU.
    #[error(
        "this machine has no GPU: no CDI specification names one, and there is no /dev/nvidia0, /dev/dri/renderD128 or /dev/kfd"
    )]
    NoGpu,
    /// Its content is somebody else's.
    #[error("{} is not empty, and no worker's", .0.display())]
    Foreign(PathBuf),
    /// Somebody else's processes are where the worker's would be.
    #[error("{} has processes of somebody else", .0.display())]
    Populated(PathBuf),
    /// A name is none for a Node.
    #[error("{0:?} cannot be a Node's name")]
    Name(String),
    /// Another machine has its name by now.
    #[error("Node {0} is not the one that this machine joined as")]
    Replaced(String),
    /// Its Node was deleted, or reaped.
    #[error("Node {0} was removed from the cluster")]
    Removed(String),
    /// Its Node was removed while nothing was heard of the machine.
    #[error("Node {0} was removed while this machine was silent")]
    Forgotten(String),
    /// Its kubelet has made another.
    #[error("Node {0} was removed, and this machine has another")]
    Renewed(String),
    /// There is no worker.
    #[error("{} has no worker", .0.display())]
    NoWorker(PathBuf),
    /// What it has made is not seen from here.
    #[error(
        "the worker in {} is in another network namespace: call this by `nsenter --net={} yoke-worker …`",
        root.display(),
        net.display()
    )]
    Elsewhere {
        /// The worker's folder.
        root: PathBuf,
        /// What leads to its network.
        net: PathBuf,
    },
    /// Control groups are not seen from here.
    #[error("no control groups are mounted at /sys/fs/cgroup")]
    NoCgroups,
    /// Somebody is at it.
    #[error("the worker in {} runs, or is being changed", .0.display())]
    Busy(PathBuf),
    /// Signals cannot be heard.
    #[error("cannot listen for SIGTERM, SIGINT and SIGHUP")]
    Signals(#[source] std::io::Error),
    /// A program cannot be started.
    #[error("cannot start the worker")]
    Start(#[source] std::io::Error),
    /// The cluster says no.
    #[error("the cluster does not let this machine in: {0}")]
    Refused(String),
    /// The worker ended without being asked to.
    #[error("the worker ended ({0})")]
    Ended(ExitStatus),
    /// containerd does not start.
    #[error("containerd does not answer within {limit:?}; see {}", log.display())]
    Containerd {
        /// How long it was waited for.
        limit: Duration,
        /// What it says.
        log: PathBuf,
    },
    /// An image cannot be loaded.
    #[error("cannot load {}: {why}", image.display())]
    Image {
        /// Its file.
        image: PathBuf,
        /// What is said about it.
        why: String,
    },
    /// Pods cannot be connected.
    #[error("cannot make the network of Pods: {0}")]
    Network(String),
    /// The worker's own network leads nowhere.
    #[error("cannot make a network for the worker: {0}")]
    Uplink(String),
    /// Another init runs the machine.
    #[error("systemd does not run this machine")]
    NoSystemd,
    /// Somebody else has a unit of this name.
    #[error("{} is somebody else's", .0.display())]
    ForeignUnit(PathBuf),
    /// systemd refuses, or the unit fails.
    #[error("`systemctl {arguments}` failed: {why}")]
    Systemctl {
        /// What it was called with.
        arguments: String,
        /// What it says.
        why: String,
    },
    /// The Node is not what it should be in time.
    #[error("Node {name} is not ready after {limit:?}: {missing}; see `journalctl -u {unit}` and {}", logs.display())]
    NotReady {
        /// Its name.
        name: String,
        /// How long it was waited for.
        limit: Duration,
        /// What was waited for last.
        missing: String,
        /// What goes on.
        unit: String,
        /// Where its parts write what they say.
        logs: PathBuf,
    },
    /// Somebody does not want to wait.
    #[error("interrupted")]
    Interrupted,
    /// Something cannot be removed.
    #[error("cannot remove {}", list(.0))]
    Left(Vec<PathBuf>),
    /// The machine lacks something.
    #[error("this machine cannot be a worker")]
    Unfit,
}

impl Error {
    /// Prints the error, its causes and the hint, and gives the process's exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            // `yoke-worker preflight | head` ends like this; nobody is left to be told.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            // The table has said so.
            Self::Unfit => return ExitCode::from(3),
            _ => say(&format!("error: {}", to_line(self))),
        }
        if let Some(hint) = self.hint() {
            say(&format!("hint: {hint}"));
        }
        ExitCode::FAILURE
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Token(_) => Some(
                "whoever gave it to you can make another; `-` reads it from standard input, --token-file from a file",
            ),
            Self::Bundle(error) => Some(error.hint()),
            Self::Taken { .. } => Some("`yoke-worker leave` removes that worker, or choose another folder with --root"),
            Self::Foreign(_) => {
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
            Self::ForeignUnit(_) => Some("remove it, or choose another folder with --root: its unit has another name"),
            Self::NotReady { .. } => {
                Some("it goes on trying: `yoke-worker join` waits once more, and `yoke-worker leave` removes it")
            }
            Self::Refused(_) => Some(
                "a token is for as many workers as it says, and for a short time: get another; or give another --name",
            ),
            Self::Busy(_) => Some("end it first"),
            Self::NoCgroups => {
                Some("`nsenter --net=FILE` calls it in another network without hiding them, as `ip netns exec` does")
            }
            Self::Left(_) => Some("end what uses it, and call `yoke-worker leave`"),
            _ => None,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}
