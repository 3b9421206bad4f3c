//! konnectivity agents connect by a name of their own, which leads to the second port of their
//! cluster's control plane.

use std::net::SocketAddr;

use crate::Stage;
use crate::support::fixtures::ClusterFixture;
use crate::support::tenant::{LongStream, Tenant, open};

/// A stage whose clusters have konnectivity-servers in addition to their API servers.
struct Servers {
    stage: Stage,
    clusters: [ClusterFixture; 2],
    names: [String; 2],
    servers: [Tenant; 2],
}

impl Servers {
    async fn new() -> Self {
        let mut stage = Stage::new(2).await;
        let clusters = stage.clusters.clone().map(ClusterFixture::with_konnectivity);
        let names = clusters.each_ref().map(ClusterFixture::konnectivity_name);
        for name in &names {
            assert!(stage.ask(name).await.is_err(), "{name} is not asked for yet");
        }
        let first = SocketAddr::from(([127, 0, 0, 2], 0));
        let a = Tenant::start("server of a", first, &stage.ca, &[&names[0]]).await;
        let port = a.address.port();
        let second = SocketAddr::from(([127, 0, 0, 3], port));
        let b = Tenant::start("server of b", second, &stage.ca, &[&names[1]]).await;

        stage.xds.take().unwrap().stop().await;
        stage.site.konnectivity_port = port;
        let xds = stage.site.start().await;
        xds.list(&clusters.each_ref()).await;
        stage.xds = Some(xds);
        for name in &names {
            stage.wait_served(name).await;
        }
        Self {
            stage,
            clusters,
            names,
            servers: [a, b],
        }
    }

    fn connections(&self) -> [usize; 2] {
        self.servers.each_ref().map(Tenant::connections)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reach_the_server_of_their_own_cluster() {
    let on = Servers::new().await;
    let [a, b] = on.connections();
    for _ in 0..5 {
        assert_eq!(on.stage.ask(&on.names[0]).await.unwrap(), "server of a to nobody");
    }
    assert_eq!(on.connections(), [a + 5, b]);
    assert_eq!(on.stage.ask(&on.names[1]).await.unwrap(), "server of b to nobody");
    assert_eq!(on.connections(), [a + 5, b + 1]);

    for (cluster, api) in on.clusters.iter().zip(["a to nobody", "b to nobody"]) {
        let found = on.stage.ask(&cluster.public_name()).await.unwrap();
        assert_eq!(found, api, "the public name leads to the API server");
    }
    assert_eq!(on.connections(), [a + 5, b + 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_similar_to_the_agents_name_are_refused() {
    let on = Servers::new().await;
    let name = &on.names[0];
    let before = on.connections();
    for (rule, sni) in [
        ("twice", format!("konnectivity.{name}")),
        ("deeper", format!("x.{name}")),
        ("of nobody", "konnectivity.c-bcdfghjk.yoke.test".to_owned()),
        ("of the base domain", "konnectivity.yoke.test".to_owned()),
        ("misspelt", name.replace("konnectivity", "konnectivities")),
        ("without its cluster", "konnectivity".to_owned()),
    ] {
        let opened = open(on.stage.envoy.ingress, &sni, &on.stage.anonymous()).await;
        assert!(opened.is_err(), "{rule}");
    }
    assert_eq!(on.connections(), before);
}

/// A cluster that disables konnectivity loses the agents' name and the tunnels that use it, and
/// nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn agents_of_a_cluster_without_konnectivity_are_refused() {
    let on = Servers::new().await;
    let (stage, anonymous) = (&on.stage, on.stage.anonymous());
    let [a, b] = &stage.clusters;
    let mut watch = LongStream::open(stage.envoy.ingress, &a.public_name(), &anonymous).await;
    let mut other = LongStream::open(stage.envoy.ingress, &on.names[1], &anonymous).await;

    stage.xds().apply(a).await;
    stage.wait_closed(&on.names[0]).await;
    watch.echo("the API is not concerned").await;
    other.echo("nor is another cluster").await;

    // The name is free now, and no other cluster may claim it.
    let thief = on.clusters[1]
        .clone()
        .with_extra_names(&[&on.names[0], "b.example.org"]);
    stage.xds().apply(&thief).await;
    stage.wait_served("b.example.org").await;
    assert!(stage.ask(&on.names[0]).await.is_err());
    other.echo("all the while").await;

    stage.xds().apply(b).await;
    stage.wait_closed(&on.names[1]).await;
    stage.xds().apply(&on.clusters[0]).await;
    stage.wait_served(&on.names[0]).await;
}
