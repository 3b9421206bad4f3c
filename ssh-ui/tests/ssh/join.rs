//! JoinTokens: created, printed and revoked.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use yoke_api::JoinToken;
use yoke_api::join_token::JoinLine;

use crate::person::run;
use crate::tmux::Tmux;
use crate::window::Window;
use crate::world::{World, put};

const EXPIRES: &str = "2026-03-01T12:15:00Z";

fn tokens(world: &World) -> Api<JoinToken> {
    Api::namespaced(world.admin.clone(), "a")
}

async fn count(world: &World) -> usize {
    tokens(world).list(&Default::default()).await.unwrap().items.len()
}

/// Does what the operator does for the only JoinToken of Tenant `a`; returns its name and its join
/// command.
async fn grant(world: &World) -> (String, String) {
    let api = tokens(world);
    world
        .until("a JoinToken", async || count(world).await, |count| *count == 1)
        .await;
    let token = api.list(&Default::default()).await.unwrap().items.remove(0);
    let name = token.name_any();
    let pem = |letter: &str| {
        let line = format!("{}\n", letter.repeat(64));
        format!(
            "-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n",
            line.repeat(10)
        )
    };
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-join"), "namespace": "a"},
        "stringData": {"server": "w-bcdfghjk.example.org:6443", "address": "192.0.2.7", "ca.crt": pem("A"), "client-ca.crt": pem("B"),
            "token": "abc123.0123456789abcdef", "version": "v1.35.4"}});
    put(&world.admin, &secret).await;
    let secret = Api::<Secret>::namespaced(world.admin.clone(), "a")
        .get(&format!("{name}-join"))
        .await
        .unwrap();
    let line = JoinLine::from_secret(&secret).unwrap().command().unwrap();
    for object in rights(&name) {
        put(&world.admin, &object).await;
    }
    let status = json!({"status": {"expirationTime": EXPIRES, "conditions": [{"type": "Ready", "status": "True",
        "reason": "AsExpected", "message": "Workers can join.", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let params = PatchParams::default();
    api.patch_status(&name, &params, &Patch::Merge(&status)).await.unwrap();
    (name, line)
}

fn rights(token: &str) -> [Value; 2] {
    let metadata = json!({"name": "yoke-join", "namespace": "a"});
    let api = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [format!("{token}-join")], "verbs": ["get"]}]);
    [
        json!({"apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({"apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "yoke-join"},
            "subjects": [{"kind": "ServiceAccount", "name": "yoke-ssh", "namespace": "a"}]}),
    ]
}

pub(crate) async fn join_command_is_printed_and_revoked(world: &World) {
    let alice = &world.alice;
    alice.ssh("create work").await.ok();
    let join = async |line: &str| {
        let mut command = alice.begin(&[], line);
        tokio::join!(run(&mut command), grant(world))
    };
    let (said, (name, line)) = join("join work --uses 2 --ttl 1h").await;
    assert_eq!((said.code, said.out), (0, format!("{line}\n")), "{}", said.err);
    let spec = tokens(world).get(&name).await.unwrap().spec;
    assert_eq!((spec.max_uses, spec.ttl.as_str()), (2, "1h"));
    let told = format!("It is valid until {EXPIRES}. To revoke it: revoke {name}\n");
    assert!(said.err.ends_with(&told), "{:?}", said.err);
    // Another Tenant can neither revoke it nor learn that it exists.
    let others = world.bob.ssh(&format!("revoke {name}")).await.failed(1);
    let nobodys = world.bob.ssh("revoke absent").await.failed(1);
    assert_eq!(others.replace(&name, "absent"), nobodys);
    let revoked = alice.ssh(&format!("revoke {name}")).await.ok();
    assert_eq!(revoked, format!("JoinToken {name} is revoked\n"));
    assert_eq!(count(world).await, 0);

    let (said, (name, line)) = join("join work --json").await;
    let told = said.json();
    assert_eq!(told["line"], line.as_str());
    assert_eq!(
        (told["name"].as_str(), told["expires"].as_str()),
        (Some(name.as_str()), Some(EXPIRES))
    );
    let revoked = alice.ssh(&format!("revoke {name} --json")).await.json();
    assert_eq!(revoked, json!({"name": name}));
    alice.ssh("delete work --yes").await.ok();
}

pub(crate) async fn waiting_for_a_line_can_be_given_up(world: &World) {
    world.alice.ssh("create work").await.ok();
    for (rule, keys) in [("Escape", "\x1b"), ("leaving", "q")] {
        let mut window = Window::open(world.port(), &world.alice, None).await;
        window.shows("1 Cluster ").await;
        window.press("j\r").await;
        window.shows("join work … ").await;
        world
            .until("a JoinToken", async || count(world).await, |count| *count == 1)
            .await;
        window.press(keys).await;
        let what = format!("no JoinToken after {rule:?}");
        world
            .until(&what, async || count(world).await, |count| *count == 0)
            .await;
        if keys == "q" {
            window.left().await;
        } else {
            window.shows("Canceled: no worker can join with it.").await;
        }
    }
    world.alice.ssh("delete work --yes").await.ok();
}

/// With OpenSSH's client in a terminal that is narrower than the line: copying it returns one line.
pub(crate) async fn join_command_is_copied_as_one_line(world: &World) {
    world.alice.ssh("create work").await.ok();
    let tmux = Tmux::start(world).await;
    tmux.call(world).await;
    tmux.shows("▸ work").await;
    tmux.resize(40, 10).await;
    tmux.shows("j join").await;
    tmux.press(&["j", "Enter"]).await;
    let (name, line) = grant(world).await;
    tmux.shows("x revokes it.").await;
    let printed = tmux.history().await;
    assert!(line.len() > 400, "it does not fit");
    assert!(printed.lines().any(|printed| printed.trim_end() == line), "{printed}");
    tmux.press(&["Escape"]).await;
    // The page says so, too. A key directly after an Escape is a key of its own.
    tmux.shows("j join").await;
    tmux.shows("It is valid until").await;
    assert_eq!(count(world).await, 1, "it is kept");
    world.alice.ssh(&format!("revoke {name}")).await.ok();

    tmux.press(&["j", "2", "Enter"]).await;
    grant(world).await;
    tmux.shows("x revokes it.").await;
    tmux.press(&["x"]).await;
    tmux.shows("is revoked").await;
    assert_eq!(count(world).await, 0, "it is taken back");
    tmux.press(&["q"]).await;
    tmux.shows("closed.").await;
    world.alice.ssh("delete work --yes").await.ok();
}
