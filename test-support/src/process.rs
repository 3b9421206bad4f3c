//! Programs that a test runs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process; dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program of the folder that `YOKE_BIN` names, or of `PATH`. What it says on standard error goes to
    /// `PROGRAM.log` in `dir`.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn spawn(dir: &Path, program: &str, arguments: &[String]) -> Self {
        Self::spawn_with(dir, program, arguments, &[])
    }

    /// The same, with variables in its environment.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn spawn_with(dir: &Path, program: &str, arguments: &[String], environment: &[(&str, &str)]) -> Self {
        let bin = std::env::var_os("YOKE_BIN").map_or_else(PathBuf::new, PathBuf::from);
        let path = dir.join(format!("{program}.log"));
        let file = std::fs::File::options().create(true).append(true).open(&path);
        let log = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let child = Command::new(bin.join(program))
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{program} in YOKE_BIN, where `make tools` puts it: {error}"));
        Self { child, log: path }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
