//! The kine-nats process.

use std::process::ExitCode;
use yoke_kine_nats::args::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let done = match Cli::parse() {
        Cli::Serve(args) => yoke_kine_nats::run(*args).await,
        Cli::Repair(args) => yoke_kine_nats::repair(*args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "kine-nats ends");
            ExitCode::FAILURE
        }
    }
}
