use super::*;
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

fn pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn files(dir: &TempDir) -> TlsFiles {
    TlsFiles {
        certificate: dir.path().join("tls.crt"),
        key: dir.path().join("tls.key"),
        client_ca: Some(dir.path().join("ca.crt")),
    }
}

fn write(files: &TlsFiles, (certificate, key): &(String, String), ca: &str) {
    std::fs::write(&files.certificate, certificate).unwrap();
    std::fs::write(&files.key, key).unwrap();
    std::fs::write(files.client_ca.as_ref().unwrap(), ca).unwrap();
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&dir);
    let load = async || Reload::load(files.clone()).await.map(|_| ());
    let (good, other) = (pair("a"), pair("b"));
    assert!(matches!(load().await, Err(TlsError::Read { path, .. }) if path == dir.path().join("ca.crt")));
    write(&files, &good, &other.0);
    assert!(load().await.is_ok());
    write(&files, &(good.0.clone(), other.1.clone()), &other.0);
    assert!(matches!(load().await, Err(TlsError::Pair(_))), "another key");
    write(&files, &(String::new(), good.1.clone()), &other.0);
    assert!(matches!(load().await, Err(TlsError::Pair(_))), "no certificate");
    write(&files, &(good.0.clone(), "x".to_owned()), &other.0);
    assert!(matches!(load().await, Err(TlsError::Parse { path, .. }) if path == dir.path().join("tls.key")));
    write(&files, &good, "");
    assert!(
        matches!(load().await, Err(TlsError::Verifier(_))),
        "without a CA nobody could connect"
    );
}

#[tokio::test]
async fn changes_are_taken_over_when_they_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&dir);
    let (old, new) = (pair("old"), pair("new"));
    write(&files, &old, &old.0);
    let (mut reload, mut configs) = Reload::load(files.clone()).await.unwrap();
    configs.mark_unchanged();
    assert!(matches!(reload.look().await, Ok(false)));
    std::fs::write(&files.certificate, &new.0).unwrap();
    assert!(matches!(reload.look().await, Err(TlsError::Pair(_))));
    assert!(!configs.has_changed().unwrap(), "half a change is none");
    std::fs::write(&files.key, &new.1).unwrap();
    assert!(matches!(reload.look().await, Ok(true)));
    assert!(configs.has_changed().unwrap());
    assert!(matches!(reload.look().await, Ok(false)));
    std::fs::remove_file(&files.key).unwrap();
    assert!(matches!(reload.look().await, Err(TlsError::Read { .. })));
}
