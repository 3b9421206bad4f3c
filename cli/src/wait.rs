//! Waits for an object of the host, and tells the user what is pending.
//!
//! No wait is silent: a host that cannot be reached or does not answer is reported at once, and
//! again after each recovery. The wait continues until its timeout, since hosts recover.

use std::time::Duration;

use futures::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use yoke_api::{Cluster, JoinToken, Tenant};
use yoke_view::input::limit;
use yoke_view::progress::{Step, WaitProgress, WaitTimeout};
use yoke_view::verdict::{Refusal, Verdict, judge, judge_join_token, judge_tenant};

use crate::session::Session;
use crate::{Error, output};

/// How long the host may take for its first answer before a message says so.
const SILENCE: Duration = Duration::from_secs(3);

/// Waits until a Cluster has its desired state.
pub(crate) async fn wait_until_ready(session: &Session, name: &str, timeout: Duration) -> Result<(), Error> {
    let wait = Wait {
        session,
        what: format!("Cluster {name}"),
        unmet: "did not become ready",
        met: "ready",
        see: format!("kubectl yoke status {name} -n {}", session.namespace),
    };
    let api = session.api::<Cluster>();
    wait.until(api, name, timeout, Missing::MeansEarlyOrDeleted, judge)
        .await
}

/// Waits until Clusters can be created in a Tenant.
pub(crate) async fn wait_until_tenant_ready(session: &Session, name: &str, timeout: Duration) -> Result<(), Error> {
    let wait = Wait {
        session,
        what: format!("Tenant {name}"),
        unmet: "did not become ready",
        met: "ready",
        see: format!("kubectl yoke get tenant {name} -o wide"),
    };
    let api = Api::<Tenant>::all(session.client.clone());
    wait.until(api, name, timeout, Missing::MeansEarlyOrDeleted, judge_tenant)
        .await
}

/// Waits until workers can join with a JoinToken.
pub(crate) async fn wait_until_joinable(
    session: &Session,
    name: &str,
    cluster: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let wait = Wait {
        session,
        what: format!("JoinToken {name}"),
        unmet: "did not become ready",
        met: "ready",
        see: format!("kubectl yoke status {cluster} -n {}", session.namespace),
    };
    let api = session.api::<JoinToken>();
    wait.until(api, name, timeout, Missing::MeansEarlyOrDeleted, judge_join_token)
        .await
}

/// Waits until an object is gone. `what` describes it in messages.
pub(crate) async fn wait_until_gone<K>(
    session: &Session,
    api: Api<K>,
    name: &str,
    what: &str,
    timeout: Duration,
) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let wait = Wait {
        session,
        what: what.to_owned(),
        unmet: "was not deleted",
        met: "gone",
        see: format!("kubectl yoke get -n {}", session.namespace),
    };
    wait.until(api, name, timeout, Missing::MeansDone, |_: &K| Verdict::Waiting(None))
        .await
}

/// Meaning of the object's absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    MeansDone,
    MeansEarlyOrDeleted,
}

/// Texts that describe a wait.
struct Wait<'a> {
    session: &'a Session,
    what: String,
    unmet: &'static str,
    met: &'static str,
    see: String,
}

impl Wait<'_> {
    async fn until<K>(
        &self,
        api: Api<K>,
        name: &str,
        timeout: Duration,
        missing: Missing,
        judge: impl Fn(&K) -> Verdict,
    ) -> Result<(), Error>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let mut progress = Progress::start();
        let end = limit(timeout).map(|limit| progress.begun + limit);
        let mut changes = std::pin::pin!(watcher::watch_object(api, name).default_backoff());
        let mut answered = false;
        let mut seen = false;
        loop {
            let change = tokio::select! {
                change = changes.try_next() => change,
                () = sleep_until(end) => return Err(self.timed_out(timeout, progress)),
                () = sleep_until(progress.refusal_ends()) => {
                    return progress.state.end().map(drop).map_err(|refusal| self.refused(refusal));
                }
                () = tokio::time::sleep_until(progress.begun + SILENCE), if !answered => {
                    answered = true;
                    progress.report_problem(&format!("no answer yet from the host's API at {}", self.session.url()), "");
                    continue;
                }
            };
            answered = true;
            if change.is_ok() && std::mem::take(&mut progress.away) {
                progress.report("the host's API answers");
            }
            let verdict = match change {
                Ok(Some(Some(object))) => {
                    seen = true;
                    judge(&object)
                }
                Ok(Some(None) | None) if missing == Missing::MeansDone => Verdict::Done,
                Ok(Some(None)) if !seen => {
                    progress.report(&format!("there is no {} yet", self.what));
                    continue;
                }
                Ok(Some(None) | None) => return Err(Error::Deleted(self.what.clone())),
                Err(error) => {
                    let problem = to_watch_problem(self.session, &format!("waiting for {}", self.what), error)?;
                    problem
                        .iter()
                        .for_each(|problem| progress.report_problem(problem, "; trying again"));
                    continue;
                }
            };
            if self.handle_verdict(verdict, &mut progress)? {
                return Ok(());
            }
        }
    }

    /// Reports progress and returns whether the wait is over.
    fn handle_verdict(&self, verdict: Verdict, progress: &mut Progress) -> Result<bool, Error> {
        match progress.state.follow(verdict, progress.begun.elapsed()) {
            Step::Done => {
                progress.report(self.met);
                return Ok(true);
            }
            Step::Pending(message) => message.iter().for_each(|message| progress.report(message)),
            Step::Refused(refusal) => return Err(self.refused(refusal)),
        }
        Ok(false)
    }

    fn refused(&self, refusal: Refusal) -> Error {
        Error::SpecRefused {
            what: self.what.clone(),
            refusal,
        }
    }

    fn timed_out(&self, limit: Duration, progress: Progress) -> Error {
        Error::WaitTimeout {
            timeout: WaitTimeout {
                what: format!("{} {}", self.what, self.unmet),
                limit,
                last: progress.state.last().map(str::to_owned),
            },
            see: self.see.clone(),
        }
    }
}

/// A wait in progress.
struct Progress {
    begun: Instant,
    state: WaitProgress,
    /// Whether the host could not be reached last.
    away: bool,
}

impl Progress {
    fn start() -> Self {
        Self {
            begun: Instant::now(),
            state: WaitProgress::default(),
            away: false,
        }
    }

    fn refusal_ends(&self) -> Option<Instant> {
        self.state.refusal_ends().map(|until| self.begun + until)
    }

    /// Prints a message with the elapsed time, unless it repeats the previous one.
    fn report(&mut self, message: &str) {
        self.print_with(message, "");
    }

    /// Prints why the host cannot be reached, and what happens next.
    fn report_problem(&mut self, problem: &str, what_follows: &str) {
        self.away = true;
        self.print_with(problem, what_follows);
    }

    fn print_with(&mut self, message: &str, what_follows: &str) {
        if let Some(line) = self.state.line(message, self.begun.elapsed()) {
            output::print_message(&format!("{line}{what_follows}"));
        }
    }
}

/// Describes why a watch cannot be started. Returns `None` if a running watch ended, which is
/// normal and restarts by itself. Fails if the host's answer is final.
pub(crate) fn to_watch_problem(session: &Session, doing: &str, error: watcher::Error) -> Result<Option<String>, Error> {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return Ok(None);
    };
    let passing = [408, 410, 429];
    let lasting = matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code) && !passing.contains(&status.code));
    let error = session.explain(doing, error);
    if lasting {
        return Err(error);
    }
    let text = error.with_causes();
    let text = text.strip_prefix(&format!("{doing}: ")).unwrap_or(&text);
    Ok(Some(text.to_owned()))
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
