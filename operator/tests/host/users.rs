//! Users of a tenant's cluster get certificates that the tenant approved, and its API recognizes
//! them.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::workers::{Answer, Stage, certificate_of, refused};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Creates a request without an approval, and returns the key.
async fn request(stage: &Stage, name: &str, subject: (&str, &[&str]), names: &[&str], usage: &str) -> String {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, subject.0);
    for group in subject.1 {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, *group);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let csr = json!({"metadata": {"name": name}, "spec": {"signerName": SIGNER, "usages": [usage],
        "expirationSeconds": 600, "request": data_encoding::BASE64.encode(pem.as_bytes())}});
    let csr = serde_json::from_value(csr).unwrap();
    stage.requests().create(&PostParams::default(), &csr).await.unwrap();
    key.serialize_pem()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_user_is_authenticated() {
    let stage = Stage::start().await;
    let key = request(&stage, "jane", ("jane", &["team:a"]), &[], "client auth").await;
    for (name, subject, names, usage, reason) in [
        (
            "r1",
            ("system:kube-scheduler", &[][..]),
            &[][..],
            "client auth",
            "NameReserved",
        ),
        (
            "r2",
            ("jane", &["yoke:cluster-admins"][..]),
            &[],
            "client auth",
            "NameReserved",
        ),
        (
            "r3",
            ("jane", &[]),
            &["a.example.org"],
            "client auth",
            "NamesNotAllowed",
        ),
        ("r4", ("jane", &[]), &[], "server auth", "UsagesInvalid"),
    ] {
        request(&stage, name, subject, names, usage).await;
        stage.approve(name).await;
        assert_eq!(stage.answer(name).await, refused(reason), "{name}");
    }
    // Requests are processed in order: this one would have been answered before the others.
    let status = stage.requests().get("jane").await.unwrap().status.unwrap_or_default();
    assert_eq!(
        (status.certificate, status.conditions),
        (None, None),
        "a request without an approval was answered"
    );

    stage.approve("jane").await;
    let Answer::Signed(chain) = stage.answer("jane").await else {
        panic!("the request is refused");
    };
    let certificate = certificate_of(Answer::Signed(chain.clone()));
    let remaining = certificate.not_after.duration_since(Timestamp::now());
    assert!(
        remaining <= SignedDuration::from_mins(10) && remaining > SignedDuration::from_mins(5),
        "{remaining}"
    );
    let mut config = kube::Config::new(stage.url.parse().unwrap());
    config.accept_invalid_certs = true;
    let encode = |text: &str| Some(data_encoding::BASE64.encode(text.as_bytes()));
    config.auth_info.client_certificate_data = encode(&chain);
    config.auth_info.client_key_data = encode(&key).map(Into::into);
    let reviews = Api::<SelfSubjectReview>::all(Client::try_from(config).unwrap());
    let review = serde_json::from_value(json!({})).unwrap();
    let review = reviews.create(&PostParams::default(), &review).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("jane"));
    assert_eq!(user.groups.unwrap(), ["team:a", "system:authenticated"]);
}
