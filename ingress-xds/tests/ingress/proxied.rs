//! Clients behind a load balancer that reports their addresses by the PROXY protocol.

use std::net::{IpAddr, Ipv4Addr};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::client::{BOTH, Client, Http, get};
use crate::support::tenant::connect_from;
use crate::support::{PATIENCE, eventually};
use crate::terminated::{NAMES, Stage, assert_status};

/// The filter as the chart writes it.
const FILTER: &str = r#"{name: envoy.filters.listener.proxy_protocol, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}}, "#;
const BALANCERS: &str = "{address_prefix: 127.1.0.0, prefix_len: 16}";
/// The address of a load balancer, and one of a client that is none.
const BALANCER: [u8; 4] = [127, 1, 0, 7];
const STRANGER: [u8; 4] = [127, 2, 0, 7];
/// The address of a client that cluster `a` allows, and one that it does not allow.
const OFFICE: [u8; 4] = [198, 51, 100, 9];
const ELSEWHERE: [u8; 4] = [203, 0, 113, 9];
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

async fn stage() -> Stage {
    let mut stage = Stage::unready(&[("@PROXY_PROTOCOL@", FILTER), ("@PEERS@", BALANCERS)], |_| {}).await;
    stage.envoy.wait_ready().await;
    let restricted = stage.clusters[0].clone().reached_from(&["198.51.100.0/24"]);
    stage.xds().apply(&restricted).await;
    let bearer = stage.bearer(0);
    let refused = async || {
        let mut client = pod(&stage, BALANCER, &one(ELSEWHERE), Http::Two).await.ok()?;
        let answer = client.ask(get(Some(&bearer))).await.ok()?;
        (answer.status == 403).then_some(())
    };
    eventually("the ranges to apply", PATIENCE, refused).await;
    stage
}

fn one(client: [u8; 4]) -> Vec<u8> {
    format!("PROXY TCP4 {} 192.0.2.1 40000 443\r\n", Ipv4Addr::from(client)).into_bytes()
}

fn two(command: u8, client: [u8; 4]) -> Vec<u8> {
    let mut header = [
        SIGNATURE,
        &[0x20 | command, 0x11, 0, 12][..],
        &client[..],
        &[192, 0, 2, 1][..],
    ]
    .concat();
    header.extend(40000_u16.to_be_bytes());
    header.extend(443_u16.to_be_bytes());
    header
}

async fn connect(stage: &Stage, peer: [u8; 4], header: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = connect_from(IpAddr::from(peer), stage.envoy.ingress).await?;
    stream.write_all(header).await?;
    Ok(stream)
}

async fn by_name(stage: &Stage, peer: [u8; 4], header: &[u8]) -> std::io::Result<Client> {
    let stream = connect(stage, peer, header).await?;
    let name = stage.clusters[0].public_name();
    Client::over(stream, &name, &stage.root.client(None), Http::Two).await
}

async fn pod(stage: &Stage, peer: [u8; 4], header: &[u8], http: Http) -> std::io::Result<Client> {
    let stream = connect(stage, peer, header).await?;
    Client::over(stream, NAMES[0], &stage.root.client(None), http).await
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_protocol_gives_the_clients_address() {
    let stage = stage().await;
    let bearer = stage.bearer(0);
    for (rule, allowed, other) in [
        ("version 1", one(OFFICE), one(ELSEWHERE)),
        ("version 2", two(1, OFFICE), two(1, ELSEWHERE)),
    ] {
        assert!(by_name(&stage, BALANCER, &allowed).await.is_ok(), "{rule}");
        assert!(by_name(&stage, BALANCER, &other).await.is_err(), "{rule}");
        for http in BOTH {
            let mut client = pod(&stage, BALANCER, &allowed, http).await.unwrap();
            let answer = client.ask(get(Some(&bearer))).await.unwrap();
            assert_eq!(answer.body["cluster"], "a", "{rule}: {answer:?}");
            let told = &answer.body["headers"]["x-forwarded-for"];
            assert_eq!(told, "198.51.100.9", "{rule}: for the audit log");
            let mut client = pod(&stage, BALANCER, &other, http).await.unwrap();
            let answer = client.ask(get(Some(&bearer))).await.unwrap();
            assert_status(rule, &answer, 403, "Forbidden");
        }
    }
    let logged = async || {
        let lines = stage.envoy.access_log();
        let of = |source: &str| lines.iter().any(|line| line["source"] == source);
        (of("198.51.100.9") && of("203.0.113.9")).then_some(())
    };
    eventually("the client in the access log", PATIENCE, logged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_balancers_may_set_the_address() {
    let stage = stage().await;
    let before = stage.requests();
    let twice = [one(ELSEWHERE), one(OFFICE)].concat();
    let mixed = [two(1, ELSEWHERE), one(OFFICE)].concat();
    let unknown = b"PROXY UNKNOWN\r\n".to_vec();
    let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
    for (rule, peer, header) in [
        ("no header", BALANCER, vec![]),
        ("a stranger without a header", STRANGER, vec![]),
        ("a stranger with one", STRANGER, one(OFFICE)),
        ("a stranger with one of version 2", STRANGER, two(1, OFFICE)),
        ("a stranger who speaks of himself", STRANGER, two(0, OFFICE)),
        ("a client's own header behind the balancer's", BALANCER, twice),
        ("the same by two versions", BALANCER, mixed),
        ("a balancer that speaks of itself", BALANCER, two(0, OFFICE)),
        ("a client that is not known", BALANCER, unknown),
        ("a command that is none", BALANCER, two(7, OFFICE)),
        ("a header without an end", BALANCER, long),
        (
            "a name for an address",
            BALANCER,
            b"PROXY TCP4 office b 1 2\r\n".to_vec(),
        ),
        (
            "a port that is none",
            BALANCER,
            b"PROXY TCP4 198.51.100.9 192.0.2.1 99999 443\r\n".to_vec(),
        ),
    ] {
        assert!(by_name(&stage, peer, &header).await.is_err(), "{rule}");
        if let Ok(mut client) = pod(&stage, peer, &header, Http::Two).await {
            let answer = client.ask(get(Some(&stage.bearer(0)))).await.unwrap();
            assert_status(rule, &answer, 403, "Forbidden");
            assert_eq!(peer, BALANCER, "{rule}: a stranger is not even answered");
        }
    }
    assert_eq!(stage.requests(), before, "nobody was reached");
}
