//! Strangers keep out nobody whom the cluster knows.

use std::time::Duration;

use http::StatusCode;
use tokio::net::TcpStream;
use yoke_api::ingress::Callers;

use super::{Night, on_connect, told};
use crate::support::client::{BOTH, Client, Http, get};
use crate::support::tenant::open_over;
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn silent_strangers_make_room() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let mut config = night.stage.root.client(None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let handshakes = "yoke_ingress_xds_sleeper_handshakes_total{result=\"ok\"}";
    let before = night.stage.xds().metric(handshakes);
    let name = night.a.public_name();
    let mut silent = vec![];
    for _ in 0..300 {
        let stream = TcpStream::connect(night.stage.envoy.ingress).await.unwrap();
        silent.push(open_over(stream, &name, &config).await.unwrap());
    }
    eventually("all are there", PATIENCE, async || {
        (night.stage.xds().metric(handshakes) >= before + 300).then_some(())
    })
    .await;
    for http in BOTH {
        let answer = night.ask(&night.admin(), http, None).await;
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
    }
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_wake_it_leave_room() {
    let night = Night::new(on_connect(Callers::Any)).await;
    let handshakes = "yoke_ingress_xds_sleeper_handshakes_total{result=\"ok\"}";
    let before = night.stage.xds().metric(handshakes);
    let name = night.a.public_name();
    let nobody = night.stage.root.client(None);
    let soon = (StatusCode::SERVICE_UNAVAILABLE, Some("1"));
    // Nobody wakes it, so all of them could wait, each with a place of his own.
    let strangers = (0..300).map(|_| async {
        loop {
            // Those that are in the way of others are cut off.
            if let Ok(answer) = night.try_ask(&name, &nobody, Http::One, None).await {
                return told(&answer) == soon;
            }
        }
    });
    let asking = async {
        eventually("all are there", PATIENCE * 3, async || {
            (night.stage.xds().metric(handshakes) >= before + 300).then_some(())
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
async fn who_has_a_certificate_keeps_the_place_from_the_start() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let (name, sleeper) = (night.a.public_name(), night.stage.xds().sleeper);
    let (admin, nobody) = (night.admin(), night.stage.root.client(None));
    // A busy machine may take longer than a client may.
    eventually("the first is answered", PATIENCE, async || {
        let mut first = Client::connect(sleeper, &name, &admin, Http::Two).await.ok()?;
        let strangers = (0..300).map(|_| async {
            let stream = TcpStream::connect(sleeper).await.ok()?;
            open_over(stream, &name, &nobody).await.ok()
        });
        let _open = futures::future::join_all(strangers).await;
        let answer = first.ask(get(None)).await.ok()?;
        (told(&answer) == (StatusCode::SERVICE_UNAVAILABLE, Some("0"))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_wakes_it_all_the_same() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let (name, sleeper) = (night.a.public_name(), night.stage.xds().sleeper);
    let node = night.with(&night.stage.authorities[0].leaf("system:node:worker", &[]));
    eventually("there is no place", PATIENCE * 3, async || {
        let nodes = (0..300).map(|_| async {
            let stream = TcpStream::connect(sleeper).await.ok()?;
            open_over(stream, &name, &node).await.ok()
        });
        let _open = futures::future::join_all(nodes).await;
        let admin = Client::connect(sleeper, &name, &night.admin(), Http::One).await;
        let is_answered = match admin {
            Ok(mut admin) => admin.ask(get(None)).await.is_ok(),
            Err(_) => false,
        };
        if is_answered {
            // A busy machine takes longer than nodes may. Another word is said after a while.
            tokio::time::sleep(Duration::from_secs(5)).await;
            while night.stage.xds().has_woken().await {}
        }
        (!is_answered).then_some(())
    })
    .await;
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_request_back_gives_up_the_place() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let (name, sleeper) = (night.a.public_name(), night.stage.xds().sleeper);
    let mut client = Client::connect(sleeper, &name, &night.admin(), Http::Two)
        .await
        .unwrap();
    let held = tokio::time::timeout(Duration::from_millis(500), client.ask(get(None))).await;
    assert!(held.is_err(), "who may wake it is held");
    eventually("the connection ends", PATIENCE, async || {
        client.is_closed().then_some(())
    })
    .await;
}
