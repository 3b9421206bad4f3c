//! HTTP/1.1 requests as bytes that two parsers could read differently.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::at_once;
use crate::support::PATIENCE;
use crate::support::frames::SETTINGS;
use crate::support::tenant::open;
use crate::support::wire::read_answer;
use crate::terminated::{NAMES, Stage};

/// Expected result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The ingress answers with this status, and no API server is reached.
    Refused(&'static str),
    /// The cluster of the token answers once, and got no header that only the ingress may set.
    Own,
    /// The ingress continues in HTTP/2, and no API server is reached.
    Two,
}
use Answer::{Own, Refused, Two};

/// Every row has its answer, and only the token's own cluster gets a request. Returns the number of
/// rows.
pub(super) async fn run(stage: &Stage, failed: &mut Vec<String>) -> usize {
    let rows = rows(stage);
    let before = stage.requests();
    let answers = rows.iter().map(|(rule, text, expected)| async move {
        let config = stage.root.client(None);
        let mut stream = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
        // A client that is cut off in the middle notices it when it reads.
        let _ = stream.write_all(text).await;
        if *expected == Two {
            let mut head = [0; 9];
            let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await;
            let settings = matches!(read, Ok(Ok(_))) && head[3..] == [SETTINGS, 0, 0, 0, 0, 0];
            return (!settings).then(|| format!("{rule}: wanted {expected:?}, heard {head:02x?}"));
        }
        let heard = read_answer(&mut stream, PATIENCE).await;
        let code = heard.split(' ').nth(1).unwrap_or_default();
        let own = heard.contains("\"cluster\":\"a\"");
        let good = match expected {
            Two => false,
            Refused(wanted) => code == *wanted && !own,
            Own => code == "200" && own,
        };
        let once = heard.matches("HTTP/1.1 ").count() <= 1;
        let forged = heard.contains("\"x-remote") || heard.contains("\"x-yoke") || heard.contains("\"x-envoy");
        (!good || !once || forged).then(|| format!("{rule}: wanted {expected:?}, heard {heard}"))
    });
    failed.extend(at_once(answers).await);
    let own = rows.iter().filter(|(.., expected)| *expected == Own).count();
    assert_eq!(
        stage.requests(),
        [before[0] + own, before[1]],
        "each once, and nobody else"
    );
    rows.len()
}

fn rows(stage: &Stage) -> Vec<(&'static str, Vec<u8>, Answer)> {
    let a = stage.bearer(0);
    let b = stage.clusters[1].public_name();
    let text = |line: &str, more: &str, body: &str| {
        format!("{line}\r\nHost: 10.96.0.1\r\nAuthorization: {a}\r\n{more}\r\n{body}").into_bytes()
    };
    let get = |more: &str| text("GET /api HTTP/1.1", more, "");
    let line = |line: &str| text(line, "", "");
    let host = |host: &str| format!("GET /api HTTP/1.1\r\nHost: {host}\r\nAuthorization: {a}\r\n\r\n").into_bytes();
    let post = |more: &str, body: &str| text("POST /api HTTP/1.1", more, body);
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    vec![
        ("a name with a control character", get("X\x01A: 1\r\n"), Refused("400")),
        ("a name that is empty", get(": 1\r\n"), Refused("400")),
        ("a line without a colon", get("X-A\r\n"), Refused("400")),
        ("a carriage return in a value", get("X-A: 1\rX-Remote-User: b\r\n"), Own),
        ("a method with a space", line("GE T /api HTTP/1.1"), Refused("400")),
        (
            "a method of control characters",
            line("G\x01T /api HTTP/1.1"),
            Refused("400"),
        ),
        ("a path with a space", line("GET /a b HTTP/1.1"), Refused("400")),
        ("a path without a slash", line("GET api HTTP/1.1"), Refused("400")),
        ("a path with a NUL", line("GET /\0 HTTP/1.1"), Refused("400")),
        ("a path with a fragment", line("GET /api#b HTTP/1.1"), Refused("400")),
        (
            "a path that is long",
            line(&format!("GET /{} HTTP/1.1", "a".repeat(40_000))),
            Refused("431"),
        ),
        ("a version that is none", line("GET /api HTTP/9.9"), Refused("426")),
        ("a version of two", line("GET /api HTTP/2.0"), Refused("426")),
        ("no version", line("GET /api"), Refused("426")),
        ("a line that is empty", text("", "", ""), Refused("400")),
        (
            "a length below nothing",
            post("Content-Length: -1\r\n", "a"),
            Refused("400"),
        ),
        (
            "a length in another base",
            post("Content-Length: 0x3\r\n", "abc"),
            Refused("400"),
        ),
        (
            "a length past all numbers",
            post("Content-Length: 18446744073709551616\r\n", "a"),
            Refused("400"),
        ),
        (
            "lengths in one line",
            post("Content-Length: 3, 3\r\n", "abc"),
            Refused("400"),
        ),
        (
            "a length that is empty",
            post("Content-Length: \r\n", "abc"),
            Refused("400"),
        ),
        (
            "a chunk that is no number",
            chunked("zz\r\nabc\r\n0\r\n\r\n"),
            Refused("400"),
        ),
        (
            "a chunk past all numbers",
            chunked("fffffffffffffffff\r\na\r\n0\r\n\r\n"),
            Refused("400"),
        ),
        ("a chunk below nothing", chunked("-1\r\na\r\n0\r\n\r\n"), Refused("400")),
        (
            "a chunk that is longer than it says",
            chunked("1\r\nabc\r\n0\r\n\r\n"),
            Own,
        ),
        (
            "chunks twice",
            post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
            Refused("501"),
        ),
        (
            "chunks in two lines",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                "0\r\n\r\n",
            ),
            Refused("501"),
        ),
        (
            "chunks by a name with a tab",
            post("Transfer-Encoding:\x0bchunked\r\n", inner),
            Refused("400"),
        ),
        (
            "chunks and a trailer that is ours",
            chunked("0\r\nx-yoke-cluster: name/b\r\n\r\n"),
            Own,
        ),
        ("a method that nobody knows", line("BREW /api HTTP/1.1"), Refused("400")),
        ("asterisk", line("OPTIONS * HTTP/1.1"), Refused("404")),
        ("a host that is empty", host(""), Own),
        (
            "a host with B behind an @",
            host(&format!("10.96.0.1@{b}")),
            Refused("421"),
        ),
        (
            "a host with B behind a comma",
            host(&format!("10.96.0.1,{b}")),
            Refused("421"),
        ),
        (
            "a host with B behind a space",
            host(&format!("10.96.0.1 {b}")),
            Refused("400"),
        ),
        (
            "a host with B behind a slash",
            host(&format!("10.96.0.1/{b}")),
            Refused("400"),
        ),
        ("B's host in percents", host(&b.replace('-', "%2d")), Refused("421")),
        ("an address of IPv6 as host", host("[::1]:6443"), Own),
        (
            "a scheme that is none",
            line(&format!("GET gopher://{b}/api HTTP/1.1")),
            Refused("400"),
        ),
        (
            "somebody in the address",
            line(&format!("GET https://a@{b}/api HTTP/1.1")),
            Refused("421"),
        ),
        (
            "a header that says to drop its own",
            get("Connection: Authorization\r\n"),
            Refused("401"),
        ),
        (
            "an upgrade to two",
            get("Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n"),
            Refused("401"),
        ),
        ("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Two),
        ("bytes that are nothing", vec![0xff; 4096], Refused("408")),
    ]
}
