//! Connection to a tenant's API: one HTTP/2 connection for all requests and watches. The client of
//! kube supports only HTTP/1.1, where each watch and each concurrent request needs a connection.

use std::time::Duration;

use http_body_util::{Either, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::client::{Body, ConfigExt as _};
use kube::config::{AuthInfo, Config};
use rustls::pki_types::ServerName;
use tower::{BoxError, ServiceBuilder};
use yoke_runtime::host_api::build_tcp;

use crate::tenant_client::access::Access;
use crate::tenant_client::limits::AnswerMax;
use crate::tenant_client::line_limit::LimitedLines;

/// Timeout of a connection attempt, TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Interval of TCP keepalive probes: a watch may be silent for long.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Timeout for the acknowledgement of sent data, keepalive probes included. After that the
/// connection is dropped.
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(10);

/// Maximum size of an answer in bytes, also of a page of a list, and of all events of a watch. The
/// answer is in memory, and a tenant's own API may write one without end. An object has at most 1.5
/// MiB, and takes more as JSON.
const ANSWER_MAX: usize = 8 << 20;
/// Size limit of the answer to a creation: the operator's own object, with a few more fields.
const CREATED_MAX: usize = 256 << 10;
/// Size limit of a refusal.
const REFUSAL_MAX: usize = 64 << 10;

/// HTTP/2 flow-control windows in bytes, of one answer and of the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Builds a client, which connects at its first use.
pub(crate) fn build_client(access: &Access) -> Result<Client, BoxError> {
    let mut config = Config::new(access.url.parse()?);
    let roots = yoke_pki::ParsedCertificate::from_pem(&access.authority)?;
    config.root_cert = Some(roots.iter().map(|root| root.der().to_vec()).collect());
    config.auth_info = AuthInfo {
        client_certificate_data: Some(to_base64(&access.certificate)),
        client_key_data: Some(to_base64(&access.key.0).into()),
        ..AuthInfo::default()
    };
    let tcp = build_tcp(KEEPALIVE, ACKNOWLEDGE_LIMIT, ACKNOWLEDGE_LIMIT);
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
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .service(tower::service_fn(move |request: http::Request<Body>| {
            let (most, is_watch) = (answer_max(&request), is_watch(&request));
            let answer = http.request(request);
            async move {
                let answer = answer.await?;
                let most = if answer.status().is_success() {
                    most
                } else {
                    REFUSAL_MAX
                };
                Ok::<_, BoxError>(answer.map(|body| match is_watch {
                    true => Either::Left(LimitedLines::new(Limited::new(body, most))),
                    false => Either::Right(Limited::new(body, most)),
                }))
            }
        }));
    Ok(Client::new(service, config.default_namespace))
}

fn answer_max<B>(request: &http::Request<B>) -> usize {
    let requested = request.extensions().get().map(|AnswerMax(most)| *most);
    requested.unwrap_or(match *request.method() {
        http::Method::POST => CREATED_MAX,
        _ => ANSWER_MAX,
    })
}

fn is_watch<B>(request: &http::Request<B>) -> bool {
    let mut parameters = request.uri().query().unwrap_or_default().split('&');
    parameters.any(|parameter| parameter == "watch=true")
}

fn to_base64(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_limit_of_an_answer_follows_its_request() {
        for (rule, method, target, requested, expected) in [
            ("a list", "GET", "/api/v1/nodes?&limit=8", None, (ANSWER_MAX, false)),
            (
                "a watch",
                "GET",
                "/api/v1/nodes?&watch=true&timeoutSeconds=9",
                None,
                (ANSWER_MAX, true),
            ),
            (
                "an object",
                "GET",
                "/api/v1/nodes/watch=true",
                None,
                (ANSWER_MAX, false),
            ),
            (
                "a creation",
                "POST",
                "/api/v1/nodes?&fieldManager=b",
                None,
                (CREATED_MAX, false),
            ),
            (
                "a request with its own limit",
                "GET",
                "/api/v1/nodes/a",
                Some(AnswerMax(7)),
                (7, false),
            ),
        ] {
            let mut request = http::Request::builder().method(method).uri(target).body(()).unwrap();
            if let Some(requested) = requested {
                request.extensions_mut().insert(requested);
            }
            assert_eq!((answer_max(&request), is_watch(&request)), expected, "{rule}");
        }
    }
}
