//! Runs programs as a user does and captures their output.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// Output and exit status of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Whether the program exited with status 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns standard output. Fails unless the program succeeded.
    pub fn ok(self) -> Result<String> {
        if self.success() {
            return Ok(self.stdout);
        }
        bail!("exit {:?}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }

    /// Returns standard output and standard error. Fails if the program succeeded.
    pub fn refused(self) -> Result<String> {
        if self.success() {
            bail!("succeeded, but should have been refused: {}", self.stdout);
        }
        Ok(self.stdout + &self.stderr)
    }
}

/// Runs `command` until it exits. Kills it and fails after `limit`.
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
        .with_context(|| format!("{line} did not finish within {limit:?}"))?
        .with_context(|| format!("waiting for {line}"))?;
    Ok(Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
