//! Reloads the certificates of the https listeners.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use yoke_runtime::tls::Reload;

const POLL: Duration = Duration::from_secs(2);

/// Rereads the files until stopped. A change that cannot be used is logged once.
pub(crate) async fn reload_certificates(mut reload: Reload, mut stop: watch::Receiver<bool>) {
    let mut complaint = None;
    while timeout(POLL, stop.wait_for(|stop| *stop)).await.is_err() {
        match reload.look().await {
            Ok(changed) => {
                complaint = None;
                if changed {
                    tracing::info!("Reloaded the certificates");
                }
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                if complaint.as_ref() != Some(&error) {
                    tracing::warn!(
                        error,
                        "Cannot use the changed certificates; the previous ones stay in use"
                    );
                    complaint = Some(error);
                }
            }
        }
    }
}
