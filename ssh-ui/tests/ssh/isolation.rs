//! What one Tenant can learn of another: nothing.

use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use yoke_api::{Cluster, JoinToken};
use yoke_ssh_ui::Error;
use yoke_ssh_ui::tenant::TenantHost;

use crate::world::{World, put};

pub(crate) async fn another_tenants_objects_are_as_if_they_were_not(world: &World) {
    let (alice, bob) = (&world.alice, &world.bob);
    bob.ssh("create secret").await.ok();
    world.tell("b", "secret", true, "The API answers.").await;
    assert!(bob.ssh("kubeconfig secret").await.ok().contains("of b/secret"));
    assert_eq!(alice.ssh("clusters --json").await.json(), json!({"clusters": []}));
    let token = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
        "metadata": {"name": "secret", "namespace": "b"}, "spec": {"clusterName": "secret"}});
    put(&world.admin, &token).await;
    // One that is another's and one that is nobody's are told apart by nothing but the name.
    for command in [
        "clusters",
        "kubeconfig",
        "nodes",
        "join",
        "revoke",
        "sleep",
        "wake",
        "delete --yes",
        "delete --yes --wait",
    ] {
        let others = alice.ssh(&format!("{command} secret")).await.failed(1);
        let nobodys = alice.ssh(&format!("{command} absent")).await.failed(1);
        assert!(others.contains("not found"), "{others}");
        assert_eq!(others.replace("secret", "absent"), nobodys, "{command}");
    }
    let tokens = Api::<JoinToken>::all(world.admin.clone());
    let tokens = tokens.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(tokens.len(), 1, "Bob's own: {tokens:?}");
    bob.ssh("revoke secret").await.ok();
    let copied = alice
        .scp(":secret.kubeconfig", world.path("stolen").to_str().unwrap())
        .await;
    assert!(copied.code != 0 && !world.path("stolen").exists(), "{copied:?}");
    assert!(world.clusters("b").get_opt("secret").await.unwrap().is_some());
    // And both may have one of the same name.
    alice.ssh("create secret").await.ok();
    alice.ssh("delete secret --yes").await.ok();
    assert!(bob.ssh("clusters secret").await.ok().contains("True"));
}

/// What would be left if the server took one Tenant for another, or were taken over: the host's own rules.
pub(crate) async fn the_server_itself_may_do_nothing_for_anybody(world: &World) {
    let forbidden = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    let clusters = Api::<Cluster>::namespaced(world.server.clone(), "b");
    let listed = clusters.list(&ListParams::default()).await;
    assert!(forbidden(listed.unwrap_err()));
    let cluster = Cluster::new("x", Default::default());
    let made = clusters.create(&PostParams::default(), &cluster).await;
    assert!(forbidden(made.unwrap_err()));
    // As a Tenant that is none, and as one whose name is another namespace's.
    for tenant in ["nobody", "kube-system", "yoke-system"] {
        let host = TenantHost::of(&world.server, tenant).unwrap();
        let error = host.list().await.unwrap_err();
        assert!(
            matches!(&error, Error::Refused { status, .. } if status.code == 403),
            "{error:?}"
        );
    }
    let error = TenantHost::of(&world.server, "a\nb").err().unwrap();
    assert!(matches!(error, Error::TenantName(_)), "{error:?}");
}
