//! The activator: answers clients of sleeping clusters in place of the API server, and wakes a
//! cluster for callers that may wake it.
//!
//! ```text
//!  client ─▶ Envoy (TLS passthrough) ─EDS of a sleeping cluster─▶ TLS ends here ─▶ plan, for each request
//!                                                                  │  may wake: Waker ─▶ operator
//!                                                                  └─▶ Status 503, Retry-After; the connection closes
//! ```
//!
//! An authenticated caller that may wake the cluster is answered when the cluster is awake, or
//! after [`MAX_WAIT`]. It then retries at once: client-go would otherwise sleep for a whole second
//! between two tries, in which a cluster may have woken.
//!
//! Envoy routes a client that reconnects to wherever the cluster is then. Each connection is closed
//! after its first answers: a connection that stayed open would stay at the activator.
//!
//! Guarantees:
//! - No cluster is woken before its caller is authenticated ([`identity`]), unless the cluster's
//!   owner allows any caller.
//! - The resources of unauthenticated callers are bounded: connections, their duration, headers,
//!   bodies. The gate bounds the number of connections of a source before they arrive here.
//! - Unauthenticated callers never wait for the wake, and yield their slot to authenticated ones.

pub mod identity;
pub mod plan;
pub mod tls;
pub mod wake;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use yoke_api::ingress::Asleep;
use yoke_runtime::Drain;
use yoke_runtime::tls::{Admission, TlsConfigs, accept};

use crate::activator::wake::{EndedSleep, Outcome, Waker};
use crate::authz::status_response::{build_body, build_headers};
use crate::authz::token;
use crate::limits::concurrency::{ConcurrencyLimiter, Slot};
use crate::metrics::Metrics;
use crate::snapshot::Entry;
use crate::snapshot::Snapshots;
use crate::snapshot::resource::resource_name;
use plan::{Answer, Call, Decision, plan_answer};

/// Concurrent handshakes, over all clusters. A silent client occupies its handshake for half a
/// second, so this is more than the gate admits from forty sources that have spent their burst.
const HANDSHAKES: usize = 1024;
/// How long a connection stays open after its first answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a request's header in bytes: the limit for requests of Pods (`headerKiB` of the
/// chart).
const HEADER_BYTES: usize = 32 * 1024;
const HEADER_LIST_BYTES: u32 = 32 * 1024;
/// Maximum total size in bytes of the certificates that one client presents: its own and a few
/// issuers.
const CHAIN_BYTES: usize = 16 * 1024;
/// Maximum size in bytes of the token's header, the authority and the user agent that are stored
/// during a wait. More is never compared with anything.
const TOKEN_BYTES: usize = token::MAX_BYTES + 64;
const NAME_BYTES: usize = 512;
/// Concurrent streams of an HTTP/2 connection: the requests that a client sends at once.
const STREAMS: u32 = 8;
/// HTTP/2 flow control windows in bytes: unread data of one stream, and of one connection.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// How long an authenticated caller waits for the wake. Most wakes finish within this time, also
/// the first one of a cluster. It is below the five seconds that impatient clients use as their
/// timeout.
const MAX_WAIT: Duration = Duration::from_millis(4500);
/// Envoy learns on another stream that a cluster is awake. This delay gives it time to do so.
const ENVOY_UPDATE_DELAY: Duration = Duration::from_millis(100);
/// Delay between an answer and the message that closes its connection. A hyper client that reads
/// the close before the answer reports the request as failed.
const CLOSE_DELAY: Duration = Duration::from_millis(100);
/// Bytes of a body that are read before an authenticated caller is answered.
const BODY_BYTES: usize = 64 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that are read after the answer. A client that is still sending would otherwise read a
/// reset in place of the answer.
const DRAIN_BYTES: u64 = 4 * 1024 * 1024;
/// How long connections are still accepted when the process ends: the time that Envoy may need to
/// learn from another replica which addresses to use.
const HANDOVER: Duration = Duration::from_secs(3);
/// How long connections that are open by then may continue.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The bound listener. It answers once [`Activator::serve`] runs.
#[derive(Debug)]
pub struct Activator {
    listener: TcpListener,
    local: SocketAddr,
}

/// ActivatorLimits for clients of sleeping clusters.
#[derive(Clone, Copy, Debug)]
pub struct ActivatorLimits {
    /// Concurrent connections in total. Unauthenticated clients make room for others.
    pub connections: usize,
    /// Concurrent connections to one cluster.
    pub connections_each: usize,
    /// Maximum time until the first request of a connection has arrived. A source opens 50
    /// connections in a second, which is far below the limit of one cluster.
    pub first: Duration,
}

/// Dependencies on the rest of the process.
#[derive(Clone, Debug)]
pub struct ActivatorContext {
    /// The newest snapshot, which says which clusters sleep.
    pub snapshots: Snapshots,
    /// TLS configuration of the listener.
    pub tls: TlsConfigs,
    /// ActivatorLimits for clients.
    pub limits: ActivatorLimits,
    /// Sends wake requests to the operator.
    pub waker: Waker,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Ends the activator when the process shuts down.
    pub drain: Drain,
}

/// One client connection.
#[derive(Debug)]
struct Caller {
    context: ActivatorContext,
    name: String,
    certificates: Vec<CertificateDer<'static>>,
    slot: Slot,
    stage: watch::Sender<Stage>,
}

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Connected,
    Requested,
    Answered,
}

/// How the wait for a wake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitResult {
    /// The cluster is awake, and Envoy routes to it.
    Awake,
    /// The maximum wait has passed.
    TimedOut,
    /// The connection was answered otherwise, or the cluster is not waking any more.
    Ended,
}

impl Default for ActivatorLimits {
    fn default() -> Self {
        Self {
            connections: 2048,
            connections_each: 256,
            first: Duration::from_secs(2),
        }
    }
}

/// Marks the connection as answered when it is dropped.
#[derive(Debug)]
struct Answered<'a>(&'a Caller);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.reach(Stage::Answered);
    }
}

impl Activator {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        Ok(Self { listener, local })
    }

    /// The address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain has started and Envoy has had time to use other replicas. Then waits
    /// a limited time for open connections.
    pub async fn serve(self, context: ActivatorContext) {
        let drain = context.drain.clone();
        let stop = async move {
            drain.started().await;
            sleep(HANDOVER).await;
        };
        let admission = HandshakeCounter(context.metrics.clone());
        let (mut incoming, accepting) = accept(self.listener, context.tls.clone(), admission, stop);
        let limiter = ConcurrencyLimiter::new(context.limits.connections, context.limits.connections_each);
        let serving = async {
            let mut open = JoinSet::new();
            loop {
                tokio::select! {
                    stream = incoming.recv() => match stream {
                        Some(Ok(stream)) => start_connection(&mut open, &context, &limiter, stream),
                        Some(Err(_)) => {}
                        None => break,
                    },
                    Some(_) = open.join_next() => {}
                }
            }
            let _ = timeout(SHUTDOWN_TIMEOUT, async { while open.join_next().await.is_some() {} }).await;
        };
        tokio::join!(accepting, serving);
    }
}

/// Starts to serve a connection after its TLS handshake. The connection is closed without an answer
/// if no cluster has the name, or if no slot is free.
fn start_connection(
    open: &mut JoinSet<()>,
    context: &ActivatorContext,
    limiter: &ConcurrencyLimiter,
    stream: TlsStream<TcpStream>,
) {
    let session = stream.get_ref().1;
    let name = session.server_name().unwrap_or_default().to_owned();
    // Only the client's own certificate is checked, so its issuers are dropped.
    let certificates = session.peer_certificates().unwrap_or_default().iter().take(1);
    let certificates: Vec<_> = certificates.map(|der| der.clone().into_owned()).collect();
    let snapshot = context.snapshots.borrow().clone();
    let entry = snapshot.and_then(|snapshot| snapshot.get(&resource_name(&name)).cloned());
    let Some(entry) = entry else {
        context.metrics.count_activator_answer(Answer::Reconnect.as_str());
        return;
    };
    let Some((slot, evicted)) = limiter.acquire_evictable(&entry.route) else {
        context.metrics.count_activator_answer(Answer::Busy.as_str());
        let context = context.clone();
        open.spawn(async move { context.wake_without_slot(&entry, &certificates) });
        return;
    };
    let caller = Arc::new(Caller {
        context: context.clone(),
        name,
        certificates,
        slot,
        stage: watch::Sender::new(Stage::Connected),
    });
    open.spawn(async move {
        caller.pin_if_authenticated();
        // After each of these the client reconnects.
        tokio::select! {
            () = serve_connection(stream, Arc::clone(&caller)) => {}
            () = caller.time_limit() => {}
            Ok(()) = evicted => {}
        }
    });
}

async fn serve_connection(stream: TlsStream<TcpStream>, caller: Arc<Caller>) {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn({
        let caller = Arc::clone(&caller);
        move |request| {
            let caller = Arc::clone(&caller);
            async move { Ok::<_, Infallible>(caller.answer(request).await) }
        }
    });
    let stream = TokioIo::new(stream);
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        let answered = async {
            caller.reached(Stage::Answered).await;
            sleep(CLOSE_DELAY).await;
        };
        tokio::select! {
            // An error means that the client has gone.
            _ = connection.as_mut() => return,
            () = answered => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(caller.context.limits.first)
            .max_buf_size(HEADER_BYTES)
            .max_header_size(HEADER_BYTES)
            .keep_alive(false)
            .serve_connection(stream, service);
        if let Ok(parts) = connection.without_shutdown().await {
            drain_and_close(parts.io.into_inner()).await;
        }
    }
}

/// Closes a connection in a way that lets the client read its answer.
async fn drain_and_close(mut stream: TlsStream<TcpStream>) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (tcp, _) = stream.into_inner();
    // An error means that the client has gone. The time limit of the connection bounds this copy.
    let _ = tokio::io::copy(&mut tcp.take(DRAIN_BYTES), &mut tokio::io::sink()).await;
}

/// Reads a limited part of a body and discards it.
async fn discard_body(mut body: Incoming) {
    let mut left = BODY_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl ActivatorContext {
    fn wake(&self, entry: &Entry) -> Answer {
        let asleep = entry.route.asleep.as_ref().map(|asleep| &asleep.state);
        let Some(Asleep::OnConnect { since, uid, .. }) = asleep else {
            return Answer::Reconnect;
        };
        // The gate has limited the source already, and Envoy does not report the source's address
        // here.
        match self.waker.wake(&entry.route, EndedSleep { since, uid }, None) {
            Outcome::Queued | Outcome::AlreadyNotified => Answer::Waking(0),
            Outcome::SourceRate | Outcome::TenantRate | Outcome::Full => Answer::Busy,
        }
    }

    /// Wakes a cluster for a caller that may wake it but gets no slot to wait in. The cluster is
    /// awake when the caller reconnects.
    fn wake_without_slot(&self, entry: &Entry, certificates: &[CertificateDer<'_>]) {
        if plan::may_wake(&entry.route, certificates, Timestamp::now()) {
            self.wake(entry);
        }
    }
}

/// The parts of a request that are stored while it waits.
#[derive(Debug)]
struct RequestHeaders {
    authorization: Option<String>,
    authority: String,
    agent: Vec<u8>,
}

impl RequestHeaders {
    fn of(parts: &request::Parts) -> Self {
        let header = |name| parts.headers.get(name).map_or(&[][..], HeaderValue::as_bytes);
        let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        let authority = authority.or_else(|| text(header::HOST)).unwrap_or_default();
        Self {
            authorization: text(header::AUTHORIZATION).map(|text| text.chars().take(TOKEN_BYTES).collect()),
            authority: authority.chars().take(NAME_BYTES).collect(),
            agent: header(header::USER_AGENT).iter().copied().take(NAME_BYTES).collect(),
        }
    }
}

impl Caller {
    async fn reached(&self, stage: Stage) {
        // This cannot fail: `self` holds the sender.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_modify(|now| *now = stage.max(*now));
    }

    /// A caller with a valid client certificate pins its slot from the start: unauthenticated
    /// clients could otherwise take it before the first request.
    fn pin_if_authenticated(&self) {
        let snapshot = self.context.snapshots.borrow().clone();
        if plan::is_authenticated(snapshot.as_deref(), &self.name, &self.certificates, Timestamp::now()) {
            self.slot.pin();
        }
    }

    /// Returns when the time limit of the connection has passed.
    async fn time_limit(&self) {
        if timeout(self.context.limits.first, self.reached(Stage::Requested))
            .await
            .is_ok()
        {
            self.reached(Stage::Answered).await;
            sleep(CLOSE_TIMEOUT).await;
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        // Further requests on a connection that is closing are not evaluated.
        if *self.stage.borrow() == Stage::Answered {
            return self.respond(&Answer::Reconnect);
        }
        self.reach(Stage::Requested);
        // A cancelled request counts as answered too: its future is dropped here, and the
        // connection would otherwise occupy its slot.
        let _answered = Answered(self);
        let (parts, body) = request.into_parts();
        let headers = RequestHeaders::of(&parts);
        // Short header fields occupy many times their wire size in memory.
        drop(parts);
        let call = Call {
            name: &self.name,
            certificates: &self.certificates,
            authorization: headers.authorization.as_deref(),
            authority: &headers.authority,
            agent: &headers.agent,
        };
        let (mut answer, is_authenticated) = self.decide(call);
        if is_authenticated {
            self.slot.pin();
            let reading = timeout(BODY_TIMEOUT, discard_body(body));
            match answer {
                Answer::Waking(_) => {
                    let (_, waited) = tokio::join!(reading, self.wait_until_awake());
                    answer = match waited {
                        WaitResult::Awake => Answer::Awake,
                        WaitResult::TimedOut => self.answer_after_wait(call, Answer::StillWaking),
                        WaitResult::Ended => self.answer_after_wait(call, answer),
                    };
                }
                _ => drop(reading.await),
            }
        }
        self.respond(&answer)
    }

    fn respond(&self, answer: &Answer) -> Response<Full<Bytes>> {
        self.context.metrics.count_activator_answer(answer.as_str());
        to_response(&answer.to_status())
    }

    /// The current answer, and whether the caller is authenticated.
    fn decide(&self, call: Call<'_>) -> (Answer, bool) {
        match self.plan(call) {
            Decision::Wake(entry) => (self.context.wake(&entry), true),
            Decision::WakeForUnauthenticated(entry) => (self.context.wake(&entry), false),
            Decision::Wait => (Answer::Waking(0), true),
            Decision::Answer(answer) => {
                let is_authenticated = answer.is_for_authenticated();
                (answer, is_authenticated)
            }
        }
    }

    /// The answer after a wait without success; `still` if nothing new is known. The operator was
    /// notified already, and the caller's next try notifies it again.
    fn answer_after_wait(&self, call: Call<'_>, still: Answer) -> Answer {
        match self.plan(call) {
            Decision::Answer(answer) => answer,
            Decision::Wait | Decision::Wake(_) | Decision::WakeForUnauthenticated(_) => still,
        }
    }

    fn plan(&self, call: Call<'_>) -> Decision {
        let snapshot = self.context.snapshots.borrow().clone();
        plan_answer(snapshot.as_deref(), call, Timestamp::now())
    }

    /// Waits for the cluster for at most [`MAX_WAIT`], or until another answer closes the connection.
    async fn wait_until_awake(&self) -> WaitResult {
        let name = resource_name(&self.name);
        let mut snapshots = self.context.snapshots.clone();
        let settled = snapshots.wait_for(|all| {
            let entry = all.as_ref().and_then(|all| all.get(&name));
            let state = entry.and_then(|entry| Some(&entry.route.asleep.as_ref()?.state));
            !matches!(
                state,
                Some(Asleep::OnConnect { .. } | Asleep::Waking { problem: None, .. })
            )
        });
        let is_awake = tokio::select! {
            // An error means that the process is ending.
            settled = settled => settled.is_ok_and(|all| {
                let entry = all.as_ref().and_then(|all| all.get(&name));
                entry.is_some_and(|entry| entry.route.asleep.is_none())
            }),
            () = sleep(MAX_WAIT) => return WaitResult::TimedOut,
            () = self.reached(Stage::Answered) => false,
        };
        if !is_awake {
            return WaitResult::Ended;
        }
        sleep(ENVOY_UPDATE_DELAY).await;
        WaitResult::Awake
    }
}

fn to_response(status: &Status) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(build_body(status))));
    let code = status.code.and_then(|code| u16::try_from(code).ok());
    let code = code.and_then(|code| StatusCode::from_u16(code).ok());
    *response.status_mut() = code.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = build_headers(status);
    let valid = headers.filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)));
    response.headers_mut().extend(valid);
    response
}

/// Admission of TLS connections: anybody who knows a cluster's name may connect.
#[derive(Clone, Debug)]
struct HandshakeCounter(Metrics);

impl Admission for HandshakeCounter {
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()> {
        // TLS stores the certificates for the lifetime of the connection.
        match certificates.iter().map(|der| der.len()).sum::<usize>() {
            ..=CHAIN_BYTES => Ok(()),
            bytes => Err(io::Error::other(format!("{bytes} bytes of certificates"))),
        }
    }

    fn count(&self, admitted: bool) {
        self.0.count_activator_handshake(admitted);
    }

    fn is_public(&self) -> bool {
        true
    }

    fn handshakes(&self) -> usize {
        HANDSHAKES
    }
}
