//! `create`.

use serde_json::json;

use crate::fixtures::{DEMO, TENANT, tenant};
use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn create_sends_what_was_asked_for() {
    let host = Host::start().await;
    let said = host.run("create cluster demo --version 1.35.4 --storage 1Gi").await;
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (0, "cluster.yoke.drzzl.io/demo created\n", "")
    );
    let object = host.object(DEMO).unwrap();
    assert_eq!(object["spec"]["version"], "v1.35.4");
    assert_eq!(object["spec"]["storage"]["quota"], "1Gi");
    assert!(
        host.requests()
            .iter()
            .any(|line| line.contains("fieldManager=kubectl-yoke")),
        "{:?}",
        host.requests()
    );

    let said = host.run("create cluster demo").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .starts_with("error: creating Cluster demo: clusters \"demo\" already exists\nhint: "),
        "{}",
        said.err
    );

    let said = host.run("create tenant t --wait=false --user ann --group ops").await;
    assert_eq!(said.out, "tenant.yoke.drzzl.io/t created\n");
    let tenant = host.object("/apis/yoke.drzzl.io/v1alpha1/tenants/t").unwrap();
    assert_eq!(
        tenant["spec"]["subjects"],
        json!([{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "ops"}])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_from_their_files() {
    let host = Host::start().await;
    let file = |name: &str, text: &str| {
        let path = host.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, other) = (
        file("id_ed25519.pub", "ssh-ed25519 AAAA me@home\n"),
        file("k", "ssh-ed25519 BBBB\n"),
    );
    let private = file("id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
    let said = host
        .run(&format!("create tenant t --wait=false --ssh-key {private}"))
        .await;
    assert_eq!((said.code, host.requests()), (1, vec![]));
    assert!(
        said.err.contains("it is a private key; give the .pub file"),
        "{}",
        said.err
    );
    let line = format!("create tenant t --wait=false --ssh-key {one} --ssh-key desk={other}");
    assert_eq!(host.run(&line).await.code, 0);
    assert_eq!(
        host.object(TENANT).unwrap()["spec"]["sshKeys"],
        json!([{"name": "id-ed25519", "publicKey": "ssh-ed25519 AAAA me@home"}, {"name": "desk", "publicKey": "ssh-ed25519 BBBB"}])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_keeps_nothing() {
    let host = Host::start().await;
    let said = host.run("create cluster demo --dry-run=client -o yaml").await;
    assert!(
        said.out.starts_with(
            "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata:\n  name: demo\n  namespace: t\n"
        ),
        "{}",
        said.out
    );
    assert!(host.requests().is_empty());
    let said = host.run("create cluster demo --dry-run=server").await;
    assert_eq!(said.out, "cluster.yoke.drzzl.io/demo created (server dry run)\n");
    assert!(host.object(DEMO).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_is_waited_for_so_that_clusters_can_follow() {
    let host = Host::start().await;
    let running = host.begin("create tenant t --timeout 20s");
    running.until_out("tenant.yoke.drzzl.io/t created\n").await;
    host.until_watched().await;
    host.set(
        TENANT,
        tenant("False", "NamespacePending", "The namespace is being created."),
    );
    running.until_err("The namespace is being created.").await;
    host.set(TENANT, tenant("True", "AsExpected", "All is there."));
    let said = running.end().await;
    assert_eq!((said.code, said.out.as_str()), (0, "tenant.yoke.drzzl.io/t created\n"));
    let lines: Vec<_> = said
        .err
        .lines()
        .map(|line| line.split_once("s  ").map_or(line, |(_, rest)| rest))
        .collect();
    assert_eq!(
        lines,
        [
            "The namespace is being created.",
            "ready",
            "next: kubectl yoke create cluster NAME -n t --wait"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_that_is_not_there_asks_for_the_tenant() {
    let host = Host::start().await;
    let said = host.run("create cluster demo -n absent").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .starts_with("error: creating Cluster demo: namespaces \"absent\" not found\nhint: the namespace is created with its Tenant"),
        "{}",
        said.err
    );
}
