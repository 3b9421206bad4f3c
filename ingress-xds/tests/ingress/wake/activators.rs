//! The activator that a name leads to, and the certificate that it presents.

use std::net::SocketAddr;

use http::StatusCode;
use tokio::net::TcpStream;
use yoke_api::ingress::Callers;

use super::{Night, on_connect, told};
use crate::support::client::{BOTH, Client, Http, get};
use crate::support::xds::Site;
use crate::support::{PATIENCE, eventually};
use crate::terminated::FURTHER;

#[tokio::test(flavor = "multi_thread")]
async fn an_extra_name_wakes_its_cluster() {
    let mut night = Night::new(on_connect(Callers::Authenticated)).await;
    let [of_a, of_b] = &night.stage.authorities;
    let (to_a, to_b) = (of_a.leaf("sleeper", &[FURTHER]), of_b.leaf("sleeper", &[FURTHER]));
    let (admin, nobody) = (night.admin(), night.stage.root.client(None));
    // A client that trusts only A's own certificate.
    let only_a = of_a.client(None);
    let awake = night.a.clone().with_extra_names(&[FURTHER]);
    night.a = awake.clone().at(&[], awake.port);
    night.tell(Some(on_connect(Callers::Authenticated))).await;
    // B is as old as A, and its namespace sorts later.
    let b = night.stage.clusters[1].clone().with_extra_names(&[FURTHER]);
    night.stage.xds().apply(&b.asleep(on_connect(Callers::Any))).await;
    night.stage.xds().show_asleep(&night.stage.clusters[1], &to_b).await;
    eventually("an answer of the activator for B", PATIENCE, async || {
        let name = night.stage.clusters[1].public_name();
        let answer = night.try_ask(&name, &nobody, Http::One, None).await.ok()?;
        (told(&answer).0 == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    while night.stage.xds().has_woken().await {}
    assert!(
        night.try_ask(FURTHER, &admin, Http::One, None).await.is_err(),
        "A has no certificate for it"
    );
    night.stage.xds().show_asleep(&night.a, &to_a).await;
    eventually("an answer to an unauthenticated client", PATIENCE, async || {
        let answer = night.try_ask(FURTHER, &only_a, Http::Two, None).await.ok()?;
        assert_eq!(told(&answer), (StatusCode::UNAUTHORIZED, None));
        Some(())
    })
    .await;
    assert!(!night.stage.xds().has_woken().await);
    for http in BOTH {
        let answer = night.try_ask(FURTHER, &admin, http, None).await.unwrap();
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")), "{http:?}");
    }
    assert_eq!(night.stage.xds().wake().await.cluster, "a");
    night.a = awake;
    night.tell(None).await;
    eventually("an answer of the API", PATIENCE, async || {
        let answer = night.try_ask(FURTHER, &admin, Http::Two, None).await.ok()?;
        (answer.status == StatusCode::OK && answer.body["cluster"] == "a").then_some(())
    })
    .await;
    // The public name has the certificate for all clusters.
    night.tell(Some(on_connect(Callers::Authenticated))).await;
    eventually("the cluster to be asleep again", PATIENCE, async || {
        let name = night.a.public_name();
        let answer = night.try_ask(&name, &nobody, Http::One, None).await.ok()?;
        (answer.status == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    assert!(
        night
            .try_ask(&night.a.public_name(), &only_a, Http::One, None)
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_activator_of_another_replica_answers() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let first = night.stage.xds();
    let mut site = Site::new(night.stage.site.api_port).await;
    site.activator.clone_from(&night.stage.site.activator);
    site.activator_at = SocketAddr::from(([127, 0, 0, 9], first.activator.port()));
    let other = site.start().await;
    let asleep = night.a.clone().asleep(on_connect(Callers::Authenticated));
    other.list(&[&asleep, &night.stage.clusters[1]]).await;
    first.set_replicas(&["127.0.0.1", "127.0.0.9"]).await;
    let nobody = night.stage.root.client(None);
    eventually("answers of both replicas", PATIENCE, async || {
        night.ask(&nobody, Http::One, None).await;
        let answers = "yoke_ingress_xds_sleeper_answers_total{answer=\"no_identity\"}";
        (other.metric(answers) > 0).then_some(())
    })
    .await;
    first.lose_activator();
    eventually("one replica to stop listening", PATIENCE, async || {
        TcpStream::connect(first.activator).await.err()
    })
    .await;
    for _ in 0..10 {
        let answer = night.ask(&nobody, Http::One, None).await;
        assert_eq!(told(&answer), (StatusCode::UNAUTHORIZED, None));
    }
    let answer = night.ask(&night.admin(), Http::Two, None).await;
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
    assert_eq!(other.wake().await.cluster, "a");
    assert!(!first.has_woken().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_replica_answers_until_envoy_knows() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let xds = night.stage.xds();
    xds.drain();
    eventually("the xDS port to close", PATIENCE, async || {
        TcpStream::connect(xds.address).await.err()
    })
    .await;
    let mut client = Client::connect(xds.activator, &night.a.public_name(), &night.admin(), Http::Two)
        .await
        .unwrap();
    let answer = client.ask(get(None)).await.unwrap();
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
    assert_eq!(xds.wake().await.cluster, "a");
}
