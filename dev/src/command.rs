//! Runs other programs: captures their output, and reports a failure with the command and its last
//! lines.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process;
use tokio::task::JoinHandle;

/// Number of last output lines that a failure shows.
const TAIL_LINES: usize = 15;
/// Maximum length, in characters, of a failure in one line of a table.
const LINE_LENGTH: usize = 160;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started, or its status could not be read.
    #[error("running `{command}`")]
    Start {
        /// Program and arguments.
        command: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The program exited with a status other than zero.
    #[error("`{command}` failed with {status}\n{tail}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit status.
        status: std::process::ExitStatus,
        /// Last lines of its output.
        tail: String,
    },
    /// The program exceeded its timeout and was killed.
    #[error("`{command}` was killed after its timeout of {limit:?}\n{tail}")]
    TimedOut {
        /// Program and arguments.
        command: String,
        /// The timeout.
        limit: Duration,
        /// Last lines of its output.
        tail: String,
    },
}

impl CommandError {
    /// The failure in one line: the last line of output, truncated.
    pub fn to_line(&self) -> String {
        let text = self.to_string();
        let last = text
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches([' ', '|'])
            .trim_end();
        last.chars().take(LINE_LENGTH).collect()
    }
}

/// Builder for a command; a thin layer over [`process::Command`].
#[derive(Debug)]
pub struct Command {
    inner: process::Command,
    input: Vec<u8>,
    output: Option<File>,
    limit: Duration,
}

impl Command {
    /// Builds a command for `program` without arguments. The timeout is one hour.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = process::Command::new(program);
        inner.stdin(Stdio::null()).kill_on_drop(true);
        Self {
            inner,
            input: Vec::new(),
            output: None,
            limit: Duration::from_secs(3600),
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.inner.env(name, value);
        self
    }

    /// Sets the working directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.inner.current_dir(dir);
        self
    }

    /// Sets the standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self.inner.stdin(Stdio::piped());
        self
    }

    /// Writes standard output to `file` instead of capturing it.
    pub fn output_to(mut self, file: File) -> Self {
        self.output = Some(file);
        self
    }

    /// Sets the timeout, after which the command is killed.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the command and returns its standard output.
    pub async fn output(mut self) -> Result<String, CommandError> {
        let command = self.to_line();
        let start = |source| CommandError::Start {
            command: command.clone(),
            source,
        };
        let mut child = self
            .inner
            .stdout(self.output.take().map_or_else(Stdio::piped, Stdio::from))
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let stdin = child.stdin.take();
        let input = std::mem::take(&mut self.input);
        // A task of its own writes the input: a command that writes before it has read everything
        // would otherwise block.
        let feeder = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command that exits early closes its end of the pipe. Its exit status says why.
                let _ = stdin.write_all(&input).await;
            }
        });
        let (mut out, mut errors) = (Captured::of(child.stdout.take()), Captured::of(child.stderr.take()));
        let ended = tokio::time::timeout(self.limit, async {
            let status = child.wait().await;
            // Each output closes when the last process that holds it exits.
            let (out, errors) = (out.end().await, errors.end().await);
            status.map(|status| (status, out, errors))
        });
        let (status, out, errors) = match ended.await {
            Ok(ended) => ended.map_err(start)?,
            Err(_) => {
                return Err(CommandError::TimedOut {
                    command,
                    limit: self.limit,
                    tail: tail(&(out.text() + &errors.text()), TAIL_LINES),
                });
            }
        };
        feeder.abort();
        if !status.success() {
            return Err(CommandError::Failed {
                command,
                status,
                tail: tail(&(out + &errors), TAIL_LINES),
            });
        }
        Ok(out)
    }

    /// Runs the command and discards its output.
    pub async fn run(self) -> Result<(), CommandError> {
        self.output().await.map(drop)
    }

    /// Whether the command succeeds. A command that cannot be started does not.
    pub async fn succeeds(self) -> bool {
        self.output().await.is_ok()
    }

    fn to_line(&self) -> String {
        let command = self.inner.as_std();
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|part| part.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Output of a command, captured so far from one of its streams.
struct Captured {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Captured {
    fn of(output: Option<impl AsyncRead + Unpin + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = tokio::spawn(async move {
            let Some(mut output) = output else { return };
            let mut chunk = vec![0; 16 << 10];
            // A stream that cannot be read counts as closed.
            while let Ok(count @ 1..) = output.read(&mut chunk).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..count]);
            }
        });
        Self { bytes, reader }
    }

    /// All output, once the stream has closed.
    async fn end(&mut self) -> String {
        let _ = (&mut self.reader).await;
        self.text()
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The last `count` lines of `text` that are not empty, indented.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(count);
    lines[from..]
        .iter()
        .map(|line| format!("  | {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_that_are_not_empty() {
        assert_eq!(tail("a\n\nb\nc\n", 2), "  | b\n  | c");
        assert_eq!(tail("", 2), "");
    }

    #[tokio::test]
    async fn a_failure_names_the_command_and_its_last_lines() {
        let error = Command::new("sh")
            .args(["-c", "echo out; echo wrong >&2; exit 3"])
            .run()
            .await
            .unwrap_err();
        assert_eq!(error.to_line(), "wrong");
        let CommandError::Failed { command, tail, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(command, "sh -c echo out; echo wrong >&2; exit 3");
        assert_eq!(tail, "  | out\n  | wrong");
    }

    #[tokio::test]
    async fn a_command_over_its_timeout_is_killed_and_its_last_lines_are_reported() {
        let error = Command::new("sh")
            .args(["-c", "echo so far; exec sleep 60"])
            .limit(Duration::from_secs(1))
            .run()
            .await
            .unwrap_err();
        let CommandError::TimedOut { tail, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(tail, "  | so far");
    }

    #[tokio::test]
    async fn input_longer_than_a_pipe_is_fed_while_output_is_read() {
        let text = "x".repeat(1 << 20);
        assert_eq!(Command::new("cat").input(text.clone()).output().await.unwrap(), text);
    }
}
