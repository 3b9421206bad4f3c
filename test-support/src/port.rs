//! Chooses ports for programs that cannot choose a free port themselves and report it.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Range of ports. It is below Kubernetes' node ports (from 30000) and Linux' ports for outgoing
/// connections (`ip_local_port_range`, from 32768). So no outgoing connection takes one of these
/// ports before its server listens, or while the server restarts.
const PORTS: Range<u16> = 20_000..30_000;

/// Processes that choose at the same time start this far apart.
const STRIDE: u32 = 101;

/// Ports that this process holds until it exits.
static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns a loopback TCP port on which nothing listens. No other process gets it from here while
/// this one lives.
///
/// # Panics
///
/// Panics if every port is taken.
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let first = std::process::id().wrapping_mul(STRIDE) + u32::try_from(taken.len()).unwrap_or_default();
    let count = u32::from(PORTS.end - PORTS.start);
    let ports =
        (0..count).map(|step| PORTS.start + u16::try_from(first.wrapping_add(step) % count).unwrap_or_default());
    let mut free = ports.filter_map(|port| Some((port, take(port)?)));
    let (port, lock) = free.next().expect("a port from 20000 to 29999 is free");
    taken.push(lock);
    port
}

/// Locks a port if it is free. The lock is a name in the abstract namespace of Unix sockets: it has
/// one owner and disappears with the owner.
fn take(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("yoke-test-port-{port}")).ok()?;
    let lock = UnixListener::bind_addr(&name).ok()?;
    // Connects instead of listening: a program that is starting at the same time holds a copy of
    // every socket until it executes.
    let nobody = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    TcpStream::connect(("127.0.0.1", port))
        .is_err_and(nobody)
        .then_some(lock)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| [(); 50].map(|()| free_port()))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 200);
        assert!(ports.iter().all(|port| PORTS.contains(port) && take(*port).is_none()));
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(take(listener.local_addr().unwrap().port()).is_none());
    }
}
