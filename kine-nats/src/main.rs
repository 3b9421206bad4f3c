//! The kine-nats process.

use clap::Parser;
use std::process::ExitCode;
use yoke_kine_nats::args::Args;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    match yoke_kine_nats::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "kine-nats ends");
            ExitCode::FAILURE
        }
    }
}
