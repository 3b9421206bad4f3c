//! Attacks of a client that can reach the ingress, against the clusters behind it.

use aws_lc_rs::hmac;
use data_encoding::BASE64URL_NOPAD;
use http::Method;
use serde_json::Value;

use super::*;
use crate::support::fixtures::to_part;
use crate::support::tenant::open;
use crate::support::wire::read_answer;

/// A request for a list of the complete cluster, with these headers.
fn request(authority: &str, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri(format!("https://{authority}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_are_refused() {
    let stage = Stage::new().await;
    let now = Timestamp::now().as_second();
    let [a, b] = &stage.signers;
    let stranger = Signer::rsa(KeySize::Rsa2048);
    let [issuer_a, issuer_b] = [stage.issuer(0), stage.issuer(1)];
    let of_a = claims(&issuer_a, &[&issuer_a], now);
    let with = |key: &str, value: Value| {
        let mut claims = of_a.clone();
        claims[key] = value;
        a.token(&claims)
    };
    let headed = |header: &Value| a.sign(&header.to_string(), &of_a.to_string());
    let payload = to_part(&of_a.to_string());
    let none = |name: &str| format!("{}.{payload}.", to_part(&json!({"alg": name}).to_string()));
    let hs256 = {
        let signed = format!(
            "{}.{payload}",
            to_part(&json!({"alg": "HS256", "kid": a.id}).to_string())
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, a.pem.as_bytes());
        format!(
            "{signed}.{}",
            BASE64URL_NOPAD.encode(hmac::sign(&key, signed.as_bytes()).as_ref())
        )
    };
    let good = a.token(&of_a);
    let twice = format!(
        r#"{{"iss":"{issuer_a}","exp":{},"aud":"vault","aud":"{issuer_a}"}}"#,
        now + 600
    );
    let signed_by_b = claims(&issuer_a, &[&issuer_a, &issuer_b], now);
    let rows: Vec<(&str, String)> = vec![
        ("empty", String::new()),
        ("garbage", "Bearer garbage".into()),
        ("a password", "Basic YWRtaW46YWRtaW4=".into()),
        ("no scheme", good.clone()),
        ("two tokens", format!("Bearer {good}, Bearer {good}")),
        ("more after it", format!("Bearer {good} x")),
        ("too long", format!("Bearer {good}{}", "a".repeat(9000))),
        ("alg none", format!("Bearer {}", none("none"))),
        ("alg NONE", format!("Bearer {}", none("NONE"))),
        ("HS256 with the public key", format!("Bearer {hs256}")),
        (
            "alg ES256 by an RSA key",
            format!("Bearer {}", headed(&json!({"alg": "ES256"}))),
        ),
        (
            "alg PS256",
            format!("Bearer {}", headed(&json!({"alg": "PS256", "kid": a.id}))),
        ),
        (
            "kid of B",
            format!("Bearer {}", headed(&json!({"alg": "RS256", "kid": b.id}))),
        ),
        (
            "kid that is a path",
            format!("Bearer {}", headed(&json!({"alg": "RS256", "kid": "/dev/null"}))),
        ),
        (
            "critical extension",
            format!("Bearer {}", headed(&json!({"alg": "RS256", "crit": ["x"], "x": 1}))),
        ),
        ("signed by nobody", format!("Bearer {}", stranger.token(&of_a))),
        (
            "signed by nobody, as A's key",
            format!("Bearer {}", stranger.sign(&a.header().to_string(), &of_a.to_string())),
        ),
        ("iss of A signed by B", format!("Bearer {}", b.token(&signed_by_b))),
        (
            "iss of B signed by A",
            format!("Bearer {}", a.token(&claims(&issuer_b, &[&issuer_b], now))),
        ),
        (
            "iss of nobody",
            format!("Bearer {}", with("iss", json!("https://c-dddddddd.yoke.test"))),
        ),
        (
            "iss of legacy tokens",
            format!("Bearer {}", with("iss", json!("kubernetes/serviceaccount"))),
        ),
        ("expired", format!("Bearer {}", with("exp", json!(now - 120)))),
        (
            "no exp",
            format!("Bearer {}", a.token(&json!({"iss": issuer_a, "aud": [issuer_a]}))),
        ),
        ("not valid yet", format!("Bearer {}", with("nbf", json!(now + 600)))),
        ("for a vault", format!("Bearer {}", with("aud", json!(["vault"])))),
        (
            "for konnectivity",
            format!("Bearer {}", with("aud", json!(["system:konnectivity-server"]))),
        ),
        ("for B", format!("Bearer {}", with("aud", json!([issuer_b])))),
        (
            "aud twice",
            format!("Bearer {}", a.sign(&a.header().to_string(), &twice)),
        ),
        ("for nobody", format!("Bearer {}", with("aud", json!([])))),
    ];
    let mut connections = [stage.client(Http::One).await, stage.client(Http::Two).await];
    for (rule, authorization) in &rows {
        for client in &mut connections {
            let answer = client.ask(get(Some(authorization))).await.unwrap();
            assert_status(rule, &answer, 401, "Unauthorized");
            assert_eq!(
                answer.body["message"], "Unauthorized",
                "{rule}: nobody is told what is wrong"
            );
        }
    }
    for client in &mut connections {
        let answer = client.ask(get(None)).await.unwrap();
        assert_status("no token", &answer, 401, "Unauthorized");
        for path in ["/version", "/livez", "/.well-known/openid-configuration"] {
            let answer = client.ask(request("10.96.0.1", path, &[])).await.unwrap();
            assert_status(path, &answer, 401, "Unauthorized");
        }
        let path = format!("/api?access_token={good}");
        let answer = client.ask(request("10.96.0.1", &path, &[])).await.unwrap();
        assert_status("a token in the query", &answer, 401, "Unauthorized");
        let cookie = format!("token={good}");
        let answer = client
            .ask(request("10.96.0.1", "/api", &[("cookie", &cookie)]))
            .await
            .unwrap();
        assert_status("a token in a cookie", &answer, 401, "Unauthorized");
        let good = format!("Bearer {good}");
        let two = [("authorization", good.as_str()), ("authorization", good.as_str())];
        let answer = client.ask(request("10.96.0.1", "/api", &two)).await.unwrap();
        assert_status("the header twice", &answer, 401, "Unauthorized");
    }
    assert_eq!(stage.requests(), [0, 0], "nobody was reached");
    let (lines, _) = eventually("the reason in the access log", PATIENCE, async || {
        let lines = stage.envoy.access_log();
        let told = lines.iter().any(|line| line["verdict"] == "token_signature");
        told.then_some(lines)
    })
    .await;
    assert!(lines.iter().all(|line| line["upstream"].is_null()), "{lines:?}");
}

/// A valid token, and a client that pretends to be another one or elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_token_decides() {
    let stage = Stage::new().await;
    let bearer = stage.bearer(0);
    let [_, b] = [stage.clusters[0].public_name(), stage.clusters[1].public_name()];
    let to_b = format!("name/{b}");
    let forged = [
        ("x-yoke-cluster", to_b.as_str()),
        ("X-Yoke-Cluster", to_b.as_str()),
        ("x-yoke-anything", "1"),
        ("X-Remote-User", "system:admin"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Uid", "0"),
        ("X-Remote-Extra-Scopes", "all"),
        ("X-Forwarded-For", "198.51.100.7"),
        ("X-Forwarded-Client-Cert", "Subject=\"CN=admin,O=system:masters\""),
        ("X-Forwarded-Host", b.as_str()),
        ("X-Real-Ip", "198.51.100.7"),
        ("Forwarded", "for=198.51.100.7"),
        ("x-envoy-original-path", "/other"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-retry-on", "5xx"),
    ];
    for http in BOTH {
        let mut client = stage.client(http).await;
        for (name, value) in forged {
            let headers = [(name, value), ("authorization", bearer.as_str())];
            let answer = client.ask(request("10.96.0.1", "/api", &headers)).await.unwrap();
            assert_eq!(
                (answer.status, &answer.body["cluster"]),
                (StatusCode::OK, &json!("a")),
                "{name}"
            );
            let arrived = answer.body["headers"].get(name.to_ascii_lowercase());
            match arrived {
                // Envoy sets this header itself.
                Some(source) if name == "X-Forwarded-For" => assert_ne!(source, value),
                arrived => assert_eq!(arrived, None, "{name}"),
            }
            let answer = client.ask(request("10.96.0.1", "/api", &headers[..1])).await.unwrap();
            assert_status(name, &answer, 401, "Unauthorized");
        }
        let passed = [("impersonate-user", "x"), ("authorization", bearer.as_str())];
        let answer = client.ask(request("10.96.0.1", "/api", &passed)).await.unwrap();
        assert_eq!(
            answer.body["headers"]["impersonate-user"], "x",
            "for the API server to decide"
        );

        for (rule, authority, code) in [
            ("own name", "a-bcdfghjk.yoke.test", 200),
            ("a name in the cluster", "kubernetes.default.svc:443", 200),
            ("B's name", b.as_str(), 421),
            ("B's name in another form", "B-Zzzzzzzz.Yoke.Test.:6443", 421),
            ("nobody's name", "c-dddddddd.yoke.test", 421),
        ] {
            let headers = [("authorization", bearer.as_str())];
            let answer = client.ask(request(authority, "/api", &headers)).await.unwrap();
            match code {
                200 => assert_eq!(answer.body["cluster"], "a", "{rule}"),
                _ => assert_status(rule, &answer, 421, "MisdirectedRequest"),
            }
        }
    }
    let mut client = stage.client(Http::Two).await;
    let headers = [("host", b.as_str()), ("authorization", bearer.as_str())];
    let answer = client.ask(request("10.96.0.1", "/api", &headers)).await.unwrap();
    assert_eq!(answer.body["cluster"], "a", "the header beside :authority is nothing");
    for path in [
        "/api/../../b",
        "//api",
        "/api%2f..%2f..",
        "/%2e%2e/api",
        "/api;x=1",
        "/name/b",
    ] {
        let headers = [("authorization", bearer.as_str())];
        let answer = client.ask(request("10.96.0.1", path, &headers)).await.unwrap();
        assert_eq!(answer.body["cluster"], "a", "{path}");
        let uri = answer.body["uri"].as_str().unwrap();
        assert!(uri.ends_with(path), "as it was sent: {uri}");
    }
    assert_eq!(stage.requests()[1], 0, "B was not reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_are_neither_requested_nor_forwarded() {
    let stage = Stage::new().await;
    let admin = stage.root.under("a-ca").leaf("system:admin", &[]);
    let config = stage.root.client(Some(&admin));
    for http in BOTH {
        let mut client = Client::connect(stage.envoy.ingress, NAMES[0], &config, http)
            .await
            .unwrap();
        assert_status("no token", &client.ask(get(None)).await.unwrap(), 401, "Unauthorized");
        let answer = client.ask(get(Some(&stage.bearer(0)))).await.unwrap();
        assert_eq!(answer.body["certificate"], false);
        assert!(answer.body["headers"].get("x-forwarded-client-cert").is_none());
    }
}

/// Two parsers of one text must not read it differently.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_not_smuggled() {
    let stage = Stage::new().await;
    let bearer = stage.bearer(0);
    let b = stage.clusters[1].public_name();
    let head = |line: &str, more: &str| format!("{line}\r\nHost: 10.96.0.1\r\nAuthorization: {bearer}\r\n{more}\r\n");
    let inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let length = inner.len();
    let rows: Vec<(&str, String, &[&str])> = vec![
        (
            "length and chunks",
            head(
                "POST /api HTTP/1.1",
                &format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            ) + "0\r\n\r\n"
                + inner,
            &["400"],
        ),
        (
            "two lengths",
            head(
                "POST /api HTTP/1.1",
                &format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
            ) + inner,
            &["400"],
        ),
        (
            "chunks by another name",
            head("POST /api HTTP/1.1", "Transfer-Encoding: xchunked\r\n") + inner,
            &["400", "501"],
        ),
        (
            "chunks and more",
            head("POST /api HTTP/1.1", "Transfer-Encoding: chunked, identity\r\n") + inner,
            &["400", "501"],
        ),
        (
            "a length that is none",
            head("POST /api HTTP/1.1", "Content-Length: +3\r\n") + "abc",
            &["400"],
        ),
        (
            "an underscore",
            head("GET /api HTTP/1.1", "X_Remote_User: admin\r\n"),
            &["400"],
        ),
        ("NUL in a header", head("GET /api HTTP/1.1", "X-A: a\0b\r\n"), &["400"]),
        (
            "a space before the colon",
            head("GET /api HTTP/1.1", "X-Remote-User : admin\r\n"),
            &["400"],
        ),
        (
            "CONNECT",
            head("CONNECT 127.0.0.3:6443 HTTP/1.1", ""),
            &["400", "401", "403", "404", "405"],
        ),
        (
            "CONNECT to B",
            head(&format!("CONNECT {b}:443 HTTP/1.1"), ""),
            &["400", "401", "403", "404", "405", "421"],
        ),
        (
            "absolute form of B",
            format!("GET https://{b}/api HTTP/1.1\r\nHost: 10.96.0.1\r\nAuthorization: {bearer}\r\n\r\n"),
            &["421"],
        ),
        (
            "HTTP/1.0",
            format!("GET /api HTTP/1.0\r\nAuthorization: {bearer}\r\n\r\n"),
            &["426"],
        ),
        (
            "no host",
            format!("GET /api HTTP/1.1\r\nAuthorization: {bearer}\r\n\r\n"),
            &["400"],
        ),
        (
            "two hosts",
            head("GET /api HTTP/1.1", &format!("Host: {b}\r\n")),
            &["400", "421"],
        ),
        (
            "an unknown upgrade",
            head("GET /api HTTP/1.1", "Connection: Upgrade\r\nUpgrade: raw\r\n"),
            &["401", "403"],
        ),
        (
            "a huge header",
            head("GET /api HTTP/1.1", &format!("X-A: {}\r\n", "a".repeat(33_000))),
            &["431"],
        ),
        (
            "many headers",
            head("GET /api HTTP/1.1", &"X-A: 1\r\n".repeat(150)),
            &["431"],
        ),
    ];
    let config = stage.root.client(None);
    for (rule, text, expected) in rows {
        let mut stream = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
        // A client that is cut off in the middle notices it when it reads.
        let _ = stream.write_all(text.as_bytes()).await;
        let answer = read_answer(&mut stream, PATIENCE).await;
        let code = answer.split(' ').nth(1).unwrap_or_default();
        assert!(expected.contains(&code), "{rule}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{rule}: one answer: {answer}");
        assert!(
            answer.contains("\"kind\":\"Status\"") || answer.ends_with("\r\n\r\n"),
            "{rule}: {answer}"
        );
    }
    assert_eq!(stage.requests(), [0, 0]);

    // Plaintext on the same port, and plaintext HTTP/2 after TLS with HTTP/1.1.
    let mut plain = tokio::net::TcpStream::connect(stage.envoy.ingress).await.unwrap();
    plain.write_all(head("GET /api HTTP/1.1", "").as_bytes()).await.unwrap();
    assert_eq!(read_answer(&mut plain, PATIENCE).await, "");
    let mut stream = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    stream
        .write_all(head("GET /api HTTP/1.1", upgrade).as_bytes())
        .await
        .unwrap();
    let answer = read_answer(&mut stream, PATIENCE).await;
    assert!(!answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert_eq!(stage.requests()[1], 0);

    // CONNECT and other methods over HTTP/2.
    let mut client = stage.client(Http::Two).await;
    let connect = Request::builder().method(Method::CONNECT).uri("127.0.0.3:6443");
    let connect = connect.header("authorization", &bearer).body(Body::empty()).unwrap();
    let answer = client.ask(connect).await;
    assert!(
        !matches!(&answer, Ok(answer) if answer.status.is_success()),
        "{answer:?}"
    );
    assert_eq!(stage.requests()[1], 0);
}

/// Requests that are started and cancelled cost the server more than the client.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_cancellations_close_the_connection() {
    let stage = Stage::new().await;
    let bearer = stage.bearer(0);
    let mut other = stage.client(Http::Two).await;
    let mut stream = watch(&mut other, &bearer).await;
    let mut client = stage.client(Http::Two).await;
    let mut given_up = 0;
    let cut = loop {
        let asked = client.send(request("10.96.0.1", WATCH, &[("authorization", &bearer)]));
        match tokio::time::timeout(Duration::from_micros(200), asked).await {
            Ok(Err(error)) => break error,
            Ok(Ok(_)) | Err(_) => given_up += 1,
        }
        assert!(given_up < 20_000, "nobody stops it");
    };
    println!("cut off after {given_up}: {cut}");
    assert_alive("others do not notice", &mut stream).await;
    assert_eq!(stage.status(&bearer).await, StatusCode::OK);
}

/// A client that sends a request's head slowly or not at all holds a connection only for some
/// seconds.
#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_are_cut_off() {
    let stage = Stage::new().await;
    let config = stage.root.client(None);
    let mut slow = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
    slow.write_all(b"GET /api HTTP/1.1\r\nHost: 10.96.0.1\r\nX-A: ")
        .await
        .unwrap();
    let mut silent = tokio::net::TcpStream::connect(stage.envoy.ingress).await.unwrap();
    let start = Instant::now();
    let mut heard = Vec::new();
    // One byte per second.
    let answer = tokio::time::timeout(PATIENCE, async {
        loop {
            match tokio::time::timeout(Duration::from_secs(1), slow.read_buf(&mut heard)).await {
                // A reset closes the connection too.
                Ok(Ok(0) | Err(_)) => return String::from_utf8_lossy(&heard).into_owned(),
                Ok(Ok(_)) => {}
                // The next read returns the error.
                Err(_) => drop(slow.write_all(b"a").await),
            }
        }
    });
    let answer = answer.await.expect("the connection ends");
    println!("ended after {:?}", start.elapsed());
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"kind\":\"Status\""),
        "{answer}"
    );
    let mut nothing = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut nothing)).await;
    // The connection is closed, with or without a reset.
    let _ = ended.expect("who says nothing is closed");
    assert!(nothing.is_empty());
    assert_eq!(stage.requests(), [0, 0]);
}
