//! A Tenant's Clusters over SSH, with OpenSSH's own clients.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{Api, ListParams, LogParams};
use serde_json::{Value, json};
use yoke_e2e::ssh::{Key, scp, ssh};
use yoke_e2e::{Output, Stack, TenantFixture, wait_until};

fn json_of(output: Output) -> Result<Value> {
    let text = output.ok()?;
    serde_json::from_str(&text).context(text)
}

#[tokio::test]
async fn key_is_all_that_a_tenant_needs() -> Result<()> {
    let stack = Stack::connect().await?;
    let files = tempfile::tempdir()?;
    let drawn = Key::generate().await?;
    let key = &drawn.path;
    let refused = ssh(&stack, key, "clusters").await?.refused()?;
    ensure!(refused.contains("spec.sshKeys"), "{refused}");

    let tenant = TenantFixture::create_with(&stack, "ssh", drawn.to_spec()).await?;
    wait_until("the key to be known", Duration::from_secs(20), || async {
        Ok(ssh(&stack, key, "clusters").await?.success())
    })
    .await?;
    let whoami = json_of(ssh(&stack, key, "whoami --json").await?)?;
    ensure!(
        whoami["tenant"] == json!("e2e-ssh") && whoami["key"] == json!("test"),
        "{whoami}"
    );

    let created = json_of(ssh(&stack, key, "create a --wait --timeout 3m --json").await?)?;
    ensure!(created["ready"] == json!(true), "{created}");
    let kubeconfig = files.path().join("a.kubeconfig");
    scp(&stack, key, "a.kubeconfig", &kubeconfig).await?.ok()?;
    let namespaces = stack
        .kubectl(&kubeconfig, &["get", "namespaces", "-o", "name"])
        .await?
        .ok()?;
    ensure!(namespaces.contains("namespace/kube-system"), "{namespaces}");
    let printed = ssh(&stack, key, "kubeconfig a").await?.ok()?;
    ensure!(
        printed == std::fs::read_to_string(&kubeconfig)?,
        "the two kubeconfigs differ"
    );

    // Another Tenant's Cluster looks as if it did not exist, but its own Tenant sees it.
    let stolen = ssh(&stack, key, "kubeconfig demo").await?.refused()?;
    ensure!(stolen.contains("not found"), "{stolen}");
    let demo = stack.dir.join("ssh/demo");
    let clusters = json_of(ssh(&stack, &demo, "clusters --json").await?)?;
    let names: Vec<_> = clusters["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| &it["name"])
        .collect();
    ensure!(names == [&json!("demo")], "{clusters}");

    ssh(&stack, key, "delete a --yes --wait").await?.ok()?;
    let logged = audit_lines(&stack).await?;
    for (command, result) in [
        ("create a --wait --timeout 3m --json", "ok"),
        ("kubeconfig demo", "not_found"),
    ] {
        let line = logged
            .iter()
            .find(|line| line["tenant"] == "e2e-ssh" && line["command"] == command);
        let line = line.with_context(|| format!("nothing is logged of {command:?}"))?;
        ensure!(
            line["result"] == result && line["fingerprint"] == whoami["fingerprint"],
            "{line}"
        );
        ensure!(
            line["source"].as_str().is_some_and(|source| !source.is_empty()),
            "{line}"
        );
    }
    tenant.remove().await
}

async fn audit_lines(stack: &Stack) -> Result<Vec<Value>> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(stack.host.clone(), "yoke-system");
    let list = ListParams::default().labels("app.kubernetes.io/name=yoke-ssh-ui");
    let mut lines = Vec::new();
    for pod in pods.list(&list).await?.items {
        let name = pod.metadata.name.unwrap_or_default();
        let log = pods.logs(&name, &LogParams::default()).await?;
        lines.extend(log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
    }
    lines.retain(|line| line["target"] == "audit");
    Ok(lines)
}

#[tokio::test]
async fn server_has_no_rights_but_those_of_its_tenants() -> Result<()> {
    let stack = Stack::connect().await?;
    let server = "--as=system:serviceaccount:yoke-system:yoke-ssh-ui";
    for (may, what) in [
        (true, "list tenants.yoke.drzzl.io"),
        (true, "get secret/yoke-ssh-host-key -n yoke-system"),
        (true, "impersonate serviceaccount/yoke-ssh -n demo"),
        (false, "impersonate serviceaccount/yoke-operator -n yoke-system"),
        (false, "impersonate users"),
        (false, "impersonate groups"),
        (false, "get secret/yoke-nats -n yoke-system"),
        (false, "list secrets -n demo"),
        (false, "create secrets -n yoke-system"),
        (false, "get clusters.yoke.drzzl.io -n demo"),
        (false, "create serviceaccounts -n demo"),
        (false, "create tenants.yoke.drzzl.io"),
    ] {
        let arguments: Vec<_> = ["auth", "can-i", server].into_iter().chain(what.split(' ')).collect();
        let answer = stack.host_kubectl(&arguments).await?;
        ensure!(answer.success() == may, "{what}: {answer:?}");
    }
    Ok(())
}
