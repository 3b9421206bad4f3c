use std::sync::OnceLock;

use aws_lc_rs::rsa::KeySize;
use serde_json::json;

use super::*;
use crate::authz::token::TokenError;
use crate::model::Target;
use crate::test_util::fixtures::{BASE_DOMAIN, ClusterFixture, Signer, claims, cluster};
use crate::translate::{EnvoyLimits, translate};
use crate::validate::{Rules, validate_config};

const NOW: i64 = 1_800_000_000;
const A: &str = "a-bcdfghjk.yoke.test";
const B: &str = "b-zzzzzzzz.yoke.test";

fn signers() -> &'static [Signer; 2] {
    static SIGNERS: OnceLock<[Signer; 2]> = OnceLock::new();
    SIGNERS.get_or_init(|| [Signer::rsa(KeySize::Rsa2048), Signer::p256()])
}

fn serve(snapshot: &mut Snapshot, fixture: &ClusterFixture) {
    let config = validate_config(&Rules::new(BASE_DOMAIN), &fixture.config_map()).unwrap();
    let target = Target {
        route: Arc::new(config.route),
        addresses: fixture.addresses.iter().map(|text| text.parse().unwrap()).collect(),
        port: fixture.port,
    };
    for name in target.route.names() {
        let entry = translate(name, &target, EnvoyLimits::default());
        snapshot.set(&resource_name(name), Some(entry));
    }
}

/// A with an extra name, and B without an address. Both claim one more name, and B owns it.
fn served() -> Snapshot {
    let [a, b] = signers();
    let mut snapshot = Snapshot::default();
    let with_key = |name: &str, id: &str, key: &Signer| {
        let mut fixture = cluster(name, id);
        fixture.config.service_account_keys = vec![key.pem.clone()];
        fixture.config.audiences.push("system:konnectivity-server".into());
        fixture
    };
    let a = with_key("a", "bcdfghjk24", a).with_extra_names(&["a.example.org", "shared.example.org"]);
    let b = with_key("b", "zzzzzzzz24", b).with_extra_names(&["b.example.org", "shared.example.org"]);
    serve(&mut snapshot, &a);
    serve(&mut snapshot, &b.at(&[], 6443));
    snapshot
}

fn token(signer: &Signer, public_name: &str) -> String {
    let issuer = format!("https://{public_name}");
    signer.token(&claims(&issuer, &[&issuer], NOW))
}

fn ask(snapshot: &Snapshot, authorization: Option<&str>, authority: &str) -> Result<String, RequestRefusal> {
    let now = Timestamp::from_second(NOW).unwrap();
    let request = Request {
        authorization,
        authority,
        source: Some([127, 0, 0, 1].into()),
        agent: b"kubectl/v1.35.4",
    };
    let entry = find_cluster_by_token(snapshot, request, now)?.cluster;
    check(snapshot, &entry, request)?;
    Ok(entry.route.cluster.clone())
}

#[test]
fn the_token_decides() {
    let [a, b] = signers();
    let snapshot = served();
    let good = format!("Bearer {}", token(a, A));
    let asleep = format!("Bearer {}", token(b, B));
    let for_konnectivity = claims(&format!("https://{A}"), &["system:konnectivity-server"], NOW);
    let for_konnectivity = format!("Bearer {}", a.token(&for_konnectivity));
    let bare = a.token(&claims(A, &[&format!("https://{A}")], NOW));
    let further = a.token(&claims("https://a.example.org", &[&format!("https://{A}")], NOW));
    let plain = a.token(&claims(&format!("http://{A}"), &[&format!("https://{A}")], NOW));
    for (rule, authorization, expected) in [
        ("of A", good.clone(), Ok("a")),
        ("scheme in lower case", good.replace("Bearer", "bearer"), Ok("a")),
        ("of B, which has no address", asleep, Err(RequestRefusal::NoEndpoints)),
        ("nothing", String::new(), Err(RequestRefusal::NoToken)),
        ("a scheme alone", "Bearer".into(), Err(RequestRefusal::NoToken)),
        (
            "no token",
            "Bearer ".into(),
            Err(RequestRefusal::Token(TokenError::Malformed)),
        ),
        ("no scheme", good.replace("Bearer ", ""), Err(RequestRefusal::NoToken)),
        ("a password", "Basic YTpi".into(), Err(RequestRefusal::NoToken)),
        (
            "two spaces",
            good.replace(' ', "  "),
            Err(RequestRefusal::Token(TokenError::Malformed)),
        ),
        (
            "more after it",
            format!("{good} x"),
            Err(RequestRefusal::Token(TokenError::Malformed)),
        ),
        ("a tab", good.replace(' ', "\t"), Err(RequestRefusal::NoToken)),
        (
            "twice",
            format!("{good},{good}"),
            Err(RequestRefusal::Token(TokenError::Malformed)),
        ),
        (
            "for konnectivity",
            for_konnectivity,
            Err(RequestRefusal::Token(TokenError::Audience)),
        ),
        (
            "an issuer without scheme",
            format!("Bearer {bare}"),
            Err(RequestRefusal::Token(TokenError::Issuer)),
        ),
        (
            "a further name as issuer",
            format!("Bearer {further}"),
            Err(RequestRefusal::Token(TokenError::Issuer)),
        ),
        (
            "an issuer by http",
            format!("Bearer {plain}"),
            Err(RequestRefusal::Token(TokenError::Issuer)),
        ),
    ] {
        let found = ask(&snapshot, Some(&authorization), "10.96.0.1");
        assert_eq!(found, expected.map(str::to_owned), "{rule}");
    }
    assert_eq!(ask(&snapshot, None, "10.96.0.1"), Err(RequestRefusal::NoToken));
}

#[test]
fn the_host_name_of_another_cluster_is_refused() {
    let snapshot = served();
    let good = format!("Bearer {}", token(&signers()[0], A));
    for (authority, foreign) in [
        ("10.96.0.1", false),
        ("10.96.0.1:443", false),
        ("[fd00::1]:443", false),
        ("kubernetes.default.svc", false),
        ("kubernetes.default.svc.cluster.local.:443", false),
        ("", false),
        ("www.example.org", false),
        (A, false),
        ("A-bcdfghjk.yoke.test.:443", false),
        ("a.example.org", false),
        (B, true),
        ("B-zzzzzzzz.Yoke.test.:6443", true),
        ("b.example.org", true),
        ("shared.example.org", true),
        ("nobody.yoke.test", true),
        ("yoke.test", true),
    ] {
        let expected = if foreign {
            Err(RequestRefusal::Misdirected)
        } else {
            Ok("a".to_owned())
        };
        assert_eq!(ask(&snapshot, Some(&good), authority), expected, "{authority}");
    }
}

/// A request without a token cannot find out which names exist.
#[test]
fn the_host_name_is_checked_last() {
    let snapshot = served();
    assert_eq!(ask(&snapshot, None, B), Err(RequestRefusal::NoToken));
}

#[test]
fn refusals_have_the_form_of_kubernetes() {
    let unauthorized = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    });
    for refusal in [RequestRefusal::NoToken, RequestRefusal::Token(TokenError::Expired)] {
        assert_eq!(serde_json::to_value(refusal.to_status()).unwrap(), unauthorized);
    }
    let unavailable = serde_json::to_value(RequestRefusal::NoEndpoints.to_status()).unwrap();
    assert_eq!(
        (&unavailable["code"], &unavailable["reason"]),
        (&json!(503), &json!("ServiceUnavailable"))
    );
    assert_eq!(unavailable["details"]["retryAfterSeconds"], json!(1));
    assert_eq!(RequestRefusal::Misdirected.to_status().code, Some(421));
    let often = serde_json::to_value(RequestRefusal::Rate.to_status()).unwrap();
    assert_eq!(
        (&often["code"], &often["reason"], &often["details"]["retryAfterSeconds"]),
        (&json!(429), &json!("TooManyRequests"), &json!(1))
    );
}
