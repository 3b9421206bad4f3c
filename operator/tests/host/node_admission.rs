//! A kubelet deletes its Node when it leaves, and cannot shed taints or labels that way. With a
//! real API and the admission plugins of control planes.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use yoke_api::labels::JOINED_TAINTS;
use yoke_test_support::kubernetes::connect;

use crate::workers::{CLIENT, SERVING, Stage, certificate_of};

const QUARANTINE: &str = "quarantine";

fn nodes(client: &Client) -> Api<Node> {
    Api::all(client.clone())
}

async fn patch(client: &Client, name: &str, patch: Value) -> kube::Result<Node> {
    let params = PatchParams::default();
    nodes(client).patch(name, &params, &Patch::Merge(patch)).await
}

/// Creates a Node as this client.
async fn create(client: &Client, name: &str, more: Value) -> kube::Result<Node> {
    let mut node = json!({"metadata": {"name": name}});
    for (field, value) in more.as_object().unwrap() {
        match field.as_str() {
            "spec" => node["spec"] = value.clone(),
            field => node["metadata"][field] = value.clone(),
        }
    }
    let node = serde_json::from_value(node).unwrap();
    nodes(client).create(&PostParams::default(), &node).await
}

async fn delete(client: &Client, name: &str) -> kube::Result<()> {
    let params = DeleteParams::default();
    nodes(client).delete(name, &params).await.map(|_| ())
}

fn taint(key: &str, value: &str) -> Value {
    json!({"key": key, "value": value, "effect": "NoSchedule"})
}

/// Returns why a request was forbidden.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message,
        other => panic!("not forbidden: {other:?}"),
    }
}

/// Starts a cluster in which the policy is in force, which takes a moment after its creation.
async fn start() -> Stage {
    let stage = Stage::start().await;
    let kubelet = stage.node("probe");
    let claimed = json!({"annotations": {JOINED_TAINTS: "a"}});
    let observe = async || {
        let created = create(&kubelet, "probe", claimed.clone()).await;
        let _ = delete(&stage.client, "probe").await;
        created
    };
    stage
        .host
        .until("a refusal by the policy", observe, Result::is_err)
        .await
        .unwrap_err();
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_cannot_remove_taints_by_deleting_its_node() {
    let stage = start().await;
    let (admin, kubelet) = (&stage.client, &stage.node("n"));
    create(kubelet, "n", json!({})).await.unwrap();
    create(&stage.node("m"), "m", json!({})).await.unwrap();
    let why = refusal(delete(kubelet, "m").await);
    assert!(why.contains("is not allowed to modify node"), "{why}");

    // Taints that Kubernetes sets by the Node's state do not prevent the deletion.
    let state = [
        taint("node.kubernetes.io/unreachable", ""),
        taint("node.kubernetes.io/unschedulable", ""),
    ];
    patch(admin, "n", json!({"spec": {"taints": state}})).await.unwrap();
    delete(kubelet, "n").await.unwrap();

    for (rule, set, unset, part) in [
        (
            "a taint",
            json!({"spec": {"taints": [state[0], taint(QUARANTINE, "yes")]}}),
            json!({"spec": {"taints": null}}),
            "has a taint of another client",
        ),
        (
            "a taint that administrators set on a powered-off machine",
            json!({"spec": {"taints": [taint("node.kubernetes.io/out-of-service", "nodeshutdown")]}}),
            json!({"spec": {"taints": null}}),
            "has a taint of another client",
        ),
        (
            "a label",
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trust": "low"}}}),
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trust": null}}}),
            "a label of node-restriction.kubernetes.io",
        ),
        (
            "a label of a subdomain",
            json!({"metadata": {"labels": {"a.node-restriction.kubernetes.io/trust": "low"}}}),
            json!({"metadata": {"labels": {"a.node-restriction.kubernetes.io/trust": null}}}),
            "a label of node-restriction.kubernetes.io",
        ),
    ] {
        let created = create(kubelet, "n", json!({"labels": {"example.org/own": "x"}}))
            .await
            .unwrap();
        patch(admin, "n", set).await.unwrap();
        let why = refusal(delete(kubelet, "n").await);
        assert!(why.contains(part), "{rule}: {why}");
        // Not by a deletion of all Nodes either.
        let all = nodes(kubelet)
            .delete_collection(&DeleteParams::default(), &Default::default())
            .await;
        assert!(all.is_err(), "{rule}");
        assert_eq!(nodes(admin).get("n").await.unwrap().uid(), created.uid(), "{rule}");
        patch(admin, "n", unset).await.unwrap();
        delete(kubelet, "n").await.unwrap();
    }

    // An owner that the kubelet can delete must not take the Node with it.
    let owner = json!([{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "name": "n", "uid": "1"}]);
    let why = refusal(create(kubelet, "n", json!({"ownerReferences": owner})).await);
    assert!(why.contains("may not set owner references of its Node"), "{why}");
    create(kubelet, "n", json!({})).await.unwrap();
    let why = refusal(patch(kubelet, "n", json!({"metadata": {"ownerReferences": owner}})).await);
    assert!(why.contains("ownerReferences"), "{why}");
    // An administrator of the cluster may do all this.
    patch(admin, "n", json!({"spec": {"taints": [taint(QUARANTINE, "")]}}))
        .await
        .unwrap();
    delete(admin, "n").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn taints_of_the_join_token_do_not_block_the_deletion_of_the_node() {
    let stage = start().await;
    let (admin, kubelet) = (&stage.client, &stage.node("n"));
    let taints = json!([taint("gpu", "a"), {"key": "spot", "effect": "NoExecute"}]);
    stage
        .create_token("j", json!({"clusterName": "a", "taints": taints}))
        .await;
    stage.reconcile_token_until("j", "True/AsExpected").await;
    let bootstrap = connect(&stage.url, &stage.join_line("j").await.token);
    certificate_of(stage.request_and_wait(&bootstrap, "c1", CLIENT, "n", &[]).await);
    create(kubelet, "n", json!({"spec": {"taints": taints}})).await.unwrap();
    let why = refusal(delete(kubelet, "n").await);
    assert!(
        why.contains("has a taint of another client"),
        "the taints are not recorded yet: {why}"
    );

    let addresses = json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}]}});
    let params = PatchParams::default();
    nodes(admin)
        .patch_status("n", &params, &Patch::Merge(addresses))
        .await
        .unwrap();
    certificate_of(stage.request_and_wait(kubelet, "c2", SERVING, "n", &["n"]).await);
    let node = nodes(admin).get("n").await.unwrap();
    assert_eq!(node.annotations()[JOINED_TAINTS], "gpu=a:NoSchedule,spot:NoExecute");

    // One more taint with the same key.
    let more = json!([taint("gpu", "b"), taint("spot", "")]);
    patch(admin, "n", json!({"spec": {"taints": more}})).await.unwrap();
    let claim = json!({"metadata": {"annotations": {JOINED_TAINTS: "gpu=b:NoSchedule,spot:NoSchedule"}}});
    let why = refusal(patch(kubelet, "n", claim.clone()).await);
    assert!(why.contains("may not change the record of its Node's taints"), "{why}");
    let why = refusal(nodes(kubelet).patch_status("n", &params, &Patch::Merge(claim)).await);
    assert!(why.contains("may not change the record of its Node's taints"), "{why}");
    refusal(delete(kubelet, "n").await);

    patch(admin, "n", json!({"spec": {"taints": taints}})).await.unwrap();
    delete(kubelet, "n").await.unwrap();
    assert!(nodes(admin).get_opt("n").await.unwrap().is_none());
}

/// Traffic for a range goes to the Node with that range.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_cannot_set_its_pod_cidrs() {
    const WHY: &str = "may not set podCIDRs of its Node";
    let stage = start().await;
    let (admin, kubelet) = (&stage.client, &stage.node("n"));
    let range = |range: &str| json!({"spec": {"podCIDR": range, "podCIDRs": [range]}});
    for (rule, claim) in [
        ("both fields", range("10.244.1.0/24")),
        ("the first field", json!({"spec": {"podCIDR": "10.244.1.0/24"}})),
        ("the second field", json!({"spec": {"podCIDRs": ["10.244.1.0/24"]}})),
    ] {
        let why = refusal(create(kubelet, "n", claim).await);
        assert!(why.contains(WHY), "{rule}: {why}");
    }
    create(kubelet, "n", json!({})).await.unwrap();
    let why = refusal(patch(kubelet, "n", range("10.244.1.0/24")).await);
    assert!(why.contains(WHY), "{why}");

    // In the role of kube-controller-manager.
    let controller = &stage.impersonate(
        "system:serviceaccount:kube-system:node-controller",
        &["system:serviceaccounts"],
    );
    patch(controller, "n", range("10.244.2.0/24")).await.unwrap();
    for claim in [
        range("10.244.1.0/24"),
        json!({"spec": {"podCIDR": null, "podCIDRs": null}}),
    ] {
        let refused = patch(kubelet, "n", claim).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    // The kubelet may set other fields.
    let other_field = json!({"metadata": {"annotations": {"example.org/own": "x"}}});
    patch(kubelet, "n", other_field).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let params = PatchParams::default();
    nodes(kubelet).patch_status("n", &params, &status).await.unwrap();
    let found = nodes(admin).get("n").await.unwrap().spec.unwrap();
    assert_eq!(found.pod_cidr.as_deref(), Some("10.244.2.0/24"));
}
