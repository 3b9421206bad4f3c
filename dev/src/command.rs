//! Running other programs: output is captured, and a failure carries the command and its last lines.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process;

/// How many of a failed command's last lines are shown.
const TAIL_LINES: usize = 15;
/// How much of a line a table shows.
const LINE_LENGTH: usize = 160;

/// A command that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started or talked to.
    #[error("running `{command}`")]
    Start {
        /// What was run.
        command: String,
        /// Why it could not be.
        #[source]
        source: std::io::Error,
    },
    /// The program ended with a status other than zero.
    #[error("`{command}` ended with {status}\n{tail}")]
    Failed {
        /// What was run.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// Its last lines.
        tail: String,
    },
    /// The program did not end in time and was killed.
    #[error("`{command}` did not end within {limit:?}")]
    TimedOut {
        /// What was run.
        command: String,
        /// The limit that ran out.
        limit: Duration,
    },
}

impl CommandError {
    /// The failure in one line: the last of what the command said, cut short.
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

/// A command being built; a thin layer over [`process::Command`].
#[derive(Debug)]
pub struct Command {
    inner: process::Command,
    input: Vec<u8>,
    limit: Duration,
}

impl Command {
    /// `program` without arguments, with a limit of one hour.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = process::Command::new(program);
        inner.stdin(Stdio::null()).kill_on_drop(true);
        Self {
            inner,
            input: Vec::new(),
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

    /// Gives the command this standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self.inner.stdin(Stdio::piped());
        self
    }

    /// Kills the command when it takes longer.
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
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let stdin = child.stdin.take();
        let input = std::mem::take(&mut self.input);
        // Fed from a task of its own: a command that writes before it has read everything would otherwise wait for us.
        let feeder = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command that ends early closes its end; its exit status says why.
                let _ = stdin.write_all(&input).await;
            }
        });
        let output = match tokio::time::timeout(self.limit, child.wait_with_output()).await {
            Ok(output) => output.map_err(start)?,
            Err(_) => {
                return Err(CommandError::TimedOut {
                    command,
                    limit: self.limit,
                });
            }
        };
        feeder.abort();
        if !output.status.success() {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            return Err(CommandError::Failed {
                command,
                status: output.status,
                tail: tail(&text, TAIL_LINES),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the command for its effect.
    pub async fn run(self) -> Result<(), CommandError> {
        self.output().await.map(drop)
    }

    /// Whether the command ends with success; a command that cannot be started does not.
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
    fn the_tail_is_the_last_lines_that_say_something() {
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
    async fn a_command_over_its_limit_is_ended() {
        let error = Command::new("sleep")
            .arg("60")
            .limit(Duration::from_millis(20))
            .run()
            .await
            .unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
    }

    #[tokio::test]
    async fn input_longer_than_a_pipe_is_fed_while_output_is_read() {
        let text = "x".repeat(1 << 20);
        assert_eq!(Command::new("cat").input(text.clone()).output().await.unwrap(), text);
    }
}
