//! JoinTokens: their effects and their limits, with a real API.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Secret};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use yoke_api::labels;
use yoke_operator::testing::cluster::resources::stateful_set::keep_facts;
use yoke_operator::testing::host_api::cache::{self, CacheMetrics};
use yoke_operator::testing::join_token;
use yoke_runtime::{Metrics, Supervisor};
use yoke_test_support::kubernetes::connect;

use crate::harness::{Host, TENANT};
use crate::workers::{Answer, CLIENT, SERVING, Stage, refused};

const READY: &str = "True/AsExpected";
/// Public part of a bootstrap token.
const EARLY: &str = "abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_does_not_outlive_its_cluster() {
    let stage = Stage::start().await;
    let host = &stage.host;
    stage.create_token("j", json!({"clusterName": "a"})).await;
    stage.reconcile_token_until("j", READY).await;
    let id = host.cluster("a").await.id().unwrap().to_string();
    let served_id = async || {
        let status = stage.tokens().get("j").await.unwrap().status;
        serde_json::to_value(status).unwrap()["clusterId"].clone()
    };
    assert_eq!(served_id().await, json!(id));

    // In the role of the StatefulSet controller.
    let hosted = host.hosted("a").await;
    host.delete::<Pod>(&hosted, "control-plane-0").await;
    host.take_down("a").await;
    host.bring_up("a").await;
    assert_ne!(host.cluster("a").await.id().unwrap().to_string(), id);
    stage.reconcile_token_until("j", "False/ClusterReplaced").await;
    assert_eq!(served_id().await, json!(id), "the token serves the next Cluster");
    assert!(
        host.secret(TENANT, "j-join").await.is_none(),
        "the join command still exists"
    );
    stage.tokens().delete("j", &Default::default()).await.unwrap();
    let observe = async || {
        stage.reconcile_token("j").await;
        stage.tokens().get_opt("j").await.unwrap()
    };
    host.until_none("the deletion of the JoinToken", observe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconcile_with_an_outdated_status_keeps_the_recorded_token() {
    let stage = Stage::start().await;
    stage.create_token("j", json!({"clusterName": "b"})).await;
    stage.reconcile_token_until("j", "False/ClusterMissing").await;
    let before = stage.tokens().get("j").await.unwrap();
    let status = json!({"tokenId": "abcdef", "clusterId": "aaaaaaaaaa"});
    let params = PatchParams::apply("yoke-operator/join-token").force();
    let mut apply = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken", "metadata": {"name": "j"}});
    apply["status"] = status;
    let patch = Patch::Apply(&apply);
    stage.tokens().patch_status("j", &params, &patch).await.unwrap();
    // Something new is to be written to its status.
    let mut old = before.clone();
    old.status.as_mut().unwrap().conditions.clear();
    join_token::reconcile(old.into(), stage.host.join_token.clone())
        .await
        .unwrap();
    let status = stage.tokens().get("j").await.unwrap().status.unwrap();
    assert_eq!(
        (status.token_id.as_deref(), status.cluster_id.as_deref()),
        (Some("abcdef"), Some("aaaaaaaaaa"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_another_owner_is_not_changed() {
    let stage = Stage::start().await;
    let host = &stage.host;
    let secrets = host.api::<Secret>(TENANT);
    let tenants_secret =
        serde_json::from_value(json!({"metadata": {"name": "j-join"}, "stringData": {"password": "x"}})).unwrap();
    let before = secrets.create(&PostParams::default(), &tenants_secret).await.unwrap();
    stage.create_token("j", json!({"clusterName": "a"})).await;
    stage.reconcile_token_until("j", "False/SecretConflict").await;
    let role = host.api::<Role>(TENANT).get("yoke-tenant").await.unwrap();
    assert!(!format!("{role:?}").contains("j-join"), "{role:?}");
    assert_eq!(secrets.get("j-join").await.unwrap(), before);
    secrets.delete("j-join", &Default::default()).await.unwrap();
    stage.reconcile_token_until("j", READY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_of_one_client_do_not_delay_others() {
    let stage = Stage::start().await;
    stage.create_token("j", json!({"clusterName": "a"})).await;
    stage.reconcile_token_until("j", READY).await;
    let bootstrap = connect(&stage.url, &stage.join_line("j").await.token);
    // More than one requester's budget: further requests of this requester wait, but those of
    // others do not.
    for number in 0..50 {
        let name = format!("c{number}");
        stage.request(&bootstrap, &name, SERVING, "n", &["n"]).await;
    }
    assert_eq!(
        stage.request_and_wait(&stage.client, "other", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    let last = stage.requests().get("c49").await.unwrap().status.unwrap_or_default();
    assert_eq!(last.conditions, None, "the last request was answered out of order");
    assert_eq!(stage.answer("c49").await, refused("RequesterInvalid"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_request_does_not_count_as_a_use() {
    let stage = Stage::start().await;
    let early = stage.early_client();
    stage.request(&early, "deleted", CLIENT, "deleted", &[]).await;
    stage.request(&early, "waiting", CLIENT, "waiting", &[]).await;
    // Both requests have been processed by then, and wait.
    assert_eq!(
        stage.request_and_wait(&stage.client, "last", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    stage.requests().delete("deleted", &Default::default()).await.unwrap();
    stage.create_early_token().await;
    let answer = stage.answer("waiting").await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
    let uses = stage.tokens().get("j").await.unwrap().status.unwrap().uses;
    let nodes: Vec<_> = uses.iter().map(|each| each.node.as_str()).collect();
    assert_eq!(nodes, ["waiting"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_an_unknown_token() {
    let stage = Stage::start().await;
    stage.request(&stage.early_client(), "early", CLIENT, "n", &[]).await;
    assert_eq!(
        stage.request_and_wait(&stage.client, "last", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    stage.create_early_token().await;
    let answer = stage.answer("early").await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
}

impl Stage {
    /// A client with a bootstrap token whose JoinToken the operator does not know yet.
    fn early_client(&self) -> Client {
        self.impersonate(
            &format!("system:bootstrap:{EARLY}"),
            &["system:bootstrappers", "system:masters"],
        )
    }

    /// Creates that JoinToken, for two workers.
    async fn create_early_token(&self) {
        self.create_token("j", json!({"clusterName": "a", "maxUses": 2})).await;
        let id = self.host.cluster("a").await.id().unwrap();
        let status = Patch::Merge(json!({"status": {"tokenId": EARLY, "clusterId": id.as_str()}}));
        let params = PatchParams::default();
        self.tokens().patch_status("j", &params, &status).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_starts_without_the_join_token_crd() {
    let host = Host::start().await;
    let crds = Api::<CustomResourceDefinition>::all(host.client.clone());
    let name = "jointokens.yoke.drzzl.io";
    let mut crd = crds.get(name).await.unwrap();
    crds.delete(name, &Default::default()).await.unwrap();
    let observe = async || {
        let crd = crds.get_opt(name).await.unwrap();
        let tokens = host.api::<yoke_api::JoinToken>(TENANT);
        (crd.is_some(), tokens.list(&Default::default()).await.is_ok())
    };
    let what = "the existence of the CRD, and the success of a list,";
    host.until_equal(what, observe, (false, false)).await;
    let mut supervisor = Supervisor::new(Duration::from_secs(1));
    let metrics = CacheMetrics::new(&Metrics::new("operator"));
    let (caches, triggered) = cache::start(&host.client, &mut supervisor, &metrics, keep_facts);
    triggered.wait(&caches).await.unwrap();
    assert!(
        caches
            .tenants
            .state()
            .iter()
            .any(|tenant| tenant.metadata.name.as_deref() == Some(TENANT))
    );
    crd.metadata = kube::api::ObjectMeta {
        name: Some(name.into()),
        ..Default::default()
    };
    crds.create(&PostParams::default(), &crd).await.unwrap();
    tokio::time::timeout(Duration::from_secs(40), caches.join_tokens.wait_until_ready())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_tenants_objects_is_limited() {
    let host = Host::start().await;
    let _counting = host.start_counting();
    host.patch_tenant(json!({"spec": {"quota": {"joinTokens": 6}}})).await;
    let quotas = host.api::<ResourceQuota>(TENANT);
    let tokens = host.api::<yoke_api::JoinToken>(TENANT);
    let create = async |name: &str| {
        let token = serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": name}, "spec": {"clusterName": "a"}}))
        .unwrap();
        tokens.create(&PostParams::default(), &token).await
    };
    for name in ["j1", "j2"] {
        create(name).await.unwrap();
    }
    let _ = host.reconcile_tenant().await;
    assert_eq!(quotas.list(&Default::default()).await.unwrap().items.len(), 0);
    create("j3").await.unwrap();
    let used = async || {
        let _ = host.reconcile_tenant().await;
        let found = quotas.get_opt("yoke-tenant").await.unwrap();
        let mut used = found.and_then(|found| found.status?.used).unwrap_or_default();
        used.remove("count/jointokens.yoke.drzzl.io").map(|count| count.0)
    };
    host.until_equal("the count of JoinTokens", used, Some("3".to_owned()))
        .await;
    for name in ["j4", "j5", "j6"] {
        create(name).await.unwrap();
    }
    let refused = create("j7").await.unwrap_err();
    assert!(refused.to_string().contains("exceeded quota: yoke-tenant"), "{refused}");
    host.patch_tenant(json!({"spec": {"quota": {"joinTokens": 7}}})).await;
    let observe = async || {
        let _ = host.reconcile_tenant().await;
        create("j7").await
    };
    host.until("the creation of one more", observe, Result::is_ok)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_are_bound_although_the_resource_quota_fails() {
    let host = Host::start().await;
    // The scopes of a ResourceQuota are immutable.
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "yoke-tenant", "labels": {labels::MANAGED_BY: labels::MANAGED_BY_OPERATOR}},
        "spec": {"scopes": ["Terminating"], "hard": {"pods": "1"}}});
    let params = PatchParams::apply("yoke-operator/tenant");
    let quotas = host.api::<ResourceQuota>(TENANT);
    quotas
        .patch("yoke-tenant", &params, &Patch::Apply(&quota))
        .await
        .unwrap();
    host.patch_tenant(json!({"spec": {"subjects": [{"kind": "User", "name": "u"}]}}))
        .await;
    let observe = async || {
        let result = host.reconcile_tenant().await;
        let binding = host.api::<RoleBinding>(TENANT).get("yoke-tenant").await.unwrap();
        let subjects = binding.subjects.into_iter().flatten();
        (result, subjects.map(|subject| subject.name).collect::<Vec<_>>())
    };
    let what = "an error, and a RoleBinding for u";
    let (result, _) = host
        .until(what, observe, |(result, subjects)| {
            result.is_err() && subjects.iter().any(|subject| subject == "u")
        })
        .await;
    result.unwrap_err();
}
