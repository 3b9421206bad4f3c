use super::*;

use crate::test_util::fixtures::{activator_secret, certificate_secret, ingress_pems, pems};

fn with(key: &str, text: Option<&str>) -> Secret {
    let (chain, private) = ingress_pems();
    let mut object = certificate_secret(&chain, &private);
    let data = object.data.get_or_insert_default();
    match text {
        Some(text) => data.insert(key.into(), k8s_openapi::ByteString(text.into())),
        None => data.remove(key),
    };
    object
}

#[test]
fn a_matching_pair_is_valid() {
    let (chain, key) = ingress_pems();
    let found = validate_ingress(&certificate_secret(&format!("{chain}{}", pems().0), &key)).unwrap();
    assert_eq!(found.chain.matches("BEGIN CERTIFICATE").count(), 2, "the chain is kept");
    assert_eq!(found.key, key);
    assert!(!format!("{found:?}").contains("PRIVATE"));
}

#[test]
fn other_secrets_are_refused() {
    let mut elsewhere = with("x", None);
    elsewhere.metadata.namespace = Some("default".into());
    assert!(matches!(
        validate_ingress(&elsewhere),
        Err(CertificateError::WrongObject)
    ));
    for key in [CERTIFICATE, KEY] {
        for (rule, object) in [("absent", with(key, None)), ("empty", with(key, Some("")))] {
            let found = validate_ingress(&object);
            assert!(
                matches!(found, Err(CertificateError::Missing(missing)) if missing == key),
                "{key} {rule}"
            );
        }
        let found = validate_ingress(&with(key, Some("PEM")));
        assert!(
            matches!(found, Err(CertificateError::Read { key: wrong, .. }) if wrong == key),
            "{key}"
        );
    }
    let (_, other) = ingress_pems();
    assert!(matches!(
        validate_ingress(&with(KEY, Some(&other))),
        Err(CertificateError::Pair)
    ));
    let authority = validate_ingress(&with(CERTIFICATE, Some(&pems().0)));
    assert!(matches!(authority, Err(CertificateError::Authority)));
}

#[test]
fn sleeping_clusters_have_their_own_certificate() {
    let (chain, key) = ingress_pems();
    for (rule, namespace, name, expected) in [
        ("of all", PKI_NAMESPACE, SLEEPER_LEAF, true),
        ("of a cluster", "yoke-bcdfghjk24", SLEEPER_LEAF, true),
        ("of a Tenant", "tenant", SLEEPER_LEAF, false),
        ("another", "yoke-bcdfghjk24", INGRESS_LEAF, false),
    ] {
        let mut object = activator_secret(namespace, &chain, &key);
        object.metadata.name = Some(name.into());
        let found = validate_activator(&object);
        assert_eq!(found.is_ok(), expected, "{rule}");
        if let Ok(found) = found {
            assert_eq!(found.names, ["kubernetes".to_owned()].into());
        }
    }
}
