//! HTTPS API for programs that authenticate with a signed token: `POST /exec` with the command line
//! in the body. An adapter of the HTTP library.
//!
//! ```text
//!  TLS ─▶ a slot and a deadline, as over SSH (listener) ─▶ token (whose key? until when?) ─▶ session ─▶ execute
//! ```
//!
//! Guarantees:
//! - A connection carries one request, so the connection limits of SSH also limit requests here.
//! - Before its token is verified, a client can send no more than a request head and one command
//!   line.

pub mod reply;

use std::convert::Infallible;
use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use yoke_runtime::Drain;
use yoke_runtime::tls::{Reload, TlsConfigs, TlsError};

use self::reply::{Refusal, build_answer, build_refusal};
use crate::audit;
use crate::commands::execute::execute;
use crate::commands::parse::LINE_MAX;
use crate::commands::session::{Answer, ClientSession};
use crate::identity::key_registry::Identity;
use crate::identity::token::{Permit, Token, TokenError, TokenRules};
use crate::limits::slots::ConnectionSlot;
use crate::shared::Shared;
use crate::ssh::deadline_stream::DeadlineStream;
use crate::ssh::listener::{Deadlines, Listener, ServeError, until_over};
use crate::tenant::PROGRESS_LINES;

/// Path of the only endpoint.
const PATH: &str = "/exec";
const SCHEME: &str = "Bearer ";
/// Maximum size of a request's head in bytes, and of its header lines.
const HEAD_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 32;
/// How long a client may take to send the head, and the body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks of the certificate's files.
const POLL: Duration = Duration::from_secs(30);

/// The listening server; it answers once [`Api::serve`] runs.
#[derive(Debug)]
pub struct Api {
    listener: Listener,
}

/// State that all requests share.
struct ApiState {
    shared: Arc<Shared>,
    rules: TokenRules,
    tls: TlsConfigs,
}

/// One connection, which carries one request.
struct ApiConnection {
    state: Arc<ApiState>,
    slot: ConnectionSlot,
    login: watch::Sender<bool>,
    drain: Drain,
    answered: Notify,
}

impl Api {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let listener = Listener::bind(address).await?;
        Ok(Self { listener })
    }

    /// Returns the address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until the drain starts. Open requests then have a few seconds to finish.
    pub async fn serve(
        self,
        shared: Arc<Shared>,
        rules: TokenRules,
        tls: TlsConfigs,
        idle: Duration,
        drain: Drain,
    ) -> Result<(), ServeError> {
        let state = Arc::new(ApiState {
            shared: Arc::clone(&shared),
            rules,
            tls,
        });
        let connect = |stream, slot, deadlines| connect(Arc::clone(&state), stream, slot, deadlines);
        // An answer would need a TLS handshake, which a connection without a slot does not get.
        let turn_away = async |_, _| {};
        self.listener.serve(&shared, idle, drain, connect, turn_away).await;
        Ok(())
    }
}

/// Reloads the certificate when its files change, until the drain starts.
pub async fn reload_certificate(mut reload: Reload, drain: Drain) -> Result<(), TlsError> {
    while drain.until_started(tokio::time::sleep(POLL)).await.is_some() {
        match reload.look().await {
            Ok(false) => {}
            Ok(true) => tracing::info!("certificate reread"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "changed certificate cannot be used");
            }
        }
    }
    Ok(())
}

async fn connect(state: Arc<ApiState>, stream: TcpStream, slot: ConnectionSlot, deadlines: Deadlines) {
    let _ = stream.set_nodelay(true);
    let (login, logged_in) = watch::channel(false);
    let drain = deadlines.drain.clone();
    let over = until_over(logged_in, deadlines).boxed().shared();
    let stream = DeadlineStream::new(stream, over.clone());
    let (source, limit) = (slot.source(), state.shared.write_limit);
    let acceptor = TlsAcceptor::from(only_http1(&state.tls.borrow()));
    let answered = Notify::new();
    let connection = ApiConnection {
        state,
        slot,
        login,
        drain,
        answered,
    };
    let served = async {
        let stream = acceptor.accept(stream).await?;
        let answer = service_fn(async |request| Ok::<_, Infallible>(connection.answer(request).await));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(READ_TIMEOUT)
            .keep_alive(false)
            .max_buf_size(HEAD_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), answer);
        connection.await.map_err(io::Error::other)
    };
    let unread = async {
        connection.answered.notified().await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        biased;
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%source, %error, cause = error.source(), "request ended");
            }
        }
        () = over => tracing::debug!(%source, "request reached its deadline"),
        () = unread => tracing::debug!(%source, "answer not read"),
    }
}

/// Returns the TLS configuration for HTTP/1.1 only, so that a client has one request at a time.
fn only_http1(config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

impl ApiConnection {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let shared = &self.state.shared;
        let response = match self.authenticate(request).await {
            Ok((identity, permit, line)) => {
                let client = ClientSession::new(Arc::clone(shared), identity, self.slot.source());
                let answer = run(&client.restricted_to(permit), &line, &self.drain).await;
                build_answer(answer.result)
            }
            Err(refusal) => build_refusal(&refusal, &self.state.rules, shared.contact.as_deref()),
        };
        self.answered.notify_one();
        response
    }

    /// Authenticates the request, and reads the command line.
    async fn authenticate(&self, request: Request<Incoming>) -> Result<(Identity, Permit, Bytes), Refusal> {
        match (request.uri().path(), request.method()) {
            (PATH, &Method::POST) => {}
            (PATH, _) => return Err(Refusal::Method),
            _ => return Err(Refusal::Path),
        }
        let (identity, permit) = self.verify_token(request.headers())?;
        let body = Limited::new(request.into_body(), LINE_MAX).collect();
        let line = match tokio::time::timeout(READ_TIMEOUT, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => return Err(Refusal::Long),
            Ok(Err(_)) | Err(_) => return Err(Refusal::Incomplete),
        };
        if !self.slot.assign_tenant(&identity.tenant) {
            return Err(Refusal::TenantFull);
        }
        self.login.send_replace(true);
        Ok((identity, permit, line))
    }

    /// Verifies the token and returns its Tenant and permissions. A refused token is written to the
    /// audit log.
    fn verify_token(&self, head: &HeaderMap) -> Result<(Identity, Permit), Refusal> {
        let shared = &self.state.shared;
        let mut signer = None;
        let judged = read_token(head).and_then(|token| {
            let fingerprint = signer.insert(token.fingerprint());
            let identity = shared.keys.borrow().find(fingerprint);
            // Reject an unknown key before the signature check, which is costly.
            let identity = identity.ok_or_else(|| TokenError::UnknownKey(fingerprint.clone()))?;
            let permit = token.verify(&self.state.rules, &identity.tenant, Timestamp::now())?;
            Ok((identity, permit))
        });
        judged.map_err(|error| {
            shared.metrics.count_refused_token(error.as_str());
            audit::refused_token(&error, signer.as_deref(), self.slot.source());
            Refusal::Token(error)
        })
    }
}

/// Returns the token of a request that has exactly one.
fn read_token(head: &HeaderMap) -> Result<Token, TokenError> {
    let mut values = head.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(TokenError::Missing);
    };
    let value = value.to_str().map_err(|_| TokenError::Form)?;
    let (scheme, token) = value.split_at_checked(SCHEME.len()).ok_or(TokenError::Form)?;
    match scheme.eq_ignore_ascii_case(SCHEME) {
        true => Token::parse(token),
        false => Err(TokenError::Form),
    }
}

/// Executes the line as SSH would. Commands stop waiting once the process drains.
async fn run(client: &ClientSession, line: &[u8], drain: &Drain) -> Answer {
    let (progress, mut told) = mpsc::channel(PROGRESS_LINES);
    let work = async |request| execute(&client.host()?, client.identity(), &request, &progress).await;
    let mut answer = pin!(client.run_command(line, work));
    let mut ending = pin!(drain.started().fuse());
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            Some(_) = told.recv() => {}
            () = &mut ending => told.close(),
        }
    }
}
