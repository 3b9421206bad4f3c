//! `yoke-launch`: starts the components of a control plane so that they wake up rarely. It also
//! runs components that may run only once, beside the process that writes the store. It starts
//! these only after the API server is alive, which gets the processor until then.
//!
//! A component of Kubernetes has hundreds of timers that fire about twice a second, most of them to
//! refresh a metric. It wakes up for each of them separately, which is half the cost of an idle
//! control plane. Linux coalesces timers that are due within the timer slack of a thread, 50 µs by
//! default. An executed program inherits the slack of the thread that executed it. No other way
//! sets it: Kubernetes has no such field, and changing another process needs a capability. Data on
//! sockets wakes a component as soon as before. While a core is busy, timers are checked only every
//! few milliseconds anyway.
//!
//! ```text
//! yoke-launch install FILE                                    copies itself, for containers of other images
//! yoke-launch MILLISECONDS PROGRAM [ARGUMENT]…                becomes PROGRAM
//! yoke-launch --writer ADDRESS --after SERVER --name NAME --ca FILE MILLISECONDS PROGRAM [ARGUMENT]…
//!                                                             runs PROGRAM while the kine-nats at ADDRESS writes, and exits with its
//!                                                             code; starts it when the kube-apiserver at SERVER is alive, whose
//!                                                             certificate is for NAME and of a CA in FILE
//! yoke-launch await SERVER NAME FILE                          exits when that kube-apiserver is alive
//! ```

#[path = "launch/server.rs"]
mod server;
#[path = "launch/writer.rs"]
mod writer;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::set_current_timer_slack;
use rustls::pki_types::ServerName;

use server::{AWAIT, Server};

const USAGE: &str = "usage: yoke-launch install FILE | yoke-launch await SERVER NAME FILE | \
    yoke-launch [--writer ADDRESS --after SERVER --name NAME --ca FILE] MILLISECONDS PROGRAM [ARGUMENT]…";

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [word, file] if word == "install" => install(Path::new(file)),
        [word, server, name, ca] if word == AWAIT => to_server(server, name, ca)?.wait_until_alive(),
        [
            writer,
            store,
            after,
            server,
            named,
            name,
            by,
            ca,
            milliseconds,
            program,
            rest @ ..,
        ] if [writer, after, named, by] == ["--writer", "--after", "--name", "--ca"] => {
            let command = prepare(milliseconds, program, rest)?;
            writer::run_beside(to_address(store)?, &to_server(server, name, ca)?, command)
        }
        [milliseconds, program, rest @ ..] => Err(prepare(milliseconds, program, rest)?.exec()),
        _ => Err(refuse()),
    }
}

/// Replaces the file atomically: it may exist and be running, and no process ever sees half of it.
fn install(file: &Path) -> Result<()> {
    let new = file.with_extension("new");
    fs::copy(std::env::current_exe()?, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o555))?;
    fs::rename(new, file)
}

/// Sets the timer slack of this thread; every program that it starts from here on inherits it.
fn prepare(milliseconds: &OsStr, program: &OsStr, rest: &[OsString]) -> Result<Command> {
    set_current_timer_slack(Some(to_slack(milliseconds)?))?;
    let mut command = Command::new(program);
    command.args(rest);
    Ok(command)
}

fn to_address(text: &OsStr) -> Result<SocketAddr> {
    let address = text.to_str().and_then(|text| text.parse().ok());
    address.ok_or_else(refuse)
}

fn to_server(address: &OsStr, name: &OsStr, ca: &OsStr) -> Result<Server> {
    let name = name.to_str().and_then(|text| ServerName::try_from(text).ok());
    Ok(Server {
        address: to_address(address)?,
        name: name.ok_or_else(refuse)?.to_owned(),
        ca: PathBuf::from(ca),
    })
}

/// Parses milliseconds and returns nanoseconds.
fn to_slack(milliseconds: &OsStr) -> Result<NonZeroU64> {
    let number = milliseconds.to_str().and_then(|text| text.parse::<u32>().ok());
    let nanoseconds = number.and_then(|number| NonZeroU64::new(u64::from(number) * 1_000_000));
    nanoseconds.ok_or_else(refuse)
}

fn refuse() -> Error {
    Error::new(ErrorKind::InvalidInput, USAGE)
}
