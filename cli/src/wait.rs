//! Waiting for a Cluster to become ready, telling the person what it waits for.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use yoke_api::cluster::DesiredState;
use yoke_api::{Cluster, ConditionType};

use crate::duration::limit;
use crate::render::find;
use crate::session::Session;
use crate::{Error, output};

/// What a Cluster's status says to somebody who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is as asked for.
    Done,
    /// It will not become so.
    Refused { reason: String, message: String },
    /// It may yet, and this is what it waits for.
    Waiting(Option<String>),
}

/// Judges by conditions of the present generation only: those of an older spec say nothing.
pub(crate) fn judge(cluster: &Cluster) -> Verdict {
    let status = cluster.status.clone().unwrap_or_default();
    if status.observed_generation < cluster.metadata.generation {
        return Verdict::Waiting(None);
    }
    let is = |wanted, state: &str| find(&status.conditions, wanted).filter(|condition| condition.status == state);
    if let Some(accepted) = is(ConditionType::Accepted, "False") {
        return Verdict::Refused {
            reason: accepted.reason.clone(),
            message: accepted.message.clone(),
        };
    }
    let done = match cluster.spec.state {
        DesiredState::Running => ConditionType::Ready,
        DesiredState::Asleep => ConditionType::Asleep,
    };
    if is(done, "True").is_some() {
        return Verdict::Done;
    }
    let telling = is(ConditionType::Progressing, "True").or_else(|| find(&status.conditions, done));
    Verdict::Waiting(
        telling
            .map(|condition| condition.message.clone())
            .filter(|message| !message.is_empty()),
    )
}

/// Waits until a Cluster is as asked for.
pub(crate) async fn wait_until_ready(session: &Session, name: &str, timeout: Duration) -> Result<(), Error> {
    let mut last = None;
    let done = follow(session, name, &mut last);
    match limit(timeout) {
        None => done.await,
        Some(limit) => match tokio::time::timeout(limit, done).await {
            Ok(result) => result,
            Err(_) => Err(Error::WaitTimeout {
                what: format!("Cluster {name} did not become ready"),
                limit,
                last,
                see: format!("kubectl yoke status {name} -n {}", session.namespace),
            }),
        },
    }
}

async fn follow(session: &Session, name: &str, last: &mut Option<String>) -> Result<(), Error> {
    let doing = format!("waiting for Cluster {name}");
    let started = Instant::now();
    let mut seen = false;
    let mut changes = std::pin::pin!(watcher::watch_object(session.api::<Cluster>(), name).default_backoff());
    loop {
        let cluster = match changes.try_next().await {
            Ok(Some(cluster)) => cluster,
            Ok(None) => return Err(Error::Deleted(format!("Cluster {name}"))),
            Err(error) => {
                pass_over(session, &doing, error)?;
                continue;
            }
        };
        let Some(cluster) = cluster else {
            if seen {
                return Err(Error::Deleted(format!("Cluster {name}")));
            }
            continue;
        };
        seen = true;
        match judge(&cluster) {
            Verdict::Done => {
                output::say(&format!("{:>4}s  ready", started.elapsed().as_secs()));
                return Ok(());
            }
            Verdict::Refused { reason, message } => {
                return Err(Error::ClusterRefused {
                    name: name.to_owned(),
                    reason,
                    message,
                });
            }
            Verdict::Waiting(message) => {
                if message.is_some() && message != *last {
                    output::say(&format!(
                        "{:>4}s  {}",
                        started.elapsed().as_secs(),
                        message.as_deref().unwrap_or_default()
                    ));
                    *last = message;
                }
            }
        }
    }
}

/// Waits until a watched object is gone.
pub(crate) async fn wait_until_gone<K>(
    session: &Session,
    api: kube::Api<K>,
    name: &str,
    what: &str,
    timeout: Duration,
) -> Result<(), Error>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let doing = format!("waiting for {what} to go");
    let gone = async {
        let mut changes = std::pin::pin!(watcher::watch_object(api, name).default_backoff());
        loop {
            match changes.try_next().await {
                Ok(Some(Some(_))) => {}
                Ok(Some(None) | None) => return Ok(()),
                Err(error) => pass_over(session, &doing, error)?,
            }
        }
    };
    match limit(timeout) {
        None => gone.await,
        Some(limit) => tokio::time::timeout(limit, gone).await.unwrap_or_else(|_| {
            Err(Error::WaitTimeout {
                what: format!("{what} did not go"),
                limit,
                last: None,
                see: format!("kubectl yoke get -n {}", session.namespace),
            })
        }),
    }
}

/// Lets a watch that broke start again, except where the host's answer will stay the same.
pub(crate) fn pass_over(session: &Session, doing: &str, error: watcher::Error) -> Result<(), Error> {
    let lasting = |error: &kube::Error| matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 410 && status.code != 429);
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) if lasting(&error) => {
            Err(session.explain(doing, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(state: &str, observed: i64, conditions: &str) -> Cluster {
        let text = format!(
            "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {{name: a, generation: 2}}, spec: {{state: {state}}}, \
             status: {{observedGeneration: {observed}, conditions: [{conditions}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    fn condition(name: &str, status: &str, message: &str) -> String {
        format!(
            "{{type: {name}, status: '{status}', reason: R, message: '{message}', lastTransitionTime: '2026-01-01T00:00:00Z'}}"
        )
    }

    #[test]
    fn verdict_follows_conditions_of_this_generation() {
        let waiting = |message: &str| Verdict::Waiting(Some(message.to_owned()));
        let refused = Verdict::Refused {
            reason: "R".into(),
            message: "no".into(),
        };
        let (ready, not_ready) = (
            condition("Ready", "True", "ok"),
            condition("Ready", "False", "starting"),
        );
        let progressing = condition("Progressing", "True", "certificates");
        for (rule, cluster, verdict) in [
            ("ready", cluster("Running", 2, &ready), Verdict::Done),
            ("older spec", cluster("Running", 1, &ready), Verdict::Waiting(None)),
            (
                "refused",
                cluster("Running", 2, &condition("Accepted", "False", "no")),
                refused,
            ),
            ("not ready", cluster("Running", 2, &not_ready), waiting("starting")),
            (
                "progress tells more",
                cluster("Running", 2, &format!("{not_ready}, {progressing}")),
                waiting("certificates"),
            ),
            ("nothing yet", cluster("Running", 2, ""), Verdict::Waiting(None)),
            (
                "awake, to be asleep",
                cluster("Asleep", 2, &ready),
                Verdict::Waiting(None),
            ),
            (
                "asleep",
                cluster("Asleep", 2, &condition("Asleep", "True", "")),
                Verdict::Done,
            ),
        ] {
            assert_eq!(judge(&cluster), verdict, "{rule}");
        }
    }
}
