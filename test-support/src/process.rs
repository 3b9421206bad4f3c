//! Programs that a test runs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program from the folder in `YOKE_BIN`, or from `PATH`. Its standard error goes to
    /// `PROGRAM.log` in `dir`.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started.
    pub fn spawn(dir: &Path, program: &str, arguments: &[String]) -> Self {
        Self::spawn_with(dir, program, arguments, &[])
    }

    /// Like [`Self::spawn`], with environment variables.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started.
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

    /// Pid of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Standard error of the process so far.
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
