//! A user's terminal window that is connected to the server.

use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::client::{self, Handle, Msg};
use russh::keys::PrivateKeyWithHashAlg;
use russh::{Channel, ChannelMsg};

use crate::person::Person;

const LIMIT: Duration = Duration::from_secs(20);

/// A client that accepts any host key.
pub(crate) struct Trusting;

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &russh::keys::PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// Authenticates with a user's key.
pub(crate) async fn log_in(port: u16, person: &Person, config: client::Config) -> Handle<Trusting> {
    let mut session = client::connect(Arc::new(config), ("127.0.0.1", port), Trusting)
        .await
        .unwrap();
    let key = russh::keys::load_secret_key(&person.key, None).unwrap();
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    let entered = session.authenticate_publickey("yoke", key).await.unwrap();
    assert!(entered.success(), "{entered:?}");
    session
}

/// The window.
pub(crate) struct Window {
    _session: Handle<Trusting>,
    channel: Channel<Msg>,
    seen: vt100::Parser,
    code: Option<u32>,
}

/// State of the terminal after the end.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) code: Option<u32>,
    /// The visible text, including what was there before.
    pub(crate) text: String,
}

impl Window {
    /// Opens a window of 80 columns and 24 rows; without a line, it shows the interface.
    pub(crate) async fn open(port: u16, person: &Person, line: Option<&str>) -> Self {
        let session = log_in(port, person, client::Config::default()).await;
        let channel = session.channel_open_session().await.unwrap();
        channel.request_pty(false, "xterm", 80, 24, 0, 0, &[]).await.unwrap();
        match line {
            Some(line) => channel.exec(false, line).await.unwrap(),
            None => channel.request_shell(false).await.unwrap(),
        }
        let mut seen = vt100::Parser::new(cells(24), cells(80), 0);
        seen.process(b"$ ssh HOST\r\n");
        Self {
            _session: session,
            channel,
            seen,
            code: None,
        }
    }

    pub(crate) async fn press(&self, keys: &str) {
        self.channel.data_bytes(keys.to_owned()).await.unwrap();
    }

    /// Sends more input than is read; the server may close the channel meanwhile.
    pub(crate) async fn flood(&self, letters: usize) {
        let _ = self.channel.data_bytes("x".repeat(letters)).await;
    }

    pub(crate) async fn resize(&mut self, columns: u16, rows: u16) {
        self.seen.screen_mut().set_size(cells(rows), cells(columns));
        self.channel
            .window_change(columns.into(), rows.into(), 0, 0)
            .await
            .unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.seen.screen().contents()
    }

    /// Waits until this text is shown.
    pub(crate) async fn shows(&mut self, text: &str) {
        self.until(text, |seen| seen.contains(text)).await;
    }

    /// Waits until the shown text fulfils a condition.
    pub(crate) async fn until(&mut self, what: &str, so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !so(&self.text()) {
            let more = self.follow(deadline).await;
            assert!(more, "{what:?} is not shown:\n{}", self.text());
        }
    }

    /// Waits until the channel is closed.
    pub(crate) async fn left(mut self) -> Left {
        let deadline = Instant::now() + LIMIT;
        while self.follow(deadline).await {}
        let screen = self.seen.screen();
        assert!(
            !screen.alternate_screen() && !screen.hide_cursor(),
            "{}",
            screen.contents()
        );
        Left {
            code: self.code,
            text: screen.contents(),
        }
    }

    /// Handles the next message; false if the channel is closed or the deadline has passed.
    async fn follow(&mut self, deadline: Instant) -> bool {
        match tokio::time::timeout_at(deadline.into(), self.channel.wait()).await {
            Ok(Some(ChannelMsg::Data { data })) => self.seen.process(&data),
            Ok(Some(ChannelMsg::ExitStatus { exit_status })) => self.code = Some(exit_status),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
        true
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}
