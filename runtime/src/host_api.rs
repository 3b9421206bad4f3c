//! The way to the host's API, for each process that watches it.
//!
//! A watch only listens. When the other end is gone without a word, as a machine is that lost its power, or a connection that was
//! given up while the network was cut, kube's own client listens on for up to 295 s, which is when a watch ends by itself: an ingress
//! would lead to pods that are long gone. So the kernel asks the other end whether it is there.

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

/// How long a connection may take, with TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A peer that says nothing for so long is asked by the kernel, and then again each [`PROBE`].
const KEEPALIVE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
/// A connection is given up when so long nothing has said that the peer is there: neither a probe nor what was sent arrived.
const SILENCE: Duration = Duration::from_secs(25);

/// Why it is not known where the API is, and as whom it is asked.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The process is in no pod, or without its token.
    #[error("reading the pod's service account")]
    ServiceAccount(#[from] InClusterError),
    /// The kubeconfig is not there, or none.
    #[error("reading and using the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
}

/// Reads where the API is, and as whom it is asked: from a kubeconfig, or else as a pod has it.
///
/// # Errors
/// A file that is not there, or cannot be used.
pub async fn configure(kubeconfig: Option<&Path>) -> Result<Config, ConfigError> {
    let Some(path) = kubeconfig else {
        return Ok(Config::incluster()?);
    };
    let read = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)
}

/// A client as kube builds it, whose connections end when the peer is gone. It connects when it is first used. Its time for that is
/// its own, and not the one of `config`.
///
/// # Errors
/// A certificate or token that cannot be read; a proxy, since the host's API is never behind one.
pub fn build_client(config: Config) -> Result<Client, kube::Error> {
    if let Some(proxy_url) = config.proxy_url {
        let proxy_url = Box::new(proxy_url);
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url });
    }
    let tcp = build_tcp(KEEPALIVE, PROBE, SILENCE);
    let connector = ServiceBuilder::new()
        .map_future(Box::pin)
        .timeout(CONNECT_LIMIT)
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

/// Connections of which the kernel asks a peer that was silent for `idle` whether it is there, and again each `probe`. One ends when for
/// `silence` nothing has said so: neither a probe nor what was sent has arrived.
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

    /// In the kernel's table of sockets: the timer that runs, which is "keepalive" and in how many hundredths of a second, by
    /// hexadecimal numbers (proc(5), `/proc/net/tcp`). After how many questions it gives up is not told.
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
    async fn the_kernel_asks_a_silent_peer_whether_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = build_client(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let asking = tokio::spawn(async move { client.apiserver_version().await });
        let (_silent, peer) = listener.accept().await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        // Until the request has arrived another timer runs.
        let due = loop {
            let timer = find_timer(peer).unwrap_or_default();
            if let Some(due) = timer.strip_prefix(KEEPALIVE_TIMER) {
                break u64::from_str_radix(due, 16).unwrap();
            }
            assert!(tokio::time::Instant::now() < deadline, "{timer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(due <= 100 * KEEPALIVE.as_secs(), "in {due} hundredths");
        assert!(!asking.is_finished());
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_none_is_named() {
        let error = configure(Some(Path::new("/nowhere"))).await.unwrap_err();
        assert_eq!(error.to_string(), "reading and using the kubeconfig");
    }
}
