//! The `yoke-worker` program. All of it is in the library.

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    yoke_worker::run(yoke_worker::Arguments::parse()).await
}
