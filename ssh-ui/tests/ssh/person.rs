//! A user with an SSH key and OpenSSH's clients.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// A user.
pub(crate) struct Person {
    pub(crate) key: PathBuf,
    /// Content of the `.pub` file.
    pub(crate) public: String,
    pub(crate) fingerprint: String,
    options: Vec<String>,
    address: String,
}

/// Output of a program.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Returns the standard output; the program must have succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Returns the standard error; the program must have failed with this code.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        self.err
    }

    /// Returns the standard output as JSON.
    pub(crate) fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}

impl Person {
    /// Generates a key of this type.
    pub(crate) async fn new(dir: &Path, name: &str, kind: &str) -> Self {
        let key = dir.join(name);
        let file = key.to_str().unwrap();
        run(Command::new("ssh-keygen").args(["-q", "-t", kind, "-N", "", "-C", "me@home", "-f", file]))
            .await
            .ok();
        let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        let printed = run(Command::new("ssh-keygen").args(["-l", "-f", file])).await.ok();
        let fingerprint = printed.split(' ').nth(1).unwrap().to_owned();
        Self {
            key,
            public: public.trim().to_owned(),
            fingerprint,
            options: Vec::new(),
            address: String::new(),
        }
    }

    /// Configures the server, whose key is in `known_hosts`.
    pub(crate) fn meet(&mut self, port: u16, known_hosts: &Path) {
        let option = |name: &str, value: &str| ["-o".to_owned(), format!("{name}={value}")];
        self.options = [
            option("UserKnownHostsFile", known_hosts.to_str().unwrap()),
            option("StrictHostKeyChecking", "yes"),
            option("IdentitiesOnly", "yes"),
            option("IdentityAgent", "none"),
            option("ConnectTimeout", "10"),
            option("IdentityFile", self.key.to_str().unwrap()),
            option("Port", &port.to_string()),
        ]
        .concat();
        self.address = "127.0.0.1".to_owned();
    }

    /// Executes a command line at the server.
    pub(crate) async fn ssh(&self, line: &str) -> Said {
        self.ssh_with(&[], line).await
    }

    /// Executes a command line with further options of ssh.
    pub(crate) async fn ssh_with(&self, options: &[&str], line: &str) -> Said {
        run(&mut self.begin(options, line)).await
    }

    /// Builds the command of [`Person::ssh_with`].
    pub(crate) fn begin(&self, options: &[&str], line: &str) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-F", "none"]).args(&self.options).args(options);
        command.args(["--", &self.address]);
        if !line.is_empty() {
            command.arg(line);
        }
        command
    }

    /// Copies a file from or to the server; `:` stands for the server.
    pub(crate) async fn scp(&self, from: &str, to: &str) -> Said {
        let full = |place: &str| place.replacen(':', &format!("{}:", self.address), 1);
        let mut command = Command::new("scp");
        command.args(["-F", "none"]).args(&self.options);
        run(command.args([full(from), full(to)])).await
    }

    /// Executes lines of sftp.
    pub(crate) async fn sftp(&self, dir: &Path, lines: &str) -> Said {
        self.sftp_with(&[], dir, lines).await
    }

    /// Executes lines of sftp with further options.
    pub(crate) async fn sftp_with(&self, options: &[&str], dir: &Path, lines: &str) -> Said {
        let batch = dir.join("batch");
        std::fs::write(&batch, lines).unwrap();
        let mut command = Command::new("sftp");
        command
            .args(["-F", "none", "-q", "-b"])
            .arg(&batch)
            .args(&self.options)
            .args(options);
        run(command.arg(&self.address).current_dir(dir)).await
    }
}

/// Runs a program to its end.
pub(crate) async fn run(command: &mut Command) -> Said {
    let limit = std::time::Duration::from_secs(40);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(limit, output)
        .await
        .expect("the program ends")
        .unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
