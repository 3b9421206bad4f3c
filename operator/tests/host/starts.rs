//! Every start of a control plane has a higher number than those before.

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::harness::{Host, PKI};

/// The number in the StatefulSet; `None` while there is none.
async fn number(host: &Host, hosted: &str) -> Option<u64> {
    let template = host.stateful_set(hosted).await?.spec?.template;
    let annotations = template.metadata?.annotations?;
    let argument = format!("--incarnation={}", annotations["yoke.drzzl.io/incarnation"]);
    let store = &template.spec?.init_containers?[0];
    assert!(
        store.args.as_ref()?.contains(&argument),
        "the store is told what the annotation says"
    );
    annotations["yoke.drzzl.io/incarnation"].parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn incarnation_rises_with_each_start_and_with_nothing_else() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let stays = async |host: &Host, expected: u64| {
        for _ in 0..4 {
            host.reconcile("a").await.unwrap();
            assert_eq!(number(host, &hosted).await, Some(expected));
        }
    };
    stays(&host, 1).await;
    host.restart_operator().await;
    stays(&host, 1).await;
    host.patch_cluster("a", serde_json::json!({"spec": {"version": "v1.35.5"}}))
        .await;
    host.bring("a", "a change of the version raises it", async || {
        number(&host, &hosted).await == Some(2)
    })
    .await;
    stays(&host, 2).await;
    // Asleep and awake is the same template.
    host.patch_cluster("a", serde_json::json!({"spec": {"state": "Asleep"}}))
        .await;
    stays(&host, 2).await;
    host.delete::<StatefulSet>(&hosted, "control-plane").await;
    host.bring("a", "a StatefulSet that is made again has another", async || {
        number(&host, &hosted).await == Some(3)
    })
    .await;
    stays(&host, 3).await;
    // The number outlives the copy of the user, and the kept Secret.
    host.lose_secret(PKI, &format!("{id}-store")).await;
    stays(&host, 3).await;
}
