//! What one tenant, one pod, one credential can reach, and what they cannot.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use yoke_api::tenant::{SubjectKind, TenantSubject};
use yoke_api::{Cluster, TenantSpec};
use yoke_e2e::network::{self, Door, From, knock};
use yoke_e2e::{Stack, TenantFixture, wait_for, wait_until};

fn hosted_namespace(cluster: &Cluster) -> Result<String> {
    Ok(format!("yoke-{}", cluster.spec.id.as_deref().context("no identity")?))
}

fn server_name(cluster: &Cluster) -> Result<String> {
    let endpoint = cluster.status.as_ref().and_then(|status| status.endpoint.as_ref());
    Ok(endpoint.context("no endpoint in status")?.server_name.clone())
}

#[tokio::test]
async fn credentials_of_one_tenant_are_nothing_to_another() -> Result<()> {
    let stack = Stack::connect().await?;
    let (one, two) = (
        TenantFixture::create(&stack, "cred-a").await?,
        TenantFixture::create(&stack, "cred-b").await?,
    );
    let (a, a_config) = one.ready_cluster("a").await?;
    let (_, b_config) = two.ready_cluster("b").await?;
    stack.kubectl(&a_config, &["get", "namespaces"]).await?.ok()?;
    // B's client certificate, sent with its whole chain, to A's API server.
    let name = format!("--tls-server-name={}", server_name(&a)?);
    let refusal = stack
        .kubectl(&b_config, &[&name, "get", "namespaces"])
        .await?
        .refused()?;
    ensure!(
        refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
        "{refusal}"
    );

    // A service-account token of B to A.
    let token = wait_for("B's first service account", Duration::from_secs(30), || async {
        stack
            .kubectl(&b_config, &["create", "token", "default"])
            .await?
            .ok()
            .map(Some)
    })
    .await?;
    let token = format!("--token={}", token.trim());
    let url = format!("--server=https://{}", stack.ingress()?);
    let empty = tempfile::NamedTempFile::new()?;
    let arguments = [
        token.as_str(),
        url.as_str(),
        name.as_str(),
        "--insecure-skip-tls-verify=true",
        "auth",
        "whoami",
    ];
    let refusal = stack.kubectl(empty.path(), &arguments).await?.refused()?;
    ensure!(
        refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
        "{refusal}"
    );
    one.remove().await?;
    two.remove().await
}

#[tokio::test]
async fn no_ca_key_near_a_control_plane_and_no_root_among_client_cas() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "keys").await?;
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;

    let authorities: Api<Secret> = Api::namespaced(stack.host.clone(), "yoke-pki");
    let mut ca_keys = BTreeMap::new();
    let mut root = None;
    for secret in authorities.list(&ListParams::default()).await?.items {
        let name = secret.metadata.name.clone().unwrap_or_default();
        let data = secret.data.unwrap_or_default();
        let (Some(certificate), Some(key)) = (data.get("tls.crt"), data.get("tls.key")) else {
            continue;
        };
        let (_, pem) = x509_parser::pem::parse_x509_pem(&certificate.0)?;
        if pem.parse_x509()?.is_ca() {
            ca_keys.insert(name.clone(), key.0.clone());
        }
        if name == "yoke-root" {
            root = Some(String::from_utf8(certificate.0.clone())?.trim().to_owned());
        }
    }
    ensure!(
        ca_keys.len() >= 4,
        "expected the root and three authorities of the cluster, found {:?}",
        ca_keys.keys()
    );

    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), &hosted);
    let secrets = secrets.list(&ListParams::default()).await?.items;
    ensure!(
        !secrets.is_empty(),
        "the hosted namespace has no Secret: this test looks at the wrong place"
    );
    let configs: Api<ConfigMap> = Api::namespaced(stack.host.clone(), &hosted);
    let values = secrets
        .iter()
        .flat_map(|secret| {
            secret
                .data
                .iter()
                .flatten()
                .map(|(key, value)| (key.clone(), value.0.clone()))
        })
        .chain(
            configs
                .list(&ListParams::default())
                .await?
                .items
                .into_iter()
                .flat_map(|config| {
                    config
                        .data
                        .unwrap_or_default()
                        .into_iter()
                        .map(|(key, value)| (key, value.into_bytes()))
                }),
        );
    for (key, value) in values {
        for (name, ca_key) in &ca_keys {
            let found = value.windows(ca_key.len()).any(|window| window == ca_key.as_slice());
            ensure!(!found, "the private key of {name} is in {hosted} under {key}");
        }
    }

    // What the running API server trusts for client certificates, read through its own eyes.
    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let pid = network::container_pid(&stack, &pod, "kube-apiserver").await?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let command = String::from_utf8(command)?;
    let file = command
        .split('\0')
        .find_map(|argument| argument.strip_prefix("--client-ca-file="))
        .context("no --client-ca-file")?;
    let bundle = std::fs::read_to_string(format!("/proc/{pid}/root{file}"))?;
    ensure!(bundle.contains("BEGIN CERTIFICATE"), "{file} holds no certificate");
    let root = root.context("no Secret yoke-root")?;
    ensure!(!bundle.contains(&root), "the root is among the client CAs");
    for pem in x509_parser::pem::Pem::iter_from_buffer(bundle.as_bytes()) {
        let pem = pem?;
        let certificate = pem.parse_x509()?;
        ensure!(
            certificate.issuer() != certificate.subject(),
            "{} is self-signed",
            certificate.subject()
        );
    }
    tenant.remove().await
}

#[tokio::test]
async fn network_policy_holds() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "netpol").await?;
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let (_, _) = tenant.ready_cluster("b").await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let address = network::pod_ip(&pod)?;

    let envoy = network::pod(&stack, "yoke-system", "app.kubernetes.io/name=envoy").await?;
    let envoy = From::Process(network::container_pid(&stack, &envoy, "envoy").await?);
    ensure!(knock(&envoy, &address, 6443).await? == Door::Open, "closed to Envoy");

    let namespaces: Api<Namespace> = Api::all(stack.host.clone());
    let name = "e2e-netpol-stranger";
    let metadata = ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    };
    if namespaces.get_opt(name).await?.is_none() {
        namespaces
            .create(
                &PostParams::default(),
                &Namespace {
                    metadata,
                    ..Namespace::default()
                },
            )
            .await?;
    }
    let run = [
        "run",
        "stranger",
        "-n",
        name,
        "--image=docker.io/yoke/echo:dev",
        "--image-pull-policy=IfNotPresent",
    ];
    stack.host_kubectl(&run).await?;
    let find = || network::pod(&stack, name, "run=stranger");
    wait_until("the stranger to run", Duration::from_secs(60), || async {
        Ok(find().await.is_ok())
    })
    .await?;
    let stranger = From::Process(network::container_pid(&stack, &find().await?, "stranger").await?);
    ensure!(
        knock(&stranger, &address, 6443).await? == Door::Closed,
        "open to a pod of another namespace"
    );

    let neighbour = tenant.clusters().get("b").await?;
    let neighbour = network::pod(&stack, &hosted_namespace(&neighbour)?, "yoke.drzzl.io/cluster=b").await?;
    let neighbour = From::Process(network::container_pid(&stack, &neighbour, "kube-apiserver").await?);
    ensure!(
        knock(&neighbour, &address, 6443).await? == Door::Closed,
        "open to the control plane of a neighbour"
    );
    ensure!(
        knock(&From::Here, &address, 6443).await? == Door::Closed,
        "open to another network namespace"
    );

    // Out of a control plane: NATS only.
    let inside = From::Process(network::container_pid(&stack, &pod, "kube-apiserver").await?);
    let nats = stack.var("NATS_URL")?;
    let (nats_host, nats_port) = nats
        .rsplit('/')
        .next()
        .and_then(|rest| rest.split_once(':'))
        .context("NATS_URL")?;
    ensure!(
        knock(&inside, nats_host, nats_port.parse()?).await? == Door::Open,
        "a control plane cannot reach NATS"
    );
    let node = stack.var("YOKE_NODE_IP")?;
    let host_api = stack.host_kubectl(&[
        "config",
        "view",
        "--minify",
        "-o",
        "jsonpath={.clusters[0].cluster.server}",
    ]);
    let host_api = host_api.await?.ok()?;
    let host_port = host_api
        .rsplit(':')
        .next()
        .context("no port in the host's URL")?
        .parse()?;
    ensure!(
        knock(&inside, node, host_port).await? == Door::Closed,
        "a control plane reaches the host's API"
    );
    ensure!(
        knock(&inside, node, 10250).await? == Door::Closed,
        "a control plane reaches the kubelet"
    );
    let envoy_ip = network::pod_ip(&network::pod(&stack, "yoke-system", "app.kubernetes.io/name=envoy").await?)?;
    ensure!(
        knock(&inside, &envoy_ip, 8443).await? == Door::Closed,
        "a control plane reaches Envoy"
    );

    stack
        .host_kubectl(&["delete", "namespace", name, "--wait=false"])
        .await?
        .ok()?;
    tenant.remove().await
}

#[tokio::test]
async fn tenant_subject_on_the_host_does_its_own_and_no_more() -> Result<()> {
    let stack = Stack::connect().await?;
    let subject = TenantSubject {
        kind: SubjectKind::User,
        name: "alice@a.example".into(),
    };
    let spec = TenantSpec {
        subjects: vec![subject],
        ..TenantSpec::default()
    };
    let tenant = TenantFixture::create_with(&stack, "subject", spec).await?;
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let own = tenant.name.as_str();
    for (verb, resource, namespace, allowed) in [
        ("create", "clusters.yoke.drzzl.io", own, true),
        ("get", "clusters.yoke.drzzl.io", own, true),
        ("list", "clusters.yoke.drzzl.io", own, true),
        ("watch", "clusters.yoke.drzzl.io", own, true),
        ("patch", "clusters.yoke.drzzl.io", own, true),
        ("delete", "clusters.yoke.drzzl.io", own, true),
        ("get", "secret/a-kubeconfig", own, true),
        ("get", "secret/other", own, false),
        ("list", "secrets", own, false),
        ("update", "secret/a-kubeconfig", own, false),
        ("create", "pods", own, false),
        ("create", "certificates.cert-manager.io", own, false),
        ("create", "issuers.cert-manager.io", own, false),
        ("create", "rolebindings.rbac.authorization.k8s.io", own, false),
        ("create", "serviceaccounts", own, false),
        ("patch", "clusters.yoke.drzzl.io --subresource=status", own, false),
        ("get", "secrets", &hosted, false),
        ("get", "pods", &hosted, false),
        ("get", "clusters.yoke.drzzl.io", "default", false),
        ("get", "secrets", "yoke-pki", false),
        ("get", "secrets", "yoke-system", false),
        ("get", "tenants.yoke.drzzl.io", own, false),
        ("create", "tenants.yoke.drzzl.io", own, false),
        ("list", "namespaces", own, false),
        ("list", "nodes", own, false),
    ] {
        let mut arguments = vec!["auth", "can-i", verb];
        arguments.extend(resource.split(' '));
        arguments.extend(["-n", namespace, "--as=alice@a.example"]);
        let output = stack.host_kubectl(&arguments).await?;
        let answer = output.stdout.trim() == "yes";
        ensure!(
            answer == allowed,
            "{verb} {resource} in {namespace}: {} {}",
            output.stdout,
            output.stderr
        );
    }
    tenant.remove().await
}

#[tokio::test]
async fn tenant_cannot_slip_a_cluster_from_the_operator_nor_choose_an_identity() -> Result<()> {
    let stack = Stack::connect().await?;
    let subject = TenantSubject {
        kind: SubjectKind::User,
        name: "bob@a.example".into(),
    };
    let spec = TenantSpec {
        subjects: vec![subject],
        ..TenantSpec::default()
    };
    let tenant = TenantFixture::create_with(&stack, "slip", spec).await?;
    let own = tenant.name.as_str();
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let finalizers = r#"{"metadata":{"finalizers":null}}"#;
    let arguments = [
        "patch",
        "cluster",
        "a",
        "-n",
        own,
        "--type=merge",
        "-p",
        finalizers,
        "--as=bob@a.example",
    ];
    let refusal = stack.host_kubectl(&arguments).await?.refused()?;
    ensure!(refusal.contains("removed by the operator"), "{refusal}");

    let stolen = format!(
        "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata: {{name: b, namespace: {own}}}\nspec: {{id: {}}}\n",
        cluster.spec.id.context("no identity")?
    );
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), stolen)?;
    let path = file.path().to_str().context("path")?;
    let refusal = stack
        .host_kubectl(&["create", "-f", path, "--as=bob@a.example"])
        .await?
        .refused()?;
    ensure!(refusal.contains("set by the operator"), "{refusal}");

    // What the Tenant may do goes on.
    let arguments = ["annotate", "cluster", "a", "-n", own, "note=x", "--as=bob@a.example"];
    stack.host_kubectl(&arguments).await?.ok()?;
    stack
        .host_kubectl(&["delete", "cluster", "a", "-n", own, "--as=bob@a.example"])
        .await?
        .ok()?;
    tenant.remove().await
}
