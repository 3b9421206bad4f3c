//! `yoke-worker` turns a machine into a node of a tenant cluster.
//!
//! ```text
//!  preflight   host/facts.rs, clock.rs ─▶ Facts ─▶ preflight.rs (pure) ─▶ one row per check
//!  run         JoinLine, bundle.rs ─▶ setup.rs ─▶ node_lifecycle.rs: containerd, kubelet, CNI, configured by config.rs (pure)
//!  run --rm                                    └▶ sandbox.rs: the same in a sandbox, uplink.rs: its network ─▶ drain.rs ─▶ cleanup.rs
//!  join        `run` without the sandbox, as a systemd unit: join.rs ─▶ unit.rs (pure), systemd.rs ─▶ `run`
//!  meanwhile   upgrade.rs: replaces the kubelet when the cluster requests another version
//!  leave       node_lifecycle.rs again ─▶ drain.rs ─▶ cleanup.rs
//! ```
//!
//! Standard output carries data only. Progress and errors go to standard error.

mod arguments;
mod bundle;
mod certificate;
mod cleanup;
mod clock;
mod cni;
mod commands;
mod config;
mod drain;
mod error;
mod error_chain;
mod host;
mod id;
mod join;
mod join_admission;
mod layout;
mod limits;
mod netns;
mod network;
mod node;
mod node_lifecycle;
mod node_name;
mod output;
mod pods;
mod preflight;
mod process;
mod root;
mod sandbox;
mod setup;
mod state;
mod systemd;
mod unit;
mod upgrade;
mod uplink;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use yoke_api::join_token::JoinLine;

pub use crate::arguments::Arguments;
use crate::arguments::{Command, PreflightOptions};
pub use crate::error::Error;
use crate::host::files::FileError;
use crate::preflight::facts::Purpose;

/// Upper bound for piped input, in bytes. Larger than any join token.
const INPUT_MAX: u64 = 128 << 10;

/// Runs the command that the command line names.
pub async fn run(arguments: Arguments) -> ExitCode {
    yoke_runtime::install_crypto();
    run_command(arguments).await.unwrap_or_else(|error| error.report())
}

async fn run_command(arguments: Arguments) -> Result<ExitCode, Error> {
    match arguments.command {
        Command::Preflight(options) => preflight(&options).await?,
        Command::Run(options) => {
            let line = read_token(options.join.token.as_deref(), options.join.token_file.as_deref())?;
            commands::run(&options, line.as_ref()).await?;
        }
        Command::Join(options) => {
            let line = read_token(options.join.token.as_deref(), options.join.token_file.as_deref())?;
            join::join(&options, line.as_ref()).await?;
        }
        Command::Leave(options) => commands::leave(&options).await?,
        Command::Init(options) => return commands::init(&options),
        Command::Node(options) => commands::node(&options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn preflight(options: &PreflightOptions) -> Result<(), Error> {
    let line = read_token(options.token.as_deref(), options.token_file.as_deref())?;
    let rows = commands::observe(&options.machine, line.as_ref(), Purpose::Any).await;
    let text = if options.json {
        preflight::report::to_json(&rows)
    } else {
        preflight::report::to_text(&rows)
    };
    output::print_data(&text).map_err(Error::Output)?;
    if preflight::row::is_fit(&rows) {
        Ok(())
    } else {
        Err(Error::Unfit)
    }
}

/// Reads the join token. `-` stands for standard input, because every user of the machine can read
/// a command line.
fn read_token(argument: Option<&str>, file: Option<&Path>) -> Result<Option<JoinLine>, Error> {
    let text = match (argument, file) {
        (Some("-"), _) => read_limited(std::io::stdin()).map_err(Error::Input)?,
        (Some(text), _) => text.to_owned(),
        (None, Some(path)) => File::open(path)
            .and_then(read_limited)
            .map_err(|error| FileError::new("read", path, error))?,
        (None, None) => return Ok(None),
    };
    JoinLine::parse(&text).map(Some).map_err(Error::Token)
}

fn read_limited(from: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    from.take(INPUT_MAX).read_to_string(&mut text)?;
    Ok(text)
}
