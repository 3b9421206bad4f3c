//! `cargo xtask`: writes what is generated from the code, and checks what no compiler checks.

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
