//! What can go wrong, said as `error: …` with a `hint: …` where one is known.

use std::error::Error as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kube::config::{InferConfigError, KubeconfigError};
use kube::core::Status;
use tokio::signal::unix::SignalKind;
use yoke_api::join_token::node::NodeError;
use yoke_api::labels;

use crate::merge::MergeError;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig of the host cannot be used.
    #[error("cannot use the kubeconfig of the host")]
    Kubeconfig(#[source] KubeconfigError),
    /// There is no kubeconfig, and this is no pod either.
    #[error("no kubeconfig of the host was found")]
    NoKubeconfig(#[source] InferConfigError),
    /// The kubeconfig of the host has no such user.
    #[error("the kubeconfig of the host has no user {0:?}")]
    UnknownUser(String),
    /// The client cannot be set up.
    #[error("cannot set up the connection to the host")]
    Client(#[source] kube::Error),
    /// The host answered no.
    #[error("{doing}: {}", refusal(status))]
    Refused {
        /// What was being done.
        doing: String,
        /// The host's answer.
        status: Box<Status>,
    },
    /// The host did not answer.
    #[error("{doing}: cannot reach the host's API at {url}")]
    Unreachable {
        /// What was being done.
        doing: String,
        /// Where the host should be.
        url: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// One request took too long.
    #[error("{doing}: no answer from the host's API at {url} within {limit:?}")]
    RequestTimeout {
        /// What was being done.
        doing: String,
        /// Where the host should be.
        url: String,
        /// The limit.
        limit: Duration,
    },
    /// A wait ran out.
    #[error("{what} within {limit:?}{}", last.as_deref().map(|last| format!("; last seen: {last}")).unwrap_or_default())]
    WaitTimeout {
        /// What did not happen.
        what: String,
        /// The limit.
        limit: Duration,
        /// What was seen last.
        last: Option<String>,
        /// Command that shows more.
        see: String,
    },
    /// The spec cannot be carried out.
    #[error("{what} is refused ({reason}): {message}")]
    SpecRefused {
        /// The Cluster or Tenant.
        what: String,
        /// Its condition's reason.
        reason: String,
        /// Its condition's message.
        message: String,
    },
    /// It vanished while it was waited for.
    #[error("{0} was deleted in the meantime")]
    Deleted(String),
    /// It sleeps, and a JoinToken does not wake it.
    #[error("Cluster {name} is asleep")]
    Asleep {
        /// The Cluster.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// A JoinToken came to nothing.
    #[error("{}", to_fate(name, *is_deleted))]
    NotJoinable {
        /// The JoinToken.
        name: String,
        /// Whether it is deleted, or stays until it ends.
        is_deleted: bool,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// The Cluster has no kubeconfig yet.
    #[error("Cluster {name} has no kubeconfig yet")]
    NoClusterKubeconfig {
        /// The Cluster.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// The Secret is not what the contract says.
    #[error("Secret {0} holds no kubeconfig")]
    SecretWrong(String),
    /// The Secret is not what a worker could join by.
    #[error("Secret {0} is not what a worker could join by")]
    JoinSecretWrong(String),
    /// The kubeconfig cannot be merged.
    #[error("cannot add to {}", path.display())]
    Merge {
        /// The user's file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: MergeError,
    },
    /// A file cannot be read or written.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// What was being done.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file holds no public key that can be used.
    #[error("cannot use {} as an SSH key: {problem}", path.display())]
    NoPublicKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: &'static str,
    },
    /// Another program is changing the file.
    #[error("{} is being changed by another program", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The lock.
        lock: PathBuf,
    },
    /// Where the user's kubeconfig is cannot be told.
    #[error("neither KUBECONFIG nor HOME is set")]
    NoHome,
    /// There is nobody to ask.
    #[error("{0} is not deleted without being asked for twice")]
    NotConfirmed(String),
    /// The answer was no.
    #[error("nothing was deleted")]
    Declined,
    /// An object cannot be written as text, or read.
    #[error("cannot show the object")]
    Json(#[from] serde_json::Error),
    /// An object cannot be written as YAML.
    #[error("cannot show the object")]
    Yaml(#[from] serde_saphyr::SerializeError),
    /// Standard output failed.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// Standard input failed.
    #[error("cannot read the answer from standard input")]
    Input(#[source] std::io::Error),
    /// Labels or taints that no worker is given.
    #[error("the labels or taints cannot be given")]
    Node(#[from] NodeError),
    /// There is no such command to run.
    #[error("there is no command {}", .0.display())]
    NoCommand(PathBuf),
    /// A command cannot be run.
    #[error("cannot run {}", program.display())]
    CommandNotRun {
        /// The command.
        program: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Its Cluster could not be used.
    #[error("the command was not run")]
    NotRun(#[source] Box<Error>),
    /// How a command ended cannot be told.
    #[error("cannot wait for the command")]
    CommandLost(#[source] std::io::Error),
    /// The command that was run failed; it has said why.
    #[error("the command ended with code {0}")]
    CommandFailed(u8),
    /// Signals cannot be heard.
    #[error("cannot listen to signals")]
    Signals(#[source] std::io::Error),
    /// Somebody ended it.
    #[error("interrupted")]
    Interrupted(SignalKind),
}

impl Error {
    /// Prints the error, its causes and the hint, and gives the process's exit code.
    pub fn report(&self) -> ExitCode {
        // `kubectl yoke get | head` ends like this; nobody is left to be told.
        if matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        if let Self::CommandFailed(code) = self {
            return ExitCode::from(*code);
        }
        crate::output::say(&format!("error: {}", self.with_causes()));
        if let Some(hint) = self.hint() {
            crate::output::say(&format!("hint: {hint}"));
        }
        match self {
            Self::WaitTimeout { .. } => ExitCode::from(3),
            Self::CommandNotRun { .. } => ExitCode::from(126),
            Self::NoCommand(_) => ExitCode::from(127),
            // As a shell says it of who is ended by a signal.
            Self::Interrupted(signal) => ExitCode::from(u8::try_from(128 + signal.as_raw_value()).unwrap_or(1)),
            _ => ExitCode::FAILURE,
        }
    }

    /// What went wrong, with its causes.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Several libraries repeat their source in their own text.
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        text
    }

    /// Whether what was asked for may have been done all the same.
    pub(crate) fn leaves_open(&self) -> bool {
        match self {
            Self::RequestTimeout { .. } => true,
            Self::Unreachable { source, .. } => !never_connected(source),
            // An API server says so of what its store has done, too, but was slow to tell.
            Self::Refused { status, .. } => status.code >= 500,
            _ => false,
        }
    }

    /// Whether the host may answer otherwise when it is asked once more.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::RequestTimeout { .. } | Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => status.code == 429 || status.code >= 500,
            _ => false,
        }
    }

    /// Whether the host says that it cannot do it now: it has too much to do, or is not ready.
    pub(crate) fn asks_to_wait(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if [429, 503, 504].contains(&status.code))
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Kubeconfig(KubeconfigError::CurrentContextNotSet) => {
                Some("choose one with --context, or `kubectl config use-context NAME`".into())
            }
            Self::Kubeconfig(_) | Self::NoKubeconfig(_) => {
                Some("name the host's kubeconfig with --kubeconfig or KUBECONFIG".into())
            }
            Self::UnknownUser(_) => Some("see `kubectl config get-users`".into()),
            Self::Refused { status, .. } => hint_for(status),
            Self::Unreachable { .. } | Self::RequestTimeout { .. } => {
                Some("is this the right host? See `kubectl config current-context`, and try --context".into())
            }
            Self::WaitTimeout { see, .. } => Some(format!("it goes on by itself; see `{see}`")),
            Self::SpecRefused { .. } => {
                Some("change the spec with `kubectl edit`, or delete it and make it anew".into())
            }
            Self::Asleep { name, namespace } => Some(format!(
                "wake it: kubectl patch clusters.yoke.drzzl.io {name} -n {namespace} --type merge -p \
                 '{{\"metadata\":{{\"annotations\":{{\"{}\":\"{}\"}}}},\"spec\":{{\"state\":\"Running\"}}}}'",
                labels::SLEEP,
                labels::SLEEP_END
            )),
            Self::NotJoinable { source, .. } => match source.as_ref() {
                Self::WaitTimeout { see, .. } => Some(format!(
                    "see `{see}`, and join again once it is ready, or wait longer with --timeout"
                )),
                Self::SpecRefused { .. } => Some("join again when that is no longer so".into()),
                other => other.hint(),
            },
            Self::NotRun(source) => match source.as_ref() {
                Self::WaitTimeout { .. } => Some(
                    "wait longer with --timeout, or make a Cluster with `kubectl yoke create cluster` and see its conditions".into(),
                ),
                Self::SpecRefused { .. } => Some("run it again with other options, or when that is no longer so".into()),
                other => other.hint(),
            },
            Self::NoClusterKubeconfig { name, namespace } => Some(format!(
                "wait for it with --wait, or see `kubectl yoke status {name} -n {namespace}`"
            )),
            Self::Merge {
                source: MergeError::Taken { .. },
                ..
            } => Some("choose another name with --context-name".into()),
            Self::Merge { .. } => Some("nothing was changed; repair the file first, or print without --merge".into()),
            Self::Locked { lock, .. } => Some(format!("try again; if no kubectl runs, remove {}", lock.display())),
            Self::NoHome => Some("set KUBECONFIG to the file to add to".into()),
            Self::NotConfirmed(_) => Some("say --yes where nobody can be asked".into()),
            Self::Client(_)
            | Self::Deleted(_)
            | Self::SecretWrong(_)
            | Self::JoinSecretWrong(_)
            | Self::File { .. }
            | Self::NoPublicKey { .. }
            | Self::Declined
            | Self::Json(_)
            | Self::Yaml(_)
            | Self::Output(_)
            | Self::Input(_)
            | Self::Node(_)
            | Self::NoCommand(_)
            | Self::CommandNotRun { .. }
            | Self::CommandLost(_)
            | Self::CommandFailed(_)
            | Self::Signals(_)
            | Self::Interrupted(_) => None,
        }
    }
}

fn to_fate(name: &str, is_deleted: bool) -> String {
    match is_deleted {
        true => format!("JoinToken {name} was deleted, so nobody can join by it"),
        false => format!("nobody was told how to join by JoinToken {name}, which could not be deleted"),
    }
}

/// The answer for a path that no API of the host serves: Kubernetes' mux says so, without an object's name.
fn is_unknown_path(status: &Status) -> bool {
    status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

fn is_missing_namespace(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.kind == "namespaces")
}

fn refusal(status: &Status) -> String {
    if is_unknown_path(status) {
        return "this host does not run Yoke".into();
    }
    match (status.message.is_empty(), status.reason.is_empty()) {
        (false, _) => status.message.clone(),
        (true, false) => status.reason.clone(),
        (true, true) => format!("the host answered with HTTP {}", status.code),
    }
}

fn hint_for(status: &Status) -> Option<String> {
    let hint = match status.code {
        401 => "your credentials for the host are not accepted; they may have expired",
        403 => "a Tenant's users see their own namespace only: give it with -n, or ask the host's owner",
        404 if is_unknown_path(status) => {
            "is this the right host? See `kubectl config current-context`, and try --context"
        }
        404 if is_missing_namespace(status) => {
            "a Tenant's namespace comes with the Tenant; the host's owner makes it with `kubectl yoke create tenant NAME`"
        }
        404 => "see what is there with `kubectl yoke get`, in other namespaces with -n or -A",
        409 => "see it with `kubectl yoke get`, or choose another name",
        _ => return None,
    };
    Some(hint.into())
}

/// Whether the host was not reached at all.
fn never_connected(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, name: &str, message: &str) -> Error {
        let status = format!("{{code: {code}, message: '{message}', details: {{name: '{name}'}}}}");
        let status = serde_saphyr::from_str(&status).unwrap();
        Error::Refused {
            doing: "getting Cluster a".into(),
            status: Box::new(status),
        }
    }

    #[test]
    fn answers_of_the_host_are_explained() {
        for (error, text, hint) in [
            (
                refused(404, "", "404 page not found"),
                "getting Cluster a: this host does not run Yoke",
                "right host",
            ),
            (
                refused(404, "a", "clusters \"a\" not found"),
                "getting Cluster a: clusters \"a\" not found",
                "kubectl yoke get",
            ),
            (refused(403, "a", "no"), "getting Cluster a: no", "own namespace"),
        ] {
            assert_eq!(error.with_causes(), text);
            assert!(error.hint().unwrap().contains(hint), "{text}");
        }
    }

    #[test]
    fn failures_of_the_host_are_no_refusals() {
        for (code, leaves_open, may_pass) in [
            (403, false, false),
            (404, false, false),
            (409, false, false),
            (429, false, true),
            (500, true, true),
            (503, true, true),
            (504, true, true),
        ] {
            let error = refused(code, "a", "no");
            assert_eq!(
                (error.leaves_open(), error.may_pass()),
                (leaves_open, may_pass),
                "{code}"
            );
        }
        let unreachable = Error::Unreachable {
            doing: "getting Cluster a".into(),
            url: "https://host.test".into(),
            source: Box::new(kube::Error::TlsRequired),
        };
        assert!(unreachable.may_pass());
    }
}
