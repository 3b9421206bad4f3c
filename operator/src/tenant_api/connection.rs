//! The connection to a tenant's API: one, of HTTP/2, for all requests and watches. kube's own client speaks HTTP/1.1 only,
//! in which each watch and each of the requests at once has a connection to itself.

use std::time::Duration;

use http_body_util::Limited;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::client::{Body, ConfigExt as _};
use kube::config::{AuthInfo, Config};
use rustls::pki_types::ServerName;
use tower::{BoxError, ServiceBuilder};
use yoke_runtime::host_api::build_tcp;

use super::Access;

/// How long a connection may take, with TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A peer that says nothing is asked this often, by the kernel: a watch may be silent for long.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long what was sent, that question too, may stay without a sign that it has arrived, before the connection is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// Bytes of the longest answer that is read, a watch's being all of its events: it is held in memory, and a tenant may have
/// one written without end by an API of its own.
const ANSWER_MAX: AnswerMax = AnswerMax(8 << 20);

/// Bytes of the longest answer to a request that bears this.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerMax(pub(super) usize);

/// Builds a client, which connects when it is first used.
pub(super) fn build_client(access: &Access) -> Result<Client, BoxError> {
    let mut config = Config::new(access.url.parse()?);
    let roots = yoke_pki::ParsedCertificate::from_pem(&access.authority)?;
    config.root_cert = Some(roots.iter().map(|root| root.der().to_vec()).collect());
    config.auth_info = AuthInfo {
        client_certificate_data: Some(to_base64(&access.certificate)),
        client_key_data: Some(to_base64(&access.key.0).into()),
        ..AuthInfo::default()
    };
    let tcp = build_tcp(KEEPALIVE, SILENCE, SILENCE);
    let name = ServerName::try_from(access.server_name.clone())?;
    let tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_only()
        .with_server_name_resolver(FixedServerNameResolver::new(name))
        .enable_all_versions()
        .wrap_connector(tcp);
    let connector = ServiceBuilder::new()
        .map_future(Box::pin)
        .timeout(CONNECT_LIMIT)
        .service(tls);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .service(tower::service_fn(move |request: http::Request<Body>| {
            let AnswerMax(most) = request.extensions().get().copied().unwrap_or(ANSWER_MAX);
            let answer = http.request(request);
            async move { Ok::<_, BoxError>(answer.await?.map(|body| Limited::new(body, most))) }
        }));
    Ok(Client::new(service, config.default_namespace))
}

fn to_base64(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}
