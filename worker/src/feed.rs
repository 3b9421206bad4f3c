//! Programs that are told what to do by what they read, and end.

use std::io;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Runs a program with an input, to its end. It is killed if nobody waits any more.
pub(crate) async fn feed(mut command: Command, input: &str) -> io::Result<Output> {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.kill_on_drop(true).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // One that does not read it all says itself how it went.
        let _ = pipe.write_all(input.as_bytes()).await;
    }
    child.wait_with_output().await
}
