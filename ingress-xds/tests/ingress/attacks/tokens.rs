//! Tokens that are almost valid.

use data_encoding::{BASE64, BASE64URL_NOPAD};
use http::Request;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::client::{Http, get};
use crate::support::fixtures::{Signer, claims, to_part};
use crate::terminated::{Stage, assert_status};

/// Every token is refused, over both versions of HTTP, and no API server is reached. Returns the
/// number of rows.
pub(super) async fn run(stage: &Stage) -> usize {
    let rows = rows(stage);
    let before = stage.requests();
    let mut connections = [stage.client(Http::One).await, stage.client(Http::Two).await];
    for (rule, token) in &rows {
        for client in &mut connections {
            let answer = client.ask(get(Some(&format!("Bearer {token}")))).await.unwrap();
            assert_status(rule, &answer, 401, "Unauthorized");
        }
    }
    let others = other_places(stage);
    for (rule, name, value) in &others {
        for client in &mut connections {
            let request = Request::get("https://10.96.0.1/api").header(*name, value);
            let answer = client.ask(request.body(axum::body::Body::empty()).unwrap()).await;
            assert_status(rule, &answer.unwrap(), 401, "Unauthorized");
        }
    }
    assert_eq!(stage.requests(), before, "nobody was reached");
    rows.len() + others.len()
}

fn rows(stage: &Stage) -> Vec<(&'static str, String)> {
    let now = Timestamp::now().as_second();
    let [a, b] = &stage.signers;
    let stranger = Signer::p256();
    let issuers = stage.clusters.each_ref().map(|cluster| cluster.config.issuer.clone());
    let [of_a, of_b] = issuers.each_ref().map(|issuer| claims(issuer, &[issuer], now));
    let headed = |header: &str| a.sign(header, &of_a.to_string());
    let raw = |payload: &str| a.sign(&a.header().to_string(), payload);
    let with = |key: &str, value: Value| {
        let mut claims = of_a.clone();
        claims[key] = value;
        a.token(&claims)
    };
    let issued_by = |issuer: &str| with("iss", json!(issuer));
    let good = a.token(&of_a);
    let parts: Vec<&str> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else {
        panic!("a token has three parts");
    };
    // A signature of zeros verifies every message if the range of its numbers is not checked.
    let of_b_by = |signature: &[u8]| {
        let signed = format!("{}.{}", to_part(&b.header().to_string()), to_part(&of_b.to_string()));
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature))
    };
    let jwk = json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"});
    let by_stranger = |extra: &str, value: Value| {
        let mut header = json!({"alg": "ES256", "kid": b.id});
        header[extra] = value;
        stranger.sign(&header.to_string(), &of_b.to_string())
    };
    let both = format!(
        r#"{{"iss":"{}","exp":{},"aud":["{}"],"#,
        issuers[0],
        now + 600,
        issuers[1]
    );
    let twice = format!(
        r#"{{"iss":"{}","iss":"{}","exp":{},"aud":["{}","{}"]}}"#,
        issuers[0],
        issuers[1],
        now + 600,
        issuers[0],
        issuers[1],
    );
    let deep = format!("{both}\"x\":{}{}}}", "[".repeat(3000), "]".repeat(3000));
    vec![
        ("two parts", format!("{header}.{payload}")),
        ("four parts", format!("{good}.{signature}")),
        ("five parts, as of a token that is encrypted", format!("{good}.a.b")),
        ("no signature", format!("{header}.{payload}.")),
        ("no header", format!(".{payload}.{signature}")),
        ("dots alone", "..".into()),
        ("padded", format!("{good}=")),
        (
            "in the other alphabet",
            format!("{header}.{payload}.{}", BASE64.encode(&[0xfb; 256])),
        ),
        ("half a signature", format!("{header}.{payload}.{}", &signature[..170])),
        (
            "a byte after the signature",
            format!("{header}.{payload}.{signature}AA"),
        ),
        ("a byte changed", good.replacen(&payload[20..22], "zz", 1)),
        (
            "the header of another key",
            format!("{}.{payload}.{signature}", to_part(&b.header().to_string())),
        ),
        ("alg in lower case", headed(r#"{"alg":"rs256"}"#)),
        ("alg missing", headed("{}")),
        ("alg twice", headed(r#"{"alg":"none","alg":"HS256"}"#)),
        ("alg a list", headed(r#"{"alg":["RS256"]}"#)),
        ("alg RS512", headed(r#"{"alg":"RS512"}"#)),
        ("not encoded", headed(r#"{"alg":"RS256","b64":false,"crit":["b64"]}"#)),
        ("a header that is no object", headed("[]")),
        ("a header that is no JSON", headed("{")),
        ("its own key", by_stranger("jwk", jwk)),
        ("where its key is", by_stranger("jku", json!("https://192.0.2.1/keys"))),
        (
            "where its certificate is",
            by_stranger("x5u", json!("https://192.0.2.1/ca")),
        ),
        ("a signature of zeros", of_b_by(&[0; 64])),
        ("a signature of ones", of_b_by(&[0xff; 64])),
        (
            "an empty signature in another form",
            of_b_by(&[0x30, 6, 2, 1, 0, 2, 1, 0]),
        ),
        (
            "a kid of another cluster by a stranger",
            stranger.sign(&b.header().to_string(), &of_b.to_string()),
        ),
        ("iss twice", raw(&twice)),
        ("iss with a slash", issued_by(&format!("{}/", issuers[0]))),
        ("iss with a dot", issued_by(&format!("{}.", issuers[0]))),
        ("iss with a port", issued_by(&format!("{}:443", issuers[0]))),
        ("iss in capitals", issued_by(&issuers[0].to_uppercase())),
        ("iss with a space", issued_by(&format!(" {}", issuers[0]))),
        ("iss with a NUL", issued_by(&format!("{}\0", issuers[0]))),
        ("iss that names Envoy's own cluster", issued_by("https://xds")),
        ("iss that climbs", issued_by("https://../name/x")),
        ("iss of nothing", issued_by("https://")),
        ("iss a list", with("iss", json!([issuers[0], issuers[1]]))),
        ("iss a number", with("iss", json!(1))),
        ("aud an object", with("aud", json!({issuers[0].as_str(): true}))),
        ("aud a number", with("aud", json!(1))),
        ("aud with a space", with("aud", json!([format!("{} ", issuers[0])]))),
        ("aud of both in one", with("aud", json!([issuers.join(" ")]))),
        ("exp a text", with("exp", json!((now + 600).to_string()))),
        ("exp long ago", with("exp", json!(-1))),
        ("nbf at the end of time", with("nbf", json!(u64::MAX))),
        ("claims that are no object", raw("[]")),
        ("claims that are no JSON", raw("{\"iss\":")),
        ("claims and more", raw(&format!("{of_a}{of_b}"))),
        ("claims that are deep", raw(&deep)),
    ]
}

/// A valid token in places where no token is expected.
fn other_places(stage: &Stage) -> Vec<(&'static str, &'static str, String)> {
    let bearer = stage.bearer(0);
    let token = bearer.trim_start_matches("Bearer ");
    let protocol = BASE64URL_NOPAD.encode(token.as_bytes());
    vec![
        ("for a proxy", "proxy-authorization", bearer.clone()),
        ("forwarded", "x-forwarded-authorization", bearer.clone()),
        (
            "as a protocol",
            "sec-websocket-protocol",
            format!("base64url.bearer.authorization.k8s.io.{protocol}"),
        ),
        ("with a tab", "authorization", format!("Bearer\t{token}")),
        ("with two spaces", "authorization", format!("Bearer  {token}")),
        ("with a comma", "authorization", format!("{bearer},")),
        ("quoted", "authorization", format!("Bearer \"{token}\"")),
        ("behind another", "authorization", format!("Basic YTpi, {bearer}")),
        ("of both", "authorization", format!("{bearer}, {}", stage.bearer(1))),
    ]
}
