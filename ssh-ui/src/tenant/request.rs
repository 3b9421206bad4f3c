//! Sends one request with a timeout, and converts kube's errors.

use std::future::Future;
use std::time::Duration;

use crate::Error;

/// Timeout of one request.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(15);

pub(super) async fn ask<T>(doing: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_LIMIT, answer).await {
        Ok(answer) => answer.map_err(|error| explain(doing, error)),
        Err(_) => Err(Error::Timeout {
            doing: doing.to_owned(),
            limit: REQUEST_LIMIT,
        }),
    }
}

pub(super) fn explain(doing: &str, error: kube::Error) -> Error {
    let doing = doing.to_owned();
    match error {
        kube::Error::Api(status) => Error::Refused { doing, status },
        source => Error::Unreachable {
            doing,
            source: Box::new(source),
        },
    }
}
