//! Errors of all commands, printed as `error: …` and, where there is one, `hint: …`.

use std::time::Duration;

use kube::core::Status;
use serde_json::json;
use yoke_view::progress::{WaitTimeout, describe_unused_token, format_last};
use yoke_view::verdict::Refusal;

use crate::tenant::nodes_error::NodesError;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The line is not a valid command; the text says why.
    #[error("{0}")]
    Usage(String),
    /// The key exceeds its rate of commands.
    #[error("too many commands with this key")]
    RateLimited,
    /// A request for Nodes is already in progress for this Tenant, or too many are for others.
    #[error("too many requests for Nodes are in progress")]
    Busy,
    /// The key was removed from the Tenant, or belongs to another Tenant now.
    #[error("this key no longer belongs to your Tenant")]
    KeyWithdrawn,
    /// The token does not list the command.
    #[error("the token does not permit `{0}`")]
    NotPermitted(&'static str),
    /// The interface was idle for too long.
    #[error("no key was pressed for {0:?}")]
    Idle(Duration),
    /// The connection has reached its maximum age.
    #[error("this connection has been open for too long")]
    TooOld,
    /// The process ends.
    #[error("the server is about to restart")]
    Draining,
    /// The name of the Tenant cannot be put into an HTTP header.
    #[error("the name of Tenant {0:?} cannot be used")]
    TenantName(String),
    /// The host's API refused the request.
    #[error("{doing}: {}", status.message)]
    Refused {
        /// Action during which the error happened.
        doing: String,
        /// The API's answer.
        status: Box<Status>,
    },
    /// The host's API did not answer.
    #[error("{doing}: the host's API cannot be reached")]
    Unreachable {
        /// Action during which the error happened.
        doing: String,
        /// Cause. Not shown to Tenants, because it contains addresses of the host.
        #[source]
        source: Box<kube::Error>,
    },
    /// One request took too long.
    #[error("{doing}: no answer from the host's API within {limit:?}")]
    Timeout {
        /// Action during which the error happened.
        doing: String,
        /// The timeout.
        limit: Duration,
    },
    /// A watch ended unexpectedly.
    #[error("{doing}: the host's API ended it")]
    WatchEnded {
        /// Action during which the error happened.
        doing: String,
    },
    /// A wait exceeded its timeout.
    #[error("{0}")]
    WaitTimeout(WaitTimeout),
    /// A wait for a JoinToken exceeded its timeout; its join command was not printed.
    #[error("JoinToken {name} did not become ready within {limit:?}; it {}{}", describe_unused_token(*is_deleted), format_last(last.as_deref()))]
    JoinTimeout {
        /// Name of the JoinToken.
        name: String,
        /// Cluster of the JoinToken.
        cluster: String,
        /// The timeout.
        limit: Duration,
        /// The last message that was seen.
        last: Option<String>,
        /// Whether it was deleted; otherwise it exists until it expires.
        is_deleted: bool,
    },
    /// A JoinToken will not become ready; its join command was not printed.
    #[error("JoinToken {name} is {refusal}")]
    JoinRefused {
        /// Name of the JoinToken.
        name: String,
        /// Cluster of the JoinToken.
        cluster: String,
        /// The condition.
        refusal: Refusal,
    },
    /// The operator refuses the spec.
    #[error("Cluster {name} is {refusal}")]
    SpecRefused {
        /// Name of the Cluster.
        name: String,
        /// The condition.
        refusal: Refusal,
    },
    /// The Cluster was deleted during the wait.
    #[error("Cluster {0} was deleted during the wait")]
    Deleted(String),
    /// The client disconnected during the wait, and the command was undone.
    #[error("the client no longer waits for Cluster {0}")]
    JoinAbandoned(String),
    /// The client disconnected during the wait, and the command stays in effect.
    #[error("the client no longer waits for Cluster {0}")]
    WaitAbandoned(String),
    /// The Cluster is asleep, and the command does not wake it.
    #[error("Cluster {0} is asleep")]
    Asleep(String),
    /// The Cluster's own API did not answer.
    #[error("the API of Cluster {name} did not answer")]
    ClusterUnreachable {
        /// Name of the Cluster.
        name: String,
        /// Cause. Not shown to Tenants, because it contains addresses of the host.
        #[source]
        source: Box<NodesError>,
    },
    /// The Cluster has no kubeconfig yet.
    #[error("Cluster {0} has no kubeconfig yet")]
    NoKubeconfig(String),
    /// The Secret does not contain a kubeconfig under the agreed key.
    #[error("the kubeconfig of Cluster {0} cannot be read")]
    KubeconfigInvalid(String),
    /// The Secret of a JoinToken does not contain the data of a join command.
    #[error("the join command of JoinToken {0} cannot be read")]
    JoinSecretInvalid(String),
    /// The host's owner has not configured the directory with the worker programs.
    #[error("this server has no yoke-worker to download")]
    NoBinaries,
    /// There is no worker program for the architecture.
    #[error("there is no yoke-worker for {asked:?}, only for {there}")]
    NoArchitecture {
        /// The requested architecture.
        asked: String,
        /// Comma-separated list of the available architectures.
        there: String,
    },
    /// The worker program cannot be read.
    #[error("yoke-worker cannot be read")]
    Binary(#[source] std::io::Error),
    /// A worker program is binary: it cannot be sent to a terminal or over HTTPS.
    #[error("yoke-worker is sent only over SSH, and not to a terminal")]
    BinaryNotPrintable,
    /// The Tenant has reached its limit of concurrent downloads.
    #[error("too many downloads of yoke-worker by your Tenant are in progress")]
    TooManyDownloads,
    /// The client disconnected or stopped reading during a download.
    #[error("the download of yoke-worker was not completed")]
    DownloadAbandoned,
    /// The deletion was not confirmed.
    #[error("Cluster {0} was not deleted: its name was not typed, and --yes was not given")]
    NotConfirmed(String),
    /// The answer cannot be written as JSON.
    #[error("writing the answer")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Returns the exit code of the command.
    pub fn exit_code(&self) -> u32 {
        match self {
            Self::Usage(_) | Self::NoArchitecture { .. } | Self::BinaryNotPrintable => 2,
            Self::WaitTimeout(_) | Self::WaitAbandoned(_) => 3,
            _ => 1,
        }
    }

    /// Returns the word for logs, metrics and the `reason` in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Usage(_) => "usage",
            Self::RateLimited => "rate",
            Self::Busy => "busy",
            Self::KeyWithdrawn => "key_withdrawn",
            Self::NotPermitted(_) => "not_permitted",
            Self::Idle(_) => "idle",
            Self::TooOld => "too_old",
            Self::Draining => "draining",
            Self::Refused { status, .. } if status.code == 403 => "forbidden",
            Self::Refused { status, .. } if status.code == 404 => "not_found",
            Self::Refused { .. } | Self::SpecRefused { .. } | Self::JoinRefused { .. } => "refused",
            Self::Unreachable { .. } | Self::WatchEnded { .. } | Self::ClusterUnreachable { .. } => "unreachable",
            Self::Timeout { .. } | Self::WaitTimeout(_) => "timeout",
            Self::NotConfirmed(_) => "not_confirmed",
            Self::NoBinaries => "not_set_up",
            Self::NoArchitecture { .. } => "not_found",
            Self::BinaryNotPrintable => "usage",
            Self::TooManyDownloads => "busy",
            Self::DownloadAbandoned => "abandoned",
            Self::NoKubeconfig(_) | Self::JoinTimeout { .. } => "not_ready",
            Self::Asleep(_) => "asleep",
            Self::Deleted(_) => "deleted",
            Self::JoinAbandoned(_) | Self::WaitAbandoned(_) => "abandoned",
            Self::TenantName(_)
            | Self::KubeconfigInvalid(_)
            | Self::JoinSecretInvalid(_)
            | Self::Binary(_)
            | Self::Json(_) => "failed",
        }
    }

    /// Returns what the user can do about the error.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            // clap's text contains a hint of its own.
            Self::Usage(text) if text.contains("--help") => return None,
            Self::Usage(_) => "see `help`".to_owned(),
            Self::RateLimited | Self::Busy => "try again in a few seconds".to_owned(),
            Self::KeyWithdrawn => "ask the owner of the host to which Tenant it belongs".to_owned(),
            Self::NotPermitted(name) => format!("sign a token whose `commands` name `{name}`"),
            Self::Idle(_) | Self::TooOld | Self::Draining => "connect again".to_owned(),
            Self::Refused { status, .. } => return hint_for(status),
            Self::Unreachable { .. } | Self::WatchEnded { .. } | Self::Timeout { .. } => {
                "try again in a minute".to_owned()
            }
            Self::WaitTimeout(_) | Self::WaitAbandoned(_) => "the host continues; see `clusters --wide`".to_owned(),
            Self::JoinTimeout { cluster, .. } => {
                format!("see `clusters {cluster} --wide`, and `join {cluster}` again once it is ready")
            }
            Self::JoinRefused { cluster, .. } => format!("`join {cluster}` again after this is resolved"),
            Self::SpecRefused { .. } => "delete it and create it again as the message says".to_owned(),
            Self::Asleep(name) => format!("`wake {name}`"),
            Self::ClusterUnreachable { name, .. } => {
                format!(
                    "see `clusters {name} --wide`; with `allowedCIDRs` in its spec, it answers only clients from there"
                )
            }
            Self::NoKubeconfig(name) => format!("it is created with the Cluster; see `clusters {name} --wide`"),
            Self::NotConfirmed(name) => format!("`delete {name} --yes`; everything in it will be lost"),
            Self::NoBinaries => {
                "the owner of the host puts yoke-worker-amd64 and others into a directory, and names it with \
                                 --worker-binaries (`ssh.workerBinaries` of the chart)"
                    .to_owned()
            }
            Self::NoArchitecture { .. } => "`uname -m` on the machine prints its architecture".to_owned(),
            Self::BinaryNotPrintable => "ssh HOST worker-binary amd64 > yoke-worker".to_owned(),
            Self::TooManyDownloads => "try again when one has finished".to_owned(),
            Self::Binary(_) => "report this to the owner of the host".to_owned(),
            Self::TenantName(_)
            | Self::Deleted(_)
            | Self::JoinAbandoned(_)
            | Self::KubeconfigInvalid(_)
            | Self::JoinSecretInvalid(_)
            | Self::DownloadAbandoned
            | Self::Json(_) => {
                return None;
            }
        };
        Some(hint)
    }

    /// Formats the error for the user.
    pub fn to_text(&self, as_json: bool) -> String {
        let hint = self.hint();
        if as_json {
            return format!(
                "{}\n",
                json!({"error": self.to_string(), "reason": self.as_str(), "hint": hint})
            );
        }
        let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        format!("error: {self}\n{hint}")
    }

    /// Formats the error with its causes, for the host's owner.
    pub fn with_causes(&self) -> String {
        with_causes(self)
    }
}

/// Formats an error with its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn hint_for(status: &Status) -> Option<String> {
    let hint = match status.code {
        401 | 403 => {
            "SSH may not act for your Tenant yet: try again in a moment; if this lasts, tell the owner of the host"
        }
        404 => "see `clusters` for existing Clusters",
        409 if status.reason == "AlreadyExists" => "see `clusters` for existing Clusters, or choose another name",
        409 => "it was changed at the same time: try again",
        429 | 500..=599 => "try again in a minute",
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> Error {
        let status = format!("{{code: {code}, message: clusters \\\"a\\\" no, reason: {reason}}}").replace("\\\"", "'");
        Error::Refused {
            doing: "getting Cluster a".into(),
            status: Box::new(serde_saphyr::from_str(&status).unwrap()),
        }
    }

    #[test]
    fn errors_say_what_was_done_and_what_to_do() {
        assert_eq!(
            refused(404, "NotFound").to_text(false),
            "error: getting Cluster a: clusters 'a' no\nhint: see `clusters` for existing Clusters\n"
        );
        assert_eq!(
            refused(409, "AlreadyExists").to_text(true),
            "{\"error\":\"getting Cluster a: clusters 'a' no\",\"hint\":\"see `clusters` for existing Clusters, or choose another name\",\
             \"reason\":\"refused\"}\n"
        );
        assert_eq!(
            Error::RateLimited.to_text(false),
            "error: too many commands with this key\nhint: try again in a few seconds\n"
        );
    }

    #[test]
    fn exit_codes_are_those_of_the_help() {
        let wait = Error::WaitTimeout(WaitTimeout {
            what: "Cluster a did not become ready".into(),
            limit: Duration::from_secs(1),
            last: Some("starting".into()),
        });
        assert_eq!(
            wait.to_string(),
            "Cluster a did not become ready within 1s; last seen: starting"
        );
        for (error, code) in [(wait, 3), (Error::Usage("x".into()), 2), (Error::RateLimited, 1)] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }

    #[test]
    fn failed_join_leaves_nothing() {
        let (name, cluster) = (|| "a-1".to_owned(), || "a".to_owned());
        let timeout = |is_deleted| Error::JoinTimeout {
            name: name(),
            cluster: cluster(),
            limit: Duration::from_secs(60),
            last: Some("The API of Cluster a does not answer.".into()),
            is_deleted,
        };
        let refused = Error::JoinRefused {
            name: name(),
            cluster: cluster(),
            refusal: Refusal {
                reason: "QuotaExceeded".into(),
                message: "There are 64 older ones.".into(),
            },
        };
        for (error, text) in [
            (
                timeout(true),
                "error: JoinToken a-1 did not become ready within 60s; it was deleted, so no worker can join with it; \
                 last seen: The API of Cluster a does not answer.\n\
                 hint: see `clusters a --wide`, and `join a` again once it is ready\n",
            ),
            (
                timeout(false),
                "error: JoinToken a-1 did not become ready within 60s; it could not be deleted, but its join command was not printed; \
                 last seen: The API of Cluster a does not answer.\n\
                 hint: see `clusters a --wide`, and `join a` again once it is ready\n",
            ),
            (
                refused,
                "error: JoinToken a-1 is refused (QuotaExceeded): There are 64 older ones.\n\
                 hint: `join a` again after this is resolved\n",
            ),
        ] {
            assert_eq!((error.exit_code(), error.to_text(false).as_str()), (1, text));
        }
    }
}
