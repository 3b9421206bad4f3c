//! Objects in a tenant's API that workers need to join: bootstrap tokens, and answers to
//! certificate requests.
//!
//! Every request here has a timeout, which also bounds the delay by a tenant's hanging webhooks.

use std::collections::BTreeMap;

use futures::stream::BoxStream;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::core::Request;
use kube::{Api, Resource as _, ResourceExt as _};
use serde::Serialize;
use yoke_api::{Lenient, labels};

use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::groups::JOINING_GROUP;
use crate::tenant_client::limits::limited;
use crate::tenant_client::paged_list::Pages;
use crate::tenant_client::watch::{Change, changes};

const NAMESPACE: &str = "kube-system";
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// One object per page: each may have 1.5 MiB. If there are more, the first ones by name are
/// processed; Kubernetes deletes them within an hour.
const PAGES: Pages = Pages { size: 1, max: 20_000 };

/// A patch of a certificate request's status.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerPatch<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: AnswerMetadata<'a>,
    status: AnswerStatus<'a>,
}

#[derive(Clone, Debug, Serialize)]
struct AnswerMetadata<'a> {
    name: &'a str,
    /// The UID makes the patch fail if the object was replaced.
    uid: &'a str,
}

#[derive(Clone, Debug, Default, Serialize)]
struct AnswerStatus<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<ByteString>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<AnswerCondition<'a>>,
}

#[derive(Clone, Debug, Serialize)]
struct AnswerCondition<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

/// A patch of a Node's annotations.
#[derive(Clone, Debug, Serialize)]
struct TaintsPatch<'a> {
    metadata: TaintsMetadata<'a>,
}

#[derive(Clone, Debug, Serialize)]
struct TaintsMetadata<'a> {
    /// The UID makes the patch fail if the object was replaced.
    uid: &'a str,
    annotations: BTreeMap<&'static str, &'a str>,
}

/// The bootstrap token of a JoinToken.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// Public part.
    pub id: String,
    /// Secret part.
    pub secret: String,
    /// End of its validity.
    pub expires: Timestamp,
}

impl TenantApi {
    /// Streams the certificate requests of one signer and their changes. `trim` trims each.
    pub(crate) fn watch_requests<T: Send + 'static>(
        &self,
        signer: &str,
        trim: impl Fn(Lenient<CertificateSigningRequest>) -> T + Send + 'static,
    ) -> BoxStream<'static, Result<Change<T>, TenantApiError>> {
        // One watch per signer: a field selector has no "or".
        let params = ListParams::default().fields(&format!("spec.signerName={signer}"));
        changes(
            "certificate requests",
            Api::all(self.client.clone()),
            params,
            PAGES,
            trim,
        )
    }

    /// Returns a certificate request by name, even if it cannot be decoded.
    pub async fn request(&self, name: &str) -> Result<Option<Lenient<CertificateSigningRequest>>, TenantApiError> {
        let requests = Api::<Lenient<CertificateSigningRequest>>::all(self.client.clone());
        limited("a certificate request", requests.get_opt(name)).await
    }

    /// Returns a Node by name, even if it cannot be decoded.
    pub async fn node(&self, name: &str) -> Result<Option<Lenient<Node>>, TenantApiError> {
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        limited("a Node", nodes.get_opt(name)).await
    }

    /// Records on a Node which taints its JoinToken set, unless the Node was replaced.
    pub async fn record_taints(&self, node: &Node, taints: &str) -> Result<(), TenantApiError> {
        let patch = TaintsPatch {
            metadata: TaintsMetadata {
                uid: node.metadata.uid.as_deref().unwrap_or_default(),
                annotations: [(labels::JOINED_TAINTS, taints)].into(),
            },
        };
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        limited("a Node", nodes.patch(&node.name_any(), &params, &patch))
            .await
            .map(|_| ())
    }

    /// Approves a request.
    pub async fn approve(&self, csr: &CertificateSigningRequest, params: &PatchParams) -> Result<(), TenantApiError> {
        let condition = AnswerCondition {
            type_: "Approved",
            status: "True",
            reason: "NodeServing",
            message: "All names are addresses of the Node.",
        };
        self.write_answer(csr, "approval", params, None, Some(condition)).await
    }

    /// Sets the condition `Failed` of a request.
    pub async fn refuse(
        &self,
        csr: &CertificateSigningRequest,
        reason: &str,
        message: &str,
        params: &PatchParams,
    ) -> Result<(), TenantApiError> {
        let condition = AnswerCondition {
            type_: "Failed",
            status: "True",
            reason,
            message,
        };
        self.write_answer(csr, "status", params, None, Some(condition)).await
    }

    /// Writes the certificate of a request.
    pub async fn answer(
        &self,
        csr: &CertificateSigningRequest,
        chain: &str,
        params: &PatchParams,
    ) -> Result<(), TenantApiError> {
        let certificate = ByteString(chain.as_bytes().to_vec());
        self.write_answer(csr, "status", params, Some(certificate), None).await
    }

    async fn write_answer(
        &self,
        csr: &CertificateSigningRequest,
        subresource: &str,
        params: &PatchParams,
        certificate: Option<ByteString>,
        condition: Option<AnswerCondition<'_>>,
    ) -> Result<(), TenantApiError> {
        let name = csr.name_any();
        let patch = AnswerPatch {
            api_version: "certificates.k8s.io/v1",
            kind: "CertificateSigningRequest",
            metadata: AnswerMetadata {
                name: &name,
                uid: csr.metadata.uid.as_deref().unwrap_or_default(),
            },
            status: AnswerStatus {
                certificate,
                conditions: condition.into_iter().collect(),
            },
        };
        let api = Api::<Lenient<CertificateSigningRequest>>::all(self.client.clone());
        let patch = Patch::Apply(&patch);
        limited(
            "the answer to a certificate request",
            api.patch_subresource(subresource, &name, params, &patch),
        )
        .await
        .map(|_| ())
    }

    /// Creates the Secret with which Kubernetes accepts this token until its end.
    pub async fn ensure_token(&self, token: &BootstrapToken, params: &PatchParams) -> Result<(), TenantApiError> {
        self.ensure(&build_token(token), params).await
    }

    /// Deletes the Secret of a token, so that Kubernetes no longer accepts it.
    pub async fn remove_token(&self, id: &str) -> Result<(), TenantApiError> {
        let endpoint = Request::new(Secret::url_path(&(), Some(NAMESPACE)));
        let deletion = endpoint.delete(&secret_name(id), &DeleteParams::default());
        match self.change("a token", deletion).await {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }
}

fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Builds the Secret of a token in the format of Kubernetes:
/// <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>.
fn build_token(token: &BootstrapToken) -> Secret {
    let data: BTreeMap<_, _> = [
        ("token-id", token.id.clone()),
        ("token-secret", token.secret.clone()),
        ("expiration", token.expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", JOINING_GROUP.to_owned()),
        ("description", "JoinToken of Yoke".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
    .into();
    Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(&token.id)),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_TYPE.into()),
        data: Some(data),
        ..Secret::default()
    }
}
