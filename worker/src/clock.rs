//! Compares this machine's clock with the API server's. The request trusts only the CA of the
//! token, and does not send the token's secret.

use std::time::Duration;

use http::header::DATE;
use jiff::{Timestamp, fmt::rfc2822};
use kube::client::Body;
use kube::{Client, Config};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use yoke_api::join_token::JoinLine;

use crate::error_chain::format_chain;
use crate::host::etc_hosts;

const LIMIT: Duration = Duration::from_secs(10);

/// Returns how many seconds this clock is ahead of the API server's, or why that is unknown.
pub(crate) async fn observe_skew(line: &JoinLine) -> Result<i64, String> {
    let requested = tokio::time::timeout(LIMIT, request_date(line)).await;
    let date = requested.map_err(|_| {
        let address = line.address.map(|address| format!(" ({address})"));
        format!(
            "no response from {}{} within {LIMIT:?}",
            line.server,
            address.unwrap_or_default()
        )
    })??;
    skew(&date, Timestamp::now()).ok_or_else(|| "the response has no Date header".to_owned())
}

async fn request_date(line: &JoinLine) -> Result<String, String> {
    let certificates = CertificateDer::pem_slice_iter(line.ca.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| format!("cannot parse the CA in the join token: {error}"))?;
    let client = connect(line, &certificates).map_err(|error| format_chain(&error))?;
    // The status of the response does not matter: every response has a date.
    let request = http::Request::get("/version")
        .body(Body::empty())
        .map_err(|error| format_chain(&error))?;
    let answer = client.send(request).await.map_err(|error| format_chain(&error))?;
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
    Ok(date.unwrap_or_default().to_owned())
}

/// Returns a client that trusts the token's CA alone, and is unauthenticated.
fn connect(line: &JoinLine, certificates: &[CertificateDer<'_>]) -> Result<Client, kube::Error> {
    let url = format!("https://{}", line.server)
        .parse()
        .expect("a checked name and port are a URL");
    let mut config = Config::new(url);
    etc_hosts::set_server_address(&mut config, &line.server, line.address);
    config.root_cert = Some(certificates.iter().map(|certificate| certificate.to_vec()).collect());
    Client::try_from(config)
}

fn skew(date: &str, now: Timestamp) -> Option<i64> {
    let there = rfc2822::parse(date).ok()?.timestamp();
    Some(now.as_second().saturating_sub(there.as_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_in_seconds_ahead() {
        let now: Timestamp = "2026-11-22T21:00:00Z".parse().unwrap();
        for (date, expected) in [
            ("Sun, 22 Nov 2026 21:00:00 GMT", Some(0)),
            ("Sun, 22 Nov 2026 20:59:50 GMT", Some(10)),
            ("Sun, 22 Nov 2026 22:00:00 GMT", Some(-3600)),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(skew(date, now), expected, "{date:?}");
        }
    }
}
