//! `yoke-dev`: command line of the development stack, called by the Makefile.

use std::process::ExitCode;

fn main() -> ExitCode {
    yoke_dev::main()
}
