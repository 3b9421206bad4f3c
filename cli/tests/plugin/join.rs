//! `join`, and what becomes of its JoinToken when it is ended.

use k8s_openapi::ByteString;
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::fixtures::ready;
use crate::host::Host;

const TOKEN: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/jointokens/demo-x";
const SECRET: &str = "/api/v1/namespaces/t/secrets/demo-x-join";

fn secret() -> Value {
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
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-x-join", "namespace": "t"}, "data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn it_prints_the_line_once_workers_can_join() {
    let host = Host::start().await;
    let running = host.begin("join demo");
    host.until_watched().await;
    host.set(SECRET, secret());
    let mut token = host.object(TOKEN).unwrap();
    token["status"] = json!({"conditions": [ready()]});
    host.set(TOKEN, token);
    let said = running.end().await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.starts_with("yoke-worker join yoke1."), "{said:?}");
    assert!(said.err.contains("kubectl delete jointoken demo-x -n t"), "{said:?}");
    assert!(host.object(TOKEN).is_some(), "it stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_told_what_their_nodes_are() {
    let host = Host::start().await;
    let line = "join demo --label example.org/disk=ssd --label a= --taint gpu=a:NoSchedule --taint spot:NoExecute";
    let running = host.begin(line);
    host.until_watched().await;
    let spec = host.object(TOKEN).unwrap()["spec"].clone();
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
        ("join demo --label a=b --label a=c", 1, "\"a\" is given twice"),
    ] {
        let said = host.run(line).await;
        assert!(said.code == code && said.err.contains(part), "{line}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_was_told_of_goes_with_who_is_interrupted() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let host = Host::start().await;
        let running = host.begin("join demo");
        host.until_watched().await;
        assert!(host.object(TOKEN).is_some());
        running.signal(signal);
        let said = running.end().await;
        assert_eq!((said.code, said.out.as_str()), (code, ""), "{said:?}");
        assert!(said.err.ends_with("error: interrupted\n"), "{said:?}");
        assert_eq!(host.object(TOKEN), None, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_meanwhile_goes_too() {
    let host = Host::start().await;
    host.stall("POST");
    let running = host.begin("join demo");
    host.until_asked("POST").await;
    running.signal(Signal::INT);
    running.until_err("interrupted; waiting for the host's answer\n").await;
    host.resume();
    let said = running.end().await;
    assert_eq!(said.code, 130, "{said:?}");
    assert!(
        host.requests().iter().any(|line| line == &format!("DELETE {TOKEN}?")),
        "{:?}",
        host.requests()
    );
    assert_eq!(host.object(TOKEN), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait_for_the_host() {
    let host = Host::start().await;
    host.stall("POST");
    let running = host.begin("join demo");
    host.until_asked("POST").await;
    running.signal(Signal::INT);
    running.until_err("waiting for the host's answer\n").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert!(
        said.code == 130 && said.err.contains("a JoinToken may have been made"),
        "{said:?}"
    );

    let host = Host::start().await;
    let running = host.begin("join demo");
    host.until_watched().await;
    host.stall("DELETE");
    running.signal(Signal::INT);
    host.until_asked("DELETE").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert!(
        said.code == 130 && said.err.contains("JoinToken demo-x stays until it ends\n"),
        "{said:?}"
    );
}
