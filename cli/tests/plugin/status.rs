//! `status`.

use serde_json::{Value, json};

use crate::fixtures::{DEMO, cluster, condition, ready};
use crate::host::Host;

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
        NEXT Delete a Cluster, request less storage, or ask the host's owner to raise the Tenant's quota."
    );
    let said = host.run("status").await;
    assert!(said.out.contains("NOT READY\n  t/demo: refused (QuotaExceeded): The quota of 1 is used up.\n    kubectl yoke status demo -n t\n"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn words_of_others_are_no_orders_to_the_terminal() {
    let host = Host::start().await;
    let words = "denied: \u{1b}]52;c;eA==\u{7}\u{9b}2J\nReady";
    host.set(
        DEMO,
        cluster("demo", &[condition("Ready", "False", "APIServerNotReady", words)]),
    );
    for line in ["status demo", "status"] {
        let said = host.run(line).await;
        let is_obeyed = |text: &str| text.contains(|c: char| c.is_control() && c != '\n');
        assert!(!is_obeyed(&said.out) && !is_obeyed(&said.err), "{line}: {said:?}");
        assert!(
            format!("{}{}", said.out, said.err).contains("denied:  ]52;c;eA==  2J Ready"),
            "{line}: {said:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_when_a_cluster_ends() {
    let host = Host::start().await;
    for (ttl, paused, expected) in [
        (json!("99h"), false, "Ends:        in 4d2h\n"),
        (json!("0m"), false, "Ends:        now\n"),
        (json!("0m"), true, "Ends:        not while it is paused\n"),
        (Value::Null, false, ""),
    ] {
        let mut demo = cluster("demo", &[ready()]);
        let half_an_hour_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(30);
        demo["metadata"]["creationTimestamp"] = half_an_hour_ago.to_string().into();
        demo["spec"]["ttl"] = ttl;
        demo["spec"]["paused"] = paused.into();
        host.set(DEMO, demo);
        let said = host.run("status demo").await;
        let line = said.out.split_inclusive('\n').find(|line| line.starts_with("Ends:"));
        assert_eq!(line.unwrap_or_default(), expected, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_data_too() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    let refused = condition("Accepted", "False", "UnknownVersion", "v9 is not offered.");
    host.set(&DEMO.replace("demo", "other"), cluster("other", &[refused]));
    let one: Value = serde_json::from_str(&host.run("status demo -o json").await.out).unwrap();
    assert_eq!(
        (&one["name"], &one["namespace"], &one["state"]),
        (&json!("demo"), &json!("t"), &json!("Ready"))
    );
    assert_eq!(one["conditions"][0]["type"], "Ready");
    assert_eq!(one["next"][0], "kubectl yoke kubeconfig demo -n t --merge");
    let all: Value = serde_saphyr::from_str(&host.run("status -o yaml").await.out).unwrap();
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
    let other = &all["items"][1];
    assert_eq!(
        (&other["state"], &other["reason"], &other["message"]),
        (
            &json!("Refused"),
            &json!("UnknownVersion"),
            &json!("v9 is not offered.")
        )
    );
    let wide = host.run("status -o wide").await.out;
    assert!(
        wide.lines()
            .next()
            .unwrap()
            .ends_with("KUBECONFIG         CA-EXPIRES   COST     MESSAGE"),
        "{wide}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_does_not_hang_on_events() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host.stall("/events");
    let said = host.run("status demo --request-timeout 1s").await;
    assert_eq!(said.code, 0);
    let part = format!(
        "(no events: listing its events: no answer from the host's API at {}/ within 1s)\n\nNEXT",
        host.url()
    );
    assert!(said.out.contains(&part), "{}", said.out);
}
