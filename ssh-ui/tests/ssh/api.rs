//! The HTTPS API with tokens that `ssh-keygen -Y sign` signs and curl sends.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use yoke_runtime::Supervisor;
use yoke_runtime::tls::{Reload, TlsFiles};
use yoke_ssh_ui::api::{Api, reload_certificate};
use yoke_ssh_ui::identity::token::TokenRules;
use yoke_ssh_ui::shared::Shared;

use crate::person::{Person, run};
use crate::world::{CONTACT, World};

const HOST: &str = "api.example.org";
const NAMESPACE: &str = "yoke@api.example.org";
const LONGEST: Duration = Duration::from_secs(86_400);

/// Response that curl received.
pub(crate) struct Got {
    pub(crate) status: u16,
    /// Value of the header `yoke-exit-code`.
    code: Option<u32>,
    head: String,
    pub(crate) body: Value,
}

/// Serves the API as the process does, and returns its port. The certificate stays in the folder.
pub(crate) async fn serve(supervisor: &mut Supervisor, shared: &Arc<Shared>, folder: &Path) -> u16 {
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let files = TlsFiles {
        certificate: folder.join("api.crt"),
        key: folder.join("api.key"),
        client_ca: None,
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let (reload, tls) = Reload::load(files).await.unwrap();
    let api = Api::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = api.local_address().port();
    let rules = TokenRules {
        host: HOST.into(),
        longest: LONGEST,
    };
    let drain = supervisor.drain();
    supervisor.spawn("api-certificate", reload_certificate(reload, drain.clone()));
    let idle = Duration::from_secs(60);
    supervisor.spawn("api", api.serve(Arc::clone(shared), rules, tls, idle, drain));
    port
}

fn in_an_hour() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_secs() + 3600
}

fn claims(tenant: &str, commands: &[&str]) -> String {
    json!({"tenant": tenant, "commands": commands, "exp": in_an_hour()}).to_string()
}

/// Creates a token in the shell, as the README describes.
async fn sign(world: &World, key: &Path, namespace: &str, claims: &str) -> String {
    let file = world.path("claims");
    std::fs::write(&file, claims).unwrap();
    let script = "rm -f \"$2.sig\" && ssh-keygen -q -Y sign -n \"$3\" -f \"$1\" \"$2\" && \
        printf 'yoke-api1.%s.%s' \"$(base64 -w0 \"$2\")\" \"$(sed '1d;$d' \"$2.sig\" | tr -d '\\n')\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args([key, &file]).arg(namespace);
    run(&mut shell).await.ok()
}

pub(crate) async fn token(world: &World, person: &Person, commands: &[&str]) -> String {
    let tenant = if person.key == world.bob.key { "b" } else { "a" };
    sign(world, &person.key, NAMESPACE, &claims(tenant, commands)).await
}

async fn curl(world: &World, arguments: &[&str]) -> Got {
    let mut curl = Command::new("curl");
    let place = format!("{HOST}:{}", world.api_port);
    curl.args(["--silent", "--show-error", "--include", "--max-time", "30", "--cacert"])
        .arg(world.path("api.crt"))
        .args(["--resolve", &format!("{place}:127.0.0.1")])
        .args(arguments);
    let said = run(curl.arg(format!("https://{place}/exec"))).await.ok();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Got {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        code: field("yoke-exit-code:").map(|code| code.parse().unwrap()),
        body: serde_json::from_str(body).unwrap_or_else(|error| panic!("{body:?}: {error}")),
        head,
    }
}

pub(crate) async fn send(world: &World, token: &str, line: &str) -> Got {
    let authorization = format!("Authorization: Bearer {token}");
    curl(world, &["-H", &authorization, "--data-raw", line]).await
}

pub(crate) async fn a_program_does_what_its_token_permits(world: &World) {
    let (alice, bob) = (&world.alice, &world.bob);
    let all = token(
        world,
        alice,
        &["clusters", "create", "delete", "kubeconfig", "whoami", "join"],
    )
    .await;
    let got = send(world, &all, "whoami").await;
    assert_eq!((got.status, got.code), (200, Some(0)));
    assert_eq!(got.body["fingerprint"], alice.fingerprint.as_str());
    assert!(got.head.contains("cache-control: no-store"), "{}", got.head);
    // Bob has an ECDSA key.
    let bobs = token(world, bob, &["whoami", "clusters"]).await;
    assert_eq!(send(world, &bobs, "whoami").await.body["tenant"], "b");

    let got = send(world, &all, "create robot --storage 1Gi").await;
    assert_eq!((got.status, &got.body["name"]), (200, &json!("robot")));
    world.tell("a", "robot", true, "The API answers.").await;
    assert_eq!(send(world, &all, "").await.body["clusters"][0]["name"], "robot");
    assert_eq!(send(world, &all, "kubeconfig robot").await.body["kind"], "Config");
    assert_eq!(send(world, &bobs, "ls").await.status, 200);
    let narrow = token(world, bob, &["whoami"]).await;
    for (rule, token, line, status, code, reason) in [
        ("no command", &all, "frobnicate", 400, Some(2), "usage"),
        ("not permitted", &all, "sleep robot", 403, Some(1), "not_permitted"),
        ("its alias neither", &narrow, "ls", 403, Some(1), "not_permitted"),
        ("another's", &bobs, "clusters robot", 404, Some(1), "not_found"),
        ("nobody's", &bobs, "clusters absent", 404, Some(1), "not_found"),
        ("made twice", &all, "create robot", 409, Some(1), "refused"),
        ("not confirmed", &all, "delete robot", 400, Some(1), "not_confirmed"),
        (
            "a wait that runs out",
            &all,
            "create late --wait --timeout 1s",
            504,
            Some(3),
            "timeout",
        ),
    ] {
        let got = send(world, token, line).await;
        let found = (got.status, got.code, got.body["reason"].as_str());
        assert_eq!(found, (status, code, Some(reason)), "{rule}: {}", got.body);
    }
    let help = send(world, &bobs, "help").await;
    assert!(help.body["help"].as_str().unwrap().contains("kubeconfig"));
    // A client that disconnects during the wait leaves no JoinToken.
    let authorization = format!("Authorization: Bearer {all}");
    let place = format!("{HOST}:{}", world.api_port);
    let mut client = Command::new("curl")
        .args(["--silent", "--insecure", "--resolve", &format!("{place}:127.0.0.1")])
        .args([
            "-H",
            &authorization,
            "--data-raw",
            "join robot",
            &format!("https://{place}/exec"),
        ])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let tokens = kube::Api::<yoke_api::JoinToken>::namespaced(world.admin.clone(), "a");
    let count = async || tokens.list(&Default::default()).await.unwrap().items.len();
    world.until("a JoinToken", count, |count| *count == 1).await;
    client.kill().await.unwrap();
    world.until("no JoinToken", count, |count| *count == 0).await;
    for name in ["robot", "late"] {
        assert_eq!(send(world, &all, &format!("delete {name} --yes")).await.status, 200);
    }
}

pub(crate) async fn tokens_that_are_no_good_are_refused(world: &World) {
    let (alice, mallory) = (&world.alice, &world.mallory);
    let good = token(world, alice, &["whoami"]).await;
    let rsa = world.path("rsa-key");
    let file = rsa.to_str().unwrap();
    run(Command::new("ssh-keygen").args(["-q", "-t", "rsa", "-N", "", "-f", file]))
        .await
        .ok();
    let end = |seconds: i64| {
        let exp = i64::try_from(in_an_hour()).unwrap() - 3600 + seconds;
        json!({"tenant": "a", "commands": ["whoami"], "exp": exp}).to_string()
    };
    let (head, signature) = good.rsplit_once('.').unwrap();
    let others = token(world, &world.bob, &["whoami"]).await;
    let swapped = format!("{head}.{}", others.rsplit_once('.').unwrap().1);
    let whoami = claims("a", &["whoami"]);
    for (rule, token, part) in [
        (
            "a key of nobody",
            sign(world, &mallory.key, NAMESPACE, &whoami).await,
            "no Tenant of this host has the key SHA256:",
        ),
        (
            "an algorithm that is not taken",
            sign(world, &rsa, NAMESPACE, &whoami).await,
            "no Tenant of this host has the key SHA256:",
        ),
        (
            "signed for git",
            sign(world, &alice.key, "git", &whoami).await,
            "not for this host",
        ),
        (
            "signed for another host",
            sign(world, &alice.key, "yoke@elsewhere.org", &whoami).await,
            "not for this host",
        ),
        (
            "over",
            sign(world, &alice.key, NAMESPACE, &end(-1)).await,
            "has expired",
        ),
        (
            "for too long",
            sign(world, &alice.key, NAMESPACE, &end(90_000)).await,
            "at most 24 hours",
        ),
        (
            "without an end",
            sign(world, &alice.key, NAMESPACE, r#"{"tenant":"a","commands":["whoami"]}"#).await,
            "missing field `exp`",
        ),
        (
            "for another Tenant",
            sign(world, &world.bob.key, NAMESPACE, &whoami).await,
            "for another Tenant",
        ),
        ("another's signature", swapped, "the signature of the token is wrong"),
        ("cut", good[..good.len() - 8].to_owned(), "the signature of the token"),
        ("no signature", head.to_owned(), "this is not a token"),
        (
            "huge",
            format!("{head}{}.{signature}", "A".repeat(9000)),
            "this is not a token",
        ),
        ("a password", "hunter2".to_owned(), "this is not a token"),
    ] {
        let before = send(world, &token, "whoami").await;
        let error = before.body["error"].as_str().unwrap();
        assert_eq!((before.status, before.code), (401, None), "{rule}: {error}");
        assert!(error.contains(part), "{rule}: {error}");
        assert!(
            before.head.contains("www-authenticate: bearer"),
            "{rule}: {}",
            before.head
        );
        let hint = before.body["hint"].as_str().unwrap();
        let expected = if error.contains("no Tenant") {
            CONTACT
        } else {
            NAMESPACE
        };
        assert!(hint.contains(expected), "{rule}: {hint}");
    }
    for (rule, arguments) in [
        ("none", &["--data-raw", "whoami"][..]),
        (
            "two",
            &[
                "-H",
                "Authorization: Bearer x",
                "-H",
                "authorization: Bearer x",
                "--data-raw",
                "whoami",
            ],
        ),
        ("another scheme", &["--user", "a:b", "--data-raw", "whoami"]),
    ] {
        assert_eq!(curl(world, arguments).await.status, 401, "{rule}");
    }
    assert_eq!(send(world, &good, "whoami").await.status, 200);
}

pub(crate) async fn nothing_but_a_line_is_read(world: &World) {
    let good = token(world, &world.alice, &["whoami"]).await;
    let authorization = format!("Authorization: Bearer {good}");
    let get = curl(world, &["-H", &authorization]).await;
    assert_eq!(get.status, 405);
    assert!(get.head.contains("allow: post"), "{}", get.head);
    let long = format!("whoami {}", " ".repeat(5000));
    let got = send(world, &good, &long).await;
    assert_eq!((got.status, got.code), (413, None), "{}", got.body);
    let path = curl(
        world,
        &["-H", &authorization, "--request-target", "/", "--data-raw", "whoami"],
    )
    .await;
    assert_eq!(path.status, 404);
    let many: Vec<String> = (0..100).map(|number| format!("X-{number}: x")).collect();
    let many: Vec<&str> = many.iter().flat_map(|line| ["-H", line]).collect();
    let mut curl = Command::new("curl");
    let place = format!("https://127.0.0.1:{}/exec", world.api_port);
    let said = run(curl.args(["--silent", "--insecure", "--include"]).args(many).arg(place)).await;
    assert!(said.out.starts_with("HTTP/1.1 431"), "{said:?}");
    // A silent client and one with another protocol do not block others.
    let silent = TcpStream::connect(("127.0.0.1", world.api_port)).await.unwrap();
    let mut plain = TcpStream::connect(("127.0.0.1", world.api_port)).await.unwrap();
    plain.write_all(b"POST /exec HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // A TLS alert, then the end of the stream.
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    assert_eq!(send(world, &good, "whoami").await.status, 200);
    drop(silent);
}

pub(crate) async fn a_key_that_is_taken_away_takes_its_tokens_along(world: &World) {
    let mut robot = Person::new(world.folder(), "robot", "ed25519").await;
    robot.public.push('\n');
    let token = token(world, &robot, &["whoami"]).await;
    assert_eq!(send(world, &token, "whoami").await.status, 401);
    let alice = ("laptop", world.alice.public.as_str());
    world.set_keys("a", &[alice, ("robot", robot.public.trim())]).await;
    let status = async || send(world, &token, "whoami").await.status;
    world
        .until("the key to be admitted", status, |status| *status == 200)
        .await;
    world.set_keys("a", &[alice]).await;
    world
        .until("the key to be refused", status, |status| *status == 401)
        .await;
}
