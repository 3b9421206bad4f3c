//! JoinTokens: their effects and their limits, with a real API.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Secret};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use yoke_api::labels;
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
    stage.make_token("j", json!({"clusterName": "a"})).await;
    stage.bring_token("j", READY).await;
    let id = host.cluster("a").await.id().unwrap().to_string();
    let served = async || {
        let status = stage.tokens().get("j").await.unwrap().status;
        serde_json::to_value(status).unwrap()["clusterId"].clone()
    };
    assert_eq!(served().await, json!(id));

    // In the role of the StatefulSet controller.
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
async fn what_was_told_is_kept_by_who_knows_an_older_state() {
    let stage = Stage::start().await;
    stage.make_token("j", json!({"clusterName": "b"})).await;
    stage.bring_token("j", "False/ClusterMissing").await;
    let before = stage.tokens().get("j").await.unwrap();
    let told = json!({"status": {"tokenId": "abcdef", "clusterId": "aaaaaaaaaa"}});
    let params = PatchParams::apply("yoke-operator/join-token").force();
    let mut apply = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken", "metadata": {"name": "j"}});
    apply["status"] = told["status"].clone();
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

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_much_keeps_no_other_waiting() {
    let stage = Stage::start().await;
    stage.make_token("j", json!({"clusterName": "a"})).await;
    stage.bring_token("j", READY).await;
    let bootstrap = connect(&stage.url, &stage.line("j").await.token);
    // More than one requester's budget: further requests of this requester wait, but those of
    // others do not.
    for number in 0..50 {
        let name = format!("c{number}");
        stage.request(&bootstrap, &name, SERVING, "n", &["n"]).await;
    }
    assert_eq!(
        stage.ask(&stage.client, "other", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    let last = stage.requests().get("c49").await.unwrap().status.unwrap_or_default();
    assert_eq!(last.conditions, None, "it has its answer before its turn");
    assert_eq!(stage.answer("c49").await, refused("RequesterInvalid"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_gone_costs_no_use() {
    let stage = Stage::start().await;
    let early = stage.early_joiner();
    stage.request(&early, "gone", CLIENT, "gone", &[]).await;
    stage.request(&early, "stays", CLIENT, "stays", &[]).await;
    // Both requests have been processed by then, and wait.
    assert_eq!(
        stage.ask(&stage.client, "behind", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    stage.requests().delete("gone", &Default::default()).await.unwrap();
    stage.make_early_token().await;
    let answer = stage.answer("stays").await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
    let uses = stage.tokens().get("j").await.unwrap().status.unwrap().uses;
    let nodes: Vec<_> = uses.iter().map(|each| each.node.as_str()).collect();
    assert_eq!(nodes, ["stays"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_known_yet_is_waited_for() {
    let stage = Stage::start().await;
    stage.request(&stage.early_joiner(), "early", CLIENT, "n", &[]).await;
    assert_eq!(
        stage.ask(&stage.client, "behind", CLIENT, "n", &[]).await,
        refused("RequesterInvalid")
    );
    stage.make_early_token().await;
    let answer = stage.answer("early").await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
}

impl Stage {
    /// A client with a bootstrap token whose JoinToken the operator does not know yet.
    fn early_joiner(&self) -> Client {
        self.someone(
            &format!("system:bootstrap:{EARLY}"),
            &["system:bootstrappers", "system:masters"],
        )
    }

    /// Creates that JoinToken, for two workers.
    async fn make_early_token(&self) {
        self.make_token("j", json!({"clusterName": "a", "maxUses": 2})).await;
        let id = self.host.cluster("a").await.id().unwrap();
        let status = Patch::Merge(json!({"status": {"tokenId": EARLY, "clusterId": id.as_str()}}));
        let params = PatchParams::default();
        self.tokens().patch_status("j", &params, &status).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_starts_without_the_kind() {
    let host = Host::start().await;
    let crds = Api::<CustomResourceDefinition>::all(host.client.clone());
    let name = "jointokens.yoke.drzzl.io";
    let mut crd = crds.get(name).await.unwrap();
    crds.delete(name, &Default::default()).await.unwrap();
    host.until("the kind is gone", async || {
        crds.get_opt(name).await.unwrap().is_none()
            && host
                .api::<yoke_api::JoinToken>(TENANT)
                .list(&Default::default())
                .await
                .is_err()
    })
    .await;
    let mut supervisor = Supervisor::new(Duration::from_secs(1));
    let metrics = CacheMetrics::new(&Metrics::new("operator"));
    let (caches, triggered) = cache::start(&host.client, &mut supervisor, &metrics);
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
async fn a_tenant_makes_no_more_objects_than_it_may() {
    let host = Host::start().await;
    let _counting = host.start_counting();
    host.patch_tenant(json!({"spec": {"quota": {"joinTokens": 6}}})).await;
    let quotas = host.api::<ResourceQuota>(TENANT);
    let tokens = host.api::<yoke_api::JoinToken>(TENANT);
    let make = async |name: &str| {
        let token = serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": name}, "spec": {"clusterName": "a"}}))
        .unwrap();
        tokens.create(&PostParams::default(), &token).await
    };
    for name in ["j1", "j2"] {
        make(name).await.unwrap();
    }
    let _ = host.reconcile_tenant().await;
    assert_eq!(quotas.list(&Default::default()).await.unwrap().items.len(), 0);
    make("j3").await.unwrap();
    host.until("they are counted", async || {
        let _ = host.reconcile_tenant().await;
        let found = quotas.get_opt("yoke-tenant").await.unwrap();
        let used = found.and_then(|found| found.status?.used).unwrap_or_default();
        used.get("count/jointokens.yoke.drzzl.io")
            .is_some_and(|used| used.0 == "3")
    })
    .await;
    for name in ["j4", "j5", "j6"] {
        make(name).await.unwrap();
    }
    let refused = make("j7").await.unwrap_err();
    assert!(refused.to_string().contains("exceeded quota: yoke-tenant"), "{refused}");
    host.patch_tenant(json!({"spec": {"quota": {"joinTokens": 7}}})).await;
    host.until("there is room for one more", async || {
        let _ = host.reconcile_tenant().await;
        make("j7").await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_are_bound_where_objects_cannot_be_counted() {
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
    host.until("they are bound, and it is told what failed", async || {
        let failed = host.reconcile_tenant().await.is_err();
        let binding = host.api::<RoleBinding>(TENANT).get("yoke-tenant").await.unwrap();
        failed && binding.subjects.iter().flatten().any(|subject| subject.name == "u")
    })
    .await;
}
