//! One run of the plugin, or of a program that runs it.

use std::convert::Infallible;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use yoke_test_support::eventually;

/// Timeout of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Interval of every wait.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// Output of a run.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A run in progress.
pub(crate) struct Running {
    child: Child,
    keys: Option<ChildStdin>,
    out: Stream,
    err: Stream,
}

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// Starts `script`, which gives its command a terminal.
    pub(crate) fn start_at_terminal(command: Command) -> Self {
        Self::start_with(command, Stdio::piped())
    }

    fn start_with(mut command: Command, stdin: Stdio) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", command.as_std().get_program()));
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self {
            keys: child.stdin.take(),
            child,
            out: Stream::of(out),
            err: Stream::of(err),
        }
    }

    /// Waits for this text on standard error.
    pub(crate) async fn until_err(&self, part: &str) {
        self.err.until(part).await;
    }

    /// Waits for this text on standard output.
    pub(crate) async fn until_out(&self, part: &str) {
        self.out.until(part).await;
    }

    /// Returns the standard output so far.
    pub(crate) fn said(&self) -> String {
        self.out.said()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.expect("it runs"), signal).unwrap();
    }

    /// Types on its terminal.
    pub(crate) async fn press(&mut self, keys: &[u8]) {
        let terminal = self.keys.as_mut().expect("it is at a terminal");
        terminal.write_all(keys).await.unwrap();
    }

    /// Waits until it ends.
    pub(crate) async fn end(mut self) -> Said {
        let ended = tokio::time::timeout(LIMIT, self.child.wait()).await;
        let status = match ended {
            Ok(status) => status.unwrap(),
            Err(_) => panic!(
                "the plugin does not end; it said: {} {}",
                self.out.said(),
                self.err.said()
            ),
        };
        Said {
            code: status.code().unwrap(),
            out: self.out.whole().await,
            err: self.err.whole().await,
        }
    }
}

/// A captured output stream of the run.
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn of(mut source: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let reader = tokio::spawn({
            let text = text.clone();
            async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = source.read(&mut buffer).await {
                    text.lock().unwrap().extend(&buffer[..length]);
                }
            }
        });
        Self { text, reader }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    async fn until(&self, part: &str) {
        let said = async || Ok::<_, Infallible>(self.said());
        eventually(&format!("{part:?} in the output"), LIMIT, said, |said| {
            said.contains(part)
        })
        .await
        .unwrap();
    }

    async fn whole(self) -> String {
        let Self { text, reader } = self;
        reader.await.unwrap();
        String::from_utf8(text.lock().unwrap().clone()).unwrap()
    }
}
