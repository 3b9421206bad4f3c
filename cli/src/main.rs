//! The `kubectl-yoke` program; the library has all of its code.

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match yoke_cli::run(yoke_cli::Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
