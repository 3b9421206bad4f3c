//! A tenant's connections are not disturbed by changes of its neighbors.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::Api;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use yoke_api::cluster::DesiredState;
use yoke_api::tenant::TenantQuota;
use yoke_api::{Cluster, ClusterSpec, ConditionType, TenantSpec};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Stack, TenantFixture, network, watch_for};

/// Number of Clusters that are created and deleted beside an open watch, and how many at a time.
const NEIGHBOURS: usize = 50;
const AT_ONCE: usize = 10;
const DOMAIN: &str = "watch.example";

/// Sum of a counter of ingress-xds over its labels.
async fn xds_counter(stack: &Stack, name: &str) -> Result<u64> {
    let pod = network::pod(stack, "yoke-system", "app.kubernetes.io/name=yoke-ingress-xds").await?;
    let pod = pod.metadata.name.context("a pod without a name")?;
    let path = format!("/api/v1/namespaces/yoke-system/pods/{pod}:9090/proxy/metrics");
    let text = stack.host_kubectl(&["get", "--raw", &path]).await?.ok()?;
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
    ensure!(!lines.is_empty(), "no metric {name} in {text}");
    let values = lines
        .iter()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    Ok(values.sum())
}

/// Waits until the operator has published a name of a Cluster to the ingress.
async fn wait_published(tenant: &TenantFixture, cluster: &Cluster, name: &str) -> Result<()> {
    let hosted = hosted_namespace(cluster)?;
    let configs: Api<ConfigMap> = Api::namespaced(tenant.stack.host.clone(), &hosted);
    let what = format!("{name} to be published");
    watch_for(
        &what,
        READY_LIMIT,
        configs,
        "yoke-ingress",
        |config: Option<ConfigMap>| {
            let data = config.and_then(|config| config.data).unwrap_or_default();
            Ok(data.values().any(|value| value.contains(name)).then_some(()))
        },
    )
    .await
}

/// Creates, changes and deletes a Cluster. Each change reaches the ingress. The Cluster sleeps,
/// because a control plane would only take time.
async fn create_change_delete(tenant: &TenantFixture, name: &str) -> Result<()> {
    let spec = ClusterSpec {
        state: DesiredState::Asleep,
        ..ClusterSpec::default()
    };
    tenant.create_cluster(name, spec).await?;
    let cluster = tenant
        .wait_condition(name, ConditionType::Accepted, "True", READY_LIMIT)
        .await?;
    wait_published(tenant, &cluster, name).await?;
    let host = format!("{name}.{DOMAIN}");
    let endpoint = json!({"spec": {"endpoint": {"extraSANs": [host]}}});
    tenant.patch_cluster(name, endpoint).await?;
    wait_published(tenant, &cluster, &host).await?;
    tenant.delete_cluster(name).await
}

#[tokio::test]
async fn watch_stays_open_while_neighbours_come_and_go() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "watch").await?;
    let quota = TenantQuota {
        clusters: i32::try_from(AT_ONCE)? + 1,
        storage: Quantity("12Gi".into()),
        ..TenantQuota::default()
    };
    let spec = TenantSpec {
        quota,
        allowed_domains: vec![DOMAIN.into()],
        ..TenantSpec::default()
    };
    let other = TenantFixture::create_with(&stack, "watched", spec).await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    let mut watch = stack.program("kubectl");
    watch.arg("--kubeconfig").arg(&kubeconfig).args([
        "get",
        "configmaps",
        "-n",
        "default",
        "--watch-only",
        "-o",
        "name",
    ]);
    let mut watch = watch
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("no stdout")?).lines();
    let responses = xds_counter(&stack, "yoke_ingress_xds_responses_total").await?;

    // One neighbor runs. All others are created and deleted beside it.
    let running = async {
        let (_, neighbour) = other.ready_cluster("b").await?;
        stack.kubectl(&neighbour, &["get", "namespaces"]).await?.ok()?;
        other.delete_cluster("b").await
    };
    let others = async {
        for begin in (0..NEIGHBOURS).step_by(AT_ONCE) {
            let names: Vec<_> = (begin..begin + AT_ONCE).map(|number| format!("n{number}")).collect();
            try_join_all(names.iter().map(|name| create_change_delete(&other, name))).await?;
            let marker = format!("marker-{begin}");
            stack
                .kubectl(&kubeconfig, &["create", "configmap", &marker])
                .await?
                .ok()?;
            let expected = format!("configmap/{marker}");
            tokio::time::timeout(Duration::from_secs(10), async {
                loop {
                    let line = lines.next_line().await?.context("the watch ended")?;
                    if line == expected {
                        return Ok::<(), anyhow::Error>(());
                    }
                }
            })
            .await
            .with_context(|| format!("the watch does not show {marker}"))??;
        }
        Ok(())
    };
    tokio::try_join!(running, others)?;
    ensure!(watch.try_wait()?.is_none(), "the watch ended");
    let responses = xds_counter(&stack, "yoke_ingress_xds_responses_total").await? - responses;
    println!("{NEIGHBOURS} neighbors were created and deleted in {responses} xDS responses");
    ensure!(responses >= NEIGHBOURS as u64, "Envoy got only {responses} responses");
    other.remove().await?;
    tenant.remove().await
}
