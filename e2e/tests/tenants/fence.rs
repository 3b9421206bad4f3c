//! Connections that the network permits to and from a control plane.
//!
//! A blocked connection proves something only if the same peer can connect elsewhere. So each check
//! has a control connection.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use yoke_e2e::network::{self, Origin, Reachability, try_connect};
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::{Stack, TenantFixture, wait_for};

const API: u16 = 6443;
/// Metrics port of the store.
const STORE: u16 = 2381;
const ENVOY: u16 = 8443;
const ECHO: u16 = 8080;
const KUBELET: u16 = 10250;
const UNRELATED: &str = "e2e-fence-strangers";
const LIMIT: Duration = Duration::from_secs(60);

/// Creates a pod that listens, in a namespace unrelated to Yoke.
async fn create_unrelated_pod(stack: &Stack) -> Result<Pod> {
    remove_unrelated_pods(stack, "true").await?;
    stack.host_kubectl(&["create", "namespace", UNRELATED]).await?.ok()?;
    let run = [
        "run",
        "stranger",
        "-n",
        UNRELATED,
        "--image=docker.io/yoke/echo:dev",
        "--image-pull-policy=IfNotPresent",
    ];
    // A new namespace has no service account at first.
    wait_for("the unrelated pod to be created", LIMIT, || async {
        stack.host_kubectl(&run).await?.ok().map(Some)
    })
    .await?;
    wait_for("the unrelated pod to run", LIMIT, || async {
        network::pod(stack, UNRELATED, "run=stranger").await.map(Some)
    })
    .await
}

async fn remove_unrelated_pods(stack: &Stack, wait: &str) -> Result<()> {
    let wait = format!("--wait={wait}");
    let delete = [
        "delete",
        "namespace",
        UNRELATED,
        "--ignore-not-found",
        &wait,
        "--timeout=50s",
    ];
    stack.host_kubectl(&delete).await?.ok()?;
    Ok(())
}

async fn control_plane(tenant: &TenantFixture, name: &str) -> Result<(Pod, Origin)> {
    let (cluster, _) = tenant.ready_cluster(name).await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = network::pod(&tenant.stack, &hosted, &format!("yoke.drzzl.io/cluster={name}")).await?;
    let inside = Origin::Process(network::container_pid(&tenant.stack, &pod, "kube-apiserver").await?);
    Ok((pod, inside))
}

/// Port of the host's API, as in the administrator's kubeconfig.
async fn host_api_port(stack: &Stack) -> Result<u16> {
    let server = [
        "config",
        "view",
        "--minify",
        "-o",
        "jsonpath={.clusters[0].cluster.server}",
    ];
    let server = stack.host_kubectl(&server).await?.ok()?;
    Ok(server
        .rsplit(':')
        .next()
        .context("no port in the host's URL")?
        .parse()?)
}

#[tokio::test]
async fn control_plane_is_open_to_envoy_and_reaches_nats_only() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "netpol").await?;
    let ((pod, inside), (_, neighbour)) = tokio::try_join!(control_plane(&tenant, "a"), control_plane(&tenant, "b"))?;
    let address = network::pod_ip(&pod)?;
    let envoy_pod = network::pod(&stack, "yoke-system", "app.kubernetes.io/name=envoy").await?;
    let envoy_address = network::pod_ip(&envoy_pod)?;
    let envoy = Origin::Process(network::container_pid(&stack, &envoy_pod, "envoy").await?);
    let unrelated_pod = create_unrelated_pod(&stack).await?;
    let unrelated_address = network::pod_ip(&unrelated_pod)?;
    let unrelated = Origin::Process(network::container_pid(&stack, &unrelated_pod, "stranger").await?);
    let nats = stack.var("NATS_URL")?;
    let (nats_host, nats_port) = nats
        .rsplit('/')
        .next()
        .and_then(|rest| rest.split_once(':'))
        .context("NATS_URL")?;
    let nats_port = nats_port.parse()?;

    // Ingress.
    ensure!(
        try_connect(&envoy, &address, API).await? == Reachability::Open,
        "closed to Envoy"
    );
    ensure!(
        try_connect(&inside, &address, STORE).await? == Reachability::Open,
        "the store serves no metrics in its own pod"
    );
    ensure!(
        try_connect(&envoy, &address, STORE).await? != Reachability::Open,
        "the store serves its metrics to Envoy"
    );
    for (who, from, elsewhere, port) in [
        ("a pod of another namespace", &unrelated, envoy_address.as_str(), ENVOY),
        (
            "another network namespace",
            &Origin::Here,
            unrelated_address.as_str(),
            ECHO,
        ),
        ("the control plane of a neighbour", &neighbour, nats_host, nats_port),
    ] {
        let control = try_connect(from, elsewhere, port).await?;
        ensure!(
            control == Reachability::Open,
            "{who} has no network: {elsewhere}:{port} is {control:?}"
        );
        for port in [API, STORE] {
            let found = try_connect(from, &address, port).await?;
            ensure!(found != Reachability::Open, "port {port} is open to {who}");
        }
    }

    // Egress.
    ensure!(
        try_connect(&inside, nats_host, nats_port).await? == Reachability::Open,
        "a control plane cannot reach NATS"
    );
    let node = stack.var("YOKE_NODE_IP")?;
    for (what, address, port) in [
        ("the host's API", node, host_api_port(&stack).await?),
        ("the kubelet", node, KUBELET),
        ("Envoy", envoy_address.as_str(), ENVOY),
        ("a pod of another namespace", unrelated_address.as_str(), ECHO),
    ] {
        let control = try_connect(&Origin::Here, address, port).await?;
        ensure!(
            control == Reachability::Open,
            "{what} is unreachable for everyone: {address}:{port} is {control:?}"
        );
        let found = try_connect(&inside, address, port).await?;
        ensure!(found != Reachability::Open, "a control plane reaches {what}");
    }
    remove_unrelated_pods(&stack, "false").await?;
    tenant.remove().await
}
