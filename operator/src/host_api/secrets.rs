//! Reads single Secrets of the host API.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::error::ReconcileError;

pub(crate) async fn get_secret(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, ReconcileError> {
    api.get_opt(name)
        .await
        .map_err(ReconcileError::host("a credential Secret"))
}

pub(crate) fn text_of(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(data_of(secret).remove(key)?).ok()
}

/// Decoded data of a Secret.
pub(crate) fn data_of(secret: &Secret) -> std::collections::BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone())).collect()
}
