//! Counts the calls of a service. A unary call ends with its response. A streaming call ends with
//! its last frame, or when the client disconnects.

use crate::metrics::{Call, Calls};
use http::{HeaderMap, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};

/// A service whose calls are counted.
#[derive(Debug, Clone)]
pub(super) struct CountedService<S> {
    service: S,
    calls: Arc<Calls>,
}

impl<S> CountedService<S> {
    pub(super) fn new(service: S, calls: Arc<Calls>) -> Self {
        Self { service, calls }
    }
}

impl<S: NamedService> NamedService for CountedService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for CountedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = self.calls.start(request.uri().path());
        let answer = self.service.call(request);
        Answer { answer, call }
    }
}

/// The pending response.
pub(super) struct Answer<F> {
    answer: F,
    call: Option<Call>,
}

impl<F: Future<Output = Result<Response<Body>, Infallible>> + Unpin> Future for Answer<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(answer) = ready!(Pin::new(&mut self.answer).poll(context));
        let Some(mut call) = self.call.take() else {
            return Poll::Ready(Ok(answer));
        };
        // An error is in the headers.
        match code(answer.headers()) {
            Some(code) => call.set_code(code),
            None if call.is_unary() => call.set_code(Code::Ok),
            None => return Poll::Ready(Ok(answer.map(|body| Body::new(CountedStream { body, call })))),
        }
        Poll::Ready(Ok(answer))
    }
}

/// The responses of a stream.
struct CountedStream {
    body: Body,
    call: Call,
}

impl hyper::body::Body for CountedStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(code) = frame.trailers_ref().and_then(code)
        {
            self.call.set_code(code);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get(Status::GRPC_STATUS)?;
    Some(Code::from_bytes(status.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use hyper::body::Body as _;
    use std::future::{Ready, poll_fn, ready};

    /// Answers everything with these headers, and with trailers if there are any.
    #[derive(Clone)]
    struct Fixed(HeaderMap, Option<HeaderMap>);

    impl Service<Request<Body>> for Fixed {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let mut answer = Response::new(Body::new(Trailers(self.1.clone())));
            *answer.headers_mut() = self.0.clone();
            ready(Ok(answer))
        }
    }

    struct Trailers(Option<HeaderMap>);

    impl hyper::body::Body for Trailers {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.take().map(|trailers| Ok(Frame::trailers(trailers))))
        }
    }

    fn status(code: Option<Code>) -> HeaderMap {
        code.map_or_else(HeaderMap::new, |code| {
            Status::new(code, "").into_http::<()>().headers().clone()
        })
    }

    #[tokio::test]
    async fn a_call_is_counted_with_its_code() {
        let (put, watch) = ("/etcdserverpb.KV/Put", "/etcdserverpb.Watch/Watch");
        let unavailable = Some(Code::Unavailable);
        for (path, headers, trailers, read, code) in [
            (put, None, None, false, "OK"),
            (put, Some(Code::OutOfRange), None, false, "OutOfRange"),
            (watch, unavailable, None, false, "Unavailable"),
            (watch, None, unavailable, true, "Unavailable"),
            (watch, None, Some(Code::Ok), true, "OK"),
            (watch, None, Some(Code::Ok), false, "Canceled"),
        ] {
            let metrics = Metrics::new();
            let fixed = Fixed(status(headers), trailers.map(|code| status(Some(code))));
            let mut service = CountedService::new(fixed, Arc::clone(&metrics.calls));
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let Ok(answer) = service.call(request).await;
            let mut body = answer.into_body();
            if read {
                while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                    frame.unwrap();
                }
            }
            drop(body);
            let text = metrics.text(None);
            assert_eq!(text.matches("grpc_code=").count(), 1, "{text}");
            let name = format!("grpc_code=\"{code}\"}} 1");
            assert!(text.contains(&name), "{path} {headers:?} {trailers:?}: {text}");
        }
    }

    #[tokio::test]
    async fn a_dropped_call_counts_as_cancelled() {
        let metrics = Metrics::new();
        let mut service = CountedService::new(Fixed(HeaderMap::new(), None), Arc::clone(&metrics.calls));
        let request = Request::builder().uri("/etcdserverpb.KV/Put");
        drop(service.call(request.body(Body::empty()).unwrap()));
        assert!(metrics.text(None).contains("grpc_code=\"Canceled\"} 1"));
    }
}
