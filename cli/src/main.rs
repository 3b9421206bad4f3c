//! `kubectl yoke`: see the library.

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match yoke_cli::run(yoke_cli::Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
