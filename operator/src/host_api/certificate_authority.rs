//! Reads the certificate of a Cluster's CA.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use yoke_api::ClusterId;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::ParsedCertificate;
use yoke_pki::plan::{AuthorityRole, Generation};

use crate::error::ReconcileError;
use crate::host_api::secrets::{data_of, get_secret};

/// The certificate of a Cluster's CA, if it is issued. Read from the host API, as few Clusters need
/// it.
pub(crate) async fn find_authority(
    client: &Client,
    id: &ClusterId,
    role: AuthorityRole,
) -> Result<Option<ParsedCertificate>, ReconcileError> {
    let api = Api::<Secret>::namespaced(client.clone(), PKI_NAMESPACE);
    let secret = get_secret(&api, &role.object_name(id, Generation::FIRST)).await?;
    let text = secret.and_then(|secret| String::from_utf8(data_of(&secret).remove("tls.crt")?).ok());
    let chain = text.and_then(|text| ParsedCertificate::from_pem(&text).ok());
    Ok(chain.and_then(|chain| chain.into_iter().next()))
}
