//! Objects that an API server accepts but a typed client cannot decode. Their author affects no
//! other user.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use serde_json::{Value, json};
use yoke_api::Cluster;
use yoke_operator::testing::cluster;

use crate::harness::{Host, TENANT};
use crate::readiness::{ready, run_pod};

/// A time that Kubernetes accepts, and the operator's client does not.
const FAR: &str = "9999-12-31T23:59:59Z";

/// Creates an object with managed fields whose time is far in the future.
async fn create_undecodable<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    mut object: Value,
) {
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"]["managedFields"] = json!([{"manager": "other", "operation": "Update", "time": FAR,
        "apiVersion": K::api_version(&()), "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:x": {}}}}]);
    let request = http::Request::post(K::url_path(&(), namespace))
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .unwrap();
    let created = client.request_text(request).await.unwrap();
    assert!(created.contains(FAR), "{created}");
}

/// Reconciles a Cluster from the operator's cache once. Returns its control-plane namespace, if it
/// has one.
async fn reconcile_known(host: &Host, name: &str) -> Option<String> {
    let key = ObjectRef::new(name).within(TENANT);
    let known = host.context.host.caches.clusters.get(&key)?;
    let hosted = known.id().map(|id| id.hosted_namespace().to_string());
    if let Err(error) = Box::pin(cluster::reconcile(key, host.context.clone())).await {
        eprintln!("{name}: {error:?}");
    }
    host.issuer.issue(&host.client).await;
    Some(hosted.unwrap_or_else(|| "none".to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_cluster_is_reconciled_and_blocks_no_other() {
    let mut host = Host::start().await;
    let cluster = json!({"metadata": {"name": "undecodable"}, "spec": {}});
    create_undecodable::<Cluster>(&host.client, Some(TENANT), cluster).await;
    // An operator that starts lists it.
    host.restart_operator().await;
    host.create_cluster("b").await;
    for name in ["b", "undecodable"] {
        let has_set = async || match reconcile_known(&host, name).await {
            Some(hosted) => host.stateful_set(&hosted).await.is_some(),
            None => false,
        };
        let what = format!("the existence of a StatefulSet of {name}");
        host.until_equal(&what, has_set, true).await;
    }
    let path = format!("/apis/yoke.drzzl.io/v1alpha1/namespaces/{TENANT}/clusters/undecodable");
    let text = host
        .client
        .request_text(http::Request::get(&path).body(vec![]).unwrap())
        .await
        .unwrap();
    assert!(text.contains(FAR), "the operator changed the time: {text}");
    let known = host
        .context
        .host
        .caches
        .clusters
        .get(&ObjectRef::new("undecodable").within(TENANT));
    assert!(known.unwrap().metadata.managed_fields.is_none());

    let delete = http::Request::delete(&path).body(vec![]).unwrap();
    host.client.request_text(delete).await.unwrap();
    let observe = async || {
        let hosted = reconcile_known(&host, "undecodable").await;
        if let Some(hosted) = &hosted {
            host.finalize(hosted).await;
        }
        hosted
    };
    host.until_none("the deletion of the Cluster", observe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_objects_of_a_tenants_api_are_read() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let (_process, client) = host.start_tenant_api("a").await;
    let slice = json!({"metadata": {"name": "kubernetes"}, "addressType": "IPv4", "endpoints": []});
    create_undecodable::<k8s_openapi::api::discovery::v1::EndpointSlice>(&client, Some("default"), slice).await;
    create_undecodable::<Node>(&client, None, json!({"metadata": {"name": "n"}})).await;
    run_pod(&host, "a").await;
    let observe = async || {
        let nodes = host.cluster("a").await.status.and_then(|status| status.nodes);
        (ready(&host).await, nodes)
    };
    let expected = ("True/AsExpected".to_owned(), Some(1));
    host.reconcile_until_equal("a", "the condition Ready and the number of nodes", observe, expected)
        .await;
    // A later change there is also detected.
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let deleted = http::Request::delete(path).body(vec![]).unwrap();
    client.request_text(deleted).await.unwrap();
    let requeued = tokio::time::timeout(std::time::Duration::from_secs(20), host.requeued.next()).await;
    assert_eq!(requeued.unwrap().unwrap().name, "a");
}
