//! Runs short programs that read their instructions from standard input.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use yoke_supervisor::programs::PATH;

const LIMIT: Duration = Duration::from_secs(10);
/// Upper bound for the error output of a program, in characters.
const OUTPUT_MAX: usize = 300;

/// Runs a program with this input until it exits. Dropping the future kills it.
pub(crate) async fn run_with_input(mut command: Command, input: &str) -> io::Result<Output> {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.kill_on_drop(true).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that does not read all of its input reports that by its own exit status.
        let _ = pipe.write_all(input.as_bytes()).await;
    }
    child.wait_with_output().await
}

/// Runs a program of the machine and returns its output, or the reason why it failed.
pub(crate) async fn call(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", PATH);
    match tokio::time::timeout(LIMIT, run_with_input(command, input)).await {
        Err(_) => Err(format!("{program}: timed out after {LIMIT:?}")),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(Ok(output)) => {
            let output_text = String::from_utf8_lossy(&output.stderr);
            let output_text: String = output_text.trim().chars().take(OUTPUT_MAX).collect();
            Err(format!("{program}: {output_text}"))
        }
    }
}
