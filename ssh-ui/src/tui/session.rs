//! The full-screen interface on a channel: reads keys, and draws Clusters and events as they
//! change. An adapter: [`crate::tui::screen`] decides what is shown and what a key does.
//!
//! Guarantees:
//! - However the interface ends, the terminal is restored, if the client still reads the output.
//! - A session keeps only two frames, the rows and events of the screen, and the buffered input of
//!   the channel.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use ratatui::layout::Size;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::Error;
use crate::commands::execute::execute;
use crate::commands::session::{Answer, ClientSession};
use crate::ssh::channel_output::ChannelOutput;
use crate::ssh::listener::Deadlines;
use crate::tenant::{PROGRESS_LINES, Progress};
use crate::tui::screen::keys::{Key, Keys};
use crate::tui::screen::{Action, AnswerDisplay, Screen, draw};
use crate::tui::terminal::{ENTER, LEAVE, Terminal, TerminalCapabilities};

/// Interval at which ages are redrawn.
const TICK: Duration = Duration::from_secs(1);
/// Minimum interval between two frames.
const FRAME: Duration = Duration::from_millis(50);
/// How long to wait after an Escape for the rest of an escape sequence.
const ESCAPE: Duration = Duration::from_millis(50);
/// Share of the connection's idle timeout. The interface ends earlier, so that it can still restore
/// the terminal.
const IDLE_SHARE: f64 = 0.9;

/// A client's terminal: its output, its input and its size.
pub struct TuiSession {
    /// Output to the terminal.
    pub output: ChannelOutput,
    /// Input from the terminal.
    pub input: DuplexStream,
    /// Current size of the terminal.
    pub size: watch::Receiver<Size>,
    /// Capabilities of the terminal.
    pub capabilities: TerminalCapabilities,
}

/// Runs the interface until it ends, and closes the channel.
pub async fn interact(client: &ClientSession, mut terminal_session: TuiSession, deadlines: Deadlines) {
    let result = client
        .run_interface(|| RunningTui::run(client, &mut terminal_session, deadlines))
        .await;
    let code = match &result {
        Ok(()) => 0,
        Err(error) => {
            terminal_session.output.say(&error.to_text(false)).await;
            error.exit_code()
        }
    };
    terminal_session.output.end(code).await;
}

/// The running interface.
struct RunningTui<'a> {
    client: &'a ClientSession,
    output: &'a ChannelOutput,
    screen: Screen,
    keys: Keys,
    terminal: ratatui::Terminal<Terminal>,
    /// The command in progress, and how to show its answer.
    action: Option<BoxFuture<'a, (Answer, AnswerDisplay)>>,
    /// Progress lines of the command. When it is dropped, the command stops waiting.
    progress: Option<mpsc::Receiver<String>>,
    /// An answer was printed below the screen, and the user has not returned yet.
    is_away: bool,
    /// The next frame redraws the whole screen.
    is_cleared: bool,
    /// When a pending escape sequence is treated as complete.
    escape_at: Option<Instant>,
    idle: Duration,
    idle_at: Instant,
}

impl<'a> RunningTui<'a> {
    async fn run(
        client: &'a ClientSession,
        terminal_session: &'a mut TuiSession,
        deadlines: Deadlines,
    ) -> Result<(), Error> {
        let (output, size) = (&terminal_session.output, &mut terminal_session.size);
        let idle = deadlines.idle.mul_f64(IDLE_SHARE);
        let Ok(terminal) =
            ratatui::Terminal::new(Terminal::new(*size.borrow_and_update(), terminal_session.capabilities));
        let mut session = Self {
            client,
            output,
            screen: Screen::new(client.identity()),
            keys: Keys::default(),
            terminal,
            action: None,
            progress: None,
            is_away: false,
            is_cleared: false,
            escape_at: None,
            idle,
            idle_at: Instant::now() + idle,
        };
        output.send(ENTER).await;
        let result = session.follow(&mut terminal_session.input, size, deadlines).await;
        if !session.is_away {
            output.send(LEAVE).await;
        }
        // The command in progress is completed, but it no longer waits, since dropping the progress
        // channel ends its wait.
        session.progress = None;
        if let Some(page) = session.screen.last_page() {
            output.put(&page).await;
        }
        if let Some(action) = session.action.take() {
            let (answer, shown) = action.await;
            match answer.result {
                Ok(text) => {
                    let page = session.screen.answer(&text, shown);
                    output
                        .put(&page.or_else(|| session.screen.last_page()).unwrap_or(text))
                        .await
                }
                Err(error) => output.say(&error.to_text(false)).await,
            };
        }
        result
    }

    /// Runs until the user quits, the key is withdrawn, or the server ends.
    async fn follow(
        &mut self,
        input: &mut DuplexStream,
        size: &mut watch::Receiver<Size>,
        deadlines: Deadlines,
    ) -> Result<(), Error> {
        let host = self.client.host()?;
        let (mut clusters, mut events) = (host.follow_clusters(), host.follow_events());
        let mut keys = self.client.shared().keys.clone();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bytes = [0; 1024];
        let (mut frame_at, mut is_stale) = (Instant::now(), true);
        loop {
            let mut is_over = false;
            tokio::select! {
                count = input.read(&mut bytes) => is_over = self.read(&bytes[..count.unwrap_or(0)]).await,
                () = at(self.escape_at) => is_over = self.end_escape().await,
                event = clusters.next() => match event {
                    Ok(event) => {
                        self.screen.follow_clusters(event);
                        if self.screen.wants_list() {
                            clusters.restart();
                        }
                    }
                    Err(error) => self.screen.report_trouble(&error.to_string()),
                },
                // A failure of this watch is not shown; the watch of Clusters reports the same
                // failure. Some Tenants may not read events.
                Ok(event) = events.next() => self.screen.follow_events(event),
                (answer, shown) = settle(&mut self.action) => self.show_answer(answer, shown).await?,
                Some(line) = listen(&mut self.progress) => self.screen.show_progress(&line),
                Ok(()) = size.changed() => self.terminal.backend_mut().resize(*size.borrow_and_update()),
                Ok(()) = keys.changed() => self.client.shared().check_key(self.client.identity())?,
                _ = ticks.tick() => {}
                () = sleep_until(frame_at), if is_stale => {
                    is_stale = false;
                    if self.is_away || self.show().await {
                        frame_at = Instant::now() + FRAME;
                        continue;
                    }
                    is_over = true;
                }
                () = sleep_until(self.idle_at) => return Err(Error::Idle(self.idle)),
                () = sleep_until(deadlines.last) => return Err(Error::TooOld),
                () = deadlines.drain.started() => return Err(Error::Draining),
            }
            if is_over {
                return Ok(());
            }
            is_stale = true;
        }
    }

    /// Handles input; an empty slice is its end. Returns true if the user quits.
    async fn read(&mut self, bytes: &[u8]) -> bool {
        self.idle_at = Instant::now() + self.idle;
        let keys = self.keys.read(bytes);
        self.escape_at = self.keys.is_waiting().then(|| Instant::now() + ESCAPE);
        bytes.is_empty() || self.press(keys).await
    }

    /// Handles a pending escape sequence that was not continued. Returns true if the user quits.
    async fn end_escape(&mut self) -> bool {
        self.escape_at = None;
        let key = self.keys.give_up();
        self.press(key).await
    }

    /// Handles keys. Returns true if the user quits.
    async fn press(&mut self, keys: impl IntoIterator<Item = Key>) -> bool {
        for key in keys {
            if self.is_away && key != Key::Interrupt {
                self.redraw();
            }
            match self.screen.press(key) {
                None => {}
                Some(Action::Quit) => return true,
                Some(Action::Redraw) => self.redraw(),
                Some(Action::Cancel) => self.progress = None,
                Some(Action::Execute { line, shown }) => {
                    let (client, (progress, told)) = (self.client, mpsc::channel(PROGRESS_LINES));
                    self.progress = Some(told);
                    self.action = Some(async move { (run_line(client, &line, &progress).await, shown) }.boxed());
                }
            }
            if let Some(page) = self.screen.take_page() {
                self.print(&page).await;
                // The remaining keys were typed before the page was visible.
                return false;
            }
        }
        false
    }

    async fn show_answer(&mut self, answer: Answer, shown: AnswerDisplay) -> Result<(), Error> {
        (self.action, self.progress) = (None, None);
        match answer.result {
            Ok(text) => {
                if let Some(page) = self.screen.answer(&text, shown) {
                    self.print(&page).await;
                }
            }
            Err(Error::JoinAbandoned(_)) => self.screen.finish("Canceled: no worker can join with it."),
            Err(error @ Error::KeyWithdrawn) => return Err(error),
            Err(error) => self.screen.finish(&error.to_text(false)),
        }
        Ok(())
    }

    /// Leaves the alternate screen and prints a page.
    async fn print(&mut self, page: &str) {
        self.output.send(LEAVE).await;
        self.output.put(page).await;
        self.is_away = true;
    }

    /// Returns from a printed page: the next frame redraws the whole screen.
    fn redraw(&mut self) {
        (self.is_away, self.is_cleared) = (false, true);
    }

    /// Sends the changes since the last frame. Returns whether the client read them.
    async fn show(&mut self) -> bool {
        if std::mem::take(&mut self.is_cleared) {
            self.output.send(ENTER).await;
            let Ok(()) = self.terminal.clear();
        }
        let screen = &self.screen;
        let drawn: Result<_, Infallible> = self.terminal.draw(|frame| draw(screen, frame, Timestamp::now()));
        let Ok(_) = drawn;
        let frame = self.terminal.backend_mut().take();
        frame.is_empty() || self.output.send(frame).await
    }
}

/// Executes a command line as `ssh HOST LINE` would.
async fn run_line(client: &ClientSession, line: &str, progress: &Progress) -> Answer {
    let work = async |request| execute(&client.host()?, client.identity(), &request, progress).await;
    client.run_command(line.as_bytes(), work).await
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn listen(progress: &mut Option<mpsc::Receiver<String>>) -> Option<String> {
    match progress {
        Some(progress) => progress.recv().await,
        None => pending().await,
    }
}

async fn settle<T>(action: &mut Option<BoxFuture<'_, T>>) -> T {
    match action {
        Some(action) => action.await,
        None => pending().await,
    }
}
