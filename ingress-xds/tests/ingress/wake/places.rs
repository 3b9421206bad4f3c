//! Unauthenticated clients do not lock out authenticated ones.

use std::time::Duration;

use http::StatusCode;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use yoke_api::ingress::Callers;

use super::{Night, on_connect, told};
use crate::support::client::{BOTH, Client, Http, get};
use crate::support::tenant::open_over;
use crate::support::xds::Site;
use crate::support::{PATIENCE, eventually};

/// Slots of the cluster, and unauthenticated clients that want one. An authenticated client pins
/// its slot before as many others have come.
const PLACES: usize = 32;
const STRANGERS: usize = 100;

/// A night with few slots.
async fn narrow(callers: Callers) -> Night {
    Night::at(on_connect(callers), few_places).await
}

fn few_places(site: &mut Site) {
    site.activator_limits.connections = 4 * PLACES;
    site.activator_limits.connections_each = PLACES;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_make_room() {
    let night = narrow(Callers::Authenticated).await;
    let mut config = night.stage.root.client(None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let handshakes = "yoke_ingress_xds_sleeper_handshakes_total{result=\"ok\"}";
    let before = night.stage.xds().metric(handshakes);
    let name = night.a.public_name();
    let mut silent = vec![];
    for _ in 0..STRANGERS {
        let stream = TcpStream::connect(night.stage.envoy.ingress).await.unwrap();
        silent.push(open_over(stream, &name, &config).await.unwrap());
    }
    eventually("the handshakes of all clients", PATIENCE, async || {
        (night.stage.xds().metric(handshakes) >= before + STRANGERS as u64).then_some(())
    })
    .await;
    for http in BOTH {
        let answer = night.ask(&night.admin(), http, None).await;
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
    }
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_clients_that_wake_it_leave_room() {
    let night = Night::at(on_connect(Callers::Any), |site| {
        few_places(site);
        // A client that is too late for its first request is cut off and retries before it gives
        // up.
        site.activator_limits.first = PATIENCE / 4;
    })
    .await;
    let handshakes = "yoke_ingress_xds_sleeper_handshakes_total{result=\"ok\"}";
    let before = night.stage.xds().metric(handshakes);
    let name = night.a.public_name();
    let nobody = night.stage.root.client(None);
    let soon = (StatusCode::SERVICE_UNAVAILABLE, Some("1"));
    // The cluster does not wake for them, so all could wait, each in a slot.
    let strangers = (0..STRANGERS).map(|_| async {
        loop {
            // Clients that block others are cut off.
            if let Ok(answer) = night.try_ask(&name, &nobody, Http::One, None).await {
                return told(&answer) == soon;
            }
        }
    });
    let asking = async {
        eventually("the handshakes of all clients", PATIENCE, async || {
            (night.stage.xds().metric(handshakes) >= before + STRANGERS as u64).then_some(())
        })
        .await;
        night.ask(&night.admin(), Http::One, None).await
    };
    let (answered, answer) = tokio::join!(futures::future::join_all(strangers), asking);
    assert_eq!(
        told(&answer),
        (StatusCode::SERVICE_UNAVAILABLE, Some("0")),
        "he was held"
    );
    assert!(answered.iter().all(|as_expected| *as_expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_pins_the_slot_from_the_start() {
    let night = narrow(Callers::Authenticated).await;
    let (name, activator) = (night.a.public_name(), night.stage.xds().activator);
    let (admin, nobody) = (night.admin(), night.stage.root.client(None));
    let mut first = Client::connect(activator, &name, &admin, Http::Two).await.unwrap();
    let mut open = vec![];
    for _ in 0..STRANGERS {
        let stream = TcpStream::connect(activator).await.unwrap();
        open.push(open_over(stream, &name, &nobody).await.unwrap());
    }
    let answer = first.ask(get(None)).await.unwrap();
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_slot_still_wakes_the_cluster() {
    let night = narrow(Callers::Authenticated).await;
    let (name, activator) = (night.a.public_name(), night.stage.xds().activator);
    let node = night.with(&night.stage.authorities[0].leaf("system:node:worker", &[]));
    let busy = "yoke_ingress_xds_sleeper_answers_total{answer=\"busy\"}";
    let mut nodes = vec![];
    eventually("the activator to be busy", PATIENCE, async || {
        let stream = TcpStream::connect(activator).await.unwrap();
        // One client too many may be cut off in the middle.
        nodes.push(open_over(stream, &name, &node).await.ok());
        (night.stage.xds().metric(busy) > 0).then_some(())
    })
    .await;
    let answer = async {
        let mut admin = Client::connect(activator, &name, &night.admin(), Http::One).await?;
        admin.ask(get(None)).await.map_err(std::io::Error::other)
    };
    assert!(answer.await.is_err());
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_are_cut_off() {
    let second = Duration::from_secs(1);
    let night = Night::at(on_connect(Callers::Authenticated), |site| {
        site.activator_limits.first = second
    })
    .await;
    let (name, activator) = (night.a.public_name(), night.stage.xds().activator);
    for protocol in ["http/1.1", "h2"] {
        let mut config = night.admin();
        config.alpn_protocols = vec![protocol.into()];
        let stream = TcpStream::connect(activator).await.unwrap();
        let mut silent = open_over(stream, &name, &config).await.unwrap();
        // A reset closes the connection too.
        let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut vec![])).await;
        assert!(ended.is_ok(), "{protocol}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_frees_the_slot() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let (name, activator) = (night.a.public_name(), night.stage.xds().activator);
    let mut client = Client::connect(activator, &name, &night.admin(), Http::Two)
        .await
        .unwrap();
    tokio::select! {
        answer = client.ask(get(None)) => panic!("who may wake it is held: {answer:?}"),
        wake = night.stage.xds().wake() => assert_eq!(wake.cluster, "a"),
    }
    eventually("the connection to close", PATIENCE, async || {
        client.is_closed().then_some(())
    })
    .await;
}
