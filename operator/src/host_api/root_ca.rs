//! The root certificate. The chart creates it, so none of the operator's watches covers it: it is read again after
//! a minute.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::ROOT;

/// Interval after which the root certificate is read again.
const REFRESH_AFTER: Duration = Duration::from_secs(60);

/// The root certificate as it was last read.
#[derive(Debug, Default)]
pub struct RootCa(tokio::sync::Mutex<Option<(Instant, String)>>);

impl RootCa {
    /// Replaces the certificate until it is read again.
    pub(crate) async fn replace(&self, pem: String) {
        *self.0.lock().await = Some((Instant::now(), pem));
    }

    /// Returns the root certificate, PEM.
    pub async fn get(&self, client: &Client) -> Result<String, RootError> {
        let mut known = self.0.lock().await;
        if let Some((since, text)) = known.as_ref()
            && since.elapsed() < REFRESH_AFTER
        {
            return Ok(text.clone());
        }
        let api = Api::<Secret>::namespaced(client.clone(), PKI_NAMESPACE);
        let secret = api
            .get_opt(ROOT)
            .await
            .map_err(|error| RootError::Read(Box::new(error)))?;
        let data = secret.and_then(|secret| secret.data?.remove("tls.crt"));
        let text = data
            .and_then(|bytes| String::from_utf8(bytes.0).ok())
            .filter(|text| !text.is_empty());
        let text = text.ok_or(RootError::Missing)?;
        *known = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

/// The root certificate is not available.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The Secret cannot be read.
    #[error("reading the Secret of the root certificate")]
    Read(#[source] Box<kube::Error>),
    /// The Secret contains no certificate: cert-manager has not issued it yet.
    #[error("the root certificate is not issued yet")]
    Missing,
}
