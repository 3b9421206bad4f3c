//! Errors of all commands, printed as `error: …` and, where there is one, `hint: …`.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InferConfigError, KubeconfigError};
use kube::core::Status;
use tokio::signal::unix::SignalKind;
use yoke_api::join_token::node::NodeError;
use yoke_api::labels;
use yoke_view::progress::{WaitTimeout, describe_unused_token};
use yoke_view::verdict::Refusal;

use crate::merge::MergeError;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig of the host cannot be used.
    #[error("cannot use the kubeconfig of the host")]
    Kubeconfig(#[source] KubeconfigError),
    /// There is no kubeconfig, and the process does not run in a pod.
    #[error("no kubeconfig for the host was found")]
    NoKubeconfig(#[source] InferConfigError),
    /// The kubeconfig of the host has no such user.
    #[error("the kubeconfig of the host has no user {0:?}")]
    UnknownUser(String),
    /// The client cannot be built.
    #[error("cannot set up the connection to the host")]
    Client(#[source] kube::Error),
    /// The host's API refused the request.
    #[error("{doing}: {}", refusal(status))]
    Refused {
        /// Action during which the error happened.
        doing: String,
        /// The API's answer.
        status: Box<Status>,
    },
    /// The host's API could not be reached, or sent no usable answer.
    #[error("{doing}: cannot reach the host's API at {url}")]
    Unreachable {
        /// Action during which the error happened.
        doing: String,
        /// Address of the host's API.
        url: String,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// One request exceeded `--request-timeout`.
    #[error("{doing}: no answer from the host's API at {url} within {limit:?}")]
    RequestTimeout {
        /// Action during which the error happened.
        doing: String,
        /// Address of the host's API.
        url: String,
        /// The timeout.
        limit: Duration,
    },
    /// A wait exceeded `--timeout`.
    #[error("{timeout}")]
    WaitTimeout {
        /// The object, its expected state, and the last message.
        timeout: WaitTimeout,
        /// Command that shows the current state.
        see: String,
    },
    /// The operator refuses the spec.
    #[error("{what} is {refusal}")]
    SpecRefused {
        /// Kind and name of the object.
        what: String,
        /// The condition.
        refusal: Refusal,
    },
    /// The object was deleted during the wait.
    #[error("{0} was deleted during the wait")]
    Deleted(String),
    /// The Cluster is asleep, and a JoinToken does not wake it.
    #[error("Cluster {name} is asleep")]
    Asleep {
        /// Name of the Cluster.
        name: String,
        /// Namespace of the Cluster.
        namespace: String,
    },
    /// A JoinToken was created, but its join command was not printed.
    #[error("JoinToken {name} {}", describe_unused_token(*is_deleted))]
    NotJoinable {
        /// Name of the JoinToken.
        name: String,
        /// Whether it was deleted; otherwise it exists until it expires.
        is_deleted: bool,
        /// Cause.
        #[source]
        source: Box<Error>,
    },
    /// The Cluster has no kubeconfig yet.
    #[error("Cluster {name} has no kubeconfig yet")]
    NoClusterKubeconfig {
        /// Name of the Cluster.
        name: String,
        /// Namespace of the Cluster.
        namespace: String,
    },
    /// The Secret does not contain a kubeconfig under the agreed key.
    #[error("Secret {0} contains no kubeconfig")]
    KubeconfigInvalid(String),
    /// The Secret does not contain the data of a join command.
    #[error("Secret {0} does not contain a join command")]
    JoinSecretInvalid(String),
    /// The kubeconfig cannot be merged.
    #[error("cannot add to {}", path.display())]
    Merge {
        /// The user's file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: MergeError,
    },
    /// A file cannot be read or written.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// Verb of the failed action.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A file contains no usable public key.
    #[error("cannot use {} as an SSH key: {problem}", path.display())]
    NoPublicKey {
        /// The file.
        path: PathBuf,
        /// Cause.
        problem: &'static str,
    },
    /// Another program is changing the file.
    #[error("{} is being changed by another program", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The lock file.
        lock: PathBuf,
    },
    /// The path of the user's kubeconfig is unknown.
    #[error("neither KUBECONFIG nor HOME is set")]
    NoHome,
    /// Standard input is not a terminal, so the deletion cannot be confirmed.
    #[error("{0} was not deleted, because the deletion was not confirmed")]
    NotConfirmed(String),
    /// The user did not type the name.
    #[error("nothing was deleted")]
    Declined,
    /// An object cannot be converted from or to JSON.
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
    /// Labels or taints that a worker may not register with.
    #[error("the labels or taints are invalid")]
    Node(#[from] NodeError),
    /// The command of `run` does not exist.
    #[error("command {} was not found", .0.display())]
    NoCommand(PathBuf),
    /// The command of `run` cannot be started.
    #[error("cannot run {}", program.display())]
    CommandNotRun {
        /// The command.
        program: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The command of `run` was not started, because its Cluster could not be used.
    #[error("the command was not run")]
    NotRun(#[source] Box<Error>),
    /// The exit status of the command is unknown.
    #[error("cannot wait for the command")]
    CommandStatusUnknown(#[source] std::io::Error),
    /// The command failed, and has printed the reason itself.
    #[error("the command ended with code {0}")]
    CommandFailed(u8),
    /// Signal handlers cannot be installed.
    #[error("cannot install signal handlers")]
    Signals(#[source] std::io::Error),
    /// A signal ended the command.
    #[error("interrupted")]
    Interrupted(SignalKind),
}

impl Error {
    /// Returns the message with all causes.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Several libraries repeat the text of their source in their own text.
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        text
    }

    /// Returns whether the request may have taken effect although it failed.
    pub(crate) fn may_have_succeeded(&self) -> bool {
        match self {
            Self::RequestTimeout { .. } => true,
            Self::Unreachable { source, .. } => !never_connected(source),
            // An API server also answers 5xx for a write that its store has done, but acknowledged
            // too late.
            Self::Refused { status, .. } => status.code >= 500,
            _ => false,
        }
    }

    /// Returns whether a later attempt may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::RequestTimeout { .. } | Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => status.code == 429 || status.code >= 500,
            _ => false,
        }
    }

    /// Returns whether the host's API is overloaded or not ready.
    pub(crate) fn is_overloaded(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if [429, 503, 504].contains(&status.code))
    }

    /// Returns what the user can do about the error.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Kubeconfig(KubeconfigError::CurrentContextNotSet) => {
                Some("choose a context with --context or `kubectl config use-context NAME`".into())
            }
            Self::Kubeconfig(_) | Self::NoKubeconfig(_) => {
                Some("name the host's kubeconfig with --kubeconfig or KUBECONFIG".into())
            }
            Self::UnknownUser(_) => Some("see `kubectl config get-users`".into()),
            Self::Refused { status, .. } => hint_for(status),
            Self::Unreachable { .. } | Self::RequestTimeout { .. } => {
                Some("is this the right host? See `kubectl config current-context`, and try --context".into())
            }
            Self::WaitTimeout { see, .. } => Some(format!("the host continues; see `{see}`")),
            Self::SpecRefused { .. } => {
                Some("change the spec with `kubectl edit`, or delete the object and create it again".into())
            }
            Self::Asleep { name, namespace } => Some(format!(
                "wake it: kubectl patch clusters.yoke.drzzl.io {name} -n {namespace} --type merge -p \
                 '{{\"metadata\":{{\"annotations\":{{\"{}\":\"{}\"}}}},\"spec\":{{\"state\":\"Running\"}}}}'",
                labels::SLEEP,
                labels::SLEEP_END
            )),
            Self::NotJoinable { source, .. } => source.hint_for_join(),
            Self::NotRun(source) => source.hint_for_run(),
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
            Self::NotConfirmed(_) => Some("confirm with --yes where there is no terminal".into()),
            Self::Client(_)
            | Self::Deleted(_)
            | Self::KubeconfigInvalid(_)
            | Self::JoinSecretInvalid(_)
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
            | Self::CommandStatusUnknown(_)
            | Self::CommandFailed(_)
            | Self::Signals(_)
            | Self::Interrupted(_) => None,
        }
    }

    /// Returns what the user can do about a `join` that failed with this error.
    fn hint_for_join(&self) -> Option<String> {
        match self {
            Self::WaitTimeout { see, .. } => Some(format!(
                "see `{see}`, and join again once it is ready, or wait longer with --timeout"
            )),
            Self::SpecRefused { .. } => Some("join again after this is resolved".into()),
            other => other.hint(),
        }
    }

    /// Returns what the user can do about a `run` whose Cluster failed with this error.
    fn hint_for_run(&self) -> Option<String> {
        match self {
            Self::WaitTimeout { .. } => Some(
                "wait longer with --timeout, or create a Cluster with `kubectl yoke create cluster` and look at its conditions".into(),
            ),
            Self::SpecRefused { .. } => Some("run it again with other options, or after this is resolved".into()),
            other => other.hint(),
        }
    }
}

/// Kubernetes' mux answers an unknown path with 404 and without an object's name: the API is not
/// installed.
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
        403 => "a Tenant's users can access only their own namespace: name it with -n, or ask the host's owner",
        404 if is_unknown_path(status) => {
            "is this the right host? See `kubectl config current-context`, and try --context"
        }
        404 if is_missing_namespace(status) => {
            "the namespace is created with its Tenant; the host's owner creates that with `kubectl yoke create tenant NAME`"
        }
        404 => "list existing objects with `kubectl yoke get`, in other namespaces with -n or -A",
        409 => "see the existing object with `kubectl yoke get`, or choose another name",
        _ => return None,
    };
    Some(hint.into())
}

/// Returns whether no connection to the host was established.
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
    fn host_failures_are_not_refusals() {
        for (code, may_have_succeeded, may_pass) in [
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
                (error.may_have_succeeded(), error.may_pass()),
                (may_have_succeeded, may_pass),
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
