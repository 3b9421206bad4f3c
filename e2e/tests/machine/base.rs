//! Configuration that the host's owner adds to the ingress's Envoy with a ConfigMap, on the whole
//! stack. It is watched, served, rejected with an event, and removed.
//!
//! This test cannot run beside others: a rejected configuration causes a warning in a log that they
//! check.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::process::Command;
use yoke_e2e::{Stack, eventually, network, run, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "yoke-system";
const NAME: &str = "yoke-ingress-base";
const PORT: u16 = 8085;
const ADMIN_PORT: u16 = 9901;

/// A ConfigMap with a listener that answers with `text`.
fn config_map(listener: &str, port: u16, text: &str) -> String {
    let route = json!({"match": {"prefix": "/"}, "directResponse": {"status": 200, "body": {"inlineString": text}}});
    let extensions = "type.googleapis.com/envoy.extensions.filters";
    let manager = json!({
        "@type": format!("{extensions}.network.http_connection_manager.v3.HttpConnectionManager"),
        "statPrefix": "page",
        "routeConfig": {"virtualHosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "httpFilters": [{
            "name": "envoy.filters.http.router",
            "typedConfig": {"@type": format!("{extensions}.http.router.v3.Router")},
        }],
    });
    let listeners = json!([{
        "name": listener,
        "address": {"socketAddress": {"address": "127.0.0.1", "portValue": port}},
        "filterChains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": manager}]}],
    }]);
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"listeners": listeners.to_string()},
    })
    .to_string()
}

/// The listener's answer to a request in Envoy's network namespace.
async fn get(envoy: u32) -> Result<String> {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{PORT} && printf 'GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let mut command = Command::new("nsenter");
    command.args(["--target", &envoy.to_string(), "--net", "--", "bash", "-c", &script]);
    run(command, Duration::from_secs(10)).await?.ok()
}

async fn wait_served(envoy: u32, text: &str) -> Result<()> {
    let what = format!("the answer {text:?}");
    eventually(&what, LIMIT, async || get(envoy).await, |answer| answer.ends_with(text)).await?;
    Ok(())
}

/// Waits for an event on the ConfigMap.
async fn wait_for_event(stack: &Stack, reason: &str, text: &str) -> Result<()> {
    let selector = format!("involvedObject.name={NAME},reason={reason}");
    let events = [
        "get",
        "events",
        "-n",
        NAMESPACE,
        "--field-selector",
        &selector,
        "-o",
        "jsonpath={.items[*].message}",
    ];
    let find = async || stack.host_kubectl(&events).await?.ok();
    let what = format!("an event {reason} with {text:?}");
    eventually(&what, LIMIT, find, |messages| messages.contains(text)).await?;
    Ok(())
}

async fn is_refused(stack: &Stack) -> Result<bool> {
    let pod = network::pod(stack, NAMESPACE, "app.kubernetes.io/name=yoke-ingress-xds").await?;
    let pod = pod.metadata.name.context("a pod without a name")?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9090/proxy/metrics");
    let text = stack.host_kubectl(&["get", "--raw", &path]).await?.ok()?;
    Ok(text.lines().any(|line| line == "yoke_ingress_xds_base_refused 1"))
}

#[tokio::test]
async fn owners_listener_is_served_changed_and_removed() -> Result<()> {
    let stack = Stack::connect().await?;
    let pod = network::pod(&stack, NAMESPACE, "app.kubernetes.io/name=envoy").await?;
    let envoy = network::container_pid(&stack, &pod, "envoy").await?;
    // A unique name, because events of earlier runs remain.
    let listener = format!("page-{}", Timestamp::now().as_second());

    stack.apply(&config_map(&listener, PORT, "first")).await?.ok()?;
    wait_served(envoy, "first").await?;
    wait_for_event(&stack, "BaseConfigServed", "1 resources are served.").await?;

    stack.apply(&config_map(&listener, ADMIN_PORT, "second")).await?.ok()?;
    let reason = format!("listeners {listener}: listens on port {ADMIN_PORT}");
    wait_for_event(&stack, "BaseConfigRefused", &reason).await?;
    ensure!(is_refused(&stack).await?, "the metric does not report the refusal");
    ensure!(
        get(envoy).await?.ends_with("first"),
        "the last valid configuration is not served"
    );

    stack.apply(&config_map(&listener, PORT, "third")).await?.ok()?;
    wait_served(envoy, "third").await?;
    ensure!(!is_refused(&stack).await?, "the metric still reports a refusal");

    let delete = ["delete", "configmap", NAME, "-n", NAMESPACE];
    stack.host_kubectl(&delete).await?.ok()?;
    wait_until("the listener to be gone", LIMIT, || async {
        Ok(get(envoy).await.is_err())
    })
    .await?;
    let again = network::pod(&stack, NAMESPACE, "app.kubernetes.io/name=envoy").await?;
    ensure!(
        network::container_pid(&stack, &again, "envoy").await? == envoy,
        "Envoy was restarted"
    );
    Ok(())
}
