//! The error of a command, printed as `error: …` with a `hint: …` where one is known.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use yoke_api::join_token::LineError;
use yoke_pki::kubeconfig::KubeconfigError;
use yoke_supervisor::cgroups::CgroupError;

use crate::bundle::BundleError;
use crate::error_chain::format_chain;
use crate::host::files::FileError;
use crate::output::progress;
use crate::root::RootError;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The join token is malformed.
    #[error("invalid join token")]
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
    #[error("cannot build the kubelet's kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// A state file cannot be parsed.
    #[error("{} is corrupt", .0.display())]
    State(PathBuf, #[source] serde_json::Error),
    /// The folder already has another worker.
    #[error("{} belongs to the worker of Node {name} in the cluster {server}", root.display())]
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
        "this machine has no GPU: no CDI specification lists one, and /dev/nvidia0, /dev/dri/renderD128 and /dev/kfd do not exist"
    )]
    NoGpu,
    /// The folder has files that no worker wrote.
    #[error("{} is not empty and has no worker", .0.display())]
    NotEmpty(PathBuf),
    /// The worker's control group already has processes of another program.
    #[error("the control group {} has processes of another program", .0.display())]
    Populated(PathBuf),
    /// The name is not valid for a Node.
    #[error("{0:?} is not a valid Node name")]
    Name(String),
    /// Another machine now has a Node of this name.
    #[error("Node {0} has another UID than the Node of this worker")]
    Replaced(String),
    /// The Node was deleted, by a user or by the node reaper.
    #[error("Node {0} was removed from the cluster")]
    Removed(String),
    /// The Node was removed while this machine did not reach the API.
    #[error("Node {0} was removed while this machine did not reach the API server")]
    RemovedWhileSilent(String),
    /// The Node was removed, and the kubelet has registered a new one.
    #[error("Node {0} was removed, and the kubelet registered a new one")]
    NewNode(String),
    /// The folder has no worker.
    #[error("{} has no worker", .0.display())]
    NoWorker(PathBuf),
    /// The worker's resources are in another network namespace.
    #[error(
        "the worker in {} runs in another network namespace: run `nsenter --net={} yoke-worker …`",
        root.display(),
        net.display()
    )]
    OtherNetns {
        /// The worker's folder.
        root: PathBuf,
        /// A file that leads to the worker's network namespace, for `nsenter`.
        net: PathBuf,
    },
    /// The control groups cannot be used.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// Another process holds the lock of the worker's folder.
    #[error("the worker in {} is running, or another command changes it", .0.display())]
    Busy(PathBuf),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for SIGTERM, SIGINT and SIGHUP")]
    Signals(#[source] std::io::Error),
    /// A program cannot be started.
    #[error("cannot start the worker")]
    Start(#[source] std::io::Error),
    /// The cluster rejects the join token or the certificate request.
    #[error("the cluster rejected this machine: {0}")]
    Rejected(String),
    /// The worker exited without being stopped.
    #[error("the worker exited ({0})")]
    Ended(ExitStatus),
    /// containerd does not start in time.
    #[error("containerd did not respond within {limit:?}; see {}", log.display())]
    Containerd {
        /// How long the worker waited.
        limit: Duration,
        /// The log file of containerd.
        log: PathBuf,
    },
    /// A container image cannot be imported.
    #[error("cannot import the image {}: {why}", image.display())]
    Image {
        /// The image archive.
        image: PathBuf,
        /// The reason, as containerd reports it.
        why: String,
    },
    /// The Pod network cannot be created.
    #[error("cannot create the Pod network: {0}")]
    Network(String),
    /// The network of an ephemeral worker cannot be created.
    #[error("cannot create the worker's network: {0}")]
    Uplink(String),
    /// The init system of the machine is not systemd.
    #[error("systemd is not the init system of this machine")]
    NoSystemd,
    /// A unit of this name exists that this program did not write.
    #[error("the unit file {} was not written by yoke-worker", .0.display())]
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
    #[error("Node {name} is not Ready after {limit:?}: {missing}; see `journalctl -u {unit}` and {}", logs.display())]
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
            Self::Token(_) => {
                Some("create a new join token; `-` reads it from standard input, --token-file from a file")
            }
            Self::Bundle(error) => Some(error.hint()),
            Self::OtherWorker { .. } => {
                Some("run `yoke-worker leave` to remove that worker, or choose another folder with --root")
            }
            Self::NotEmpty(_) => {
                Some("choose an empty folder with --root; `yoke-worker leave` removes it with its content")
            }
            Self::Excess(_) => Some("lower --cpus and --memory, or omit them to use the whole machine"),
            Self::NoGpu => Some("install the driver of the GPU, or omit --gpus"),
            Self::Populated(_) => Some(
                "this may be a worker whose folder was removed by hand: stop these processes, or choose another folder with --root",
            ),
            Self::Name(_) => Some("pass a name of lower-case letters, digits, `-` and `.` with --name"),
            Self::Replaced(_) => Some(
                "another machine may use this name: run `yoke-worker leave`, then join with a new token and another --name",
            ),
            Self::Removed(_) => Some(
                "a user deleted the Node, or it had no heartbeat for longer than its join token permits; join with a new token",
            ),
            Self::NoWorker(_) => Some("run `yoke-worker join TOKEN` or `yoke-worker run TOKEN` with a join token"),
            Self::Uplink(_) => Some(
                "`yoke-worker preflight` shows what the machine lacks; without --rm, a worker uses the machine's own network",
            ),
            Self::NoSystemd => Some("use `yoke-worker run`, which needs no systemd"),
            Self::UnitOfOther(_) => {
                Some("remove that file, or choose another folder with --root, which changes the name of the unit")
            }
            Self::NotReady { .. } => Some(
                "the worker keeps trying: run `yoke-worker join` to wait again, or `yoke-worker leave` to remove it",
            ),
            Self::Rejected(_) => Some(
                "the join token may have expired or be used up: get a new one; if the name is taken, pass another --name",
            ),
            Self::Busy(_) => Some("stop it first"),
            Self::Cgroups(CgroupError::NotMounted) => {
                Some("`ip netns exec` hides them; use `nsenter --net=FILE` to run in another network namespace")
            }
            Self::Leftover(_) => Some("stop the processes that use these paths, and run `yoke-worker leave`"),
            _ => None,
        }
    }
}

fn join_paths(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}
