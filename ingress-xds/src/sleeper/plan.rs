//! What a request to a cluster that sleeps is told. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use yoke_api::ingress::{Asleep, Callers};

use super::identity::{Identity, Stranger, identify};
use crate::gate::request::{IGNORED, LATER, SOON, bearer_token, is_foreign};
use crate::model::{Route, Sleep};
use crate::snapshot::{Entry, Snapshot, resource_name};

/// When to come again who need not wait any more.
const NOW: i32 = 0;
const WAKING: &str =
    "the cluster was asleep and is being woken; if this lasts, its condition Ready says what is missing";

/// What is looked at of a request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The server name of the connection.
    pub name: &'a str,
    /// The client's own certificate, if it showed one. That it has the key is known, and nothing else.
    pub certificates: &'a [CertificateDer<'a>],
    /// The header `authorization`.
    pub authorization: Option<&'a str>,
    /// `:authority`, or the header `host`.
    pub authority: &'a str,
    /// The header `user-agent`, which says what the client likes: it spares a wake, and causes none.
    pub agent: &'a [u8],
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Wake the cluster, and answer when it is awake, or after a while [`Answer::Waited`].
    Wake(Arc<Entry>),
    /// Wake it for a stranger, and answer him [`Answer::Waking`] of no seconds at once: who waits takes a place, and those are
    /// for whom the cluster knows.
    WakeForStranger(Arc<Entry>),
    /// It is being woken; the same.
    Wait,
    /// Only answer.
    Answer(Answer),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nobody has read the host yet, or the cluster is awake: by another connection it is reached.
    Elsewhere,
    /// It was being woken a moment ago, and is awake now.
    Awake,
    /// It is being woken, for so many seconds by now.
    Waking(i32),
    /// It is being woken still. The caller has been held: his next try, which is held too, may come at once.
    Waited,
    /// It is being woken, and that does not come to an end: to repeat the request does not help.
    Stuck(String),
    /// More is asked for than may be.
    Busy,
    /// It waits until a user needs it.
    Unneeded,
    /// It waits until somebody needs it by another client.
    Ignored,
    /// It wakes for nobody who connects.
    Held(String),
    /// The caller is nobody.
    Stranger(Stranger),
    /// It asks for another cluster.
    Misdirected,
}

impl Answer {
    /// The answer as a word for metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::Awake => "awake",
            Self::Waking(_) | Self::Waited => "waking",
            Self::Stuck(_) => "stuck",
            Self::Busy => "busy",
            Self::Unneeded => "unneeded",
            Self::Ignored => "ignored",
            Self::Held(_) => "held",
            Self::Stranger(Stranger::Unverified) => "unverified",
            Self::Stranger(Stranger::Nothing) => "no_identity",
            Self::Stranger(Stranger::Certificate) => "certificate",
            Self::Stranger(Stranger::Token(error)) => error.as_str(),
            Self::Misdirected => "misdirected",
        }
    }

    /// Whether only somebody is told so whom the cluster knows.
    pub const fn is_to_known(&self) -> bool {
        matches!(self, Self::Unneeded | Self::Held(_) | Self::Stuck(_))
    }

    /// The answer as Kubernetes gives it.
    pub fn to_status(&self) -> Status {
        let (code, reason, message, retry) = match self {
            Self::Elsewhere => (503, "ServiceUnavailable", "connect again", Some(SOON)),
            Self::Awake => (
                503,
                "ServiceUnavailable",
                "the cluster was asleep, and is awake now",
                Some(NOW),
            ),
            Self::Waking(seconds) => (503, "ServiceUnavailable", WAKING, Some(plan_retry(*seconds))),
            Self::Waited => (503, "ServiceUnavailable", WAKING, Some(NOW)),
            Self::Stuck(problem) => (503, "ServiceUnavailable", problem.as_str(), None),
            Self::Busy => (
                429,
                "TooManyRequests",
                "the cluster is asleep, and too many are woken or asked for at once",
                Some(SOON),
            ),
            Self::Unneeded => (
                503,
                "ServiceUnavailable",
                "the cluster is asleep, and does not wake for its nodes and controllers",
                Some(LATER),
            ),
            Self::Ignored => (503, "ServiceUnavailable", IGNORED, Some(LATER)),
            Self::Held(why) => (403, "Forbidden", why.as_str(), None),
            Self::Stranger(Stranger::Unverified) => (
                503,
                "ServiceUnavailable",
                "such a token cannot be checked while the cluster sleeps; somebody with a client certificate or a service account's \
                 token must wake it",
                None,
            ),
            Self::Stranger(_) => (401, "Unauthorized", "Unauthorized", None),
            Self::Misdirected => (
                421,
                "MisdirectedRequest",
                "the host name belongs to another cluster; open a connection to it",
                None,
            ),
        };
        Status {
            code: Some(code),
            details: retry.map(|seconds| StatusDetails {
                retry_after_seconds: Some(seconds),
                ..StatusDetails::default()
            }),
            message: Some(message.to_owned()),
            reason: Some(reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }
    }
}

/// What a request to a cluster that sleeps is told.
pub fn plan_answer(snapshot: Option<&Snapshot>, call: Call<'_>, now: Timestamp) -> Decision {
    let entry = snapshot.and_then(|snapshot| Some((snapshot, snapshot.get(&resource_name(call.name))?)));
    let Some((snapshot, entry)) = entry else {
        return Decision::Answer(Answer::Elsewhere);
    };
    if is_foreign(snapshot, &entry.route, call.authority) {
        return Decision::Answer(Answer::Misdirected);
    }
    let Some(Sleep { told, client_ca }) = &entry.route.asleep else {
        return Decision::Answer(Answer::Elsewhere);
    };
    let who = || identify_caller(&entry.route, client_ca, call, now);
    match told {
        Asleep::Waking { since, problem } => {
            // The operator's clock may be another one.
            let seconds =
                || i32::try_from(now.duration_since(since.0).as_secs()).map_or(0, |seconds| seconds.clamp(0, 30));
            match (problem, who()) {
                (Some(problem), Ok(_)) => Decision::Answer(Answer::Stuck(build_advice(problem))),
                (None, Ok(identity)) if identity.is_user() => Decision::Wait,
                _ => Decision::Answer(Answer::Waking(seconds())),
            }
        }
        Asleep::Held { why } => Decision::Answer(match who() {
            Ok(_) => Answer::Held(why.clone()),
            Err(stranger) => Answer::Stranger(stranger),
        }),
        Asleep::OnConnect {
            callers,
            ignored_agents,
            ..
        } => match (callers, who()) {
            (_, Ok(identity)) if !identity.is_user() => Decision::Answer(Answer::Unneeded),
            (Callers::Authenticated, Err(stranger)) => Decision::Answer(Answer::Stranger(stranger)),
            _ if ignored_agents.has(call.agent) => Decision::Answer(Answer::Ignored),
            (_, Ok(_)) => Decision::Wake(Arc::clone(entry)),
            (Callers::Any, Err(_)) => Decision::WakeForStranger(Arc::clone(entry)),
        },
    }
}

/// Whether a cluster that sleeps knows who shows these certificates.
pub fn is_known(snapshot: Option<&Snapshot>, name: &str, certificates: &[CertificateDer<'_>], now: Timestamp) -> bool {
    let entry = snapshot.and_then(|snapshot| snapshot.get(&resource_name(name)));
    let Some((entry, asleep)) = entry.and_then(|entry| Some((entry, entry.route.asleep.as_ref()?))) else {
        return false;
    };
    identify(&entry.route, &asleep.client_ca, certificates, None, now).is_ok()
}

/// Whether who shows these certificates may wake a cluster, whatever he asks for.
pub fn may_wake(route: &Route, certificates: &[CertificateDer<'_>], now: Timestamp) -> bool {
    let Some(Sleep {
        told: Asleep::OnConnect { .. },
        client_ca,
    }) = &route.asleep
    else {
        return false;
    };
    identify(route, client_ca, certificates, None, now).is_ok_and(|identity| identity.is_user())
}

/// How long to wait before the next try of a cluster that has been woken for so long. client-go repeats ten times: with these
/// it is there for half a minute, and who is held each time for 50 seconds.
fn plan_retry(seconds: i32) -> i32 {
    match seconds {
        ..4 => SOON,
        _ => SOON + seconds / 3,
    }
}

/// What is wrong when a cluster does not wake, and what to do.
pub fn build_advice(problem: &str) -> String {
    format!("{problem} Ask the cluster's owner: the conditions of the Cluster say more.")
}

fn identify_caller(route: &Route, client_ca: &str, call: Call<'_>, now: Timestamp) -> Result<Identity, Stranger> {
    let bearer = call.authorization.and_then(bearer_token);
    identify(route, client_ca, call.certificates, bearer, now)
}

#[cfg(test)]
mod tests {
    use yoke_api::ingress::IgnoredAgents;

    use super::*;
    use crate::fixtures::{BASE_DOMAIN, ClusterFixture, Signer, claims, cluster, since, waking};
    use crate::model::Target;
    use crate::translate::{Limits, translate};
    use crate::validate::{Rules, validate_config};

    const NOW: i64 = 1_800_000_000;

    fn snapshot_of(fixture: &ClusterFixture) -> Snapshot {
        let route = validate_config(&Rules::new(BASE_DOMAIN), &fixture.config_map());
        let target = Target {
            route: Arc::new(route.unwrap().route),
            addresses: ["192.0.2.1".parse().unwrap()].into(),
            port: 18443,
        };
        let mut snapshot = Snapshot::default();
        let name = fixture.public_name();
        let entry = translate(&name, &target, Limits::default());
        snapshot.set(&resource_name(&name), Some(entry));
        snapshot
    }

    #[test]
    fn who_connects_by_which_client_decides() {
        let signer = Signer::p256();
        let mut fixture = cluster("a", "bcdfghjk24");
        fixture.config.service_account_keys = vec![signer.pem.clone()];
        let issuer = fixture.config.issuer.clone();
        let token = |subject: &str| {
            let mut claims = claims(&issuer, &[&issuer], NOW);
            claims["sub"] = subject.into();
            format!("Bearer {}", signer.token(&claims))
        };
        let [user, machine] = ["default:robot", "kube-system:coredns"]
            .map(|account| Some(token(&format!("system:serviceaccount:{account}"))));
        let on_connect = |callers| Asleep::OnConnect {
            callers,
            ignored_agents: IgnoredAgents(["k9s/*".into()].into()),
            since: since(),
            uid: "u-1".into(),
        };
        let [known, any] = [Callers::Authenticated, Callers::Any].map(on_connect);
        let held = Asleep::Held { why: "No.".into() };
        let (k9s, kubectl) = ("k9s/v0.50.6", "kubectl/v1.35.4");
        for (rule, told, bearer, agent, expected) in [
            ("a user", &known, &user, kubectl, "wake"),
            ("by a client that is ignored", &known, &user, k9s, "ignored"),
            ("a machine", &known, &machine, kubectl, "unneeded"),
            ("by the same", &known, &machine, k9s, "unneeded"),
            ("nobody", &known, &None, kubectl, "no_identity"),
            ("by the same", &known, &None, k9s, "no_identity"),
            ("a user, where anybody may", &any, &user, kubectl, "wake"),
            ("by the same", &any, &user, k9s, "ignored"),
            ("nobody there", &any, &None, kubectl, "wake for a stranger"),
            ("by the same", &any, &None, k9s, "ignored"),
            ("its owner's word comes first", &held, &user, k9s, "held"),
            (
                "somebody else wakes it already",
                &waking(since(), None),
                &user,
                k9s,
                "wait",
            ),
        ] {
            let snapshot = snapshot_of(&fixture.clone().asleep(told.clone()));
            let call = Call {
                name: &fixture.public_name(),
                certificates: &[],
                authorization: bearer.as_deref(),
                authority: "10.96.0.1",
                agent: agent.as_bytes(),
            };
            let now = Timestamp::from_second(NOW).unwrap();
            let decided = match plan_answer(Some(&snapshot), call, now) {
                Decision::Wake(_) => "wake",
                Decision::WakeForStranger(_) => "wake for a stranger",
                Decision::Wait => "wait",
                Decision::Answer(answer) => answer.as_str(),
            };
            assert_eq!(decided, expected, "{rule}, {agent}");
        }
    }

    #[test]
    fn ten_tries_last_for_half_a_minute() {
        let mut seconds = 0;
        let mut tries = Vec::new();
        for _ in 0..10 {
            let status = Answer::Waking(seconds).to_status();
            seconds += status.details.unwrap().retry_after_seconds.unwrap();
            tries.push(seconds);
        }
        assert_eq!(tries, [1, 2, 3, 4, 6, 9, 13, 18, 25, 34]);
    }
}
