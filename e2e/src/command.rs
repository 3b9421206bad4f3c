//! Running programs as a user does, with everything they said.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// What a program said and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Whether the program ended with status 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output of a program that must succeed.
    pub fn ok(self) -> Result<String> {
        if self.success() {
            return Ok(self.stdout);
        }
        bail!("exit {:?}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }

    /// Standard output and error of a program that must fail.
    pub fn refused(self) -> Result<String> {
        if self.success() {
            bail!("succeeded where it should have been refused: {}", self.stdout);
        }
        Ok(self.stdout + &self.stderr)
    }
}

/// Runs `command` to its end; longer than `limit` is an error and ends it.
pub async fn run(mut command: Command, limit: Duration) -> Result<Output> {
    let line = format!("{:?}", command.as_std());
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {line}"))?;
    let output = tokio::time::timeout(limit, child.wait_with_output())
        .await
        .with_context(|| format!("{line} was not done after {limit:?}"))?
        .with_context(|| format!("waiting for {line}"))?;
    Ok(Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
