//! A Tenant can learn nothing about another Tenant.

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
    // The errors for another Tenant's object and for a missing one differ only in the name.
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
    // Both Tenants may use the same name.
    alice.ssh("create secret").await.ok();
    alice.ssh("delete secret --yes").await.ok();
    assert!(bob.ssh("clusters secret").await.ok().contains("True"));
}

/// The host's permissions limit the damage if the server confused Tenants or were compromised.
pub(crate) async fn server_has_no_permissions_of_its_own(world: &World) {
    let forbidden = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    let clusters = Api::<Cluster>::namespaced(world.server.clone(), "b");
    let listed = clusters.list(&ListParams::default()).await;
    assert!(forbidden(listed.unwrap_err()));
    let cluster = Cluster::new("x", Default::default());
    let made = clusters.create(&PostParams::default(), &cluster).await;
    assert!(forbidden(made.unwrap_err()));
    // Impersonate a missing Tenant, and Tenants with the names of other namespaces.
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
