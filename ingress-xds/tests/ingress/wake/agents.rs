//! Clients with an ignored user agent wake nothing, whatever their credentials are.

use axum::body::Body;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, StatusCode};
use rustls::ClientConfig;
use yoke_api::ingress::Callers;

use super::{Night, ask_again, ignoring, on_connect, told};
use crate::support::client::{Answer, BOTH, Client, Http, get};
use crate::support::{PATIENCE, eventually};

const IGNORED: [&str; 2] = ["k9s/*", "Headlamp"];
const WHY: &str =
    "the cluster is asleep, and does not wake for this client: its user agent is in spec.sleep.ignoreUserAgents";

/// A request with this user agent.
fn get_by(agent: &[u8], bearer: Option<&str>) -> Request<Body> {
    let mut request = get(bearer);
    let agent = HeaderValue::from_bytes(agent).unwrap();
    request.headers_mut().insert(USER_AGENT, agent);
    request
}

async fn ask(night: &Night, config: &ClientConfig, http: Http, agent: &[u8], bearer: Option<&str>) -> Answer {
    let (ingress, name) = (night.stage.envoy.ingress, night.a.public_name());
    let mut client = Client::connect(ingress, &name, config, http).await.unwrap();
    client.ask(get_by(agent, bearer)).await.unwrap()
}

async fn ask_as_pod(night: &Night, http: Http, agent: &[u8]) -> Answer {
    let mut pod = night.stage.client(http).await;
    pod.ask(get_by(agent, Some(&night.stage.bearer(0)))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_user_agents_wake_nothing() {
    let night = Night::new(ignoring(Callers::Authenticated, &IGNORED)).await;
    let (admin, nobody) = (night.admin(), night.stage.root.client(None));
    let token = night.token(0, |_| {});
    let long = [b"k9s/".as_slice(), &[b'a'; 16 * 1024]].concat();
    let later = (StatusCode::SERVICE_UNAVAILABLE, Some("10"));
    for http in BOTH {
        for (rule, agent) in [
            ("a beginning", &b"k9s/v0.50.6"[..]),
            ("a whole one", b"Headlamp"),
            ("that is no text", b"k9s/\xff\xfe"),
            ("a long one", &long),
        ] {
            let answers = [
                ask(&night, &admin, http, agent, None).await,
                ask(&night, &nobody, http, agent, Some(&token)).await,
                ask_as_pod(&night, http, agent).await,
            ];
            for (answer, by) in answers.iter().zip(["certificate", "token", "token of a pod"]) {
                assert_eq!(told(answer), later, "{rule}, {by}, {http:?}");
                assert_eq!(answer.body["message"], WHY, "{rule}, {by}, {http:?}");
            }
        }
        let answer = ask(&night, &nobody, http, b"k9s/v0.50.6", None).await;
        assert_eq!(told(&answer), (StatusCode::UNAUTHORIZED, None), "a stranger, {http:?}");
    }
    assert!(!night.stage.xds().has_woken().await);
    assert_eq!(night.stage.xds().metric("yoke_ingress_xds_held_requests"), 0);
    assert_eq!(night.requests(), [0, 0]);
    let answer = ask(&night, &admin, Http::Two, b"kubectl/v1.35.4", None).await;
    let held = (StatusCode::SERVICE_UNAVAILABLE, Some("0"));
    assert_eq!(told(&answer), held, "another client");
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_user_agents_wake() {
    // The user agent of a pod arrives through Envoy.
    for agent in [
        &b"Headlamp/0.30"[..],
        b"headlamp",
        b"",
        b"\xffk9s/v0.50.6",
        &[b'a'; 4 * 1024],
    ] {
        let night = Night::new(ignoring(Callers::Authenticated, &IGNORED)).await;
        let waking = async {
            assert_eq!(night.stage.xds().wake().await.cluster, "a");
            night.tell(None).await;
        };
        let mut pod = night.stage.client(Http::Two).await;
        let bearer = night.stage.bearer(0);
        let asking = ask_again(&mut pod, || get_by(agent, Some(&bearer)));
        let (answer, ()) = tokio::join!(asking, waking);
        let start = String::from_utf8_lossy(&agent[..agent.len().min(20)]);
        assert_eq!(answer.status, StatusCode::OK, "{start}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_user_agents_wake_nothing_with_callers_any() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    night.tell(Some(ignoring(Callers::Any, &IGNORED))).await;
    let nobody = night.stage.root.client(None);
    for http in BOTH {
        eventually("all callers to be allowed to wake the cluster", PATIENCE, async || {
            let answer = ask(&night, &nobody, http, b"k9s/v0.50.6", None).await;
            (told(&answer).0 == StatusCode::SERVICE_UNAVAILABLE).then(|| {
                assert_eq!(told(&answer).1, Some("10"), "{http:?}");
                assert_eq!(answer.body["message"], WHY, "{http:?}");
            })
        })
        .await;
    }
    assert!(!night.stage.xds().has_woken().await);
    let answer = ask(&night, &nobody, Http::One, b"curl/8.17.0", None).await;
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}
