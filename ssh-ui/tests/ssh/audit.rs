//! The audit log of the server.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use tokio::process::Command;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::api::{self, send, token};
use crate::person::{Person, run};
use crate::window::Window;
use crate::world::World;

/// The logged lines, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Value>>>);

impl Log {
    /// Collects what this process logs from now on. May be called once per process.
    pub(crate) fn hear() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        log
    }

    /// Returns the lines in which a field has this value.
    fn find(&self, field: &str, value: &Value) -> Vec<Value> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line[field] == *value).cloned().collect()
    }

    /// Returns the only line about a command.
    fn line(&self, command: &str) -> Value {
        let mut lines = self.find("command", &json!(command));
        assert_eq!(lines.len(), 1, "{command}: {lines:?}");
        lines.remove(0)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "audit"
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(Value::Object(line.0));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The fields of one line.
#[derive(Default)]
struct Line(Map<String, Value>);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Returns the expected line of a successful command.
fn done(person: &Person, door: &str, command: &str) -> Value {
    json!({"message": "command of a Tenant", "tenant": "a", "key": "laptop", "fingerprint": person.fingerprint,
        "source": "127.0.0.1", "door": door, "command": command, "result": "ok"})
}

pub(crate) async fn each_deed_is_one_line(world: &World) {
    let (alice, log) = (&world.alice, &world.log);
    let before = log.find("message", &json!("login over SSH")).len();
    alice.ssh("create noted").await.ok();
    assert_eq!(log.line("create noted"), done(alice, "ssh", "create noted"));
    assert_eq!(log.find("message", &json!("login over SSH")).len(), before + 1);
    alice.ssh("create noted --json").await.failed(1);
    let failed = log.line("create noted --json");
    assert_eq!(failed["result"], "refused");
    assert!(failed["error"].as_str().unwrap().contains("already exists"), "{failed}");

    // SFTP.
    world.tell("a", "noted", true, "The API answers.").await;
    let copy = world.path("noted");
    alice.scp(":noted.kubeconfig", copy.to_str().unwrap()).await.ok();
    assert_eq!(log.line("sftp get noted"), done(alice, "ssh", "sftp get noted"));
    let batch = alice.sftp(world.folder(), "get unnoted.kubeconfig\n").await;
    assert_ne!(batch.code, 0, "{batch:?}");
    let refused = log.find("result", &json!("not_found"));
    let of_a_file = |line: &Value| line["command"] == "sftp stat unnoted" && line["door"] == "ssh";
    assert!(refused.iter().any(of_a_file), "{refused:?}");

    // The full-screen interface.
    let mut window = Window::open(world.port(), alice, None).await;
    window.shows("The API answers.").await;
    window.press("s").await;
    window.shows("Cluster noted is going to sleep").await;
    assert_eq!(log.line("sleep noted"), done(alice, "ssh", "sleep noted"));
    let looked = log.find("command", &json!("")).len();
    window.press("q").await;
    window.left().await;
    let looks = log.find("command", &json!(""));
    assert_eq!((looks.len(), looks.last()), (looked + 1, Some(&done(alice, "ssh", ""))));

    // The HTTPS API.
    let token = token(world, alice, &["wake"]).await;
    assert_eq!(send(world, &token, "wake noted").await.status, 200);
    let mut line = log.line("wake noted");
    let claims = world.path("claims");
    let mark = run(Command::new("sha256sum").arg(&claims)).await.ok();
    let claims: Value = serde_json::from_slice(&std::fs::read(claims).unwrap()).unwrap();
    let fields = line.as_object_mut().unwrap();
    assert_eq!(fields.remove("token"), Some(json!(mark[..16])));
    assert_eq!(fields.remove("expires"), Some(claims["exp"].clone()));
    assert_eq!(line, done(alice, "api", "wake noted"));
    assert_eq!(send(world, &token, "delete noted --yes").await.status, 403);
    assert_eq!(log.line("delete noted --yes")["result"], "not_permitted");
    alice.ssh("delete noted --yes --wait").await.ok();
}

pub(crate) async fn refused_clients_are_logged(world: &World) {
    let (mallory, log) = (&world.mallory, &world.log);
    let fingerprint = json!(mallory.fingerprint);
    let before = log.find("fingerprints", &fingerprint).len();
    mallory.ssh("clusters").await.failed(255);
    world
        .until(
            "another refusal in the log",
            async || log.find("fingerprints", &fingerprint).len(),
            |count| *count > before,
        )
        .await;
    let expected = json!({"message": "no login over SSH", "fingerprints": fingerprint, "source": "127.0.0.1"});
    assert_eq!(log.find("fingerprints", &fingerprint).last(), Some(&expected));

    let token = api::token(world, mallory, &["clusters"]).await;
    assert_eq!(send(world, &token, "clusters").await.status, 401);
    let refused = log.find("message", &json!("token refused"));
    let expected = json!({"message": "token refused", "fingerprint": fingerprint, "source": "127.0.0.1",
        "reason": "unknown_key"});
    assert_eq!(refused.last(), Some(&expected));
}
