//! Finds out whether the cluster rejects a worker that waits for admission: an unknown token, or a
//! rejected certificate request.
//!
//! ```text
//!  kubelet ─▶ CertificateSigningRequest ─▶ the cluster ─▶ Failed, Denied ─▶ here ─▶ the worker exits with the reason
//! ```

use std::future::pending;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::time::{Instant, sleep};

use crate::certificate;
use crate::error::Error;
use crate::layout::Layout;
use crate::node::{connect_by, with_limit};
use crate::state::Worker;

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// A rejection counts only after it lasts this long. An API server may not know a new token yet,
/// and the newest request may come from an earlier worker.
const REJECTION_MIN: Duration = Duration::from_secs(10);
/// Selects requests for kubelet client certificates. The cluster removes them after an hour. With
/// more than `PAGE` requests the worker may miss its own rejection.
const REQUESTS: &str = "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet";
const PAGE: u32 = 250;
/// Upper bound for the reason that the cluster returns, in characters.
const REASON_MAX: usize = 300;

/// Resolves when the worker is rejected; never resolves otherwise.
pub(crate) async fn wait_rejected(layout: &Layout, worker: &Worker) -> Error {
    let mut since = None;
    // A worker with a certificate was admitted, whatever happens to the token. The kubelet writes
    // its kubeconfig before it has a certificate, so the kubeconfig does not count.
    while !certificate::has_valid_certificate(layout) {
        // The client uses the bootstrap token.
        if let Some(client) = connect_by(&layout.bootstrap_kubeconfig(), worker).await
            && let Some(why) = read_lasting_rejection(&client, &worker.name, &mut since).await
        {
            return Error::Rejected(why);
        }
        sleep(POLL_INTERVAL).await;
    }
    pending().await
}

/// Returns the reason once the rejection has lasted for `REJECTION_MIN`. `since` is the time when it was
/// first seen.
async fn read_lasting_rejection(client: &Client, name: &str, since: &mut Option<Instant>) -> Option<String> {
    let Some(why) = read_rejection(client, name).await else {
        *since = None;
        return None;
    };
    (since.get_or_insert_with(Instant::now).elapsed() > REJECTION_MIN).then_some(why)
}

/// Returns the reason why the API rejects the worker right now, or `None`.
async fn read_rejection(client: &Client, name: &str) -> Option<String> {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let user = match with_limit(review.create(&PostParams::default(), &SelfSubjectReview::default())).await {
        Ok(review) => review.status?.user_info?.username?,
        Err(kube::Error::Api(status)) if status.code == 401 => {
            return Some("the join token is unknown or has expired".to_owned());
        }
        Err(_) => return None,
    };
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    let page = ListParams::default().fields(REQUESTS).limit(PAGE);
    let found = with_limit(requests.list(&page)).await.ok()?.items;
    let own = found.iter().filter(|request| is_own(request, &user, name));
    let newest = own.max_by_key(|request| request.metadata.creation_timestamp.as_ref().map(|made| made.0));
    newest.and_then(find_rejection)
}

/// Reports whether a request comes from this user and is for the Node of this name. Pure.
fn is_own(request: &CertificateSigningRequest, user: &str, name: &str) -> bool {
    request.spec.username.as_deref() == Some(user) && is_for(&request.spec.request.0, name)
}

/// Returns the reason why a request was rejected, or `None`. Pure.
fn find_rejection(request: &CertificateSigningRequest) -> Option<String> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    let rejected = conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), "Failed" | "Denied") && condition.status == "True")?;
    let why = [&rejected.reason, &rejected.message].map(|text| text.as_deref().unwrap_or_default());
    let why = why.join(": ");
    Some(why.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect())
}

/// Reports whether a PEM request contains the user name of this Node as a complete string.
fn is_for(request: &[u8], name: &str) -> bool {
    let Ok(request) = CertificateSigningRequestDer::from_pem_slice(request) else {
        return false;
    };
    let user = format!("system:node:{name}");
    // In DER the length byte precedes the string, so a longer name that starts with this one does
    // not match.
    let text = [&[user.len().to_le_bytes()[0]], user.as_bytes()].concat();
    request.windows(text.len()).any(|part| part == text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    const USER: &str = "system:bootstrap:abcdef";

    fn request(user: &str, node: &str, condition: &str) -> Value {
        let mut parameters = CertificateParams::default();
        parameters
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        parameters
            .distinguished_name
            .push(DnType::CommonName, format!("system:node:{node}"));
        let pem = parameters
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        let conditions = json!([{"type": condition, "status": "True", "reason": "UsedUp", "message": "one\ntoo many"}]);
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r"},
            "spec": {
                "request": data_encoding::BASE64.encode(pem.as_bytes()), "username": user,
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            },
            "status": {"conditions": conditions},
        })
    }

    #[test]
    fn only_the_own_request_is_an_answer() {
        for (rule, user, node, condition, rejected) in [
            ("it failed", USER, "box-1", "Failed", true),
            ("it was denied", USER, "box-1", "Denied", true),
            ("it may get a certificate", USER, "box-1", "Approved", false),
            ("another token", "system:bootstrap:zzzzzz", "box-1", "Failed", false),
            ("a longer name", USER, "box-10", "Failed", false),
            ("another name", USER, "box-2", "Failed", false),
        ] {
            let request = serde_json::from_value(request(user, node, condition)).unwrap();
            let expected = rejected.then(|| "UsedUp: onetoo many".to_owned());
            let own = Some(&request).filter(|request| is_own(request, USER, "box-1"));
            assert_eq!(own.and_then(find_rejection), expected, "{rule}");
        }
        let name = "a".repeat(253);
        let long = serde_json::from_value(request(USER, &name, "Failed")).unwrap();
        assert!(is_own(&long, USER, &name), "a long name");
    }

    /// An API that knows the token if `known`, and has these requests.
    fn serve(known: &Arc<Mutex<bool>>, requests: Value) -> Client {
        let known = Arc::clone(known);
        let service = service_fn(move |request: Request<Body>| {
            let body = match *known.lock().unwrap() {
                false => json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "Unauthorized", "reason": "Unauthorized", "code": 401}),
                true if request.uri().path().ends_with("selfsubjectreviews") => json!({
                    "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
                    "status": {"userInfo": {"username": USER}},
                }),
                true => json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequestList",
                    "metadata": {}, "items": requests}),
            };
            let status = body["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
            let answer = Response::builder()
                .status(status)
                .body(Body::from(body.to_string().into_bytes()))
                .unwrap();
            async move { Ok::<_, kube::Error>(answer) }
        });
        Client::new(service, "default")
    }

    async fn learn(client: &Client) -> String {
        let mut since = None;
        loop {
            if let Some(why) = read_lasting_rejection(client, "box-1", &mut since).await {
                return why;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_worker_learns_why() {
        let known = Arc::new(Mutex::new(true));
        let client = serve(&known, json!([request(USER, "box-1", "Failed")]));
        assert_eq!(learn(&client).await, "UsedUp: onetoo many");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_unknown_for_a_moment_is_not_refused() {
        let known = Arc::new(Mutex::new(false));
        let client = serve(&known, json!([]));
        let later = async {
            sleep(REJECTION_MIN / 2).await;
            *known.lock().unwrap() = true;
            sleep(REJECTION_MIN * 10).await;
            *known.lock().unwrap() = false;
            Instant::now()
        };
        let (why, gone) = tokio::join!(learn(&client), later);
        assert!(why.contains("token is unknown"), "{why}");
        assert!(gone.elapsed() > REJECTION_MIN, "{:?}", gone.elapsed());
    }
}
