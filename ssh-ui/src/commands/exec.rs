//! Runs one command on a channel: prints its answer and its progress, and prompts for confirmation.
//! An adapter between [`crate::commands::session`] and the [`ChannelOutput`].

use std::pin::pin;

use futures::FutureExt as _;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::commands::execute::execute;
use crate::commands::parse::{Command, Request};
use crate::commands::session::ClientSession;
use crate::commands::worker_binary;
use crate::ssh::channel_output::ChannelOutput;
use crate::tenant::PROGRESS_LINES;
use crate::tui::screen::form::edit;
use crate::tui::screen::keys::{Key, Keys};

/// Reads the keys that a client types during a command. Keys typed before a prompt are discarded.
pub struct PromptReader {
    input: Option<DuplexStream>,
    keys: Keys,
}

impl PromptReader {
    /// Reads from a terminal's input. Without an input there are no keys.
    pub fn new(input: Option<DuplexStream>) -> Self {
        Self {
            input,
            keys: Keys::default(),
        }
    }

    /// Waits for the next keys; an empty list is the end of the input.
    async fn next(&mut self) -> Vec<Key> {
        let mut bytes = [0; 256];
        loop {
            let Some(input) = &mut self.input else {
                return Vec::new();
            };
            match input.read(&mut bytes).await {
                Ok(count) if count > 0 => {
                    let mut keys = self.keys.read(&bytes[..count]);
                    // A prompt uses no key that starts with Escape, so an Escape is complete at
                    // once.
                    if self.keys.is_waiting() {
                        keys.extend(self.keys.give_up());
                    }
                    if !keys.is_empty() {
                        return keys;
                    }
                }
                _ => self.input = None,
            }
        }
    }

    /// Waits for Ctrl-C.
    async fn interrupt(&mut self) {
        loop {
            let keys = self.next().await;
            if keys.contains(&Key::Interrupt) {
                return;
            }
            if keys.is_empty() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Runs a command line and returns its exit code. When the channel is `closed`, the command
/// continues but no longer waits.
pub async fn run(
    client: &ClientSession,
    line: &[u8],
    output: &ChannelOutput,
    mut prompt: PromptReader,
    closed: oneshot::Receiver<()>,
) -> u32 {
    let prompt = &mut prompt;
    let work = async |mut request: Request| {
        confirm(&mut request, output, prompt).await?;
        // The key may have been removed from the Tenant while the prompt was open.
        client.shared().check_key(client.identity())?;
        if let Command::WorkerBinary { architecture } = &request.command {
            return worker_binary::send(client, architecture, output, closed)
                .await
                .map(|()| String::new());
        }
        let (progress, lines) = mpsc::channel(PROGRESS_LINES);
        let host = client.host()?;
        let work = execute(&host, client.identity(), &request, &progress);
        show(work, lines, output, prompt, closed).await
    };
    let answer = client.run_command(line, work).await;
    match answer.result {
        Ok(text) => u32::from(!output.put(&text).await),
        Err(error) => {
            output.say(&error.to_text(answer.json)).await;
            error.exit_code()
        }
    }
}

/// On a terminal, prompts for the name of the Cluster to delete. Programs pass `--yes`.
async fn confirm(request: &mut Request, output: &ChannelOutput, prompt: &mut PromptReader) -> Result<(), Error> {
    let Command::Delete { change, yes } = &mut request.command else {
        return Ok(());
    };
    if *yes || request.json || !output.is_terminal() {
        return Ok(());
    }
    let name = &change.name;
    let question = format!("Everything in Cluster {name} will be lost. Type its name to delete it: ");
    output.say(&question).await;
    let mut text = String::new();
    loop {
        let keys = prompt.next().await;
        if keys.is_empty() {
            return Err(Error::NotConfirmed(name.clone()));
        }
        for key in keys {
            if matches!(key, Key::Enter | Key::Interrupt | Key::Escape) {
                output.say("\n").await;
                *yes = key == Key::Enter && text == *name;
                return match *yes {
                    true => Ok(()),
                    false => Err(Error::NotConfirmed(name.clone())),
                };
            }
            let before = text.len();
            edit(&mut text, key);
            let echo = match text.len() {
                after if after > before => text[before..].to_owned(),
                after if after < before => "\x08 \x08".to_owned(),
                _ => continue,
            };
            output.send(echo).await;
        }
    }
}

/// Runs the work and prints its progress, until the channel is closed or Ctrl-C is pressed.
async fn show(
    work: impl Future<Output = Result<String, Error>>,
    mut lines: mpsc::Receiver<String>,
    output: &ChannelOutput,
    prompt: &mut PromptReader,
    closed: oneshot::Receiver<()>,
) -> Result<String, Error> {
    let (mut work, mut closed) = (pin!(work), pin!(closed.fuse()));
    let mut interrupt = pin!(prompt.interrupt().fuse());
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            Some(line) = lines.recv() => {
                output.say(&line).await;
            }
            _ = &mut closed => lines.close(),
            () = &mut interrupt => lines.close(),
        }
    };
    while let Ok(line) = lines.try_recv() {
        output.say(&line).await;
    }
    result
}
