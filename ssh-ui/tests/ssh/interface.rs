//! The full-screen interface, as a user with a keyboard sees it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use kube::Client;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use yoke_api::tenant::SshKey;
use yoke_runtime::budget::Rate;
use yoke_ssh_ui::identity::key_registry::KeyRegistry;
use yoke_ssh_ui::limits::admission::Limits;
use yoke_test_support::kubernetes::connect;

use crate::other::Other;
use crate::person::{Person, run};
use crate::window::{Left, Window};
use crate::world::{LIMITS, SERVER_TOKEN, World, put};

const MINUTE: Duration = Duration::from_secs(60);
const DOWN: &str = "\x1b[B";

pub(crate) async fn clusters_are_made_followed_and_deleted(world: &World) {
    let mut window = Window::open(world.port(), &world.alice, None).await;
    window.shows("You have no Clusters. Press c to create one.").await;
    window.press("cred\t1.35.4\t1Gi\r").await;
    window.shows("Cluster red created").await;
    let spec = world.clusters("a").get("red").await.unwrap().spec;
    assert_eq!(
        (spec.version.as_deref(), spec.storage.quota.0.as_str()),
        (Some("v1.35.4"), "1Gi")
    );
    // Changes by other clients appear, too.
    world.alice.ssh("create blue").await.ok();
    window.shows("2 Clusters").await;
    world.tell("a", "red", false, "The pod starts.").await;
    window.shows("The pod starts.").await;
    world.tell("a", "red", true, "The API answers.\x1b[2J").await;
    window
        .until("the phase", |seen| {
            seen.contains("red   Running") && seen.contains("The API answers. [2J")
        })
        .await;
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "red.1", "namespace": "a"},
        "involvedObject": {"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "name": "red", "namespace": "a"},
        "reason": "Told", "message": "Something happened.", "type": "Normal"});
    put(&world.admin, &event).await;
    window.shows("Told  Something happened.").await;

    window.press("s").await;
    window.shows("Cluster red is going to sleep").await;
    window.resize(40, 10).await;
    window.shows("c create  j join  ? help  q quit").await;
    window.resize(100, 30).await;
    window.shows("s wake  Enter more  e events").await;
    // The other Cluster stays, and a wrong name deletes nothing.
    window.press("dblue\r").await;
    window.shows("The name does not match: nothing is deleted.").await;
    window.press("\x7f\x7f\x7f\x7fred\r").await;
    window.shows("Cluster red is being deleted").await;
    window.shows("1 Cluster ").await;
    assert!(world.clusters("a").get_opt("red").await.unwrap().is_none());
    let mut other = Window::open(world.port(), &world.bob, None).await;
    other.shows("secret").await;
    other.until("nothing of another's", |seen| !seen.contains("blue")).await;
    other.press("\x03").await;
    assert_eq!(other.left().await.code, Some(0));

    window.press("q").await;
    let left = window.left().await;
    assert_eq!((left.code, left.text.trim_end()), (Some(0), "$ ssh HOST"));
    world.alice.ssh("delete blue --yes").await.ok();
}

pub(crate) async fn a_sleeping_cluster_is_woken(world: &World) {
    world.alice.ssh("create doze").await.ok();
    world.tell("a", "doze", true, "The API answers.").await;
    let clusters = world.clusters("a");
    let state = async || serde_json::to_value(clusters.get("doze").await.unwrap().spec).unwrap()["state"].clone();
    let mut window = Window::open(world.port(), &world.alice, None).await;
    window.shows("The API answers.").await;
    window.shows("s sleep").await;
    window.press("s").await;
    window.shows("Cluster doze is going to sleep").await;
    assert_eq!(state().await, "Asleep");
    world.tell_asleep("a", "doze").await;
    window
        .until("it sleeps", |seen| seen.contains("Asleep") && seen.contains("s wake"))
        .await;
    window.press("s").await;
    window.shows("Cluster doze is waking").await;
    assert_eq!(state().await, "Running");
    world.tell("a", "doze", true, "It is awake.").await;
    window
        .until("it is awake", |seen| {
            seen.contains("It is awake.") && seen.contains("s sleep")
        })
        .await;
    window.press("q").await;
    assert_eq!(window.left().await.code, Some(0));
    world.alice.ssh("delete doze --yes").await.ok();
}

/// With OpenSSH's client, which sends its environment only if configured.
pub(crate) async fn colors_follow_the_environment(world: &World) {
    world.alice.ssh("create bright").await.ok();
    world.tell("a", "bright", true, "The API answers.").await;
    for (options, coloured) in [
        (&["-tt"][..], true),
        (&["-tt", "-o", "SetEnv=NO_COLOR=1"], false),
        (&["-tt", "-o", "SetEnv=COLOR=1"], true),
    ] {
        let mut client = world
            .alice
            .begin(options, "")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (mut keys, mut shown) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        let (mut sent, mut seen) = (Vec::new(), vt100::Parser::default());
        let sent = tokio::time::timeout(MINUTE, async {
            while !seen.screen().contents().contains("The API answers.") {
                let known = sent.len();
                assert_ne!(shown.read_buf(&mut sent).await.unwrap(), 0, "it goes on");
                seen.process(&sent[known..]);
            }
            keys.write_all(b"q").await.unwrap();
            shown.read_to_end(&mut sent).await.unwrap();
            String::from_utf8(sent).unwrap()
        });
        let sent = sent.await.expect("the screen is shown and left");
        assert!(client.wait().await.unwrap().success(), "{options:?}: {sent:?}");
        assert_eq!(has_colours(&sent), coloured, "{options:?}: {sent:?}");
    }
    world.alice.ssh("delete bright --yes").await.ok();
}

/// Returns whether the sequences sent to a terminal set a foreground color.
fn has_colours(sent: &str) -> bool {
    let sequences = sent.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m'));
    let codes = sequences.flat_map(|(codes, _)| codes.split(';').map(str::parse::<u8>));
    codes.flatten().any(|code| (30..=37).contains(&code))
}

pub(crate) async fn kubeconfig_is_printed_below(world: &World) {
    world.alice.ssh("create k").await.ok();
    world.tell("a", "k", true, "The API answers.").await;
    let mut window = Window::open(world.port(), &world.alice, None).await;
    window.shows("The API answers.").await;
    window.press("kp").await;
    window
        .until("the kubeconfig, below what was there", |seen| {
            seen.starts_with("$ ssh HOST\n")
                && seen.contains("kind: Config\n")
                && seen.contains("Press a key to go back")
        })
        .await;
    window.press("x").await;
    window.shows(" Yoke  a · laptop").await;
    window.press("kp").await;
    window.shows("Press a key to go back").await;
    window.press("\x03").await;
    let left = window.left().await;
    assert!(left.text.contains("# of a/k\n"), "{left:?}");
    world.alice.ssh("delete k --yes").await.ok();
}

pub(crate) async fn clients_without_a_screen_get_the_same_text(world: &World) {
    for (options, term) in [(&["-tt"][..], "dumb"), (&["-tt"], ""), (&["-T"], "xterm")] {
        let mut command = world.alice.begin(options, "");
        let said = run(command.env("TERM", term)).await;
        assert_eq!(said.code, 0, "{said:?}");
        let text = said.out + &said.err;
        assert!(
            text.contains("You have no Clusters; create one with:"),
            "{term:?}: {text:?}"
        );
        assert!(!text.contains('\x1b'), "{term:?}: {text:?}");
    }
    // A Tenant at its limit of interfaces gets no further one.
    let mut others = Vec::new();
    for _ in 0..LIMITS.tenant_interfaces {
        let mut window = Window::open(world.port(), &world.alice, None).await;
        window.shows("You have no Clusters. Press c").await;
        others.push(window);
    }
    let left = Window::open(world.port(), &world.alice, None).await.left().await;
    assert!(left.text.contains("You have no Clusters; create one with:"), "{left:?}");
    for window in others {
        window.press("q").await;
        window.left().await;
    }
    // OpenSSH's client without a local terminal still requests a remote one.
    let mut command = world.alice.begin(&["-tt"], "");
    let mut client = command
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(b"q").await.unwrap();
    let said = client.wait_with_output().await.unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.status.success() && text.starts_with("\x1b[?1049h") && text.ends_with("\x1b[?1049l"),
        "{text:?}"
    );
}

pub(crate) async fn terminal_is_restored_however_it_ends(world: &World) {
    let said = |left: Left, why: &str| {
        assert_eq!(left.code, Some(1), "{left:?}");
        assert!(
            left.text.starts_with("$ ssh HOST\nerror: ") && left.text.contains(why),
            "{left:?}"
        );
    };

    let server = || world.server.clone();
    let (keys, other) = start(world, server(), LIMITS, MINUTE).await;
    let mut window = Window::open(other.port, &world.alice, None).await;
    window.shows("You have no Clusters.").await;
    keys.send_replace(keys_of(&world.bob));
    said(window.left().await, "this key no longer belongs to your Tenant");

    keys.send_replace(keys_of(&world.alice));
    let mut window = Window::open(other.port, &world.alice, None).await;
    window.shows("You have no Clusters.").await;
    let ending = tokio::spawn(other.end());
    said(window.left().await, "the server is about to restart");
    ending.await.unwrap();

    let (_keys, other) = start(world, server(), LIMITS, Duration::from_secs(2)).await;
    let window = Window::open(other.port, &world.alice, None).await;
    said(window.left().await, "no key was pressed for 1.8s");
    let window = Window::open(other.port, &world.alice, None).await;
    // A closed connection does not delay the end.
    drop(window);
    other.end().await;
}

pub(crate) async fn lost_host_is_watched_again(world: &World) {
    let api = world.address.strip_prefix("https://").unwrap().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let host = connect(&format!("https://{address}"), SERVER_TOKEN);
    let (away, is_away) = watch::channel(false);
    let carrying = tokio::spawn(carry(listener, api, is_away));
    let (_keys, other) = start(world, host, LIMITS, MINUTE).await;
    let mut window = Window::open(other.port, &world.alice, None).await;
    window.shows("You have no Clusters.").await;
    away.send_replace(true);
    window.shows("Trying again …").await;
    window.press("cnew\r").await;
    window
        .shows("error: creating Cluster new: the host's API cannot be reached")
        .await;
    world.alice.ssh("create meanwhile").await.ok();
    away.send_replace(false);
    window.shows("meanwhile").await;
    window.until("all is well", |seen| !seen.contains("Trying again")).await;
    world.alice.ssh("delete meanwhile --yes").await.ok();
    window.shows("You have no Clusters.").await;
    window.press("q").await;
    assert_eq!(window.left().await.code, Some(0));
    other.end().await;
    carrying.abort();
}

pub(crate) async fn floods_of_input_are_discarded(world: &World) {
    world.alice.ssh("create many").await.ok();
    let few = Limits {
        key: Rate {
            per_second: 1,
            burst: 2,
        },
        ..LIMITS
    };
    let (_keys, other) = start(world, world.server.clone(), few, MINUTE).await;
    let mut window = Window::open(other.port, &world.alice, None).await;
    window.shows("many").await;
    window.press("\x1b]52;c;").await;
    for _ in 0..30 {
        window.press(&"\x1b[200~x\x1b[999999999;1;1Z".repeat(40)).await;
    }
    // The key's budget applies to the interface, too. It refills meanwhile, so several attempts may
    // be needed.
    let mut refused = false;
    while !refused {
        window.press("\x1b").await;
        window.shows("Press q to leave.").await;
        window.press("s").await;
        let answers = ["too many commands with this key", "is going to sleep", "is waking"];
        window
            .until("an answer", |seen| answers.iter().any(|answer| seen.contains(answer)))
            .await;
        refused = window.text().contains(answers[0]);
    }
    window.press(DOWN).await;
    // Redraws are cheap, however many are requested. Input that arrives faster than it is read ends
    // the interface, which restores the terminal.
    window.press(&"\x0c".repeat(20_000)).await;
    window.flood(200_000).await;
    assert_eq!(window.left().await.code, Some(0));
    other.end().await;
    world.alice.ssh("delete many --yes").await.ok();
}

pub(crate) async fn terminal_prompts_for_the_name(world: &World) {
    world.alice.ssh("create kept").await.ok();
    let ask = async |keys: &str| {
        let mut window = Window::open(world.port(), &world.alice, Some("delete kept")).await;
        window.shows("Type its name to delete it: ").await;
        window.press(keys).await;
        window.left().await
    };
    for keys in ["other\r", "\r", "kept\x03", "\x1b"] {
        let left = ask(keys).await;
        assert_eq!(left.code, Some(1), "{left:?}");
        assert!(left.text.contains("hint: `delete kept --yes`"), "{left:?}");
    }
    // A key that is withdrawn during the prompt deletes nothing.
    let (keys, other) = start(world, world.server.clone(), LIMITS, MINUTE).await;
    let mut window = Window::open(other.port, &world.alice, Some("delete kept")).await;
    window.shows("Type its name to delete it: ").await;
    keys.send_replace(KeyRegistry::default());
    window.press("kept\r").await;
    let left = window.left().await;
    assert_ne!(left.code, Some(0), "{left:?}");
    other.end().await;
    assert!(world.clusters("a").get_opt("kept").await.unwrap().is_some());
    let left = ask("kepd\x7ft\r").await;
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(
        left.text.contains("delete it: kept\nCluster kept is being deleted"),
        "{left:?}"
    );
    // Ctrl-C ends the wait, but not the creation.
    let mut window = Window::open(world.port(), &world.alice, Some("create slow --wait")).await;
    let clusters = world.clusters("a");
    world
        .until(
            "Cluster slow",
            async || clusters.get_opt("slow").await.unwrap().is_some(),
            |exists| *exists,
        )
        .await;
    world.tell("a", "slow", false, "The pod starts.").await;
    window.shows("The pod starts.").await;
    window.press("\x03").await;
    let left = window.left().await;
    assert!(
        left.text.contains("the client no longer waits for Cluster slow"),
        "{left:?}"
    );
    world.alice.ssh("delete slow --yes").await.ok();
}

/// Proxies connections to the host's API. Once the API is away, closes them and each new one.
async fn carry(listener: TcpListener, api: SocketAddr, mut is_away: watch::Receiver<bool>) {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut near, _) = accepted.unwrap();
                if !*is_away.borrow() {
                    streams.spawn(async move {
                        let mut far = TcpStream::connect(api).await.unwrap();
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    });
                }
            }
            _ = is_away.changed() => streams.shutdown().await,
        }
    }
}

/// Starts a server of its own, whose registry contains only alice's key at first.
async fn start(world: &World, host: Client, limits: Limits, idle: Duration) -> (watch::Sender<KeyRegistry>, Other) {
    let keys = watch::Sender::new(KeyRegistry::default());
    let mut known = keys.subscribe();
    keys.send_replace(keys_of(&world.alice));
    known.mark_changed();
    (keys, Other::start(world, host, known, limits, idle).await)
}

fn keys_of(person: &Person) -> KeyRegistry {
    let mut tenant = yoke_api::Tenant::new("a", Default::default());
    tenant.spec.ssh_keys.push(SshKey {
        name: "laptop".into(),
        public_key: person.public.clone(),
    });
    let mut keys = KeyRegistry::default();
    assert!(keys.set(&tenant).is_empty());
    keys
}
