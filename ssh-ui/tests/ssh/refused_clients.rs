//! Unknown keys, withdrawn keys, and requests for unsupported services.

use futures::{StreamExt as _, stream};

use crate::api;
use crate::person::Person;
use crate::world::{BURST, CONTACT, World};

pub(crate) async fn unknown_keys_are_refused_with_what_to_do(world: &World) {
    let refused = world.mallory.ssh("clusters").await.failed(255);
    assert!(refused.contains(&world.mallory.fingerprint), "{refused}");
    assert!(
        refused.contains(CONTACT) && refused.contains("IdentitiesOnly"),
        "{refused}"
    );
    assert_eq!(refused.matches("spec.sshKeys").count(), 1, "told once: {refused}");
    let none = world
        .alice
        .ssh_with(&["-o", "PubkeyAuthentication=no"], "clusters")
        .await
        .failed(255);
    assert!(none.contains("ssh-keygen -t ed25519"), "{none}");
}

pub(crate) async fn removed_key_loses_access_at_once(world: &World) {
    let mallory = &world.mallory;
    // A key belongs to the older Tenant, which is `a`.
    world
        .set_keys("b", &[("desk", &world.bob.public), ("copy", &world.alice.public)])
        .await;
    world
        .set_keys("a", &[("laptop", &world.alice.public), ("guest", &mallory.public)])
        .await;
    world
        .until(
            "the guest to be admitted",
            async || mallory.ssh("whoami").await.code,
            |code| *code == 0,
        )
        .await;
    assert!(mallory.ssh("whoami").await.ok().contains("Key:    guest"));
    assert!(world.alice.ssh("whoami").await.ok().contains("Tenant: a"));

    // An open connection loses its permissions, too.
    let control = world.path("control");
    let control = control.to_str().unwrap();
    let master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=30", "-S", control];
    mallory.ssh_with(&master, "whoami").await.ok();
    let through = ["-S", control];
    mallory.ssh_with(&through, "clusters").await.ok();
    world.set_keys("a", &[("laptop", &world.alice.public)]).await;
    world
        .until(
            "the guest to be refused",
            async || mallory.ssh("whoami").await.code,
            |code| *code == 255,
        )
        .await;
    let refused = mallory.ssh_with(&through, "clusters").await.failed(1);
    assert!(refused.contains("no longer belongs to your Tenant"), "{refused}");
    mallory.ssh_with(&["-S", control, "-O", "exit"], "").await;
    world.set_keys("b", &[("desk", &world.bob.public)]).await;
}

pub(crate) async fn nothing_but_commands_is_served(world: &World) {
    let alice = &world.alice;
    let forward = alice.ssh_with(&["-W", "127.0.0.1:1"], "").await;
    assert_eq!(forward.code, 255, "{forward:?}");
    assert!(forward.err.contains("administratively prohibited"), "{forward:?}");
    let backward = alice
        .ssh_with(&["-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1"], "whoami")
        .await;
    assert_eq!(backward.code, 255, "{backward:?}");
    let old = alice.ssh("scp -f file.kubeconfig").await.failed(2);
    assert!(old.contains("without -O"), "{old}");
    let subsystem = alice.ssh_with(&["-s"], "netconf").await;
    assert!(subsystem.err.contains("subsystem request failed"), "{subsystem:?}");
    // The schema refuses unsupported types of keys, and says so to the host's owner.
    let rsa = Person::new(world.folder(), "rsa", "rsa").await;
    let tenants = kube::Api::<yoke_api::Tenant>::all(world.admin.clone());
    let mut tenant = yoke_api::Tenant::new("c", Default::default());
    tenant.spec.ssh_keys.push(yoke_api::tenant::SshKey {
        name: "k".into(),
        public_key: rsa.public,
    });
    let refused = tenants
        .create(&Default::default(), &tenant)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("ssh-keygen -t ed25519 creates a key"), "{refused}");
}

pub(crate) async fn one_key_cannot_flood(world: &World) {
    let bob = &world.bob;
    // One session sends the commands faster than the budget refills.
    let flood = bob.sftp(world.folder(), &"-ls\n".repeat(2 * BURST as usize)).await;
    assert!(flood.err.contains("Failure"), "{flood:?}");
    let asked = (0..10).map(|_| bob.ssh("whoami"));
    let said = stream::iter(asked).buffer_unordered(3).collect::<Vec<_>>().await;
    let refused = said.into_iter().find(|said| said.code != 0);
    let refused = refused.expect("a limit is reached").failed(1);
    assert!(refused.contains("too many commands with this key"), "{refused}");
    // A token of the key shares the budget.
    let token = api::token(world, bob, &["whoami"]).await;
    let asked = (0..30).map(|_| api::send(world, &token, "whoami"));
    let answers = stream::iter(asked).buffer_unordered(3).collect::<Vec<_>>().await;
    let is_slowed = |answer: &api::Got| answer.status == 429 && answer.body["reason"] == "rate";
    assert!(answers.iter().any(is_slowed), "a token has the budget of its key");
    // Other keys are not affected.
    world.alice.ssh("whoami").await.ok();
}
