use yoke_pki::cert_manager::Certificate;

use crate::host_api::apply::seal;
use crate::host_api::compact_store::*;

const ID: &str = "bcdfghjk24";

/// An applied object as an API server returns it, with further fields.
fn kept(name: &str, change: impl FnOnce(&mut Value)) -> Certificate {
    let mut value = wanted(name);
    seal(&mut value);
    for (key, text) in [
        ("uid", "1"),
        ("resourceVersion", "7"),
        ("creationTimestamp", "2026-01-01T00:00:00Z"),
    ] {
        value["metadata"][key] = text.into();
    }
    value["status"] = serde_json::json!({"conditions": []});
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn wanted(name: &str) -> Value {
    let value = serde_json::json!({"metadata": {"name": name, "namespace": "n", "labels": {labels::ID: ID}},
        "spec": {"secretName": name, "dnsNames": ["a.example"], "issuerRef": {"name": "i"}},
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate"});
    let object: Certificate = serde_json::from_value(value).unwrap();
    serde_json::to_value(object).unwrap()
}

fn look(ledger: &CompactStore<Certificate>, name: &str) -> Comparison {
    let value = wanted(name);
    let object = serde_json::from_value(value.clone()).unwrap();
    ledger.compare(&object, &value, &digest_of(&value))
}

fn open_trimmed() -> (CompactStore<Certificate>, CompactWriter<Certificate>) {
    open(Retention {
        trim: |certificate| (certificate.status, certificate.spec.secret_name) = (None, String::new()),
        is_whole: false,
        version: by_version,
    })
}

#[test]
fn lines_say_what_is_as_it_was_applied() {
    let (ledger, mut scribe) = open_trimmed();
    let (whole, mut scribe_of_whole) = open(Retention {
        trim: |_| {},
        is_whole: true,
        version: by_version,
    });
    let changed = || Comparison::Normalized(Some("7".into()));
    let unread = || Comparison::Unknown("7".into());
    type Change = Box<dyn Fn(&mut Value)>;
    let cases: [(&str, Change, Comparison, Comparison); 6] = [
        ("as it was", Box::new(|_| {}), Comparison::Applied, Comparison::Applied),
        (
            "changed by others",
            Box::new(|value| value["spec"]["secretName"] = "other".into()),
            unread(),
            changed(),
        ),
        (
            "more in it",
            Box::new(|value| value["metadata"]["labels"]["more"] = "x".into()),
            unread(),
            Comparison::Applied,
        ),
        (
            "another annotation",
            Box::new(|value| value["metadata"]["annotations"]["more"] = "x".into()),
            unread(),
            Comparison::Applied,
        ),
        (
            "another digest",
            Box::new(|value| value["metadata"]["annotations"][labels::APPLIED_DIGEST] = "0123456789abcdef".into()),
            Comparison::Other,
            Comparison::Other,
        ),
        (
            "no digest",
            Box::new(|value| value["metadata"]["annotations"] = serde_json::json!({})),
            Comparison::Other,
            Comparison::Other,
        ),
    ];
    for (rule, change, trimmed, compared) in cases {
        scribe.note(&Event::Apply(kept("a", &change)));
        scribe_of_whole.note(&Event::Apply(kept("a", &change)));
        assert_eq!(look(&ledger, "a"), trimmed, "{rule}");
        assert_eq!(look(&whole, "a"), compared, "{rule}, of which all is kept");
        let seen = ledger.applied_digest("n", "a").map(|(_, version)| version.is_none());
        assert_eq!(seen == Some(true), trimmed == Comparison::Applied, "{rule}");
    }
    scribe.note(&Event::Delete(kept("a", |_| {})));
    assert_eq!(look(&ledger, "a"), Comparison::Other, "gone");
}

#[test]
fn what_is_read_comes_back() {
    let (ledger, mut scribe) = open_trimmed();
    for name in ["a", "b"] {
        scribe.note(&Event::Apply(kept(name, |_| {})));
        let found = ledger.get(&ObjectRef::new(name).within("n")).unwrap();
        let mut expected = kept(name, |_| {});
        (expected.status, expected.spec.secret_name) = (None, String::new());
        assert_eq!(*found, expected);
    }
    assert!(ledger.get(&ObjectRef::new("a").within("m")).is_none());
}

#[test]
fn a_list_replaces_all_when_it_is_complete() {
    let (ledger, mut scribe) = open_trimmed();
    scribe.note(&Event::Apply(kept("a", |_| {})));
    scribe.note(&Event::Init);
    scribe.note(&Event::InitApply(kept("b", |_| {})));
    assert!(ledger.has("n", "a") && !ledger.has("n", "b") && !*ledger.is_listed.borrow());
    scribe.note(&Event::InitDone);
    assert!(!ledger.has("n", "a") && ledger.has("n", "b") && *ledger.is_listed.borrow());
    assert_eq!((ledger.find("n", ID), ledger.count()), (vec!["b".to_owned()], 1));
    assert!(ledger.find("m", ID).is_empty() && ledger.find("n", "other").is_empty());
    let names = |namespace: &str, picked: &str| ledger.names(namespace, |name| name == picked);
    assert_eq!(
        (names("n", "b"), names("n", "a"), names("", "b")),
        (vec!["b".to_owned()], vec![], vec![])
    );
    scribe.note(&Event::Delete(kept("b", |_| {})));
    assert!(!ledger.has("n", "b"));
}
