//! konnectivity: the control plane reaches a worker behind NAT through the agents there, and nobody else is let in as one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, ClusterSpec, ConditionType};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::worker::{ADDRESS, Credentials, ECHO, NAME};
use yoke_e2e::{Stack, TenantFixture, Worker, network, process, run, wait_for, wait_until};

/// A kubelet starts, its agent connects.
const WORKER_LIMIT: Duration = Duration::from_secs(180);
const POD_LIMIT: Duration = Duration::from_secs(60);
/// An agent that is let in is so at once; one that is not tries again each second.
const AGENT_LIMIT: Duration = Duration::from_secs(20);
const AGENT: [&str; 2] = ["--namespace=kube-system", "konnectivity-agent"];
const AUDIENCE: &str = "--audience=system:konnectivity-server";

fn with_agents() -> ClusterSpec {
    ClusterSpec {
        konnectivity: Konnectivity::Enabled,
        ..ClusterSpec::default()
    }
}

async fn ready(tenant: &TenantFixture, name: &str) -> Result<Cluster> {
    let ready = ConditionType::Ready;
    let cluster = tenant.wait_condition(name, ready, "True", READY_LIMIT).await?;
    let addons = ConditionType::AddonsReady;
    tenant.wait_condition(name, addons, "True", READY_LIMIT).await?;
    Ok(cluster)
}

/// A text of a Secret of the host.
async fn secret(stack: &Stack, namespace: &str, name: &str, key: &str) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), namespace);
    let found = secrets
        .get(name)
        .await
        .with_context(|| format!("reading Secret {name}"))?;
    let value = found.data.unwrap_or_default().remove(key);
    Ok(String::from_utf8(value.with_context(|| format!("no {key}"))?.0)?)
}

/// A certificate for a kubelet, by the cluster's own CA for these.
async fn issue_kubelet(stack: &Stack, cluster: &Cluster) -> Result<(String, String)> {
    let name = format!("{}-kubelet-ca-g1", cluster.id().context("no identity")?);
    let authority = secret(stack, "yoke-pki", &name, "tls.crt").await?;
    let key = KeyPair::from_pem(&secret(stack, "yoke-pki", &name, "tls.key").await?)?;
    let issuer = Issuer::from_ca_cert_pem(&authority, key)?;
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![SanType::IpAddress(ADDRESS.parse()?)];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((parameters.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

/// Runs a program in a Pod on the worker.
async fn run_pod(stack: &Stack, kubeconfig: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "containers": [{"name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent", "args": arguments}],
        },
    });
    let file = kubeconfig.with_extension(format!("{name}.json"));
    std::fs::write(&file, pod.to_string())?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    stack.kubectl(kubeconfig, &["apply", "-f", file]).await?.ok()?;
    Ok(())
}

async fn wait_phase(stack: &Stack, kubeconfig: &Path, pod: &str, phase: &str) -> Result<()> {
    wait_until(&format!("Pod {pod} to be {phase}"), POD_LIMIT, async || {
        let found = ["get", "pod", pod, "-o", "jsonpath={.status.phase}"];
        Ok(stack.kubectl(kubeconfig, &found).await?.ok()? == phase)
    })
    .await
}

/// What a Pod's port answers through `kubectl port-forward`.
async fn ask_forwarded(stack: &Stack, kubeconfig: &Path, pod: &str) -> Result<String> {
    let mut command = stack.program("kubectl");
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["port-forward", &format!("pod/{pod}"), ":8080"]);
    let mut forward = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(forward.stdout.take().context("no output")?).lines();
    let line = tokio::time::timeout(POD_LIMIT, lines.next_line()).await??;
    // Forwarding from 127.0.0.1:41234 -> 8080
    let line = line.context("kubectl port-forward said nothing")?;
    let port = line.split_whitespace().nth(2).context("no address")?;
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "10",
        &format!("http://{port}/"),
    ]);
    run(curl, POD_LIMIT).await?.ok()
}

/// A Pod finds another one by the name of its Service, which is where cluster DNS and kube-proxy say.
async fn use_service(stack: &Stack, kubeconfig: &Path) -> Result<()> {
    for name in ["kube-dns", "kube-proxy"] {
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        let find = [
            "get",
            "pod",
            "-n",
            "kube-system",
            "-l",
            &format!("k8s-app={name}"),
            "-o",
            ready,
        ];
        wait_until(&format!("{name} to be ready"), POD_LIMIT, async || {
            Ok(stack.kubectl(kubeconfig, &find).await?.ok()? == "True")
        })
        .await?;
    }
    let expose = ["expose", "pod", "serves", "--port=80", "--target-port=8080"];
    let label = ["label", "pod", "serves", "app=serves"];
    for arguments in [&label[..], &expose] {
        stack.kubectl(kubeconfig, arguments).await?.ok()?;
    }
    let url = "http://serves.default.svc.cluster.local/";
    run_pod(stack, kubeconfig, "asks", &[]).await?;
    wait_phase(stack, kubeconfig, "asks", "Running").await?;
    wait_until("a Service to answer by its name", POD_LIMIT, async || {
        let heard = stack
            .kubectl(kubeconfig, &["exec", "asks", "--", "echo", "get", url])
            .await?;
        Ok(heard.stdout.trim() == "serves")
    })
    .await
}

/// A Pod on the worker, behind a Service, says no to every ConfigMap. (kube-apiserver sends nothing through agents that is for
/// the `url` of a webhook.)
async fn refuse_by_webhook(stack: &Stack, kubeconfig: &Path) -> Result<()> {
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
    let file = kubeconfig.with_extension("webhook.json");
    std::fs::write(
        &file,
        json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string(),
    )?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    stack.kubectl(kubeconfig, &["apply", "-f", file]).await?.ok()?;
    wait_phase(stack, kubeconfig, "far", "Running").await?;
    let create = ["create", "configmap", "refused"];
    // The API server learns of a webhook a moment later, and the Pod may not listen yet.
    wait_until("the webhook to be asked", POD_LIMIT, async || {
        let answer = stack.kubectl(kubeconfig, &create).await?;
        if answer.success() {
            let delete = ["delete", "configmap", "refused"];
            stack.kubectl(kubeconfig, &delete).await?.ok()?;
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
    let tenant = TenantFixture::create(&stack, "agents").await?;
    tenant.create_cluster("a", with_agents()).await?;
    let cluster = ready(&tenant, "a").await?;
    let kubeconfig = tenant.kubeconfig("a").await?;
    let kubectl = async |args: &[&str]| stack.kubectl(&kubeconfig, args).await;
    let images = "jsonpath={.items[*].spec.template.spec.containers[*].image}";
    let images = kubectl(&["get", "daemonset,deployment", "-n", "kube-system", "-o", images])
        .await?
        .ok()?;
    let images: Vec<_> = images.split_whitespace().collect();

    let (certificate, key) = issue_kubelet(&stack, &cluster).await?;
    let hosted = hosted_namespace(&cluster)?;
    let credentials = Credentials {
        kubeconfig: &kubeconfig,
        client_ca: &secret(&stack, &hosted, "kube-apiserver", "client-ca.crt").await?,
        certificate: &certificate,
        key: &key,
    };
    let worker = Worker::start(&stack, &credentials, &images)?;
    let agents = ["get", "daemonset", "-o", "jsonpath={.status.numberReady}"];
    let connected = wait_until("an agent to be ready", WORKER_LIMIT, async || {
        Ok(kubectl(&[&agents[..], &AGENT].concat()).await?.ok()? == "1")
    });
    connected.await.with_context(|| worker.last_words())?;

    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let pid = network::container_pid(&stack, &pod, "kube-apiserver").await?;
    let direct = network::knock(&network::From::Process(pid), ADDRESS, 10250).await;
    ensure!(
        !matches!(direct, Ok(network::Door::Open)),
        "the control plane needs no agent to reach the worker"
    );

    run_pod(&stack, &kubeconfig, "said", &["nonsense"]).await?;
    run_pod(&stack, &kubeconfig, "serves", &[]).await?;
    wait_phase(&stack, &kubeconfig, "said", "Failed").await?;
    wait_phase(&stack, &kubeconfig, "serves", "Running").await?;
    let said = wait_for("the log of a Pod", AGENT_LIMIT, async || {
        kubectl(&["logs", "said"]).await?.ok().map(Some)
    })
    .await?;
    ensure!(said.contains("usage: echo [get URL | deny FOLDER]"), "logs: {said}");
    let exec = ["exec", "serves", "--", "echo", "get", "http://127.0.0.1:8080/"];
    let heard = kubectl(&exec).await?.ok()?;
    ensure!(heard.trim() == "serves", "exec: {heard}");
    let heard = ask_forwarded(&stack, &kubeconfig, "serves").await?;
    ensure!(heard.trim() == "serves", "port-forward: {heard}");
    let proxied = kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/serves:8080/proxy/"]).await?;
    ensure!(proxied.clone().ok()?.trim() == "serves", "proxy: {proxied:?}");

    let metrics = ["get", "--raw", &format!("/api/v1/nodes/{NAME}/proxy/healthz")];
    let healthy = kubectl(&metrics).await?.ok()?;
    ensure!(healthy.trim() == "ok", "the kubelet itself: {healthy}");

    use_service(&stack, &kubeconfig).await?;
    refuse_by_webhook(&stack, &kubeconfig).await?;

    // What it costs while somebody uses it.
    let server = network::container_pid(&stack, &pod, "konnectivity-server").await?;
    let memory = process::anonymous_memory(server)? >> 20;
    println!("konnectivity-server has {memory} MiB of anonymous memory");
    worker.stop().await?;
    tenant.remove().await
}

/// An agent as it would run anywhere, with some token.
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
        let [health, admin] = [free_port()?, free_port()?];
        // It finds its server by the name that it verifies and sends: only this process sees these hosts.
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

    /// Whether it is let in.
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
        let ready = wait_until("the agent to be let in", AGENT_LIMIT, async || self.is_ready().await);
        ready.await.with_context(|| self.log())
    }
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[tokio::test]
async fn nobody_else_is_let_in_as_an_agent() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "impostors").await?;
    for name in ["a", "b"] {
        tenant.create_cluster(name, with_agents()).await?;
    }
    let (a, _) = (ready(&tenant, "a").await?, ready(&tenant, "b").await?);
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
        ensure!(!impostor.is_ready().await?, "{id} is let in: {}", impostor.log());
    }
    ensure!(
        good.process.try_wait()?.is_none() && good.is_ready().await?,
        "{}",
        good.log()
    );

    // The token of an agent is nothing to the API itself.
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
    ensure!(!containers().await?, "nobody asked for a konnectivity-server");

    tenant
        .patch_cluster("a", json!({"spec": {"konnectivity": "Enabled"}}))
        .await?;
    wait_until("a konnectivity-server", READY_LIMIT, &containers).await?;
    let cluster = ready(&tenant, "a").await?;
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
    ready(&tenant, "a").await?;
    let find = [&["get", "daemonset", "--ignore-not-found", "-o", "name"], &AGENT[..]].concat();
    wait_until("the agents to be removed", READY_LIMIT, async || {
        Ok(stack.kubectl(&kubeconfig, &find).await?.ok()?.is_empty())
    })
    .await?;
    wait_until("the agent to be cut off", AGENT_LIMIT, async || {
        Ok(!agent.is_ready().await?)
    })
    .await?;
    let id = cluster.id().context("no identity")?;
    let secret = format!("{id}-konnectivity-server");
    wait_until("the server's credentials to be gone", READY_LIMIT, async || {
        let found = [
            "get",
            "certificate,secret",
            &secret,
            "-n",
            "yoke-pki",
            "--ignore-not-found",
            "-o",
            "name",
        ];
        Ok(stack.host_kubectl(&found).await?.ok()?.is_empty())
    })
    .await?;
    tenant.remove().await
}
