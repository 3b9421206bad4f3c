//! One client's connection: who it is, and what it asks for on its channels. An adapter of the SSH library.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use futures::FutureExt as _;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, MethodKind, MethodSet, Pty};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, unconstrained};

use crate::Error;
use crate::audit::{self, Audit};
use crate::command::{self, Misread, Request};
use crate::console::Console;
use crate::directory::{Identity, fingerprint};
use crate::greeting::{SHOWN_MAX, build_full, build_refusal};
use crate::perform::perform;
use crate::report::to_json;
use crate::server::{Seat, Shared};
use crate::sftp::Files;
use crate::tenant::{Progress, TenantHost};

/// Channels that one connection may have open, and commands of closed ones that go on.
const CHANNELS: usize = 8;
/// Channels that one connection may open in its life: the library keeps some kilobytes of each that was closed from here first
/// (russh 0.65.1), and OpenSSH connects anew if one is refused.
const CHANNELS_EVER: usize = 1024;
/// Lines of progress on their way to the client; the command waits when they are as many.
const LINES: usize = 16;
/// Bytes of requests for files that wait for their answers. OpenSSH sends 64 at once, of some 50 bytes each.
const REQUESTS: usize = 64 * 1024;

/// The server's side of a connection.
pub struct Connection {
    shared: Arc<Shared>,
    seat: Weak<Seat>,
    source: IpAddr,
    login: watch::Sender<bool>,
    offered: Vec<String>,
    full: bool,
    identity: Option<Identity>,
    opened: usize,
    idle: HashMap<ChannelId, Idle>,
    busy: HashMap<ChannelId, Busy>,
    tasks: JoinSet<()>,
}

/// A channel on which nothing was asked for yet. What comes in is not kept: the library waits for a reader of this channel
/// whenever its queue is full, and the whole connection with it, while one that is gone holds nothing up.
struct Idle {
    writer: ChannelWriteHalf<Msg>,
    is_terminal: bool,
}

/// A channel on which something goes on.
struct Busy {
    /// Where requests for files go; dropped, there are no more.
    requests: Option<DuplexStream>,
    /// Dropped, the client has closed the channel.
    open: oneshot::Sender<()>,
}

impl Connection {
    /// A connection of somebody not known yet, on a seat; `login` is told once they are.
    pub fn new(shared: Arc<Shared>, seat: &Arc<Seat>, login: watch::Sender<bool>) -> Self {
        Self {
            shared,
            // A connection that cannot be ended must not keep its seat.
            seat: Arc::downgrade(seat),
            source: seat.source(),
            login,
            offered: Vec::new(),
            full: false,
            identity: None,
            opened: 0,
            idle: HashMap::new(),
            busy: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Begins a command on a channel that has none yet.
    fn start(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let (Some(idle), Some(identity)) = (self.idle.remove(&id), self.identity.clone()) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let console = self.console(idle);
        let (shared, source, line) = (Arc::clone(&self.shared), self.source, line.to_vec());
        self.spawn(id, None, |closed| async move {
            let code = run(&shared, &identity, source, &line, &console, closed).await;
            console.end(code).await;
        });
        Ok(())
    }

    fn console(&self, idle: Idle) -> Console {
        Console::new(idle.writer, idle.is_terminal, self.shared.write_limit)
    }

    fn spawn<F>(&mut self, id: ChannelId, requests: Option<DuplexStream>, task: impl FnOnce(oneshot::Receiver<()>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, closed) = oneshot::channel();
        self.busy.insert(id, Busy { requests, open });
        let running = self.shared.metrics.running();
        let task = task(closed);
        self.tasks.spawn(async move {
            let _running = running;
            task.await;
        });
    }

    /// Forgets what has ended.
    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "command did not end well");
            }
        }
        self.busy.retain(|_, busy| !busy.open.is_closed());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.identity.is_none() && !self.offered.is_empty() {
            self.shared.metrics.count_login(false);
            audit::refused(&self.offered, self.source);
        }
    }
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, _user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        let fingerprint = fingerprint(offer.public_key);
        if self.shared.directory.borrow().find(&fingerprint).is_some() {
            return Ok(Auth::Accept);
        }
        if self.offered.len() < SHOWN_MAX && !self.offered.contains(&fingerprint) {
            self.offered.push(fingerprint);
        }
        Ok(Auth::reject())
    }

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        let identity = self.shared.directory.borrow().find(&fingerprint(key.public_key));
        let Some(identity) = identity else {
            return Ok(Auth::reject());
        };
        let seated = self.seat.upgrade().is_some_and(|seat| seat.admit(&identity.tenant));
        if !seated {
            self.full = true;
            return Ok(Auth::reject());
        }
        audit::login(&identity, self.source);
        self.shared.metrics.count_login(true);
        self.identity = Some(identity);
        self.login.send_replace(true);
        Ok(Auth::Accept)
    }

    /// Nothing can be typed here that lets one in: this is how one is told why.
    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, Self::Error> {
        if response.is_some() {
            return Ok(Auth::Reject {
                proceed_with_methods: Some(MethodSet::from(&[MethodKind::PublicKey][..])),
                partial_success: false,
            });
        }
        let text = match self.full {
            true => build_full(),
            false => build_refusal(&self.offered, self.shared.contact.as_deref()),
        };
        Ok(Auth::Partial {
            name: "".into(),
            instructions: text.into(),
            prompts: (&[][..]).into(),
        })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.reap();
        let live = self.idle.len() + self.tasks.len();
        if live >= CHANNELS || self.opened >= CHANNELS_EVER {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.opened += 1;
        let id = channel.id();
        let (_, writer) = channel.split();
        let is_terminal = false;
        self.idle.insert(id, Idle { writer, is_terminal });
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.idle.remove(&id);
        self.busy.remove(&id);
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        if let Some(busy) = self.busy.get_mut(&id) {
            busy.requests = None;
        }
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, bytes: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        let Some(requests) = self.busy.get_mut(&id).and_then(|busy| busy.requests.as_mut()) else {
            return Ok(());
        };
        // Never waited for, or the whole connection would wait.
        let taken = unconstrained(requests.write_all(bytes)).now_or_never();
        if !matches!(taken, Some(Ok(()))) {
            self.busy.remove(&id);
            session.close(id)?;
        }
        Ok(())
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Some(idle) = self.idle.get_mut(&id) else {
            return session.channel_failure(id);
        };
        idle.is_terminal = true;
        session.channel_success(id)
    }

    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        self.start(id, line, session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(id, b"", session)
    }

    async fn subsystem_request(&mut self, id: ChannelId, name: &str, session: &mut Session) -> Result<(), Self::Error> {
        let (true, Some(identity)) = (name == "sftp", self.identity.clone()) else {
            return session.channel_failure(id);
        };
        let host = TenantHost::of(&self.shared.host, &identity.tenant);
        let (Some(idle), Ok(host)) = (self.idle.remove(&id), host) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let console = self.console(idle);
        let files = Files::new(Arc::clone(&self.shared), identity, self.source, host);
        let (near, far) = tokio::io::duplex(REQUESTS);
        self.spawn(id, Some(near), |closed| async move {
            tokio::select! {
                () = files.serve(far, console) => {}
                _ = closed => {}
            }
        });
        Ok(())
    }
}

/// Runs a line and says its exit code. What was asked for goes on when the channel is `closed`, and waiting does not.
async fn run(
    shared: &Shared,
    identity: &Identity,
    source: IpAddr,
    line: &[u8],
    console: &Console,
    closed: oneshot::Receiver<()>,
) -> u32 {
    let permitted = shared.permit(identity);
    // Of what comes too fast there is no line in the log, or it would fill as fast.
    let audit = match permitted {
        Err(Error::TooFast) => None,
        _ => Some(Audit::begin(identity, source, &String::from_utf8_lossy(line))),
    };
    let (name, json, result) = match (permitted, command::parse(line)) {
        (Err(error), Ok(request)) => (request.command.as_str(), request.json, Err(error)),
        (Err(error), Err(Misread::Help { json, .. } | Misread::Wrong { json, .. })) => ("none", json, Err(error)),
        (Ok(()), Ok(request)) => {
            let (progress, lines) = mpsc::channel(LINES);
            let work = carry_out(shared, identity, &request, &progress);
            let result = show(work, lines, console, closed).await;
            (request.command.as_str(), request.json, result)
        }
        (Ok(()), Err(Misread::Help { text, json })) => {
            let result = match json {
                true => to_json(&serde_json::json!({"help": text})).map_err(Error::Json),
                false => Ok(text),
            };
            ("help", json, result)
        }
        (Ok(()), Err(Misread::Wrong { text, json })) => ("none", json, Err(Error::Usage(text))),
    };
    let word = result.as_ref().map_or_else(Error::as_str, |_| "ok");
    shared.metrics.count_command(name, word);
    // Written before the answer, which may never be read.
    if let Some(audit) = audit {
        let detail = result.as_ref().err().map(Error::with_causes);
        audit.end(word, detail.as_deref());
    }
    match result {
        Ok(text) => u32::from(!console.put(&text).await),
        Err(error) => {
            console.say(&error.to_text(json)).await;
            error.exit_code()
        }
    }
}

async fn carry_out(
    shared: &Shared,
    identity: &Identity,
    request: &Request,
    progress: &Progress,
) -> Result<String, Error> {
    let host = TenantHost::of(&shared.host, &identity.tenant)?;
    perform(&host, identity, request, progress).await
}

/// Does the work and shows its progress meanwhile, until the channel is closed.
async fn show(
    work: impl Future<Output = Result<String, Error>>,
    mut lines: mpsc::Receiver<String>,
    console: &Console,
    closed: oneshot::Receiver<()>,
) -> Result<String, Error> {
    let (mut work, mut closed) = (std::pin::pin!(work), std::pin::pin!(closed.fuse()));
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            Some(line) = lines.recv() => {
                console.say(&line).await;
            }
            _ = &mut closed => lines.close(),
        }
    };
    while let Ok(line) = lines.try_recv() {
        console.say(&line).await;
    }
    result
}
