//! The plugin as people run it, against a host's API in memory.

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's helper")]
mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::Host;

const CLUSTERS: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/clusters";
const DEMO: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/clusters/demo";
const SECRET: &str = "/api/v1/namespaces/t/secrets/demo-kubeconfig";
const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1', tls-server-name: demo-x.yoke.test}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
}

fn cluster(name: &str, conditions: &[Value]) -> Value {
    json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "t", "uid": "u", "generation": 1, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"version": "v1.35.4", "newerField": {"kept": true}},
        "status": {
            "observedGeneration": 1, "phase": "Running", "version": "v1.35.4", "nodes": 2,
            "endpoint": {"url": format!("https://{name}-x.yoke.test"), "serverName": "x", "address": "https://192.0.2.1:443", "audience": "a", "issuer": "i"},
            "kubeconfigRef": {"name": format!("{name}-kubeconfig")},
            "conditions": conditions,
        },
    })
}

fn ready() -> Value {
    condition("Ready", "True", "AsExpected", "The API answers.")
}

fn secret() -> Value {
    let data = json!({"value": k8s_openapi::ByteString(KUBECONFIG.into())});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-kubeconfig", "namespace": "t"}, "data": data})
}

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

    let said = host.run("create tenant t --user ann --group ops").await;
    assert_eq!(said.out, "tenant.yoke.drzzl.io/t created\n");
    let tenant = host.object("/apis/yoke.drzzl.io/v1alpha1/tenants/t").unwrap();
    assert_eq!(
        tenant["spec"]["subjects"],
        json!([{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "ops"}])
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
async fn wait_tells_what_it_waits_for() {
    let host = Host::start().await;
    let waiting = tokio::spawn({
        let host = host.clone();
        async move { host.run("create cluster demo --wait --timeout 20s").await }
    });
    let watched = |line: &String| line.contains("watch=true");
    while !host.requests().iter().any(watched) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    host.set(
        DEMO,
        cluster(
            "demo",
            &[condition("Ready", "False", "PodPending", "Waiting for the pod.")],
        ),
    );
    host.set(DEMO, cluster("demo", &[ready()]));
    let said = waiting.await.unwrap();
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo created\n")
    );
    let lines: Vec<_> = said
        .err
        .lines()
        .map(|line| line.split_once("s  ").map_or(line, |(_, rest)| rest))
        .collect();
    assert_eq!(
        lines,
        [
            "Waiting for the pod.",
            "ready",
            "next: kubectl yoke kubeconfig demo -n t --merge"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_at_a_refusal_and_at_its_limit() {
    let host = Host::start().await;
    host.set(
        DEMO,
        cluster(
            "demo",
            &[condition("Accepted", "False", "UnknownVersion", "v9 is not offered.")],
        ),
    );
    let said = host.run("kubeconfig demo --wait 20s").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("error: Cluster demo is refused (UnknownVersion): v9 is not offered.\nhint: "),
        "{}",
        said.err
    );

    host.set(
        DEMO,
        cluster(
            "demo",
            &[condition("Ready", "False", "PodPending", "Waiting for the pod.")],
        ),
    );
    let said = host.run("kubeconfig demo --wait 1s").await;
    assert_eq!(said.code, 3);
    assert!(
        said.err
            .contains("error: Cluster demo did not become ready within 1s; last seen: Waiting for the pod.\n"),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn get_shows_every_format() {
    let host = Host::start().await;
    let said = host.run("get").await;
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (0, "", "no clusters found in namespace t\n")
    );
    host.set(DEMO, cluster("demo", &[ready()]));
    host.set("/apis/yoke.drzzl.io/v1alpha1/namespaces/u/clusters/far", {
        let mut far = cluster("far", &[]);
        far["metadata"]["namespace"] = "u".into();
        far
    });
    let table = host.run("get clusters").await.out;
    assert!(table.starts_with("NAME   VERSION   PHASE     READY   ENDPOINT                   NODES   AGE\ndemo   v1.35.4   Running   True    https://demo-x.yoke.test   2 "), "{table}");
    assert_eq!(
        host.run("get cluster demo -o name").await.out,
        "cluster.yoke.drzzl.io/demo\n"
    );
    assert_eq!(
        host.run("get -A -o name").await.out,
        "cluster.yoke.drzzl.io/demo\ncluster.yoke.drzzl.io/far\n"
    );
    assert!(host.run("get -A").await.out.starts_with("NAMESPACE   NAME"));
    assert!(host.run("get -o wide").await.out.contains("The API answers."));
    let one: Value = serde_json::from_str(&host.run("get clusters demo -o json").await.out).unwrap();
    assert_eq!(one["spec"]["newerField"]["kept"], true);
    let list: Value = serde_saphyr::from_str(&host.run("get -o yaml").await.out).unwrap();
    assert_eq!(
        (
            &list["kind"],
            &list["items"][0]["kind"],
            &list["items"][0]["metadata"]["name"]
        ),
        (&json!("List"), &json!("Cluster"), &json!("demo"))
    );
    assert!(host.run("get tenants").await.err.contains("no tenants found"));
}

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
    let said = host.run_with("kubeconfig demo --merge", &link, "").await;
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert!(said.err.contains("added context t/demo to "), "{}", said.err);
    assert!(
        said.err.contains("back with: kubectl config use-context host"),
        "{}",
        said.err
    );
    assert!(link.is_symlink());
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    let merged: Value = serde_saphyr::from_str(&std::fs::read_to_string(&real).unwrap()).unwrap();
    assert_eq!(merged["current-context"], "t/demo");
    assert_eq!(merged["contexts"].as_array().unwrap().len(), 2);
    // The host is reached by naming its context, which is not the current one any more.
    let said = host.run_with("get -o name --context host", &link, "").await;
    assert_eq!(said.out, "cluster.yoke.drzzl.io/demo\n");
    let said = host
        .run_with("kubeconfig demo --merge --context-name host --context host", &link, "")
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

#[tokio::test(flavor = "multi_thread")]
async fn delete_wants_to_be_asked_for_twice() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    let said = host.run("delete cluster demo").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("is not deleted without being asked for twice\nhint: say --yes"),
        "{}",
        said.err
    );
    assert!(host.object(DEMO).is_some());
    let said = host.run("delete cluster demo --yes --wait").await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo deleted\n")
    );
    assert!(host.object(DEMO).is_none());
    let said = host.run("delete cluster demo --yes").await;
    assert!(
        said.err
            .starts_with("error: getting Cluster demo: clusters \"demo\" not found\nhint: "),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_what_to_do_next() {
    let host = Host::start().await;
    host.set(
        DEMO,
        cluster(
            "demo",
            &[
                condition("Accepted", "False", "QuotaExceeded", "The quota of 1 is used up."),
                condition("Ready", "False", "QuotaExceeded", "Refused."),
            ],
        ),
    );
    host.set("/api/v1/namespaces/t/events/e", json!({
        "metadata": {"name": "e", "namespace": "t"}, "involvedObject": {}, "type": "Warning", "reason": "QuotaExceeded",
        "message": "The quota of 1 is used up.", "eventTime": "2026-01-01T00:00:00.000000Z",
    }));
    let said = host.run("status demo").await;
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let without_times: String = said
        .out
        .lines()
        .filter(|line| !line.starts_with("Age:"))
        .map(|line| format!("{line}\n"))
        .collect();
    let words: Vec<_> = without_times
        .split_whitespace()
        .filter(|word| !word.ends_with(['d', 'y', 'h', 'm']) || !word.as_bytes()[0].is_ascii_digit())
        .collect();
    assert_eq!(
        words.join(" "),
        "Cluster: t/demo Phase: Running Version: v1.35.4 Name: https://demo-x.yoke.test Address: https://192.0.2.1:443 \
        Kubeconfig: Secret demo-kubeconfig Nodes: 2 Storage: quota 256Mi \
        CONDITION STATUS SINCE REASON MESSAGE Ready False QuotaExceeded Refused. Accepted False QuotaExceeded The quota of 1 is used up. \
        EVENT AGE REASON MESSAGE Warning QuotaExceeded The quota of 1 is used up. \
        NEXT Delete a Cluster or ask for less storage, or have the host's owner raise the Tenant's quota."
    );
    let said = host.run("status").await;
    assert!(said.out.contains("NOT READY\n  t/demo: refused (QuotaExceeded): The quota of 1 is used up.\n    kubectl yoke status demo -n t\n"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_to_reach_the_host_are_explained() {
    let host = Host::start().await;
    let said = host.run_with("get", &host.path("absent"), "").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("error: no kubeconfig of the host was found"),
        "{}",
        said.err
    );
    assert!(
        said.err
            .contains("hint: name the host's kubeconfig with --kubeconfig or KUBECONFIG"),
        "{}",
        said.err
    );
    let said = host.run("get --context nowhere").await;
    assert!(
        said.err
            .contains("error: cannot use the kubeconfig of the host: failed to load current context: nowhere"),
        "{}",
        said.err
    );
    let text = std::fs::read_to_string(host.path("host.kubeconfig")).unwrap();
    let dead = text.lines().map(|line| {
        if line.contains("server") {
            "- {name: host, cluster: {server: 'http://127.0.0.1:1'}}"
        } else {
            line
        }
    });
    std::fs::write(host.path("dead"), dead.collect::<Vec<_>>().join("\n")).unwrap();
    let said = host.run_with("get", &host.path("dead"), "").await;
    assert!(
        said.err
            .starts_with("error: listing clusters: cannot reach the host's API at http://127.0.0.1:1/: "),
        "{}",
        said.err
    );
    assert_eq!(host.run("get --no-such-flag").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_and_completion_answer() {
    let host = Host::start().await;
    assert_eq!(
        host.run("version").await.out,
        format!("kubectl-yoke v{}\nhost Kubernetes v1.35.4\n", env!("CARGO_PKG_VERSION"))
    );
    for shell in ["bash", "zsh", "fish"] {
        let said = host.run(&format!("completion {shell}")).await;
        assert!(said.code == 0 && said.out.contains("kubectl-yoke"), "{shell}");
    }
    assert!(host.run("--help").await.out.contains("Exit codes:"));
    assert_eq!(host.run(&format!("get -n other --as someone {CLUSTERS}")).await.code, 2);
}
