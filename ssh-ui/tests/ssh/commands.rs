//! Commands and their answers.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use yoke_api::JoinToken;
use yoke_test_support::kubernetes::OWNER_TOKEN;

use crate::world::{World, put};

pub(crate) async fn clusters_are_made_shown_and_deleted(world: &World) {
    let alice = &world.alice;
    let said = alice.ssh("").await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("create NAME --wait"), "{said:?}");

    let whoami = alice.ssh("whoami --json").await.json();
    let expected = json!({"tenant": "a", "key": "laptop", "fingerprint": alice.fingerprint});
    assert_eq!(whoami, expected);
    assert!(
        world
            .bob
            .ssh("whoami")
            .await
            .ok()
            .starts_with("Tenant: b\nKey:    desk (SHA256:")
    );

    assert_eq!(
        alice
            .ssh("create one --version 1.35.4 --storage 1Gi --ttl 8h")
            .await
            .ok(),
        "Cluster one created\n"
    );
    let spec = world.clusters("a").get("one").await.unwrap().spec;
    assert_eq!(
        (
            spec.version.as_deref(),
            spec.storage.quota.0.as_str(),
            spec.ttl.as_deref()
        ),
        (Some("v1.35.4"), "1Gi", Some("8h"))
    );
    let again = alice.ssh("create one").await.failed(1);
    assert!(again.contains("already exists") && again.contains("hint: "), "{again}");

    let early = alice.ssh("kubeconfig one").await.failed(1);
    assert!(early.contains("has no kubeconfig yet"), "{early}");
    world.tell("a", "one", true, "The API answers.").await;
    let table = alice.ssh("clusters").await.ok();
    assert!(table.starts_with("NAME   VERSION   PHASE     READY"), "{table}");
    assert!(table.contains("\none    v1.35.4   Running   True"), "{table}");
    let shown = alice.ssh("clusters one --json").await.json();
    assert_eq!((&shown["name"], &shown["ready"]), (&json!("one"), &json!(true)));
    let kubeconfig = alice.ssh("kubeconfig one").await.ok();
    assert!(kubeconfig.ends_with("# of a/one\n"), "{kubeconfig}");
    assert_eq!(alice.ssh("kubeconfig one --json").await.json()["kind"], "Config");

    assert_eq!(alice.ssh("sleep one").await.ok(), "Cluster one is going to sleep\n");
    let spec = serde_json::to_value(world.clusters("a").get("one").await.unwrap().spec).unwrap();
    assert_eq!(spec["state"], "Asleep");
    assert_eq!(alice.ssh("wake one --json").await.json()["state"], "Running");
    let told = alice.ssh("sleep one --json").await.json();
    assert_eq!((&told["name"], &told["state"]), (&json!("one"), &json!("Asleep")));
    world.tell_asleep("a", "one").await;
    let told = alice.ssh("sleep one --json --wait --timeout 30s").await.json();
    assert_eq!((&told["state"], &told["phase"]), (&json!("Asleep"), &json!("Asleep")));
    assert_eq!(alice.ssh("wake one").await.ok(), "Cluster one is waking\n");
    let woken = world.clusters("a").get("one").await.unwrap();
    let words = woken.metadata.annotations.unwrap();
    assert_eq!(
        words["yoke.drzzl.io/sleep"], "end",
        "also if another way of asking sent it to sleep"
    );

    let careful = alice.ssh("delete one").await.failed(1);
    assert!(careful.contains("`delete one --yes`"), "{careful}");
    assert_eq!(alice.ssh("delete one --yes --wait").await.ok(), "Cluster one deleted\n");
    assert!(world.clusters("a").get_opt("one").await.unwrap().is_none());
}

pub(crate) async fn waiting_tells_what_for_and_ends(world: &World) {
    let alice = &world.alice;
    let mut command = alice.begin(&[], "create slow --wait --timeout 30s");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = command.kill_on_drop(true).spawn().unwrap();
    let mut told = BufReader::new(client.stderr.take().unwrap()).lines();
    let clusters = world.clusters("a");
    world
        .until(
            "Cluster slow",
            async || clusters.get_opt("slow").await.unwrap().is_some(),
            |exists| *exists,
        )
        .await;
    world.tell("a", "slow", false, "The pod starts.").await;
    // Wait until the first message is seen, or the watch may show only the second.
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(line) = told.next_line().await.unwrap() {
            if line.ends_with("s  The pod starts.") {
                return;
            }
        }
        panic!("it ended without a word of what it waits for");
    });
    seen.await.expect("it says what it waits for");
    world.tell("a", "slow", true, "The API answers.").await;
    let said = tokio::time::timeout(Duration::from_secs(30), client.wait_with_output());
    let said = said.await.expect("it ends").unwrap();
    assert!(
        said.status.success() && said.stdout == b"Cluster slow created\n",
        "{said:?}"
    );

    let never = alice.ssh("create never --wait --timeout 1s").await.failed(3);
    assert!(never.contains("did not reach the requested state within 1s"), "{never}");
    for name in ["slow", "never"] {
        alice.ssh(&format!("delete {name} --yes")).await.ok();
    }
}

pub(crate) async fn nodes_are_those_of_the_clusters_own_api(world: &World) {
    let alice = &world.alice;
    alice.ssh("create work").await.ok();
    let early = alice.ssh("nodes work").await.failed(1);
    assert!(early.contains("has no kubeconfig yet"), "{early}");
    world.tell("a", "work", true, "The API answers.").await;
    // Stands for a cluster with an API server of its own; here it is the host's.
    let authority = std::fs::read(world.path("certificates/apiserver.crt")).unwrap();
    let trusted = json!({"certificate-authority-data": STANDARD.encode(authority)});
    let kubeconfig = |server: &str, trust: &Value| {
        let mut cluster = json!({"server": server});
        cluster
            .as_object_mut()
            .unwrap()
            .extend(trust.as_object().unwrap().clone());
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": OWNER_TOKEN}}]})
        .to_string()
    };
    let good = kubeconfig(&world.address, &trusted);
    world.set_kubeconfig("a", "work", &good).await;
    // No other endpoint is queried than the one in the Cluster's status.
    let silent = "the API of Cluster work did not answer";
    assert!(alice.ssh("nodes work").await.failed(1).contains(silent));
    world.set_address("a", "work", &world.address).await;
    assert_eq!(alice.ssh("nodes work").await.ok(), "No worker has joined.\n");
    let long = "b".repeat(63);
    let labels = json!({format!("node-role.kubernetes.io/{long}"): ""});
    for (name, labels) in [("w1", json!({})), ("w2", labels)] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        put(&world.admin, &node).await;
    }
    let table = alice.ssh("nodes work").await.ok();
    assert!(table.starts_with("NAME   STATUS"), "{table}");
    assert!(table.contains("\nw1     Unknown") && table.contains(&long), "{table}");
    let told = alice.ssh("nodes work --json").await.json();
    assert_eq!(
        (&told["nodes"][1]["name"], &told["more"]),
        (&json!("w2"), &json!(false))
    );
    alice.ssh("sleep work").await.ok();
    let asleep = alice.ssh("nodes work").await.failed(1);
    assert!(asleep.contains("is asleep\nhint: `wake work`"), "{asleep}");
    alice.ssh("wake work").await.ok();
    let words = json!({"metadata": {"annotations": {"yoke.drzzl.io/sleep": "now"}}});
    let clusters = world.clusters("a");
    let patched = clusters
        .patch("work", &PatchParams::default(), &Patch::Merge(&words))
        .await;
    patched.unwrap();
    let asleep = alice.ssh("nodes work").await.failed(1);
    assert!(asleep.contains("is asleep\nhint: `wake work`"), "{asleep}");
    alice.ssh("wake work").await.ok();
    // The error shows a Tenant nothing about the network path.
    let elsewhere = "https://127.0.0.1:1";
    let unproved = json!({"insecure-skip-tls-verify": true});
    for (rule, address, text) in [
        ("nobody answers", elsewhere, kubeconfig(elsewhere, &trusted)),
        (
            "who answers proves nothing",
            &world.address,
            kubeconfig(&world.address, &unproved),
        ),
    ] {
        world.set_kubeconfig("a", "work", &text).await;
        world.set_address("a", "work", address).await;
        let said = alice.ssh("nodes work").await.failed(1);
        assert!(said.contains(silent) && !said.contains("127.0.0.1"), "{rule}: {said}");
    }
    alice.ssh("delete work --yes").await.ok();
}

pub(crate) async fn a_join_that_is_broken_off_leaves_nothing(world: &World) {
    let alice = &world.alice;
    alice.ssh("create left").await.ok();
    let mut client = alice.begin(&[], "join left");
    let mut client = client.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let tokens = Api::<JoinToken>::namespaced(world.admin.clone(), "a");
    let count = async || tokens.list(&Default::default()).await.unwrap().items.len();
    world.until("a JoinToken", count, |count| *count == 1).await;
    client.kill().await.unwrap();
    world.until("no JoinToken", count, |count| *count == 0).await;
    alice.ssh("delete left --yes").await.ok();
}

pub(crate) async fn a_join_that_cannot_come_about_is_answered_at_once(world: &World) {
    let alice = &world.alice;
    // The error equals that of any other command.
    let missing = alice.ssh("join typo").await.failed(1);
    assert_eq!(missing, alice.ssh("nodes typo").await.failed(1));
    alice.ssh("create full").await.ok();
    let tokens = Api::<JoinToken>::namespaced(world.admin.clone(), "a");
    let count = async || tokens.list(&Default::default()).await.unwrap().items.len();
    let joining = alice.ssh("join full");
    let refusing = async {
        world.until("a JoinToken", count, |count| *count == 1).await;
        let token = tokens.list(&Default::default()).await.unwrap().items.remove(0);
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "QuotaExceeded",
            "message": "There are 64 older ones.", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let (name, params) = (token.metadata.name.unwrap(), PatchParams::default());
        tokens
            .patch_status(&name, &params, &Patch::Merge(&status))
            .await
            .unwrap();
    };
    let (said, ()) = tokio::join!(joining, refusing);
    let refused = said.failed(1);
    assert!(
        refused.contains(" is refused (QuotaExceeded): There are 64 older ones.\nhint: "),
        "{refused}"
    );
    assert_eq!(count().await, 0);
    alice.ssh("sleep full").await.ok();
    let asleep = alice.ssh("join full").await.failed(1);
    assert_eq!(asleep, "error: Cluster full is asleep\nhint: `wake full`\n");
    assert_eq!(count().await, 0);
    alice.ssh("delete full --yes").await.ok();
}

pub(crate) async fn wrong_lines_say_what_would_be_right(world: &World) {
    let alice = &world.alice;
    let help = alice.ssh("help").await.ok();
    assert!(help.contains("kubeconfig") && help.contains("Exit codes"), "{help}");
    let wrong = alice.ssh("frobnicate").await.failed(2);
    assert!(wrong.contains("error: unrecognized subcommand 'frobnicate'"), "{wrong}");
    let wrong = alice.ssh("create Bad --json").await.failed(2);
    let wrong: serde_json::Value = serde_json::from_str(&wrong).unwrap();
    assert_eq!(wrong["reason"], "usage");
    // On a terminal, lines end with CRLF, and errors are shown too.
    let terminal = alice.ssh_with(&["-tt"], "clusters nothing").await;
    assert_eq!(terminal.code, 1, "{terminal:?}");
    assert!(terminal.out.contains("not found\r\nhint: "), "{terminal:?}");
}
