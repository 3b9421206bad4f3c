//! Ports for programs that cannot be told to take any free one and say which.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Beneath what Kubernetes gives to node ports (30000) and Linux to outgoing connections (`ip_local_port_range`, 32768): no
/// connection takes one of these for its own end between the moment it is chosen and the moment its server listens, nor while
/// that server is restarted.
const PORTS: Range<u16> = 20_000..30_000;

/// The processes that ask at the same time begin to look this far from each other.
const STRIDE: u32 = 101;

/// What this process has taken, until it ends.
static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A TCP port of loopback that nobody listens on, and that no process gets from here while this one lives.
///
/// # Panics
///
/// If every port is taken.
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

/// Takes a port if nobody has: a name in the abstract namespace of unix sockets has one owner, and goes with it.
fn take(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("yoke-test-port-{port}")).ok()?;
    let lock = UnixListener::bind_addr(&name).ok()?;
    // Not by listening: a program that is started at that moment has a copy of every socket until it is executed.
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
    fn nobody_gets_a_port_twice() {
        let ports: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| [(); 50].map(|()| free_port()))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 200);
        assert!(ports.iter().all(|port| PORTS.contains(port) && take(*port).is_none()));
    }

    #[test]
    fn a_port_where_somebody_listens_is_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(take(listener.local_addr().unwrap().port()).is_none());
    }
}
