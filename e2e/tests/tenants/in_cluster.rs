//! A pod's connection to the API of its own cluster: through the ingress's address, without a
//! server name, with a service account's token.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;
use yoke_e2e::{Stack, TenantFixture, run, wait_until};

const LIMIT: Duration = Duration::from_secs(15);
/// Address at which pods find their API, and for which the ingress's certificate is valid.
const ADDRESS: &str = "10.96.0.1";
const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A cluster as seen by a pod in it.
struct Inside<'a> {
    stack: &'a Stack,
    kubeconfig: PathBuf,
    /// CA file that is mounted into every pod as ca.crt.
    root: PathBuf,
    token: String,
}

impl<'a> Inside<'a> {
    /// Creates a service account and a token for it.
    async fn new(stack: &'a Stack, kubeconfig: &Path, account: &str) -> Result<Self> {
        let kubectl = async |args: &[&str]| stack.kubectl(kubeconfig, args).await?.ok();
        kubectl(&["create", "serviceaccount", account]).await?;
        let root = kubectl(&[
            "get",
            "configmap",
            "kube-root-ca.crt",
            "-o",
            "jsonpath={.data.ca\\.crt}",
        ])
        .await?;
        let path = kubeconfig.with_extension("root.crt");
        std::fs::write(&path, root)?;
        let token = kubectl(&["create", "token", account]).await?.trim().to_owned();
        Ok(Self {
            stack,
            kubeconfig: kubeconfig.to_owned(),
            root: path,
            token,
        })
    }

    /// Sends a request to the API's address, which leads to the ingress. Returns HTTP status and
    /// answer.
    async fn ask(&self, token: Option<&str>, path: &str, body: Option<&str>) -> Result<(u16, Value)> {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--max-time",
            "10",
            "--write-out",
            "\\n%{http_code}",
        ]);
        let way = format!("{ADDRESS}:443:{}", self.stack.ingress()?);
        command.args(["--connect-to", &way]).arg("--cacert").arg(&self.root);
        if let Some(token) = token {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        if let Some(body) = body {
            command.args(["--header", "Content-Type: application/json", "--data", body]);
        }
        command.arg(format!("https://{ADDRESS}{path}"));
        let text = run(command, LIMIT).await?.ok()?;
        let (answer, code) = text.trim().rsplit_once('\n').context("curl printed no status")?;
        let answer = serde_json::from_str(answer).with_context(|| format!("no JSON: {answer}"))?;
        Ok((code.parse()?, answer))
    }

    /// User name that the API sees.
    async fn whoami(&self) -> Result<String> {
        let body = r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#;
        let (code, answer) = self.ask(Some(&self.token), REVIEW, Some(body)).await?;
        ensure!(code == 201, "{code}: {answer}");
        let name = &answer["status"]["userInfo"]["username"];
        Ok(name.as_str().unwrap_or_default().to_owned())
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.stack.kubectl(&self.kubeconfig, args).await?.ok()
    }
}

#[tokio::test]
async fn each_token_reaches_its_own_cluster() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "inside").await?;
    let (_, kubeconfig_a) = tenant.ready_cluster("a").await?;
    let (_, kubeconfig_b) = tenant.ready_cluster("b").await?;
    let a = Inside::new(&stack, &kubeconfig_a, "of-a").await?;
    let b = Inside::new(&stack, &kubeconfig_b, "of-b").await?;
    for (inside, name) in [(&a, "of-a"), (&b, "of-b")] {
        let found = inside.whoami().await?;
        ensure!(found == format!("system:serviceaccount:default:{name}"), "{found}");
    }

    let changed = format!("{}x", a.token);
    for (rule, token) in [("no token", None), ("a changed one", Some(changed.as_str()))] {
        let (code, status) = a.ask(token, "/version", None).await?;
        ensure!(
            code == 401 && status["kind"] == "Status" && status["reason"] == "Unauthorized",
            "{rule}: {code} {status}"
        );
    }
    let vault = a.kubectl(&["create", "token", "of-a", "--audience=vault"]).await?;
    let (code, _) = a.ask(Some(vault.trim()), "/version", None).await?;
    ensure!(code == 401, "a token for another audience was accepted: {code}");
    tenant.remove().await
}

#[tokio::test]
async fn pods_are_sent_to_the_ingress() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "endpoints").await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    let is_ingress = async || {
        let slice = ["get", "endpointslice", "kubernetes", "-o"];
        let slice = [&slice[..], &["jsonpath={.endpoints[*].addresses[*]}:{.ports[*].port}"]].concat();
        let endpoints = ["get", "endpoints", "kubernetes", "-o"];
        let endpoints = [
            &endpoints[..],
            &["jsonpath={.subsets[*].addresses[*].ip}:{.subsets[*].ports[*].port}"],
        ]
        .concat();
        let ingress = stack.ingress()?;
        let found = [
            stack.kubectl(&kubeconfig, &slice).await?.stdout,
            stack.kubectl(&kubeconfig, &endpoints).await?.stdout,
        ];
        Ok(found.iter().all(|found| found == ingress))
    };
    ensure!(is_ingress().await?, "default/kubernetes is not the ingress");
    let delete = ["delete", "endpointslice,endpoints", "kubernetes"];
    stack.kubectl(&kubeconfig, &delete).await?.ok()?;
    wait_until("default/kubernetes to be restored", LIMIT, is_ingress).await?;
    tenant.remove().await
}
