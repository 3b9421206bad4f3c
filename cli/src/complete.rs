//! Completion scripts.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::{Error, output};

/// Prints the script for a shell.
pub(crate) fn completion(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(
        shell,
        &mut Arguments::command().bin_name("kubectl-yoke"),
        "kubectl-yoke",
        &mut script,
    );
    output::put(&String::from_utf8_lossy(&script))
}
