//! Answers for clusters that sleep, so that a client waits in place of failing, and wakes them for those who may.
//!
//! ```text
//!  client ─▶ Envoy (passes TLS on) ─EDS of a sleeping cluster─▶ TLS ends here ─▶ plan, for each request
//!                                                                │  who may: Waker ─▶ operator
//!                                                                └─▶ Status 503, Retry-After; the connection ends
//! ```
//!
//! Who is known and may wake it is answered when it is awake, or after [`HOLD`], and comes again at once: client-go would sleep for a
//! whole second between two tries, in which a cluster may have woken.
//!
//! A client that comes back is led by Envoy to wherever the cluster is then. Each connection ends with its first answers: one
//! that stayed open would stay here.
//!
//! Guarantees: nothing is woken before its caller is known ([`identity`]), unless its owner wants so. What strangers can have
//! of it is bounded: connections, their time, headers, bodies; how many connections a source opens, the gate bounds before. No
//! stranger is held, whoever may wake the cluster, nor keeps a place that somebody needs who is known.

pub mod identity;
pub mod plan;
pub mod tls;

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

use crate::answer::{build_body, build_headers};
use crate::metrics::Metrics;
use crate::routing::Snapshots;
use crate::seats::{Seat, Seats};
use crate::snapshot::{Entry, resource_name};
use crate::token;
use crate::wake::{Outcome, Sleeping, Waker};
use plan::{Answer, Call, Decision, plan_answer};

/// Handshakes at a time, to whichever clusters. With half a second for who says nothing this is more than the gate lets through
/// from forty sources that have spent what they may open at once.
const HANDSHAKES: usize = 1024;
/// How long a connection goes on after its first answer.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a request's header, as of those by which Pods come (`headerKiB` of the chart).
const HEADER_BYTES: usize = 32 * 1024;
const HEADER_LIST_BYTES: u32 = 32 * 1024;
/// Certificates that one client shows: his own, and some above it.
const CHAIN_BYTES: usize = 16 * 1024;
/// What is kept of a token's header, of an authority and of a user agent while a request is held: more than is compared with
/// anything.
const TOKEN_BYTES: usize = token::MAX_BYTES + 64;
const NAME_BYTES: usize = 512;
/// Streams of a connection of HTTP/2: what a client asks for at once.
const STREAMS: u32 = 8;
/// What of one stream may lie here unread, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// How long somebody waits who is known and may wake a cluster: long enough that most wakes end meanwhile, the first of a cluster
/// too, and below the five seconds that impatient clients have.
const HOLD: Duration = Duration::from_millis(4500);
/// Envoy hears that a cluster is awake by another stream: so long it has for that.
const FLIP: Duration = Duration::from_millis(100);
/// Between an answer and the word that its connection ends: a client of hyper that hears of the end before it looks for the answer
/// takes it for the end of its request.
const READ: Duration = Duration::from_millis(100);
/// What is read of a body before the answer, of who is known.
const BODY_BYTES: usize = 64 * 1024;
const BODY_LIMIT: Duration = Duration::from_secs(1);
/// What is read after it. A client that still sends would else read a reset in place of the answer.
const REST_BYTES: u64 = 4 * 1024 * 1024;
/// How long clients are taken when the process ends: so long Envoy may take until another replica has told it where to go.
const HANDOVER: Duration = Duration::from_secs(3);
/// How long those that are open then may go on.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The listening end; it answers once [`Sleeper::serve`] runs.
#[derive(Debug)]
pub struct Sleeper {
    listener: TcpListener,
    local: SocketAddr,
}

/// What clients may have of it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, in all. Who is not known makes room for others.
    pub connections: usize,
    /// Those to one cluster.
    pub connections_each: usize,
    /// How long a client may take until its first request is there. A source opens 50 connections in a second: that is far
    /// from all of a cluster's.
    pub first: Duration,
}

/// What it needs of the rest of the process.
#[derive(Clone, Debug)]
pub struct Context {
    /// Who sleeps.
    pub snapshots: Snapshots,
    /// How TLS is spoken.
    pub tls: TlsConfigs,
    /// What clients may have.
    pub limits: Limits,
    /// Tells the operator.
    pub waker: Waker,
    /// Where it counts.
    pub metrics: Metrics,
    /// Ends it.
    pub drain: Drain,
}

/// One client.
#[derive(Debug)]
struct Caller {
    context: Context,
    name: String,
    certificates: Vec<CertificateDer<'static>>,
    seat: Seat,
    stage: watch::Sender<Stage>,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Silent,
    Asked,
    Answered,
}

/// How the wait for a cluster ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// It is awake, and Envoy leads there.
    Awake,
    /// As long as anybody waits.
    Long,
    /// By another answer, or for nothing that is waited for.
    Ended,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            connections_each: 256,
            first: Duration::from_secs(2),
        }
    }
}

/// Says at its end that a caller has had an answer.
#[derive(Debug)]
struct Answered<'a>(&'a Caller);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.reach(Stage::Answered);
    }
}

impl Sleeper {
    /// Listens on `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        Ok(Self { listener, local })
    }

    /// The address that is listened on.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain has started and Envoy had its time to go elsewhere, and lets those end that are open.
    pub async fn serve(self, context: Context) {
        let drain = context.drain.clone();
        let stop = async move {
            drain.started().await;
            sleep(HANDOVER).await;
        };
        let admission = Knocks(context.metrics.clone());
        let (mut incoming, accepting) = accept(self.listener, context.tls.clone(), admission, stop);
        let seats = Seats::new(context.limits.connections, context.limits.connections_each);
        let serving = async {
            let mut open = JoinSet::new();
            loop {
                tokio::select! {
                    stream = incoming.recv() => match stream {
                        Some(Ok(stream)) => begin(&mut open, &context, &seats, stream),
                        Some(Err(_)) => {}
                        None => break,
                    },
                    Some(_) = open.join_next() => {}
                }
            }
            let _ = timeout(END_LIMIT, async { while open.join_next().await.is_some() {} }).await;
        };
        tokio::join!(accepting, serving);
    }
}

/// Begins with a connection whose TLS is there. To a name that nobody has, or has too many connections, there is nothing to say.
fn begin(open: &mut JoinSet<()>, context: &Context, seats: &Seats, stream: TlsStream<TcpStream>) {
    let session = stream.get_ref().1;
    let name = session.server_name().unwrap_or_default().to_owned();
    // Others than the client's own are not looked at.
    let certificates = session.peer_certificates().unwrap_or_default().iter().take(1);
    let certificates: Vec<_> = certificates.map(|der| der.clone().into_owned()).collect();
    let snapshot = context.snapshots.borrow().clone();
    let entry = snapshot.and_then(|snapshot| snapshot.get(&resource_name(&name)).cloned());
    let Some(entry) = entry else {
        context.metrics.count_sleeper(Answer::Elsewhere.as_str());
        return;
    };
    let Some((seat, given_up)) = seats.lend(&entry.route) else {
        context.metrics.count_sleeper(Answer::Busy.as_str());
        let context = context.clone();
        open.spawn(async move { context.wake_unheard(&entry, &certificates) });
        return;
    };
    let caller = Arc::new(Caller {
        context: context.clone(),
        name,
        certificates,
        seat,
        stage: watch::Sender::new(Stage::Silent),
    });
    open.spawn(async move {
        caller.keep_if_known();
        // In each case the client connects anew.
        tokio::select! {
            () = serve_connection(stream, Arc::clone(&caller)) => {}
            () = caller.out_of_time() => {}
            Ok(()) = given_up => {}
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
            sleep(READ).await;
        };
        tokio::select! {
            // An error is a client that went away.
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
            read_rest(parts.io.into_inner()).await;
        }
    }
}

/// Ends a connection in a way that lets its client read what it was told.
async fn read_rest(mut stream: TlsStream<TcpStream>) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (tcp, _) = stream.into_inner();
    // An error is a client that went away; how long this takes is bounded with the connection.
    let _ = tokio::io::copy(&mut tcp.take(REST_BYTES), &mut tokio::io::sink()).await;
}

/// Reads some of a body, and keeps nothing.
async fn read_some(mut body: Incoming) {
    let mut left = BODY_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl Context {
    fn wake(&self, entry: &Entry) -> Answer {
        let asleep = entry.route.asleep.as_ref().map(|asleep| &asleep.told);
        let Some(Asleep::OnConnect { since, uid, .. }) = asleep else {
            return Answer::Elsewhere;
        };
        // From where he comes the gate knows, and Envoy does not say here.
        match self.waker.wake(&entry.route, Sleeping { since, uid }, None) {
            Outcome::Told | Outcome::Known => Answer::Waking(0),
            Outcome::SourceRate | Outcome::TenantRate | Outcome::Full => Answer::Busy,
        }
    }

    /// Wakes a cluster for who may, and has no place to hear of it: the cluster is awake when he connects again.
    fn wake_unheard(&self, entry: &Entry, certificates: &[CertificateDer<'_>]) {
        if plan::may_wake(&entry.route, certificates, Timestamp::now()) {
            self.wake(entry);
        }
    }
}

/// What is kept of a request while it is held.
#[derive(Debug)]
struct Asked {
    authorization: Option<String>,
    authority: String,
    agent: Vec<u8>,
}

impl Asked {
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
        // It cannot fail: this holds the sender.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_modify(|now| *now = stage.max(*now));
    }

    /// Who shows a certificate of the cluster's keeps his place from the start: strangers could take it before he asks.
    fn keep_if_known(&self) {
        let snapshot = self.context.snapshots.borrow().clone();
        if plan::is_known(snapshot.as_deref(), &self.name, &self.certificates, Timestamp::now()) {
            self.seat.keep();
        }
    }

    /// Ends when the connection has had its time.
    async fn out_of_time(&self) {
        if timeout(self.context.limits.first, self.reached(Stage::Asked))
            .await
            .is_ok()
        {
            self.reached(Stage::Answered).await;
            sleep(LAST_LIMIT).await;
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        // Who asks on, on a connection that ends, is not looked at.
        if *self.stage.borrow() == Stage::Answered {
            return self.tell(&Answer::Elsewhere);
        }
        self.reach(Stage::Asked);
        // Who takes his request back has his answer, too: this ends there, and would else keep the connection's place.
        let _answered = Answered(self);
        let (parts, body) = request.into_parts();
        let asked = Asked::of(&parts);
        // Short fields take many times as much here as on the way.
        drop(parts);
        let call = Call {
            name: &self.name,
            certificates: &self.certificates,
            authorization: asked.authorization.as_deref(),
            authority: &asked.authority,
            agent: &asked.agent,
        };
        let (mut answer, is_known) = self.decide(call);
        if is_known {
            self.seat.keep();
            let reading = timeout(BODY_LIMIT, read_some(body));
            match answer {
                Answer::Waking(_) => {
                    let (_, waited) = tokio::join!(reading, self.wait_awake());
                    answer = match waited {
                        Waited::Awake => Answer::Awake,
                        Waited::Long => self.answer_waited(call, Answer::Waited),
                        Waited::Ended => self.answer_waited(call, answer),
                    };
                }
                _ => drop(reading.await),
            }
        }
        self.tell(&answer)
    }

    fn tell(&self, answer: &Answer) -> Response<Full<Bytes>> {
        self.context.metrics.count_sleeper(answer.as_str());
        to_response(&answer.to_status())
    }

    /// The answer as things are now, and whether the cluster knows who is told.
    fn decide(&self, call: Call<'_>) -> (Answer, bool) {
        match self.plan(call) {
            Decision::Wake(entry) => (self.context.wake(&entry), true),
            Decision::WakeForStranger(entry) => (self.context.wake(&entry), false),
            Decision::Wait => (Answer::Waking(0), true),
            Decision::Answer(answer) => {
                let is_known = answer.is_to_known();
                (answer, is_known)
            }
        }
    }

    /// The answer to who has waited in vain, `still` if nothing else is known now. The operator was told; who comes again says so again.
    fn answer_waited(&self, call: Call<'_>, still: Answer) -> Answer {
        match self.plan(call) {
            Decision::Answer(answer) => answer,
            Decision::Wait | Decision::Wake(_) | Decision::WakeForStranger(_) => still,
        }
    }

    fn plan(&self, call: Call<'_>) -> Decision {
        let snapshot = self.context.snapshots.borrow().clone();
        plan_answer(snapshot.as_deref(), call, Timestamp::now())
    }

    /// Waits for the cluster for a while, or until the connection ends by another answer.
    async fn wait_awake(&self) -> Waited {
        let name = resource_name(&self.name);
        let mut snapshots = self.context.snapshots.clone();
        let settled = snapshots.wait_for(|all| {
            let entry = all.as_ref().and_then(|all| all.get(&name));
            let told = entry.and_then(|entry| Some(&entry.route.asleep.as_ref()?.told));
            !matches!(
                told,
                Some(Asleep::OnConnect { .. } | Asleep::Waking { problem: None, .. })
            )
        });
        let is_awake = tokio::select! {
            // The process ends.
            settled = settled => settled.is_ok_and(|all| {
                let entry = all.as_ref().and_then(|all| all.get(&name));
                entry.is_some_and(|entry| entry.route.asleep.is_none())
            }),
            () = sleep(HOLD) => return Waited::Long,
            () = self.reached(Stage::Answered) => false,
        };
        if !is_awake {
            return Waited::Ended;
        }
        sleep(FLIP).await;
        Waited::Awake
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

/// Who knocks here is anybody who knows a name.
#[derive(Clone, Debug)]
struct Knocks(Metrics);

impl Admission for Knocks {
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()> {
        // TLS keeps them for as long as the connection lasts.
        match certificates.iter().map(|der| der.len()).sum::<usize>() {
            ..=CHAIN_BYTES => Ok(()),
            bytes => Err(io::Error::other(format!("{bytes} bytes of certificates"))),
        }
    }

    fn count(&self, admitted: bool) {
        self.0.count_knock(admitted);
    }

    fn is_public(&self) -> bool {
        true
    }

    fn handshakes(&self) -> usize {
        HANDSHAKES
    }
}
