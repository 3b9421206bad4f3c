//! `join`, and the fate of its JoinToken when it is interrupted.

use k8s_openapi::ByteString;
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::fixtures::{DEMO, cluster, condition, ready};
use crate::host::Host;

/// Prefix of the paths of its JoinTokens.
const MADE: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/jointokens/demo-";

/// Returns the path and the name of the JoinToken.
fn find(host: &Host) -> (String, String) {
    let path = host.find(MADE).unwrap();
    let name = path.rsplit('/').next().unwrap().to_owned();
    (path, name)
}

/// Sets the condition of the JoinToken.
fn set_condition(host: &Host, condition: Value) {
    let (path, _) = find(host);
    let mut token = host.object(&path).unwrap();
    token["status"] = json!({"conditions": [condition]});
    host.set(&path, token);
}

fn secret(name: &str) -> Value {
    let pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let data: Map<_, _> = [
        ("server", "demo-x.yoke.test:443"),
        ("ca.crt", pem),
        ("client-ca.crt", pem),
        ("token", "abc123.0123456789abcdef"),
        ("version", "v1.35.4"),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), json!(ByteString(text.into()))))
    .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "t"}, "data": data})
}

/// Starts a host with the Cluster to join.
async fn start() -> Host {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn it_prints_the_line_once_workers_can_join() {
    let host = start().await;
    let running = host.begin("join demo");
    host.until_watched().await;
    let (_, name) = find(&host);
    let secret_name = format!("{name}-join");
    host.set(
        &format!("/api/v1/namespaces/t/secrets/{secret_name}"),
        secret(&secret_name),
    );
    set_condition(&host, ready());
    let said = running.end().await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.starts_with("yoke-worker join yoke1."), "{said:?}");
    let told = format!("kubectl delete jointoken {name} -n t");
    assert!(said.err.contains(&told), "{said:?}");
    assert!(host.find(MADE).is_some(), "it stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_wait_that_runs_out_nothing_goes_on() {
    let host = start().await;
    // Long enough for a loaded machine to receive the condition.
    let running = host.begin("join demo --timeout 6s");
    host.until_watched().await;
    let (_, name) = find(&host);
    set_condition(
        &host,
        condition("Ready", "False", "ClusterNotReady", "The API does not answer."),
    );
    running.until_err("s  The API does not answer.\n").await;
    let said = running.end().await;
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
    assert!(
        said.err.ends_with(&format!(
            "error: JoinToken {name} was deleted, so no worker can join with it: JoinToken {name} did not become ready within 6s; \
             last seen: The API does not answer.\n\
             hint: see `kubectl yoke status demo -n t`, and join again once it is ready, or wait longer with --timeout\n"
        )),
        "{said:?}"
    );
    assert_eq!(host.find(MADE), None);

    let host = start().await;
    host.fail("DELETE", &[403]);
    let said = host.run("join demo --timeout 1s").await;
    assert_eq!(said.code, 1, "{said:?}");
    let (_, name) = find(&host);
    let told = format!("error: JoinToken {name} could not be deleted, but its join command was not printed: ");
    assert!(said.err.contains(&told), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_not_waited_for() {
    let host = start().await;
    let running = host.begin("join demo");
    host.until_watched().await;
    let (_, name) = find(&host);
    set_condition(
        &host,
        condition("Ready", "False", "QuotaExceeded", "There are 64 older ones."),
    );
    let said = running.end().await;
    assert_eq!(said.code, 1, "{said:?}");
    let told =
        format!("JoinToken {name} is refused (QuotaExceeded): There are 64 older ones.\nhint: join again after this");
    assert!(said.err.contains(&told), "{said:?}");
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_come_about_is_not_begun_with() {
    let host = Host::start().await;
    let mut asleep = cluster("demo", &[condition("Asleep", "True", "AsleepByOwner", "m")]);
    asleep["spec"]["state"] = json!("Asleep");
    let refused = cluster(
        "demo",
        &[condition("Accepted", "False", "UnknownClass", "There is no class x.")],
    );
    let same = host.run("kubeconfig demo").await;
    assert!(same.err.contains("clusters \"demo\" not found"), "{same:?}");
    let wake = "kubectl patch clusters.yoke.drzzl.io demo -n t --type merge -p \
        '{\"metadata\":{\"annotations\":{\"yoke.drzzl.io/sleep\":\"end\"}},\"spec\":{\"state\":\"Running\"}}'";
    for (rule, object, expected) in [
        ("there is none", None, same.err),
        (
            "it sleeps",
            Some(asleep),
            format!("error: Cluster demo is asleep\nhint: wake it: {wake}\n"),
        ),
        (
            "it is refused",
            Some(refused),
            "error: Cluster demo is refused (UnknownClass): There is no class x.\n\
             hint: change the spec with `kubectl edit`, or delete the object and create it again\n"
                .to_owned(),
        ),
    ] {
        if let Some(object) = object {
            host.set(DEMO, object);
        }
        let said = host.run("join demo").await;
        assert_eq!((said.code, said.err), (1, expected), "{rule}");
    }
    let made = host.requests().iter().any(|line| line.starts_with("POST"));
    assert!(!made, "{:?}", host.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_taints_reach_the_join_token() {
    let host = start().await;
    let line = "join demo --label example.org/disk=ssd --label a= --taint gpu=a:NoSchedule --taint spot:NoExecute";
    let running = host.begin(line);
    host.until_watched().await;
    let spec = host.object(&find(&host).0).unwrap()["spec"].clone();
    assert_eq!(spec["nodeLabels"], json!({"example.org/disk": "ssd", "a": ""}));
    assert_eq!(
        spec["taints"],
        json!([{"key": "gpu", "value": "a", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoExecute"}])
    );
    running.signal(Signal::INT);
    running.end().await;
    for (line, code, part) in [
        (
            "join demo --label kubernetes.io/os=x",
            2,
            "a worker may not set the label \"kubernetes.io/os\" itself",
        ),
        ("join demo --taint a=b", 2, "expected key=value:effect"),
        ("join demo --label a=b --label a=c", 1, "\"a\" is given more than once"),
    ] {
        let said = host.run(line).await;
        assert!(said.code == code && said.err.contains(part), "{line}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_join_deletes_its_token() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let host = start().await;
        let running = host.begin("join demo");
        host.until_watched().await;
        assert!(host.find(MADE).is_some());
        running.signal(signal);
        let said = running.end().await;
        assert_eq!((said.code, said.out.as_str()), (code, ""), "{said:?}");
        assert!(said.err.ends_with("error: interrupted\n"), "{said:?}");
        assert_eq!(host.find(MADE), None, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_meanwhile_goes_too() {
    let host = start().await;
    host.stall("POST");
    let running = host.begin("join demo");
    host.until_asked("POST").await;
    running.signal(Signal::INT);
    running.until_err("interrupted; waiting for the host's answer\n").await;
    host.resume();
    let said = running.end().await;
    assert_eq!(said.code, 130, "{said:?}");
    assert!(
        host.requests()
            .iter()
            .any(|line| line.starts_with(&format!("DELETE {MADE}"))),
        "{:?}",
        host.requests()
    );
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_of_a_failed_request_is_deleted() {
    let host = start().await;
    host.do_and_fail("POST", &[500]);
    let said = host.run("join demo").await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.err
            .ends_with(" is being deleted\nerror: creating a JoinToken for Cluster demo: the host fails\n"),
        "{said:?}"
    );
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_retried() {
    let host = start().await;
    host.fail("DELETE", &[500]);
    let said = host.run("join demo --timeout 1s").await;
    assert!(
        said.err.contains(" was deleted, so no worker can join with it: "),
        "{said:?}"
    );
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait_for_the_host() {
    let host = start().await;
    host.stall("POST");
    let running = host.begin("join demo");
    host.until_asked("POST").await;
    running.signal(Signal::INT);
    running.until_err("waiting for the host's answer\n").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert!(
        said.code == 130
            && said
                .err
                .contains(" may have been created; its join command was not printed"),
        "{said:?}"
    );

    let host = start().await;
    let running = host.begin("join demo");
    host.until_watched().await;
    host.stall("DELETE");
    running.signal(Signal::INT);
    host.until_asked("DELETE").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    let (_, name) = find(&host);
    let told = format!("JoinToken {name} exists until it expires\n");
    assert!(said.code == 130 && said.err.contains(&told), "{said:?}");
}
