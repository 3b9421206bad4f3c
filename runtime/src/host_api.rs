//! Client of the host's API, for all processes that watch it.
//!
//! A watch only reads. If the peer disappears without closing the connection, after a power loss or
//! a network partition, kube's own client keeps waiting for up to 295 s, until the watch ends.
//! Meanwhile an ingress would route to Pods that no longer exist. So the kernel probes the peer
//! with TCP keepalive.

use std::path::Path;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use kube::client::retry::RetryPolicy;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};
use tower_http::decompression::DecompressionLayer;

/// Timeout for connecting, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which the kernel probes the peer. It repeats the probe every
/// [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without any acknowledgement of probes or sent data after which the kernel closes the
/// connection (`TCP_USER_TIMEOUT`).
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// The configuration of the API client cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The process is not in a Pod, or its Pod has no service account token.
    #[error("reading the pod's service account")]
    ServiceAccount(#[from] InClusterError),
    /// The kubeconfig is missing or invalid.
    #[error("loading the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
}

/// Reads the address of the API and the credentials: from a kubeconfig, or else from the Pod's
/// service account.
///
/// # Errors
/// If a file is missing or invalid.
pub async fn configure(kubeconfig: Option<&Path>) -> Result<Config, ConfigError> {
    let Some(path) = kubeconfig else {
        return Ok(Config::incluster()?);
    };
    let read = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)
}

/// Builds a client like kube's own, whose connections close when the peer disappears. It connects
/// at the first request. Its connect timeout is fixed; the one in `config` is ignored.
///
/// # Errors
/// If a certificate or token cannot be read, or a proxy is configured: the host's API is never
/// behind one.
pub fn build_client(config: Config) -> Result<Client, kube::Error> {
    if let Some(proxy_url) = config.proxy_url {
        let proxy_url = Box::new(proxy_url);
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url });
    }
    let tcp = build_tcp(KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT);
    let connector = ServiceBuilder::new()
        .map_future(Box::pin)
        .timeout(CONNECT_TIMEOUT)
        .service(config.rustls_https_connector_with_connector(tcp)?);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let retry = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(DecompressionLayer::new().gzip(!config.disable_compression))
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// Builds a connector whose kernel sockets probe a peer after `idle` without data, and then every
/// `probe`. A connection closes when neither probes nor sent data were acknowledged for `silence`.
pub fn build_tcp(idle: Duration, probe: Duration, silence: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(idle));
    tcp.set_keepalive_interval(Some(probe));
    tcp.set_tcp_user_timeout(Some(silence));
    tcp
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::TcpListener;

    use super::*;

    /// Column of the kernel's socket table with the active timer: `02` for keepalive, and the
    /// hundredths of a second until it fires, both hexadecimal (proc(5), `/proc/net/tcp`). The
    /// table does not contain the number of probes before the kernel gives up.
    const TIMER: usize = 5;
    const KEEPALIVE_TIMER: &str = "02:";

    fn find_timer(client: SocketAddr) -> Option<String> {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let port = format!(":{:04X}", client.port());
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.get(1).is_some_and(|local| local.ends_with(&port)))?;
        row.get(TIMER).map(ToString::to_string)
    }

    #[tokio::test]
    async fn the_kernel_probes_a_silent_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = build_client(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let asking = tokio::spawn(async move { client.apiserver_version().await });
        let (_silent, peer) = listener.accept().await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        // A different timer is active until the request is acknowledged.
        let due = loop {
            let timer = find_timer(peer).unwrap_or_default();
            if let Some(due) = timer.strip_prefix(KEEPALIVE_TIMER) {
                break u64::from_str_radix(due, 16).unwrap();
            }
            assert!(tokio::time::Instant::now() < deadline, "{timer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(due <= 100 * KEEPALIVE_IDLE.as_secs(), "in {due} hundredths");
        assert!(!asking.is_finished());
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_reported() {
        let error = configure(Some(Path::new("/nowhere"))).await.unwrap_err();
        assert_eq!(error.to_string(), "loading the kubeconfig");
    }
}
