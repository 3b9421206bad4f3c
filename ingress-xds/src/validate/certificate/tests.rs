use super::*;
use yoke_pki::plan::INGRESS_LEAF;

use crate::fixtures::{certificate_secret, ingress_pems, pems};

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
fn a_pair_is_believed() {
    let (chain, key) = ingress_pems();
    let found = validate_secret(&certificate_secret(&format!("{chain}{}", pems().0), &key), INGRESS_LEAF).unwrap();
    assert_eq!(found.chain.matches("BEGIN CERTIFICATE").count(), 2, "the chain is kept");
    assert_eq!(found.key, key);
    assert!(!format!("{found:?}").contains("PRIVATE"));
}

#[test]
fn others_are_refused() {
    let mut elsewhere = with("x", None);
    elsewhere.metadata.namespace = Some("default".into());
    assert!(matches!(
        validate_secret(&elsewhere, INGRESS_LEAF),
        Err(CertificateError::Place)
    ));
    for key in [CERTIFICATE, KEY] {
        for (rule, object) in [("absent", with(key, None)), ("empty", with(key, Some("")))] {
            let found = validate_secret(&object, INGRESS_LEAF);
            assert!(
                matches!(found, Err(CertificateError::Missing(missing)) if missing == key),
                "{key} {rule}"
            );
        }
        let found = validate_secret(&with(key, Some("PEM")), INGRESS_LEAF);
        assert!(
            matches!(found, Err(CertificateError::Read { key: wrong, .. }) if wrong == key),
            "{key}"
        );
    }
    let (_, other) = ingress_pems();
    assert!(matches!(
        validate_secret(&with(KEY, Some(&other)), INGRESS_LEAF),
        Err(CertificateError::Pair)
    ));
    let authority = validate_secret(&with(CERTIFICATE, Some(&pems().0)), INGRESS_LEAF);
    assert!(matches!(authority, Err(CertificateError::Authority)));
}
