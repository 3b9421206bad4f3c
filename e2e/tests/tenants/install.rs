//! The chart on a cluster that is not the development stack, as in the book: installed with its
//! defaults, uninstalled, and forgotten.
//!
//! The other cluster is a Cluster of Yoke: a Kubernetes API without any installation of Yoke. It
//! has no nodes, so only its API server judges the chart. All other tests show that the processes
//! run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use yoke_e2e::readme::{commands, root, type_in};
use yoke_e2e::{Stack, TenantFixture, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
/// Objects that remain after `helm uninstall`, as the book says.
const KEPT: [&str; 7] = [
    "certificate.cert-manager.io/yoke-root",
    "customresourcedefinition.apiextensions.k8s.io/clusters.yoke.drzzl.io",
    "customresourcedefinition.apiextensions.k8s.io/jointokens.yoke.drzzl.io",
    "customresourcedefinition.apiextensions.k8s.io/tenants.yoke.drzzl.io",
    "issuer.cert-manager.io/yoke-root",
    "issuer.cert-manager.io/yoke-selfsigned",
    "namespace/yoke-pki",
];

/// Copies cert-manager's CRDs from the host to the other cluster.
async fn copy_cert_manager(stack: &Stack, other: &Client) -> Result<()> {
    let from: Api<CustomResourceDefinition> = Api::all(stack.host.clone());
    let to: Api<CustomResourceDefinition> = Api::all(other.clone());
    for mut definition in from.list(&ListParams::default()).await?.items {
        let name = definition.metadata.name.take().unwrap_or_default();
        if definition.spec.group.ends_with("cert-manager.io") {
            definition.metadata = ObjectMeta {
                name: Some(name),
                annotations: definition.metadata.annotations,
                ..ObjectMeta::default()
            };
            definition.status = None;
            to.create(&PostParams::default(), &definition).await?;
        }
    }
    Ok(())
}

/// All objects in a cluster that belong to the release, of any kind.
async fn belongings(stack: &Stack, kubeconfig: &Path) -> Result<Vec<String>> {
    let kinds = ["api-resources", "--verbs=list", "-o", "name"];
    let kinds = stack.kubectl(kubeconfig, &kinds).await?.ok()?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let get = [
        "get",
        &kinds.join(","),
        "-A",
        "-l",
        "app.kubernetes.io/instance=yoke",
        "-o",
        "name",
    ];
    let found = stack.kubectl(kubeconfig, &get).await?.ok()?;
    let mut found: Vec<_> = found.lines().map(str::to_owned).collect();
    found.sort();
    Ok(found)
}

/// Creates a folder like the book's reader has: the checkout's charts, and the three NATS files.
async fn prepare_folder(stack: &Stack) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    std::os::unix::fs::symlink(root().join("charts").canonicalize()?, folder.path().join("charts"))?;
    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), "yoke-system");
    for (key, value) in secrets.get("yoke-nats").await?.data.unwrap_or_default() {
        std::fs::write(folder.path().join(key), value.0)?;
    }
    Ok(folder)
}

#[tokio::test]
async fn chart_installs_on_another_cluster_and_leaves_what_it_says() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "install").await?;
    let (_, kubeconfig) = tenant.ready_cluster("other").await?;
    let other = yoke_e2e::stack::client(&kubeconfig).await?;
    let folder = prepare_folder(&stack).await?;
    let bin = stack.dir.join("bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
    let environment = [("KUBECONFIG", kubeconfig.as_path()), ("PATH", Path::new(&path))];
    let environment = [environment.as_slice(), &[("HOME", folder.path())]].concat();
    let read = async |commands: &[String]| type_in(folder.path(), &environment, commands).await;
    let get = async |arguments: &[&str]| stack.kubectl(&kubeconfig, arguments).await?.ok();

    let install = commands("console install")?;
    let (helm, before) = install.split_last().context("no command")?;
    ensure!(
        helm.starts_with("helm upgrade --install "),
        "the last command is not helm's: {helm}"
    );
    read(before).await?;
    let refusal = read(std::slice::from_ref(helm))
        .await
        .err()
        .context("installed without cert-manager")?;
    ensure!(
        format!("{refusal:#}").contains("cert-manager is not installed"),
        "{refusal:#}"
    );
    copy_cert_manager(&stack, &other).await?;
    wait_until("cert-manager's kinds to be served", LIMIT, || async {
        Ok(stack
            .kubectl(&kubeconfig, &["get", "issuers,certificates", "-A"])
            .await?
            .success())
    })
    .await?;
    read(std::slice::from_ref(helm)).await?;

    // Defaults: Yoke's own kinds and namespace, two replicas each, an address from a load balancer.
    let deployments = [
        "get",
        "deployments",
        "-n",
        "yoke-system",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}={.spec.replicas} {end}",
    ];
    let deployments = get(&deployments).await?;
    ensure!(
        deployments.trim() == "envoy=2 yoke-ingress-xds=2 yoke-operator=2",
        "{deployments}"
    );
    let service = get(&[
        "get",
        "service",
        "envoy",
        "-n",
        "yoke-system",
        "-o",
        "jsonpath={.spec.type}",
    ])
    .await?;
    ensure!(service == "LoadBalancer", "{service}");
    let objects = "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Tenant\nmetadata: {name: t}\nspec: {}\n---\n\
                   apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata: {name: c, namespace: default}\nspec: {}\n";
    std::fs::write(folder.path().join("objects.yaml"), objects)?;
    read(&["kubectl create -f objects.yaml".into()]).await?;

    read(&commands("console uninstall")?).await?;
    wait_until("the release's objects to be gone", LIMIT, || async {
        let left = belongings(&stack, &kubeconfig).await?;
        ensure!(left == KEPT, "{left:?}");
        Ok(true)
    })
    .await?;
    // A new installation adopts the remaining objects.
    read(std::slice::from_ref(helm)).await?;
    read(&commands("console uninstall")?).await?;
    read(&commands("console forget")?).await?;
    let left = belongings(&stack, &kubeconfig).await?;
    ensure!(left.is_empty(), "these objects remain: {left:?}");
    let namespaces = get(&["get", "namespaces", "-o", "name"]).await?;
    ensure!(!namespaces.contains("yoke"), "{namespaces}");
    tenant.remove().await
}
