//! The kine-nats process.

use std::process::ExitCode;
use yoke_kine_nats::process::args::Cli;
use yoke_kine_nats::process::{repair, run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // mimalloc requests pages of 2 MiB, and a small store uses little of each: 21 MiB instead of 9
    // beside an idle API server. If the kernel refuses this call, the only cost is memory.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    run()
}

#[tokio::main(worker_threads = 2)]
async fn run() -> ExitCode {
    let done = match Cli::parse() {
        Cli::Serve(args) => run::run(*args).await,
        Cli::Repair(args) => repair::repair(*args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "kine-nats exits");
            ExitCode::FAILURE
        }
    }
}
