//! The end of the process: prints the error of a command and chooses the exit code.

use std::process::ExitCode;

use crate::Error;
use crate::output;

impl Error {
    /// Prints the error, its causes and the hint, and returns the exit code of the process.
    pub fn report(&self) -> ExitCode {
        // With `kubectl yoke get | head` the reader exits first, which is not an error.
        if matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        if let Self::CommandFailed(code) = self {
            return ExitCode::from(*code);
        }
        output::print_message(&format!("error: {}", self.with_causes()));
        if let Some(hint) = self.hint() {
            output::print_message(&format!("hint: {hint}"));
        }
        match self {
            Self::WaitTimeout { .. } => ExitCode::from(3),
            Self::CommandNotRun { .. } => ExitCode::from(126),
            Self::NoCommand(_) => ExitCode::from(127),
            // The exit code that a shell reports for a process that a signal ended.
            Self::Interrupted(signal) => ExitCode::from(u8::try_from(128 + signal.as_raw_value()).unwrap_or(1)),
            _ => ExitCode::FAILURE,
        }
    }
}
