//! One client's connection: who it is, and what it asks for on its channels. An adapter of the SSH library.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, MethodKind, MethodSet, Pty};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Error;
use crate::audit::{self, Audit};
use crate::command::{self, Misread, Request};
use crate::directory::{Identity, fingerprint};
use crate::greeting::{SHOWN_MAX, build_refusal};
use crate::perform::perform;
use crate::report::to_json;
use crate::server::Shared;
use crate::sftp::Files;
use crate::tenant::{Progress, TenantHost};

/// Channels that one connection may have open.
const CHANNELS: usize = 8;
/// Lines of progress on their way to the client; the command waits when they are as many.
const LINES: usize = 16;
/// The number of standard error among a channel's streams (RFC 4254, 5.2).
const STDERR: u32 = 1;

/// The server's side of a connection.
pub struct Connection {
    shared: Arc<Shared>,
    source: IpAddr,
    login: watch::Sender<bool>,
    offered: Vec<String>,
    identity: Option<Identity>,
    open: HashSet<ChannelId>,
    idle: HashMap<ChannelId, Channel<Msg>>,
    terminals: HashSet<ChannelId>,
    transfers: HashSet<ChannelId>,
    tasks: JoinSet<()>,
}

impl Connection {
    /// A connection from `source` of somebody not known yet; `login` is told once they are.
    pub fn new(shared: Arc<Shared>, source: IpAddr, login: watch::Sender<bool>) -> Self {
        Self {
            shared,
            source,
            login,
            offered: Vec::new(),
            identity: None,
            open: HashSet::new(),
            idle: HashMap::new(),
            terminals: HashSet::new(),
            transfers: HashSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Begins a command on a channel that has none yet.
    fn start(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let (Some(channel), Some(identity)) = (self.idle.remove(&id), self.identity.clone()) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let (shared, source, line) = (Arc::clone(&self.shared), self.source, line.to_vec());
        // What the client sends is not read: dropped, it holds nothing up.
        let (_, writer) = channel.split();
        let console = Console {
            writer,
            is_terminal: self.terminals.contains(&id),
        };
        self.spawn(async move {
            let code = run(&shared, &identity, source, &line, &console).await;
            console.end(code).await;
        });
        Ok(())
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "command did not end well");
            }
        }
        self.tasks.spawn(task);
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
        Ok(Auth::Partial {
            name: "".into(),
            instructions: build_refusal(&self.offered, self.shared.contact.as_deref()).into(),
            prompts: (&[][..]).into(),
        })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.open.len() >= CHANNELS {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.open.insert(channel.id());
        self.idle.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.open.remove(&id);
        self.idle.remove(&id);
        self.terminals.remove(&id);
        self.transfers.remove(&id);
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        // A transfer ends when the client has no more to ask for.
        if self.transfers.remove(&id) {
            session.exit_status_request(id, 0)?;
            session.eof(id)?;
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
        self.terminals.insert(id);
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
        let (Some(channel), Ok(host)) = (self.idle.remove(&id), host) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        self.transfers.insert(id);
        let files = Files::new(Arc::clone(&self.shared), identity, self.source, host);
        self.spawn(files.serve(channel.into_stream()));
        Ok(())
    }
}

/// Where a command's output goes.
struct Console {
    writer: ChannelWriteHalf<Msg>,
    is_terminal: bool,
}

impl Console {
    async fn put(&self, text: &str) {
        // The client may be gone: what it asked for goes on.
        let _ = self.writer.data_bytes(self.lines(text)).await;
    }

    async fn say(&self, text: &str) {
        let _ = match self.is_terminal {
            true => self.writer.data_bytes(self.lines(text)).await,
            false => self.writer.extended_data_bytes(STDERR, self.lines(text)).await,
        };
    }

    async fn end(&self, code: u32) {
        let _ = self.writer.exit_status(code).await;
        let _ = self.writer.eof().await;
        let _ = self.writer.close().await;
    }

    /// A terminal of the client's is in raw mode.
    fn lines(&self, text: &str) -> Vec<u8> {
        match self.is_terminal {
            true => text.replace('\n', "\r\n").into_bytes(),
            false => text.as_bytes().to_vec(),
        }
    }
}

/// Runs a line and says its exit code.
async fn run(shared: &Shared, identity: &Identity, source: IpAddr, line: &[u8], console: &Console) -> u32 {
    let audit = Audit::begin(identity, source, &String::from_utf8_lossy(line));
    let (name, json, result) = match command::parse(line) {
        Ok(request) => {
            let (progress, lines) = mpsc::channel(LINES);
            let work = carry_out(shared, identity, &request, &progress);
            let result = show(work, lines, console).await;
            (request.command.as_str(), request.json, result)
        }
        Err(Misread::Help { text, json }) => {
            let result = match json {
                true => to_json(&serde_json::json!({"help": text})).map_err(Error::Json),
                false => Ok(text),
            };
            ("help", json, result)
        }
        Err(Misread::Wrong { text, json }) => ("none", json, Err(Error::Usage(text))),
    };
    match result {
        Ok(text) => {
            shared.metrics.count_command(name, "ok");
            console.put(&text).await;
            audit.end("ok", None);
            0
        }
        Err(error) => {
            shared.metrics.count_command(name, error.as_str());
            console.say(&error.to_text(json)).await;
            audit.end(error.as_str(), Some(&error.with_causes()));
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
    shared.permit(identity)?;
    let host = TenantHost::of(&shared.host, &identity.tenant)?;
    perform(&host, identity, request, progress).await
}

/// Does the work and shows its progress meanwhile.
async fn show(
    work: impl Future<Output = Result<String, Error>>,
    mut lines: mpsc::Receiver<String>,
    console: &Console,
) -> Result<String, Error> {
    let mut work = std::pin::pin!(work);
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            Some(line) = lines.recv() => console.say(&line).await,
        }
    };
    while let Ok(line) = lines.try_recv() {
        console.say(&line).await;
    }
    result
}
