//! `kubeconfig`.

use serde_json::Value;

use crate::fixtures::{DEMO, KUBECONFIG, SECRET, cluster, ready, secret};
use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_is_printed_as_it_is() {
    let host = Host::start().await;
    let mut starting = cluster("demo", &[]);
    starting["status"]["kubeconfigRef"] = Value::Null;
    host.set(DEMO, starting);
    let said = host.run("kubeconfig demo").await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(
        said.err
            .starts_with("error: Cluster demo has no kubeconfig yet\nhint: "),
        "{}",
        said.err
    );
    host.set(DEMO, cluster("demo", &[ready()]));
    host.set(SECRET, secret());
    let said = host.run("kubeconfig demo").await;
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, KUBECONFIG, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_is_merged_into_the_persons_own() {
    use std::os::unix::fs::PermissionsExt as _;

    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host.set(SECRET, secret());
    let (real, link) = (host.path("real.kubeconfig"), host.path("link.kubeconfig"));
    std::fs::rename(host.path("host.kubeconfig"), &real).unwrap();
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let said = host.run_with("kubeconfig demo --merge", &link).await;
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert!(said.err.contains("added context t/demo to "), "{}", said.err);
    assert!(
        said.err.contains("to go back: kubectl config use-context host"),
        "{}",
        said.err
    );
    assert!(link.is_symlink());
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&real).unwrap()).unwrap();
    assert_eq!(merged["current-context"], "t/demo");
    assert_eq!(merged["contexts"].as_array().unwrap().len(), 2);
    // The host's context is no longer the current one, but it can be named.
    let said = host.run_with("get -o name --context host", &link).await;
    assert_eq!(said.out, "cluster.yoke.drzzl.io/demo\n");
    let said = host
        .run_with("kubeconfig demo --merge --context-name host --context host", &link)
        .await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("it has a cluster \"host\" of another cluster\nhint: choose another name with --context-name"),
        "{}",
        said.err
    );
    let left: Vec<_> = std::fs::read_dir(real.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "no lock and no temporary file stays: {left:?}");
}
