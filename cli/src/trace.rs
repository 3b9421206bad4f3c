//! `-v 6`: prints every request and its answer, in the format of kubectl.

use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Request, Response};
use tower::layer::{Layer, layer_fn};
use tower::{BoxError, Service};

use crate::output;

/// The level from which requests are shown, as in kubectl.
pub(crate) const VERBOSITY: u8 = 6;

/// Returns the layer that wraps the client for the host at `url`.
pub(crate) fn layer<S>(url: &str) -> impl Layer<S, Service = Trace<S>> {
    let url = url.trim_end_matches('/').to_owned();
    layer_fn(move |inner| Trace {
        inner,
        url: url.clone(),
    })
}

/// Forwards requests and prints their outcome.
#[derive(Clone)]
pub(crate) struct Trace<S> {
    inner: S,
    url: String,
}

impl<S, A, B> Service<Request<A>> for Trace<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let uri = request.uri().to_string();
        let line = format!("{} {}{}", request.method(), self.url, uri.trim_end_matches('?'));
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let outcome = match &answer {
                Ok(answer) => answer.status().to_string(),
                Err(error) => format!("failed: {error}"),
            };
            output::print_message(&format!("{line} {outcome} in {} ms", begun.elapsed().as_millis()));
            answer
        })
    }
}
