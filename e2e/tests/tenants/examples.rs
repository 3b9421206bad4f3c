//! The manifests in `examples/` are accepted by the API server of the host: schema, CEL rules and admission, by a server-side dry
//! run. Nothing is created but the Tenant whose namespace they need.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use yoke_e2e::readme::root;
use yoke_e2e::{Stack, TenantFixture};

/// The Tenant of the examples.
const TENANT: &str = "acme";
const GROUP: &str = "yoke.drzzl.io/";
const FILES: [&str; 6] = [
    "tenant.yaml",
    "cluster.yaml",
    "cluster-oidc.yaml",
    "cluster-own-cni.yaml",
    "sleep-schedules.yaml",
    "workers.yaml",
];

#[tokio::test]
async fn every_example_is_accepted() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "examples").await?;
    let folder = tempfile::tempdir()?;
    let mut applied = 0;
    for name in FILES {
        let text =
            std::fs::read_to_string(root().join("examples").join(name)).with_context(|| format!("reading {name}"))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(|| format!("reading {name}"))?;
        for (index, mut document) in documents.into_iter().enumerate() {
            let version = document["apiVersion"].as_str().unwrap_or_default();
            ensure!(version.starts_with(GROUP), "{name}: {version} is not of Yoke");
            // A dry run needs a namespace that exists; the Tenant of the examples has none here.
            if document["metadata"]["namespace"] == TENANT {
                document["metadata"]["namespace"] = Value::from(tenant.name.clone());
            }
            let file = folder.path().join(format!("{index}-{name}.json"));
            std::fs::write(&file, document.to_string())?;
            let file = file.to_string_lossy();
            let apply = ["apply", "--server-side", "--dry-run=server", "-f", &file];
            let said = stack
                .host_kubectl(&apply)
                .await?
                .ok()
                .with_context(|| format!("{name}: {document}"))?;
            ensure!(said.contains("serverside-applied"), "{name}: {said}");
            applied += 1;
        }
    }
    ensure!(applied > 8, "only {applied} documents were applied");
    tenant.remove().await
}
