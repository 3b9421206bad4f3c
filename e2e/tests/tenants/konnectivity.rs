//! konnectivity: the control plane reaches a worker behind NAT through agents, and no other client
//! is admitted as an agent.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::json;
use tokio::process::{Child, Command};
use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, ClusterSpec, ConditionType};
use yoke_e2e::ssh::Key;
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::worker::ECHO;
use yoke_e2e::workload::POD_LIMIT;
use yoke_e2e::{
    Output, Stack, TenantFixture, Worker, Workload, eventually, network, process, run, wait_for, wait_until,
};
use yoke_test_support::free_port;

/// An accepted agent is ready at once. A rejected agent tries again every second.
const AGENT_LIMIT: Duration = Duration::from_secs(20);
const AGENT: [&str; 2] = ["--namespace=kube-system", "konnectivity-agent"];
const AUDIENCE: &str = "--audience=system:konnectivity-server";

fn with_agents() -> ClusterSpec {
    ClusterSpec {
        konnectivity: Konnectivity::Enabled,
        ..ClusterSpec::default()
    }
}

async fn wait_ready_with_addons(tenant: &TenantFixture, name: &str) -> Result<Cluster> {
    let ready = ConditionType::Ready;
    let cluster = tenant.wait_condition(name, ready, "True", READY_LIMIT).await?;
    let addons = ConditionType::AddonsReady;
    tenant.wait_condition(name, addons, "True", READY_LIMIT).await?;
    Ok(cluster)
}

/// A Pod connects to another one through its Service's name, which needs cluster DNS and
/// kube-proxy.
async fn use_service(inside: Workload<'_>) -> Result<()> {
    for name in ["coredns", "kube-proxy"] {
        inside.wait_addon(name, 1).await?;
    }
    let expose = ["expose", "pod", "serves", "--port=80", "--target-port=8080"];
    let label = ["label", "pod", "serves", "app=serves"];
    for arguments in [&label[..], &expose] {
        inside.kubectl(arguments).await?;
    }
    let url = "http://serves.default.svc.cluster.local/";
    inside.run_pod("asks", &[], None).await?;
    inside.wait_phase("asks", "Running").await?;
    let ask = async || inside.ask_from("asks", url).await;
    let is_served = |answer: &Output| answer.stdout.trim() == "serves";
    eventually("a Service to answer by its name", POD_LIMIT, ask, is_served).await?;
    Ok(())
}

/// A webhook in a Pod on the worker, behind a Service, rejects every ConfigMap. (kube-apiserver
/// does not use agents for webhooks with a `url`.)
async fn refuse_by_webhook(inside: Workload<'_>) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![SanType::DnsName("far.default.svc".try_into()?)];
    let certificate = parameters.self_signed(&key)?.pem();
    let (authority, secret) = (to_base64(&certificate)?, to_base64(&key.serialize_pem())?);
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "far"},
            "data": {"tls.crt": authority, "tls.key": secret},
        }),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far", "labels": {"app": "far"}},
            "spec": {
                "containers": [{
                    "name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent", "args": ["deny", "/far"],
                    "volumeMounts": [{"name": "far", "mountPath": "/far"}],
                }],
                "volumes": [{"name": "far", "secret": {"secretName": "far"}}],
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
            "spec": {"selector": {"app": "far"}, "ports": [{"port": 443, "targetPort": 8443}]},
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "far"},
            "webhooks": [{
                "name": "far.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"service": {"namespace": "default", "name": "far"}, "caBundle": authority},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            }],
        }),
    ];
    inside.apply(&objects).await?;
    inside.wait_phase("far", "Running").await?;
    let create = ["create", "configmap", "refused"];
    // The API server learns of a webhook with a delay, and the Pod may not listen yet.
    wait_until("the webhook to be called", POD_LIMIT, async || {
        let answer = inside.stack.kubectl(inside.kubeconfig, &create).await?;
        if answer.success() {
            inside.kubectl(&["delete", "configmap", "refused"]).await?;
        }
        Ok(answer.stderr.contains("the worker says no"))
    })
    .await
}

fn to_base64(text: &str) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(ByteString(text.as_bytes().to_vec()))?)
}

#[tokio::test]
async fn a_worker_behind_nat_is_reached() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "agents", key.to_spec()).await?;
    // The first JoinToken deploys the agents.
    tenant.create_cluster("a", ClusterSpec::default()).await?;
    let cluster = wait_ready_with_addons(&tenant, "a").await?;
    let kubeconfig = tenant.kubeconfig("a").await?;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let worker = Worker::join(&stack, &key.path, "a").await?;
    let connected = inside.wait_addon(AGENT[1], 1).await;
    connected.with_context(|| worker.recent_logs())?;

    let hosted = hosted_namespace(&cluster)?;
    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let pid = network::container_pid(&stack, &pod, "kube-apiserver").await?;
    let address = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    let address = inside.kubectl(&["get", "node", &worker.name, "-o", address]).await?;
    let direct = network::try_connect(&network::Origin::Process(pid), &address, 10250).await;
    ensure!(
        !matches!(direct, Ok(network::Reachability::Open)),
        "the control plane needs no agent to reach the worker"
    );

    inside.run_pod("said", &["nonsense"], None).await?;
    inside.run_pod("serves", &[], None).await?;
    inside.wait_phase("said", "Failed").await?;
    inside.wait_phase("serves", "Running").await?;
    let said = wait_for("the log of a Pod", AGENT_LIMIT, async || {
        inside.kubectl(&["logs", "said"]).await.map(Some)
    })
    .await?;
    ensure!(said.contains("usage: echo"), "logs: {said}");
    let heard = inside.ask_from("serves", "http://127.0.0.1:8080/").await?.ok()?;
    ensure!(heard.trim() == "serves", "exec: {heard}");
    let heard = inside.ask_forwarded("serves").await?;
    ensure!(heard.trim() == "serves", "port-forward: {heard}");
    let proxied = ["get", "--raw", "/api/v1/namespaces/default/pods/serves:8080/proxy/"];
    let proxied = inside.kubectl(&proxied).await?;
    ensure!(proxied.trim() == "serves", "proxy: {proxied}");

    let health = format!("/api/v1/nodes/{}/proxy/healthz", worker.name);
    let healthy = inside.kubectl(&["get", "--raw", &health]).await?;
    ensure!(healthy.trim() == "ok", "the kubelet itself: {healthy}");

    use_service(inside).await?;
    refuse_by_webhook(inside).await?;

    // Cost while it is used.
    let server = network::container_pid(&stack, &pod, "konnectivity-server").await?;
    let memory = process::anonymous_memory(server)? >> 20;
    println!("konnectivity-server has {memory} MiB of anonymous memory");
    worker.remove().await?;
    tenant.remove().await
}

/// An agent outside of any cluster, with some token.
struct Agent {
    process: Child,
    health: u16,
    files: tempfile::TempDir,
}

impl Agent {
    async fn start(stack: &Stack, cluster: &Cluster, kubeconfig: &Path, id: &str, token: &str) -> Result<Self> {
        let endpoint = cluster.status.as_ref().and_then(|status| status.endpoint.as_ref());
        let name = format!("konnectivity.{}", endpoint.context("no endpoint")?.server_name);
        let (address, port) = stack.ingress()?.rsplit_once(':').context("no port")?;
        let root = [
            "get",
            "configmap",
            "kube-root-ca.crt",
            "-o",
            "jsonpath={.data.ca\\.crt}",
        ];
        let root = stack.kubectl(kubeconfig, &root).await?.ok()?;
        let files = tempfile::tempdir()?;
        let path = |file: &str| files.path().join(file).display().to_string();
        for (file, text) in [
            ("token", token),
            ("ca.crt", &root),
            ("hosts", &format!("{address} {name}\n")),
        ] {
            std::fs::write(path(file), text)?;
        }
        let [health, admin] = [free_port(), free_port()];
        // The agent finds the server by the name that it verifies and sends. Only this process sees
        // this hosts file.
        let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
        let process = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, &path("hosts")])
            .arg(stack.dir.join("bin/proxy-agent"))
            .arg(format!("--agent-id={id}"))
            .arg(format!("--proxy-server-host={name}"))
            .arg(format!("--proxy-server-port={port}"))
            .arg(format!("--ca-cert={}", path("ca.crt")))
            .arg(format!("--service-account-token-path={}", path("token")))
            .arg(format!("--health-server-port={health}"))
            .arg(format!("--admin-server-port={admin}"))
            .arg("--health-server-host=127.0.0.1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log"))?)
            .kill_on_drop(true)
            .spawn()
            .context("starting an agent")?;
        Ok(Self { process, health, files })
    }

    /// Whether the server has accepted the agent.
    async fn is_ready(&self) -> Result<bool> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "2"]);
        curl.arg(format!("http://127.0.0.1:{}/readyz", self.health));
        Ok(run(curl, AGENT_LIMIT).await?.success())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let ready = wait_until("the agent to be accepted", AGENT_LIMIT, async || self.is_ready().await);
        ready.await.with_context(|| self.log())
    }
}

#[tokio::test]
async fn other_clients_are_rejected_as_agents() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "impostors").await?;
    for name in ["a", "b"] {
        tenant.create_cluster(name, with_agents()).await?;
    }
    let (a, _) = (
        wait_ready_with_addons(&tenant, "a").await?,
        wait_ready_with_addons(&tenant, "b").await?,
    );
    let [config_a, config_b] = [tenant.kubeconfig("a").await?, tenant.kubeconfig("b").await?];
    let token = async |kubeconfig: &Path, arguments: &[&str]| -> Result<String> {
        let arguments = [&["create", "token"], arguments].concat();
        Ok(stack.kubectl(kubeconfig, &arguments).await?.ok()?.trim().to_owned())
    };
    let agent = [&AGENT[..], &[AUDIENCE]].concat();

    let own = token(&config_a, &agent).await?;
    let mut good = Agent::start(&stack, &a, &config_a, "good", &own).await?;
    good.wait_ready().await?;

    let hosted = hosted_namespace(&a)?;
    let logs = [
        "logs",
        "control-plane-0",
        "--container=konnectivity-server",
        "--namespace",
        &hosted,
    ];
    for (id, token) in [
        ("of-another-cluster", token(&config_b, &agent).await?),
        ("for-another-audience", token(&config_a, &AGENT).await?),
        ("of-another-account", token(&config_a, &["default", AUDIENCE]).await?),
        ("of-nobody", "nonsense".to_owned()),
    ] {
        let impostor = Agent::start(&stack, &a, &config_a, id, &token).await?;
        let refused = wait_until("the server to refuse an agent", AGENT_LIMIT, async || {
            let said = stack.host_kubectl(&logs).await?.ok()?;
            let of_it = |line: &&str| line.contains(id) && line.contains("Client authentication failed");
            Ok(said.lines().any(|line| of_it(&line)))
        });
        refused.await.with_context(|| format!("{id}: {}", impostor.log()))?;
        ensure!(!impostor.is_ready().await?, "{id} was accepted: {}", impostor.log());
    }
    ensure!(
        good.process.try_wait()?.is_none() && good.is_ready().await?,
        "{}",
        good.log()
    );

    // An agent's token does not authenticate at the API itself.
    let endpoint = a.status.as_ref().and_then(|status| status.endpoint.as_ref());
    let name = format!("--tls-server-name={}", endpoint.context("no endpoint")?.server_name);
    let (own, url) = (
        format!("--token={own}"),
        format!("--server=https://{}", stack.ingress()?),
    );
    let empty = tempfile::NamedTempFile::new()?;
    let arguments = [&own, &url, &name, "--insecure-skip-tls-verify=true", "auth", "whoami"];
    let refusal = stack.kubectl(empty.path(), &arguments).await?.refused()?;
    ensure!(
        refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
        "{refusal}"
    );
    tenant.remove().await
}

#[tokio::test]
async fn agents_come_and_go_with_the_spec() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "switched").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let containers = async || {
        let found = [
            "get",
            "pod",
            "control-plane-0",
            "-n",
            &hosted,
            "-o",
            "jsonpath={.spec.containers[*].name}",
        ];
        Ok::<_, anyhow::Error>(stack.host_kubectl(&found).await?.ok()?.contains("konnectivity-server"))
    };
    ensure!(!containers().await?, "there is a konnectivity-server without a request");

    tenant
        .patch_cluster("a", json!({"spec": {"konnectivity": "Enabled"}}))
        .await?;
    wait_until("a konnectivity-server", READY_LIMIT, &containers).await?;
    let cluster = wait_ready_with_addons(&tenant, "a").await?;
    let arguments = [&["create", "token"], &AGENT[..], &[AUDIENCE]].concat();
    let token = wait_for("a token for an agent", READY_LIMIT, async || {
        stack.kubectl(&kubeconfig, &arguments).await?.ok().map(Some)
    })
    .await?;
    let mut agent = Agent::start(&stack, &cluster, &kubeconfig, "idle", token.trim()).await?;
    agent.wait_ready().await?;
    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let server = network::container_pid(&stack, &pod, "konnectivity-server").await?;
    let memory = process::anonymous_memory(server)? >> 10;
    println!("konnectivity-server with one idle agent has {memory} KiB of anonymous memory");

    tenant
        .patch_cluster("a", json!({"spec": {"konnectivity": "Disabled"}}))
        .await?;
    wait_until("no konnectivity-server", READY_LIMIT, async || Ok(!containers().await?)).await?;
    wait_ready_with_addons(&tenant, "a").await?;
    let find = [&["get", "daemonset", "--ignore-not-found", "-o", "name"], &AGENT[..]].concat();
    let find_agents = async || stack.kubectl(&kubeconfig, &find).await?.ok();
    eventually("the agents to be removed", READY_LIMIT, find_agents, String::is_empty).await?;
    wait_until("the agent to be disconnected", AGENT_LIMIT, async || {
        Ok(!agent.is_ready().await?)
    })
    .await?;
    let id = cluster.id().context("no identity")?;
    let secret = format!("{id}-konnectivity-server");
    let find = [
        "get",
        "certificate,secret",
        &secret,
        "-n",
        "yoke-pki",
        "--ignore-not-found",
        "-o",
        "name",
    ];
    let find_credentials = async || stack.host_kubectl(&find).await?.ok();
    let what = "the server's credentials to be gone";
    eventually(what, READY_LIMIT, find_credentials, String::is_empty).await?;
    tenant.remove().await
}
