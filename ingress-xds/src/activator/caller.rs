//! One client of a sleeping cluster: answers its requests, and lets it wait for the wake.

use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use yoke_api::ingress::Asleep;

use super::context::ActivatorContext;
use super::plan::{self, Answer, Call, Decision, plan_answer};
use crate::authz::status_response::{build_body, build_headers};
use crate::authz::token;
use crate::limits::concurrency::Slot;
use crate::snapshot::resource::resource_name;

/// How long a connection stays open after its first answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum sizes in bytes of the header `authorization`, the authority and the user agent that are
/// stored during a wait. More is never compared with anything.
const TOKEN_BYTES: usize = token::MAX_BYTES + 64;
const NAME_BYTES: usize = 512;
/// How long an authenticated caller waits for the wake. Most wakes finish within this time, also
/// the first one of a cluster. It is below the five seconds that impatient clients use as their
/// timeout.
const MAX_WAIT: Duration = Duration::from_millis(4500);
/// Envoy learns on another stream that a cluster is awake. This delay gives it time to do so.
const ENVOY_UPDATE_DELAY: Duration = Duration::from_millis(100);
/// Bytes of a body that are read before an authenticated caller is answered.
const BODY_BYTES: usize = 64 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// One client connection.
#[derive(Debug)]
pub(super) struct Caller {
    context: ActivatorContext,
    name: String,
    certificates: Vec<CertificateDer<'static>>,
    slot: Slot,
    stage: watch::Sender<Stage>,
}

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
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

/// Marks the connection as answered when it is dropped.
#[derive(Debug)]
struct Answered<'a>(&'a Caller);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.reach(Stage::Answered);
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
    pub(super) fn new(
        context: ActivatorContext,
        name: String,
        certificates: Vec<CertificateDer<'static>>,
        slot: Slot,
    ) -> Self {
        Self {
            context,
            name,
            certificates,
            slot,
            stage: watch::Sender::new(Stage::Connected),
        }
    }

    pub(super) async fn reached(&self, stage: Stage) {
        // This cannot fail: `self` holds the sender.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_modify(|now| *now = stage.max(*now));
    }

    /// A caller with a valid client certificate pins its slot from the start: unauthenticated
    /// clients could otherwise take it before the first request.
    pub(super) fn pin_if_authenticated(&self) {
        let snapshot = self.context.snapshots.borrow().clone();
        if plan::is_authenticated(snapshot.as_deref(), &self.name, &self.certificates, Timestamp::now()) {
            self.slot.pin();
        }
    }

    /// Returns when the time limit of the connection has passed.
    pub(super) async fn time_limit(&self) {
        if timeout(self.context.limits.first, self.reached(Stage::Requested))
            .await
            .is_ok()
        {
            self.reached(Stage::Answered).await;
            sleep(CLOSE_TIMEOUT).await;
        }
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
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

    /// Waits for the cluster for at most [`MAX_WAIT`], or until another answer closes the
    /// connection.
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
