//! Attacks before HTTP: connections and their first bytes.

use rustls::ClientConfig;
use rustls::client::Resumption;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::at_once;
use crate::support::PATIENCE;
use crate::support::client::{Client, Http, get};
use crate::support::tenant::open;
use crate::terminated::{NAMES, Stage};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Every connection is closed, with or without an alert, at the latest at the timeout for a hello.
/// No API server is touched. Returns the number of rows.
pub(super) async fn run(stage: &Stage, failed: &mut Vec<String>) -> usize {
    let rows = rows(stage);
    let connections = stage.apis.each_ref().map(|api| api.connections());
    let answers = rows.iter().map(|(rule, bytes)| async move {
        let mut stream = TcpStream::connect(stage.envoy.ingress).await.unwrap();
        // A client that is cut off in the middle notices it when it reads.
        let _ = stream.write_all(bytes).await;
        let mut heard = Vec::new();
        // A reset closes the connection too.
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard))
            .await
            .is_ok();
        let answered = heard.first().is_some_and(|kind| *kind != ALERT);
        (answered || !ended).then(|| format!("{rule}: ended {ended}, heard {heard:02x?}"))
    });
    failed.extend(at_once(answers).await);
    let after = stage.apis.each_ref().map(|api| api.connections());
    assert_eq!(after, connections, "no tenant was touched");
    rows.len() + names_are_not_mixed(stage).await + pieces_are_joined(stage).await
}

/// A ClientHello of this TLS version with these extensions.
fn hello(version: u16, extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let suites = [0xc0_u8, 0x2b, 0xc0, 0x2f, 0xc0, 0x13, 0x00, 0x2f];
    let extensions = extensions
        .iter()
        .flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &sized(body)].concat());
    let extensions: Vec<u8> = extensions.collect();
    let body = [
        &version.to_be_bytes()[..],
        &[7; 32],
        &[0],
        &sized(&suites),
        &[1, 0],
        &sized(&extensions),
    ]
    .concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1, length[1], length[2], length[3]][..], &body].concat();
    record(version.min(0x0303), &message)
}

fn record(version: u16, message: &[u8]) -> Vec<u8> {
    let parts = message.chunks(16_384).flat_map(|part| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[HANDSHAKE][..], &version.to_be_bytes(), &length, part].concat()
    });
    parts.collect()
}

/// The extension with server names, each with its type.
fn names(names: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let list = names.iter().flat_map(|(kind, name)| {
        let length = u16::try_from(name.len()).unwrap().to_be_bytes();
        [&[*kind][..], &length, name].concat()
    });
    let list: Vec<u8> = list.collect();
    let length = u16::try_from(list.len()).unwrap().to_be_bytes();
    (0, [&length[..], &list].concat())
}

/// The other extensions that a TLS 1.2 client needs.
fn groups() -> Vec<(u16, Vec<u8>)> {
    vec![
        (10, vec![0, 4, 0, 0x1d, 0, 0x17]),
        (13, vec![0, 6, 4, 3, 8, 4, 4, 1]),
        (11, vec![1, 0]),
    ]
}

fn rows(stage: &Stage) -> Vec<(&'static str, Vec<u8>)> {
    let b = stage.clusters[1].public_name();
    let named = |name: &[u8]| hello(0x0303, &[&[names(&[(0, name)])][..], &groups()].concat());
    let bytes = |parts: &[&[u8]]| parts.concat();
    let good = named(b.as_bytes());
    let half = good[..good.len() / 2].to_vec();
    let old = |version| hello(version, &groups());
    let padded = hello(0x0303, &[&groups()[..], &[(21, vec![0; 60_000])]].concat());
    let lying = {
        let mut bytes = good.clone();
        bytes[3..5].copy_from_slice(&0xffff_u16.to_be_bytes());
        bytes
    };
    vec![
        ("TLS 1.0", old(0x0301)),
        ("TLS 1.1", old(0x0302)),
        ("SSL 3", old(0x0300)),
        (
            "SSL 2",
            b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80".to_vec(),
        ),
        ("half a hello", half),
        ("a hello that is longer than it says", lying),
        ("a hello past its size", padded),
        ("a name with a NUL", named(&bytes(&[b.as_bytes(), b"\0.example.org"]))),
        ("a name behind a NUL", named(&bytes(&[b"\0", b.as_bytes()]))),
        ("a name with a dot behind", named(&bytes(&[b.as_bytes(), b"."]))),
        ("a name with a dot before", named(&bytes(&[b".", b.as_bytes()]))),
        ("a name with a port", named(&bytes(&[b.as_bytes(), b":443"]))),
        ("a name with a space", named(&bytes(&[b" ", b.as_bytes()]))),
        ("a name with a line end", named(&bytes(&[b.as_bytes(), b"\r\n"]))),
        ("a name with a slash", named(&bytes(&[b"name/", b.as_bytes()]))),
        ("a name that climbs", named(b"../xds")),
        ("a name of Envoy's format", named(b"%DOWNSTREAM_REMOTE_ADDRESS%")),
        ("a star", named(b"*.yoke.test")),
        ("a star alone", named(b"*")),
        ("a name of bytes", named(&[0xff; 20])),
        (
            "a name of another script",
            named("\u{430}-bcdfghjk.yoke.test".as_bytes()),
        ),
        ("a name that is too long", named(&[b'a'; 300])),
        ("a name that is as long as can be", named(&[b'a'; 16_000])),
        (
            "two names",
            hello(
                0x0303,
                &[&[names(&[(0, b"x"), (0, b.as_bytes())])][..], &groups()].concat(),
            ),
        ),
        (
            "a name of another kind",
            hello(0x0303, &[&[names(&[(7, b.as_bytes())])][..], &groups()].concat()),
        ),
        (
            "names twice",
            hello(
                0x0303,
                &[&[names(&[(0, b"x")]), names(&[(0, b.as_bytes())])][..], &groups()].concat(),
            ),
        ),
        ("an alert", b"\x15\x03\x03\x00\x02\x02\x28".to_vec()),
        ("data before all", b"\x17\x03\x03\x00\x05hello".to_vec()),
        ("a heartbeat", b"\x18\x03\x03\x00\x03\x01\x40\x00".to_vec()),
        (
            "a record without an end",
            bytes(&[b"\x16\x03\x01\xff\xff", &[0; 70_000]]),
        ),
        (
            "a server's hello",
            record(0x0303, &[&[2, 0, 0, 38, 3, 3][..], &[7; 36]].concat()),
        ),
        ("SSH", b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        ("HTTP", format!("GET / HTTP/1.1\r\nHost: {b}\r\n\r\n").into_bytes()),
        (
            "HTTP/2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        ),
        (
            "a PROXY header, and nobody asked for one",
            bytes(&[b"PROXY TCP4 198.51.100.9 192.0.2.1 1 443\r\n", &good]),
        ),
        (
            "the same in version 2",
            bytes(&[
                b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x09\xc0\0\x02\x01\0\x01\x01\xbb",
                &good,
            ]),
        ),
        ("zeros", vec![0; 70_000]),
    ]
}

/// Credentials for one name are worthless for another name.
async fn names_are_not_mixed(stage: &Stage) -> usize {
    let [a, b] = stage.clusters.each_ref().map(|cluster| cluster.public_name());
    let ingress = stage.envoy.ingress;
    let two = |config: &ClientConfig| {
        let mut config = config.clone();
        config.resumption = Resumption::in_memory_sessions(8);
        config
    };
    let config = two(&stage.root.client(None));
    let ask = async |sni: &str, config: &ClientConfig, authority: &str| {
        let mut client = Client::connect(ingress, sni, config, Http::Two).await?;
        let request = http::Request::get(format!("https://{authority}/api")).body(axum::body::Body::empty());
        let answer = client.ask(request.unwrap()).await.map_err(std::io::Error::other)?;
        std::io::Result::Ok(answer.body["cluster"].clone())
    };
    // One connection for both names, as a browser does if a certificate is valid for both: the
    // cluster of the connection answers.
    assert_eq!(ask(&a, &config, &b).await.unwrap(), "a", "B's host on A's connection");
    assert_eq!(ask(&a, &config, &a).await.unwrap(), "a", "resumed");
    assert_eq!(
        ask(&b, &config, &b).await.unwrap(),
        "b",
        "B after it, with A's tickets at hand"
    );
    assert_eq!(ask(&a.to_uppercase(), &config, &a).await.unwrap(), "a", "in capitals");
    // A's administrator at B: B's own CA does not know the certificate.
    let admin = stage.authorities[0].leaf("admin", &[]);
    let admin = stage.root.client(Some(&admin));
    assert_eq!(ask(&a, &admin, &a).await.unwrap(), "a", "at home");
    assert!(ask(&b, &admin, &b).await.is_err(), "abroad");
    // A Pod's token is for requests by token. On a connection by name the API server of that name
    // has to refuse it.
    let before = stage.requests();
    let mut client = Client::connect(ingress, &b, &config, Http::Two).await.unwrap();
    let answer = client.ask(get(Some(&stage.bearer(0)))).await.unwrap();
    assert_eq!(answer.body["cluster"], "b");
    assert_eq!(stage.requests(), [before[0], before[1] + 1]);
    7
}

/// A hello that arrives byte by byte is handled like one that arrives at once.
async fn pieces_are_joined(stage: &Stage) -> usize {
    let mut stream = TcpStream::connect(stage.envoy.ingress).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let hello = hello(0x0303, &groups());
    for byte in &hello {
        stream.write_all(&[*byte]).await.unwrap();
    }
    let mut head = [0; 1];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(head[0], HANDSHAKE, "the ingress goes on");
    // The ingress supports none of the ALPN protocols: HTTP/1.1 is used, or the connection fails.
    let mut config = stage.root.client(None);
    config.alpn_protocols = vec![b"h3".to_vec()];
    assert!(
        open(stage.envoy.ingress, NAMES[0], &config)
            .await
            .is_ok_and(|stream| { stream.get_ref().1.alpn_protocol().is_none() })
    );
    2
}
