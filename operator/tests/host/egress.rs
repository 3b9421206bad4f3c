//! Peers that a control plane may connect to.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::PostParams;
use yoke_api::Cluster;
use yoke_api::cluster::ExtraArg;

use crate::harness::Host;

/// Returns the ports of the NetworkPolicy's egress rules.
async fn read_egress_ports(host: &Host, hosted: &str) -> Vec<String> {
    let policy = host.api::<NetworkPolicy>(hosted).get("control-plane").await.unwrap();
    let rules = policy.spec.unwrap().egress.unwrap();
    assert!(
        rules
            .iter()
            .all(|rule| rule.to.as_ref().is_some_and(|to| !to.is_empty()))
    );
    let ports = rules.into_iter().flat_map(|rule| rule.ports.unwrap());
    ports.map(|port| format!("{:?}", port.port.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_provider_is_reachable_while_it_is_configured() {
    let host = Host::start().await;
    let argument = |name: &str, value: &str| ExtraArg {
        name: name.into(),
        value: value.into(),
    };
    let mut cluster = Cluster::new("a", Default::default());
    cluster.spec.extra_args.api_server = vec![
        argument("oidc-issuer-url", "https://id.example.org"),
        argument("oidc-client-id", "yoke"),
    ];
    host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    host.reconcile_until_started("a").await;
    let hosted = host.hosted("a").await;
    let nats = read_egress_ports(&host, &hosted).await[0].clone();
    let all = [nats.as_str(), "Int(443)", "Int(53)", "Int(53)"];
    assert_eq!(read_egress_ports(&host, &hosted).await, all);
    // For a refused Cluster, the policy stays that of the running control plane.
    let without = serde_json::json!({"spec": {"extraArgs": {"apiServer": []}}});
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    host.reconcile_until_condition("a", "Accepted", "False/QuotaExceeded")
        .await;
    host.patch_cluster("a", without).await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
        assert_eq!(read_egress_ports(&host, &hosted).await, all);
    }
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 3}}}))
        .await;
    let ports = async || read_egress_ports(&host, &hosted).await;
    host.reconcile_until_equal("a", "the egress ports", ports, [nats.as_str()])
        .await;
}
