//! `yoke-launch`: starts the components of a control plane such that they wake rarely, and those that may run once beside the
//! process that writes the store only, and not before the API server lives, to which they leave the processor until then.
//!
//! A component of Kubernetes has hundreds of timers that come twice a second or so, most of which only keep a metric up to
//! date, and wakes for each of them by itself: half of what an idle control plane costs. Linux lets those come together that
//! are due within the timer slack of a thread, 50 µs by default; a program that is executed has that of who executed it. There
//! is no other way to set it: Kubernetes knows no such field, and for another process it takes a capability. What sockets
//! bring wakes as soon as before, and while a core is busy the timers are looked at a few milliseconds apart anyway.
//!
//! ```text
//! yoke-launch install FILE                                    copies itself, for containers of other images
//! yoke-launch MILLISECONDS PROGRAM [ARGUMENT]…                becomes PROGRAM
//! yoke-launch --writer ADDRESS --after SERVER --name NAME --ca FILE MILLISECONDS PROGRAM [ARGUMENT]…
//!                                                             runs PROGRAM while the kine-nats at ADDRESS writes, and ends as it does;
//!                                                             begins when the kube-apiserver at SERVER, whose certificate is for
//!                                                             NAME and of a CA in FILE, says that it lives
//! yoke-launch await SERVER NAME FILE                          ends when that kube-apiserver lives
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

/// Nothing ever finds half of it: the file may be there, and be executed.
fn install(file: &Path) -> Result<()> {
    let new = file.with_extension("new");
    fs::copy(std::env::current_exe()?, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o555))?;
    fs::rename(new, file)
}

/// What this thread starts from here on has the timer slack.
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

/// The time in nanoseconds.
fn to_slack(milliseconds: &OsStr) -> Result<NonZeroU64> {
    let number = milliseconds.to_str().and_then(|text| text.parse::<u32>().ok());
    let nanoseconds = number.and_then(|number| NonZeroU64::new(u64::from(number) * 1_000_000));
    nanoseconds.ok_or_else(refuse)
}

fn refuse() -> Error {
    Error::new(ErrorKind::InvalidInput, USAGE)
}
