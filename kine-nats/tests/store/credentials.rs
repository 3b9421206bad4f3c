//! A store whose user has only the permissions that the operator grants: its own two streams, no
//! consumers, and no stream creation.

use crate::harness::{Kine, Nats, Watching, events, prefix};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Keys of an operator with a system account and one more.
struct Authority {
    operator: KeyPair,
    system: KeyPair,
    account: KeyPair,
}

fn token(signer: &KeyPair, subject: &KeyPair, name: &str, claims: &Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let body = json!({
        "jti": name,
        "iat": 1_700_000_000,
        "iss": signer.public_key(),
        "sub": subject.public_key(),
        "name": name,
        "nats": claims,
    });
    let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let signed = format!("{}.{}", encode(&header), encode(&body));
    let signature = signer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

impl Authority {
    fn new() -> Self {
        Self {
            operator: KeyPair::new_operator(),
            system: KeyPair::new_account(),
            account: KeyPair::new_account(),
        }
    }

    fn config(&self) -> String {
        let operator = json!({ "type": "operator", "version": 2 });
        let account = |disk: i64| {
            json!({
                "type": "account", "version": 2,
                "limits": {
                    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
                    "conn": -1, "leaf": -1, "mem_storage": 0, "disk_storage": disk, "streams": disk, "consumer": disk,
                },
            })
        };
        let sign = |key: &KeyPair, name: &str, claims: &Value| token(&self.operator, key, name, claims);
        let (system, keys) = (self.system.public_key(), self.account.public_key());
        format!(
            "operator: {}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{\n  {system}: {}\n  {keys}: {}\n}}\n",
            sign(&self.operator, "operator", &operator),
            sign(&self.system, "system", &account(0)),
            sign(&self.account, "tenant", &account(-1)),
        )
    }

    /// Writes a credentials file of a user that may publish and subscribe to these subjects, or to
    /// all.
    fn user(&self, dir: &Path, name: &str, subjects: Option<(&[String], &[String])>) -> PathBuf {
        let key = KeyPair::new_user();
        let mut claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        if let Some((publish, subscribe)) = subjects {
            claims["pub"] = json!({ "allow": publish });
            claims["sub"] = json!({ "allow": subscribe });
        }
        let file = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            token(&self.account, &key, name, &claims),
            key.seed().unwrap(),
        );
        let path = dir.join(format!("{name}.creds"));
        std::fs::write(&path, file).unwrap();
        path
    }
}

/// The permissions that the operator grants to the store of a cluster.
fn granted(id: &str) -> (Vec<String>, Vec<String>) {
    let mut publish: Vec<String> = ["log", "snap.>", "spare.>", "rpc.>"]
        .map(|last| format!("kine.{id}.{last}"))
        .to_vec();
    publish.push(format!("_INBOX_{id}.>"));
    publish.push("$JS.API.INFO".to_owned());
    for stream in ["KINE", "KINE_SNAP", "KINE_SPARE"].map(|begin| format!("{begin}_{id}")) {
        for request in ["STREAM.INFO", "STREAM.MSG.GET", "STREAM.PURGE", "DIRECT.GET"] {
            publish.push(format!("$JS.API.{request}.{stream}"));
        }
        publish.push(format!("$JS.API.DIRECT.GET.{stream}.>"));
    }
    (publish, vec![format!("_INBOX_{id}.>"), format!("kine.{id}.rpc.>")])
}

#[tokio::test]
async fn a_store_needs_only_its_granted_permissions() {
    let authority = Authority::new();
    let nats = Nats::start_with(authority.config()).await;
    let dir = tempfile::tempdir().unwrap();
    let admin = format!("--creds={}", authority.user(dir.path(), "admin", None).display());
    Kine::start(&nats, "creds", &[&admin, "--spare"])
        .await
        .terminate()
        .await;

    let (publish, subscribe) = granted("creds");
    let user = authority.user(dir.path(), "store", Some((&publish, &subscribe)));
    let user = format!("--creds={}", user.display());
    let mut kine = Kine::spawn_on(
        &nats,
        "creds",
        &[&user, "--snapshot-bytes=50000", "--follow", "--spare"],
    );
    kine.ready().await;
    let mut client = kine.client().await;
    let (mut stored, mut puts) = (0.0, 0);
    // The distance between two snapshots depends on the speed of the puts.
    while stored < 3.0 && puts < 4000 {
        for number in 0..400 {
            client
                .put(&format!("/c/{:02}", number % 50), &[b'v'; 1000])
                .await
                .unwrap();
        }
        puts += 400;
        stored = kine.metric("yoke_kine_snapshots_total").await;
    }
    client.compact(200).await.unwrap();
    assert!(stored >= 3.0, "{stored} snapshots: {}", kine.log());
    for kill in [true, false] {
        if kill {
            kine.kill();
        } else {
            kine.terminate().await;
        }
        kine.restart().await;
        assert_eq!(client.range("/c/", "/c0", 0).await.unwrap().count, 50);
    }
    let mut watching = Watching::open(&mut client, prefix("/c/", 300)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let first = events(&watching.next().await.unwrap()).remove(0);
    assert_eq!(first.kv.unwrap().mod_revision, 300);
    let mut follower = Kine::spawn_on(&nats, "creds", &[&user, "--follow", "--spare"]);
    follower.ready().await;
    let mut through = follower.client().await;
    let written = through.put("/c/through", b"").await.unwrap();
    assert_eq!(client.get("/c/through").await.unwrap().mod_revision, written);
    assert_eq!(through.range("/c/", "/c0", 0).await.unwrap().count, 51);
    assert!(!nats.log().contains("Violation"), "{}", nats.log());

    // The streams of another store cannot be accessed.
    let mut other = Kine::spawn_on(&nats, "other", &[&user]);
    let refused = crate::harness::eventually("a permission violation in the log of the server", || {
        std::future::ready(Some(nats.log()).filter(|log| log.contains("Violation")))
    });
    let refused = refused.await;
    assert!(
        refused.contains("_INBOX_other") || refused.contains("KINE_other"),
        "{refused}"
    );
    other.kill();
}
