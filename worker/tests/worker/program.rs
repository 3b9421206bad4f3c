//! Runs the program like a user does.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

pub(crate) const PEM: &str = "-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n";

/// Builds a command of the program.
pub(crate) fn worker(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yoke-worker"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn call(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = worker(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Builds a join token.
pub(crate) fn token(server: &str, ca: &str, client_ca: &str, bootstrap: &str) -> String {
    encode(&json!({"server": server, "ca": ca, "clientCa": client_ca, "token": bootstrap, "version": "v1.35.4"}))
}

pub(crate) fn encode(fields: &Value) -> String {
    format!(
        "yoke1.{}",
        data_encoding::BASE64URL_NOPAD.encode(fields.to_string().as_bytes())
    )
}

/// Returns the report of `preflight --json`.
pub(crate) fn report(arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, out, err) = call(&[&["preflight", "--json"], arguments].concat());
    assert_eq!(err, "", "the report is on standard output");
    (code, serde_json::from_str(&out).unwrap())
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
