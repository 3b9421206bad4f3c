use yoke_pki::cert_manager::Certificate;

use crate::host_api::apply::seal;
use crate::host_api::compact_store::*;

const ID: &str = "bcdfghjk24";

/// An applied object as an API server returns it, with further fields.
fn stored(name: &str, change: impl FnOnce(&mut Value)) -> Certificate {
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

fn compare(store: &CompactStore<Certificate>, name: &str) -> Comparison {
    let value = wanted(name);
    let object = serde_json::from_value(value.clone()).unwrap();
    store.compare(&object, &value, &digest_of(&value))
}

fn open_trimmed() -> (CompactStore<Certificate>, CompactWriter<Certificate>) {
    open(Retention {
        trim: |certificate| (certificate.status, certificate.spec.secret_name) = (None, String::new()),
        is_complete: false,
        version: by_version,
    })
}

#[test]
fn a_record_tells_whether_the_object_is_as_it_was_applied() {
    let (store, mut writer) = open_trimmed();
    let (complete, mut complete_writer) = open(Retention {
        trim: |_| {},
        is_complete: true,
        version: by_version,
    });
    let changed = || Comparison::Normalized(Some("7".into()));
    let unknown = || Comparison::Unknown("7".into());
    type Change = Box<dyn Fn(&mut Value)>;
    let cases: [(&str, Change, Comparison, Comparison); 6] = [
        ("unchanged", Box::new(|_| {}), Comparison::Applied, Comparison::Applied),
        (
            "changed by another client",
            Box::new(|value| value["spec"]["secretName"] = "other".into()),
            unknown(),
            changed(),
        ),
        (
            "another label",
            Box::new(|value| value["metadata"]["labels"]["more"] = "x".into()),
            unknown(),
            Comparison::Applied,
        ),
        (
            "another annotation",
            Box::new(|value| value["metadata"]["annotations"]["more"] = "x".into()),
            unknown(),
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
        writer.apply_event(&Event::Apply(stored("a", &change)));
        complete_writer.apply_event(&Event::Apply(stored("a", &change)));
        assert_eq!(compare(&store, "a"), trimmed, "{rule}");
        assert_eq!(compare(&complete, "a"), compared, "{rule}, cached completely");
        let seen = store.applied_digest("n", "a").map(|(_, version)| version.is_none());
        assert_eq!(seen == Some(true), trimmed == Comparison::Applied, "{rule}");
    }
    writer.apply_event(&Event::Delete(stored("a", |_| {})));
    assert_eq!(compare(&store, "a"), Comparison::Other, "deleted");
}

#[test]
fn the_cached_fields_are_restored() {
    let (store, mut writer) = open_trimmed();
    for name in ["a", "b"] {
        writer.apply_event(&Event::Apply(stored(name, |_| {})));
        let found = store.get(&ObjectRef::new(name).within("n")).unwrap();
        let mut expected = stored(name, |_| {});
        (expected.status, expected.spec.secret_name) = (None, String::new());
        assert_eq!(*found, expected);
    }
    assert!(store.get(&ObjectRef::new("a").within("m")).is_none());
}

#[test]
fn a_complete_list_replaces_all_objects() {
    let (store, mut writer) = open_trimmed();
    writer.apply_event(&Event::Apply(stored("a", |_| {})));
    writer.apply_event(&Event::Init);
    writer.apply_event(&Event::InitApply(stored("b", |_| {})));
    assert!(store.has("n", "a") && !store.has("n", "b") && !*store.is_listed.borrow());
    writer.apply_event(&Event::InitDone);
    assert!(!store.has("n", "a") && store.has("n", "b") && *store.is_listed.borrow());
    assert_eq!((store.find("n", ID), store.count()), (vec!["b".to_owned()], 1));
    assert!(store.find("m", ID).is_empty() && store.find("n", "other").is_empty());
    let names = |namespace: &str, picked: &str| store.names(namespace, |name| name == picked);
    assert_eq!(
        (names("n", "b"), names("n", "a"), names("", "b")),
        (vec!["b".to_owned()], vec![], vec![])
    );
    writer.apply_event(&Event::Delete(stored("b", |_| {})));
    assert!(!store.has("n", "b"));
}
