//! What a JoinToken is for and what it leaves alone, at a real API.

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::PostParams;
use serde_json::json;

use crate::harness::TENANT;
use crate::workers::Stage;

const READY: &str = "True/AsExpected";

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_does_not_outlive_its_cluster() {
    let stage = Stage::start().await;
    let host = &stage.host;
    stage.make_token("j", json!({"clusterName": "a"})).await;
    stage.bring_token("j", READY).await;
    let id = host.cluster("a").await.id().unwrap().to_string();
    let served = async || {
        let status = stage.tokens().get("j").await.unwrap().status;
        serde_json::to_value(status).unwrap()["clusterId"].clone()
    };
    assert_eq!(served().await, json!(id));

    // Its controller does.
    let hosted = host.hosted("a").await;
    host.delete::<Pod>(&hosted, "control-plane-0").await;
    host.take_down("a").await;
    host.bring_up("a").await;
    assert_ne!(host.cluster("a").await.id().unwrap().to_string(), id);
    stage.bring_token("j", "False/ClusterReplaced").await;
    assert_eq!(served().await, json!(id), "it is still of the one that is gone");
    assert!(
        host.secret(TENANT, "j-join").await.is_none(),
        "what let workers join is gone"
    );
    stage.tokens().delete("j", &Default::default()).await.unwrap();
    host.until("it goes", async || {
        stage.reconcile_token("j").await;
        stage.tokens().get_opt("j").await.unwrap().is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_somebody_else_is_left_alone() {
    let stage = Stage::start().await;
    let host = &stage.host;
    let secrets = host.api::<Secret>(TENANT);
    let made =
        serde_json::from_value(json!({"metadata": {"name": "j-join"}, "stringData": {"password": "x"}})).unwrap();
    let foreign = secrets.create(&PostParams::default(), &made).await.unwrap();
    stage.make_token("j", json!({"clusterName": "a"})).await;
    stage.bring_token("j", "False/SecretConflict").await;
    let role = host.api::<Role>(TENANT).get("yoke-tenant").await.unwrap();
    assert!(!format!("{role:?}").contains("j-join"), "{role:?}");
    assert_eq!(secrets.get("j-join").await.unwrap(), foreign);
    secrets.delete("j-join", &Default::default()).await.unwrap();
    stage.bring_token("j", READY).await;
}
