//! Decides how a request to a sleeping cluster is answered. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use yoke_api::ingress::{Asleep, Callers};

use super::identity::{Identity, Unauthenticated, identify};
use crate::authz::request::{bearer_token, is_name_of_other_cluster};
use crate::authz::status_response::{IGNORED, LATER, SOON, build_advice};
use crate::model::route::{Route, Sleep};
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot};

/// `Retry-After` in seconds for a caller that need not wait any more.
const NOW: i32 = 0;
const WAKING: &str = "the cluster was asleep and is being woken; retry, and if this takes long, see the condition Ready of the Cluster object";

/// The parts of a request that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The server name (SNI) of the connection.
    pub name: &'a str,
    /// The client's own certificate, if it presented one. TLS has verified that the client has the
    /// private key, and nothing else.
    pub certificates: &'a [CertificateDer<'a>],
    /// The header `authorization`.
    pub authorization: Option<&'a str>,
    /// `:authority`, or the header `host`.
    pub authority: &'a str,
    /// The header `user-agent`. The client chooses it freely, so it can prevent a wake but never
    /// cause one.
    pub agent: &'a [u8],
}

/// The action for one request.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Wake the cluster. Answer when it is awake, or with [`Answer::StillWaking`] after a limited
    /// wait.
    Wake(Arc<Entry>),
    /// Wake the cluster for an unauthenticated caller, and answer at once with [`Answer::Waking`]
    /// of zero seconds. Waiting occupies a slot, and those are for authenticated callers.
    WakeForUnauthenticated(Arc<Entry>),
    /// The cluster is waking already; wait as for [`Decision::Wake`].
    Wait,
    /// Answer at once.
    Answer(Answer),
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No snapshot exists yet, or the cluster is awake and another connection reaches it.
    Reconnect,
    /// The cluster was waking a moment ago, and is awake now.
    Awake,
    /// The cluster is waking, for this number of seconds so far.
    Waking(i32),
    /// The cluster is still waking after the caller's wait. The next try waits too, so it may come
    /// at once.
    StillWaking,
    /// The cluster does not finish waking, so retrying does not help. The value is the reason for
    /// the caller.
    Stuck(String),
    /// A limit is reached: concurrent connections, or wakes.
    Busy,
    /// The cluster sleeps until a user needs it; the caller is a node, a controller or a component.
    NotForUser,
    /// The cluster sleeps until a client with another user agent needs it.
    IgnoredUserAgent,
    /// No connection wakes the cluster. The value is the operator's message for callers.
    Held(String),
    /// The caller is not authenticated.
    Unauthenticated(Unauthenticated),
    /// The request names another cluster.
    Misdirected,
}

impl Answer {
    /// The value of the metric label `answer`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Reconnect => "elsewhere",
            Self::Awake => "awake",
            Self::Waking(_) | Self::StillWaking => "waking",
            Self::Stuck(_) => "stuck",
            Self::Busy => "busy",
            Self::NotForUser => "unneeded",
            Self::IgnoredUserAgent => "ignored",
            Self::Held(_) => "held",
            Self::Unauthenticated(Unauthenticated::Unverified) => "unverified",
            Self::Unauthenticated(Unauthenticated::NoCredentials) => "no_identity",
            Self::Unauthenticated(Unauthenticated::Certificate) => "certificate",
            Self::Unauthenticated(Unauthenticated::Token(error)) => error.as_str(),
            Self::Misdirected => "misdirected",
        }
    }

    /// Whether only authenticated callers get this answer.
    pub const fn is_for_authenticated(&self) -> bool {
        matches!(self, Self::NotForUser | Self::Held(_) | Self::Stuck(_))
    }

    /// The answer as a Kubernetes `Status`.
    pub fn to_status(&self) -> Status {
        let (code, reason, message, retry) = match self {
            Self::Reconnect => (
                503,
                "ServiceUnavailable",
                "the cluster is not reachable on this connection; open a new one",
                Some(SOON),
            ),
            Self::Awake => (
                503,
                "ServiceUnavailable",
                "the cluster was asleep and is awake now; retry",
                Some(NOW),
            ),
            Self::Waking(seconds) => (503, "ServiceUnavailable", WAKING, Some(plan_retry(*seconds))),
            Self::StillWaking => (503, "ServiceUnavailable", WAKING, Some(NOW)),
            Self::Stuck(problem) => (503, "ServiceUnavailable", problem.as_str(), None),
            Self::Busy => (
                429,
                "TooManyRequests",
                "the cluster is asleep, and the limit of wakes or of waiting connections is reached; retry later",
                Some(SOON),
            ),
            Self::NotForUser => (
                503,
                "ServiceUnavailable",
                "the cluster is asleep, and does not wake for its nodes and controllers; it wakes when a user connects",
                Some(LATER),
            ),
            Self::IgnoredUserAgent => (503, "ServiceUnavailable", IGNORED, Some(LATER)),
            Self::Held(why) => (403, "Forbidden", why.as_str(), None),
            Self::Unauthenticated(Unauthenticated::Unverified) => (
                503,
                "ServiceUnavailable",
                "this token cannot be verified while the cluster sleeps; wake the cluster with a client certificate or a \
                 service account token first",
                None,
            ),
            Self::Unauthenticated(_) => (401, "Unauthorized", "Unauthorized", None),
            Self::Misdirected => (
                421,
                "MisdirectedRequest",
                "the host name of the request belongs to another cluster; open a new connection to that name",
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

/// Decides how a request to a sleeping cluster is answered.
pub fn plan_answer(snapshot: Option<&Snapshot>, call: Call<'_>, now: Timestamp) -> Decision {
    let entry = snapshot.and_then(|snapshot| Some((snapshot, snapshot.get(&resource_name(call.name))?)));
    let Some((snapshot, entry)) = entry else {
        return Decision::Answer(Answer::Reconnect);
    };
    if is_name_of_other_cluster(snapshot, &entry.route, call.authority) {
        return Decision::Answer(Answer::Misdirected);
    }
    let Some(Sleep { state, client_ca }) = &entry.route.asleep else {
        return Decision::Answer(Answer::Reconnect);
    };
    let caller = || identify_caller(&entry.route, client_ca, call, now);
    match state {
        Asleep::Waking { since, problem } => {
            // The operator's clock may differ from ours.
            let seconds =
                || i32::try_from(now.duration_since(since.0).as_secs()).map_or(0, |seconds| seconds.clamp(0, 30));
            match (problem, caller()) {
                (Some(problem), Ok(_)) => Decision::Answer(Answer::Stuck(build_advice(problem))),
                (None, Ok(identity)) if identity.is_user() => Decision::Wait,
                _ => Decision::Answer(Answer::Waking(seconds())),
            }
        }
        Asleep::Held { why } => Decision::Answer(match caller() {
            Ok(_) => Answer::Held(why.clone()),
            Err(reason) => Answer::Unauthenticated(reason),
        }),
        Asleep::OnConnect {
            callers,
            ignored_agents,
            ..
        } => match (callers, caller()) {
            (_, Ok(identity)) if !identity.is_user() => Decision::Answer(Answer::NotForUser),
            (Callers::Authenticated, Err(reason)) => Decision::Answer(Answer::Unauthenticated(reason)),
            _ if ignored_agents.has(call.agent) => Decision::Answer(Answer::IgnoredUserAgent),
            (_, Ok(_)) => Decision::Wake(Arc::clone(entry)),
            (Callers::Any, Err(_)) => Decision::WakeForUnauthenticated(Arc::clone(entry)),
        },
    }
}

/// Whether these certificates authenticate a client of a sleeping cluster.
pub fn is_authenticated(
    snapshot: Option<&Snapshot>,
    name: &str,
    certificates: &[CertificateDer<'_>],
    now: Timestamp,
) -> bool {
    let entry = snapshot.and_then(|snapshot| snapshot.get(&resource_name(name)));
    let Some((entry, asleep)) = entry.and_then(|entry| Some((entry, entry.route.asleep.as_ref()?))) else {
        return false;
    };
    identify(&entry.route, &asleep.client_ca, certificates, None, now).is_ok()
}

/// Whether these certificates alone entitle the caller to wake a cluster, whatever it requests.
pub fn may_wake(route: &Route, certificates: &[CertificateDer<'_>], now: Timestamp) -> bool {
    let Some(Sleep {
        state: Asleep::OnConnect { .. },
        client_ca,
    }) = &route.asleep
    else {
        return false;
    };
    identify(route, client_ca, certificates, None, now).is_ok_and(|identity| identity.is_user())
}

/// `Retry-After` in seconds, by how long the cluster has been waking. client-go retries ten times:
/// with these values its tries span half a minute, and 50 seconds if each try waits.
fn plan_retry(seconds: i32) -> i32 {
    match seconds {
        ..4 => SOON,
        _ => SOON + seconds / 3,
    }
}

fn identify_caller(
    route: &Route,
    client_ca: &str,
    call: Call<'_>,
    now: Timestamp,
) -> Result<Identity, Unauthenticated> {
    let bearer = call.authorization.and_then(bearer_token);
    identify(route, client_ca, call.certificates, bearer, now)
}

#[cfg(test)]
mod tests {
    use yoke_api::ingress::IgnoredAgents;

    use super::*;
    use crate::model::Target;
    use crate::test_util::fixtures::{BASE_DOMAIN, ClusterFixture, Signer, claims, cluster, since, waking};
    use crate::translate::{EnvoyLimits, translate};
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
        let entry = translate(&name, &target, EnvoyLimits::default());
        snapshot.set(&resource_name(&name), Some(entry));
        snapshot
    }

    #[test]
    fn authentication_and_user_agent_decide() {
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
        for (rule, state, bearer, agent, expected) in [
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
            let snapshot = snapshot_of(&fixture.clone().asleep(state.clone()));
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
                Decision::WakeForUnauthenticated(_) => "wake for a stranger",
                Decision::Wait => "wait",
                Decision::Answer(answer) => answer.as_str(),
            };
            assert_eq!(decided, expected, "{rule}, {agent}");
        }
    }

    #[test]
    fn ten_tries_span_half_a_minute() {
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
