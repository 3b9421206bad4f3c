//! `join`: creates a JoinToken and prints the command that joins a worker.

use k8s_openapi::api::core::v1::Secret;
use yoke_api::join_token::node::{NodeError, check_taints, collect_labels};
use yoke_api::join_token::{JoinLine, JoinTokenSpec, secret_name};
use yoke_api::{Cluster, JoinToken};
use yoke_view::verdict::{Obstacle, find_obstacle};

use crate::arguments::JoinOptions;
use crate::session::Session;
use crate::signals::Signals;
use crate::temporary_object::{self, create_temporary};
use crate::{Error, output, wait};

/// Tells the user the fate of a JoinToken that this program cannot delete.
const FATE: &str = "its join command was not printed, and it exists until it expires";

/// Creates a JoinToken, waits until it is ready, and prints the join command. The command is a
/// credential and is printed only here, once. If it cannot be printed, also after a signal, the
/// JoinToken is deleted; a second signal skips the deletion.
pub(crate) async fn join(session: &Session, options: &JoinOptions) -> Result<(), Error> {
    check(session, &options.name).await?;
    let mut signals = Signals::listen()?;
    let (prefix, doing) = (
        format!("{}-", options.name),
        format!("creating a JoinToken for Cluster {}", options.name),
    );
    let token = build_token(options)?;
    let (name, signal) = create_temporary(session, &mut signals, &prefix, token, &doing, FATE).await?;
    let found = async {
        match signal {
            Some(signal) => Err(Error::Interrupted(signal)),
            None => find_line(session, &name, options).await,
        }
    };
    let line = tokio::select! {
        line = found => line,
        signal = signals.next() => Err(Error::Interrupted(signal)),
    };
    let line = match line {
        Ok(line) => line,
        Err(error) => {
            // The join command was not printed, so the JoinToken is of no use.
            let is_deleted = tokio::select! {
                is_deleted = delete(session, &name) => is_deleted,
                _ = signals.next() => {
                    output::print_message(&format!("JoinToken {name} exists until it expires"));
                    false
                }
            };
            return Err(match error {
                Error::Interrupted(signal) => Error::Interrupted(signal),
                error => Error::NotJoinable {
                    name,
                    is_deleted,
                    source: Box::new(error),
                },
            });
        }
    };
    output::print_message(&format!(
        "revoke it: kubectl delete jointoken {name} -n {}",
        session.namespace
    ));
    output::put(&format!("{line}\n"))
}

/// Fails early if no worker could join the Cluster.
async fn check(session: &Session, name: &str) -> Result<(), Error> {
    let doing = format!("getting Cluster {name}");
    let api = session.api::<Cluster>();
    let cluster = session.request(&doing, || api.get(name)).await?;
    match find_obstacle(&cluster) {
        None => Ok(()),
        Some(Obstacle::Asleep) => Err(Error::Asleep {
            name: name.to_owned(),
            namespace: session.namespace.clone(),
        }),
        Some(Obstacle::Refused(refusal)) => Err(Error::SpecRefused {
            what: format!("Cluster {name}"),
            refusal,
        }),
    }
}

/// Deletes a JoinToken and returns whether it is gone.
async fn delete(session: &Session, name: &str) -> bool {
    let deleted = temporary_object::delete::<JoinToken>(session, name).await;
    deleted
        .inspect_err(|error| output::print_message(&error.with_causes()))
        .is_ok()
}

/// Waits for the join command and returns it.
async fn find_line(session: &Session, name: &str, options: &JoinOptions) -> Result<String, Error> {
    wait::wait_until_joinable(session, name, &options.name, options.timeout).await?;
    let secret = secret_name(name);
    let doing = format!("getting Secret {secret}");
    let api = session.api::<Secret>();
    let found = session.request_until_allowed(&doing, || api.get(&secret)).await?;
    let line = JoinLine::from_secret(&found).and_then(|line| line.command().ok());
    line.ok_or(Error::JoinSecretInvalid(secret))
}

fn build_token(options: &JoinOptions) -> Result<JoinToken, NodeError> {
    check_taints(&options.taints)?;
    let spec = JoinTokenSpec {
        cluster_name: options.name.clone(),
        max_uses: options.uses,
        ttl: options.ttl.clone(),
        reap_after: options.reap_after.clone(),
        node_labels: collect_labels(&options.labels)?,
        taints: options.taints.clone(),
    };
    Ok(JoinToken::new("", spec))
}
