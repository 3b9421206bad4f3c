//! One client's SSH connection: authentication, and the requests on its channels. An adapter of the
//! SSH library.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use futures::FutureExt as _;
use ratatui::layout::Size;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, MethodKind, MethodSet, Pty};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, unconstrained};

use crate::audit;
use crate::commands::exec::{self, PromptReader};
use crate::commands::session::ClientSession;
use crate::identity::key_registry::{Identity, fingerprint};
use crate::limits::slots::{ConnectionSlot, InterfaceSlot};
use crate::shared::Shared;
use crate::ssh::banner::{SHOWN_MAX, build_full, build_refusal};
use crate::ssh::channel_output::ChannelOutput;
use crate::ssh::listener::Deadlines;
use crate::ssh::sftp::Files;
use crate::tenant::TenantHost;
use crate::tui::session::{TuiSession, interact};
use crate::tui::terminal::{TerminalProfile, to_size};

/// Maximum number of channels of a connection that are open or still execute a command after they
/// were closed.
const CHANNELS: usize = 8;
/// Maximum number of channels that a connection may ever open. The library keeps some kilobytes for
/// each channel that the server closed first (russh 0.65.1). OpenSSH opens a new connection if a
/// channel is refused.
const CHANNELS_EVER: usize = 1024;
/// Buffered input of a channel in bytes: keys or SFTP requests. OpenSSH sends up to 64 SFTP
/// requests at once, of some 50 bytes each.
const INPUT: usize = 64 * 1024;

/// The server's side of a connection.
pub struct Connection {
    shared: Arc<Shared>,
    slot: Weak<ConnectionSlot>,
    source: IpAddr,
    login: watch::Sender<bool>,
    offered: Vec<String>,
    full: bool,
    identity: Option<Identity>,
    opened: usize,
    idle: HashMap<ChannelId, Idle>,
    busy: HashMap<ChannelId, Busy>,
    tasks: JoinSet<()>,
    deadlines: Deadlines,
}

/// A channel without a request. Its input is discarded: the library would block the whole
/// connection while the queue of a channel is full, but not for a channel whose reader was dropped.
struct Idle {
    writer: ChannelWriteHalf<Msg>,
    profile: TerminalProfile,
    /// The size of the terminal, if the client has one.
    size: Option<watch::Sender<Size>>,
}

/// A channel on which a command, the interface or SFTP runs.
struct Busy {
    /// Input from the client; `None` after the end of the input.
    input: Option<DuplexStream>,
    /// The size of the terminal on which the full-screen interface is shown.
    size: Option<watch::Sender<Size>>,
    /// Dropped when the client closes the channel.
    open: oneshot::Sender<()>,
}

impl Connection {
    /// Creates an unauthenticated connection with a slot. `login` becomes true after the
    /// authentication.
    pub fn new(
        shared: Arc<Shared>,
        slot: &Arc<ConnectionSlot>,
        login: watch::Sender<bool>,
        deadlines: Deadlines,
    ) -> Self {
        Self {
            shared,
            // A connection that cannot be ended must not keep its slot.
            slot: Arc::downgrade(slot),
            source: slot.source(),
            login,
            offered: Vec::new(),
            full: false,
            identity: None,
            opened: 0,
            idle: HashMap::new(),
            busy: HashMap::new(),
            tasks: JoinSet::new(),
            deadlines,
        }
    }

    fn client(&self) -> Option<ClientSession> {
        let identity = self.identity.clone()?;
        Some(ClientSession::new(Arc::clone(&self.shared), identity, self.source))
    }

    /// Starts a command on an idle channel.
    fn start(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let (Some(idle), Some(client)) = (self.idle.remove(&id), self.client()) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        // Only a terminal sends keys; other input of a command is not used.
        let (near, far) = idle.size.is_some().then(|| tokio::io::duplex(INPUT)).unzip();
        let (output, prompt, line) = (self.output(idle), PromptReader::new(far), line.to_vec());
        self.spawn(id, near, None, |closed| async move {
            let code = exec::run(&client, &line, &output, prompt, closed).await;
            output.end(code).await;
        });
        Ok(())
    }

    /// Starts the full-screen interface on a channel. Without a suitable terminal or a free slot,
    /// runs the default command instead.
    fn show(&mut self, id: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        let has_screen = |idle: &Idle| idle.size.is_some() && idle.profile.has_screen();
        let interface_slot = match (self.idle.get(&id).is_some_and(has_screen), &self.identity) {
            (true, Some(identity)) => InterfaceSlot::take(&self.shared, &identity.tenant),
            _ => None,
        };
        let Some(interface_slot) = interface_slot else {
            return self.start(id, b"", session);
        };
        let (Some(mut idle), Some(client)) = (self.idle.remove(&id), self.client()) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let size = idle.size.take().unwrap_or_default();
        let (near, input) = tokio::io::duplex(INPUT);
        let terminal_session = TuiSession {
            output: ChannelOutput::new(idle.writer, true, self.shared.write_limit),
            input,
            size: size.subscribe(),
            capabilities: idle.profile.capabilities(),
        };
        let deadlines = self.deadlines.clone();
        self.spawn(id, Some(near), Some(size), |closed| async move {
            // Closing the channel ends the input, which ends the interface.
            let _held = (closed, interface_slot);
            interact(&client, terminal_session, deadlines).await;
        });
        Ok(())
    }

    fn output(&self, idle: Idle) -> ChannelOutput {
        ChannelOutput::new(idle.writer, idle.size.is_some(), self.shared.write_limit)
    }

    fn spawn<F>(
        &mut self,
        id: ChannelId,
        input: Option<DuplexStream>,
        size: Option<watch::Sender<Size>>,
        task: impl FnOnce(oneshot::Receiver<()>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, closed) = oneshot::channel();
        self.busy.insert(id, Busy { input, size, open });
        let running = self.shared.metrics.running();
        let task = task(closed);
        self.tasks.spawn(async move {
            let _running = running;
            task.await;
        });
    }

    /// Removes finished tasks and their channels.
    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "command task failed");
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
        if self.shared.keys.borrow().find(&fingerprint).is_some() {
            return Ok(Auth::Accept);
        }
        if self.offered.len() < SHOWN_MAX && !self.offered.contains(&fingerprint) {
            self.offered.push(fingerprint);
        }
        Ok(Auth::reject())
    }

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        let identity = self.shared.keys.borrow().find(&fingerprint(key.public_key));
        let Some(identity) = identity else {
            return Ok(Auth::reject());
        };
        let has_slot = self
            .slot
            .upgrade()
            .is_some_and(|slot| slot.assign_tenant(&identity.tenant));
        if !has_slot {
            self.full = true;
            return Ok(Auth::reject());
        }
        audit::login(&identity, self.source);
        self.shared.metrics.count_login(true);
        self.identity = Some(identity);
        self.login.send_replace(true);
        Ok(Auth::Accept)
    }

    /// No answer to this method authenticates a client; it only shows the reason of the refusal.
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
        let (profile, size) = (TerminalProfile::default(), None);
        self.idle.insert(id, Idle { writer, profile, size });
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
            busy.input = None;
        }
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, bytes: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        let Some(input) = self.busy.get_mut(&id).and_then(|busy| busy.input.as_mut()) else {
            return Ok(());
        };
        // Never wait here: the whole connection would wait.
        let taken = unconstrained(input.write_all(bytes)).now_or_never();
        if matches!(taken, Some(Ok(()))) {
            return Ok(());
        }
        match self.busy.get_mut(&id).filter(|busy| busy.size.is_some()) {
            // The interface sees the end of its input, restores the terminal and closes the
            // channel.
            Some(interface) => interface.input = None,
            None => {
                self.busy.remove(&id);
                session.close(id)?;
            }
        }
        Ok(())
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Some(idle) = self.idle.get_mut(&id) else {
            return session.channel_failure(id);
        };
        idle.profile.set_term(term);
        idle.size = Some(watch::Sender::new(to_size(columns, rows)));
        session.channel_success(id)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(idle) = self.idle.get_mut(&id) {
            idle.profile.set_variable(name, value);
        }
        session.channel_success(id)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let busy = self.busy.get(&id).and_then(|busy| busy.size.as_ref());
        let size = busy.or_else(|| self.idle.get(&id).and_then(|idle| idle.size.as_ref()));
        if let Some(size) = size {
            size.send_replace(to_size(columns, rows));
        }
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        self.start(id, line, session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.show(id, session)
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
        let output = self.output(idle);
        let files = Files::new(Arc::clone(&self.shared), identity, self.source, host);
        let (near, far) = tokio::io::duplex(INPUT);
        self.spawn(id, Some(near), None, |closed| async move {
            tokio::select! {
                () = files.serve(far, output) => {}
                _ = closed => {}
            }
        });
        Ok(())
    }
}
