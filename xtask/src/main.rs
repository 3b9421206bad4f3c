//! `cargo xtask`: generates files from the code, and checks rules that the compiler cannot check.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match xtask::run(&xtask::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            xtask::report(&error);
            ExitCode::FAILURE
        }
    }
}
