//! A Tenant's Clusters over HTTPS: `ssh-keygen` signs a token, and curl sends it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use yoke_e2e::ssh::Key;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::{Stack, TenantFixture, run, wait_until};

/// A token that permits these commands for an hour.
async fn sign(stack: &Stack, key: &Path, tenant: &str, commands: &[&str]) -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let claims = json!({"tenant": tenant, "commands": commands, "exp": now + 3600});
    let script = "printf %s \"$1\" > claims && ssh-keygen -q -Y sign -n \"$2\" -f \"$3\" claims && \
        printf 'yoke-api1.%s.%s' \"$(base64 -w0 claims)\" \"$(sed '1d;$d' claims.sig | tr -d '\\n')\"";
    let folder = tempfile::tempdir().context("making a folder")?;
    let mut shell = Command::new("sh");
    shell.current_dir(&folder).args(["-ec", script, "sh"]);
    shell.arg(claims.to_string());
    shell.arg(format!("yoke@{}", stack.var("YOKE_API_HOST")?)).arg(key);
    run(shell, Duration::from_secs(10)).await?.ok()
}

/// Sends a command. Returns the HTTP status and the answer.
async fn send(stack: &Stack, token: &str, line: &str) -> Result<(u16, Value)> {
    let limit = READY_LIMIT + Duration::from_secs(30);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}", "--cacert"])
        .arg(stack.var("YOKE_API_CERTIFICATE")?)
        .args(["--connect-to", &format!("::{}", stack.var("YOKE_API")?)])
        .args([
            "--header",
            &format!("Authorization: Bearer {token}"),
            "--data-raw",
            line,
        ])
        .arg(format!("https://{}/exec", stack.var("YOKE_API_HOST")?));
    let said = run(curl, limit).await?.ok()?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    let body = serde_json::from_str(body).with_context(|| format!("{line}: {said}"))?;
    Ok((status.parse()?, body))
}

fn names(clusters: &Value) -> Vec<&str> {
    let list = clusters["clusters"].as_array().into_iter().flatten();
    list.filter_map(|cluster| cluster["name"].as_str()).collect()
}

#[tokio::test]
async fn a_program_makes_clusters_with_a_signed_token() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let commands = ["clusters", "create", "kubeconfig", "delete"];
    let token = sign(&stack, &key.path, "e2e-api", &commands).await?;
    let (status, refused) = send(&stack, &token, "clusters").await?;
    ensure!(status == 401 && refused["reason"] == "token", "{status} {refused}");

    let tenant = TenantFixture::create_with(&stack, "api", key.to_spec()).await?;
    wait_until("the key to be known", Duration::from_secs(20), || async {
        Ok(send(&stack, &token, "clusters").await?.0 == 200)
    })
    .await?;
    let (status, created) = send(&stack, &token, "create a --wait --timeout 3m").await?;
    ensure!(status == 200 && created["ready"] == true, "{status} {created}");
    let (status, listed) = send(&stack, &token, "clusters").await?;
    ensure!(status == 200 && names(&listed) == ["a"], "{status} {listed}");
    let (status, kubeconfig) = send(&stack, &token, "kubeconfig a").await?;
    ensure!(status == 200 && kubeconfig["kind"] == "Config", "{status}");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("a.kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())?;
    let namespaces = stack.kubectl(&file, &["get", "namespaces", "-o", "name"]).await?.ok()?;
    ensure!(namespaces.contains("namespace/kube-system"), "{namespaces}");

    // Another Tenant's Cluster looks as if it did not exist, but its own Tenant sees it.
    let demo = stack.dir.join("ssh/demo");
    let demos = sign(&stack, &demo, "demo", &["clusters"]).await?;
    let (status, listed) = send(&stack, &demos, "clusters").await?;
    ensure!(status == 200 && names(&listed) == ["demo"], "{status} {listed}");
    let stolen = sign(&stack, &key.path, "demo", &["clusters"]).await?;
    for (rule, token, line, expected, reason) in [
        ("another Tenant's Cluster", &token, "kubeconfig demo", 404, "not_found"),
        ("nor is it deleted", &token, "delete demo --yes", 404, "not_found"),
        ("a token for another Tenant", &stolen, "clusters", 401, "token"),
        ("not permitted", &demos, "delete demo --yes", 403, "not_permitted"),
    ] {
        let (status, answer) = send(&stack, token, line).await?;
        ensure!(
            status == expected && answer["reason"] == reason,
            "{rule}: {status} {answer}"
        );
    }

    let (status, deleted) = send(&stack, &token, "delete a --yes --wait").await?;
    ensure!(status == 200, "{status} {deleted}");
    let (_, listed) = send(&stack, &token, "clusters").await?;
    ensure!(names(&listed).is_empty(), "{listed}");
    tenant.remove().await
}
