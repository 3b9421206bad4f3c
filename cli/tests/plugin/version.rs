//! `version`, and the command line in general.

use serde_json::{Value, json};

use crate::host::Host;

const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

#[tokio::test(flavor = "multi_thread")]
async fn version_is_that_of_both_sides() {
    let host = Host::start().await;
    assert_eq!(
        host.run("version").await.out,
        format!("kubectl-yoke {VERSION}\nhost Kubernetes v1.35.4\n")
    );
    let both: Value = serde_json::from_str(&host.run("version -o json").await.out).unwrap();
    assert_eq!(
        (
            &both["clientVersion"]["gitVersion"],
            &both["serverVersion"]["gitVersion"]
        ),
        (&json!(VERSION), &json!("v1.35.4"))
    );
    let client: Value = serde_saphyr::from_str(&host.run("version --client -o yaml").await.out).unwrap();
    assert_eq!(client, json!({"clientVersion": {"gitVersion": VERSION}}));
    let said = Host::new("http://127.0.0.1:1").run("version").await;
    assert_eq!((said.code, said.out), (1, format!("kubectl-yoke {VERSION}\n")));
    assert!(
        said.err.starts_with("error: getting the host's version: cannot reach"),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_is_explained() {
    let host = Host::start().await;
    assert!(host.run("--help").await.out.contains("Exit codes:"));
    assert_eq!(host.run("get -n other --as someone not-a-kind").await.code, 2);
}
