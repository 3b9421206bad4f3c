//! The kine-nats process.

use std::process::ExitCode;
use yoke_kine_nats::args::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // mimalloc asks for pages of 2 MiB, of which a small store fills little: 21 MiB in place of 9 beside an idle API server.
    // Where the kernel refuses, memory is all that it costs.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    run()
}

#[tokio::main(worker_threads = 2)]
async fn run() -> ExitCode {
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
