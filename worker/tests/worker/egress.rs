//! Connects kube-apiserver to kubelets that are reachable only in their own network namespace. In a
//! tenant cluster konnectivity does that; here it is a proxy that connects from that namespace.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use crate::program::path;

const LIMIT: Duration = Duration::from_secs(5);
const HEAD_MAX: usize = 4096;

/// Serves the kube-apiserver of this folder until the test ends. Returns the argument that
/// configures it.
pub(crate) fn serve(dir: &Path) -> String {
    let socket = dir.join("egress.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let configuration = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": {
            "proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}},
        }}],
    });
    let file = dir.join("egress.json");
    std::fs::write(&file, configuration.to_string()).unwrap();
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), dir) = (stream, dir.clone()) else {
                return;
            };
            std::thread::spawn(move || pass(stream, &dir));
        }
    });
    format!("--egress-selector-config-file={}", path(&file))
}

/// Passes one connection. A request starts with `CONNECT address:port HTTP/1.1`, and ends with an
/// empty line.
fn pass(mut stream: UnixStream, dir: &Path) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_MAX {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let to: SocketAddr = head.strip_prefix("CONNECT ")?.split(' ').next()?.parse().ok()?;
    let Some(mut far) = find_network(dir, to).and_then(|net| connect_in(&net, to)) else {
        let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n");
        return None;
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let (mut back, mut near) = (far.try_clone().ok()?, stream.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut near);
        let _ = near.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut stream, &mut far);
    let _ = far.shutdown(std::net::Shutdown::Both);
    Some(())
}

/// Connects from another network namespace, in a thread of its own.
pub(crate) fn connect_in(net: &Path, to: SocketAddr) -> Option<TcpStream> {
    in_network(net, move || TcpStream::connect_timeout(&to, LIMIT).ok())
}

/// Runs a function in another network namespace, in a thread of its own.
pub(crate) fn in_network<T: Send + 'static>(net: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let net = std::fs::File::open(net).unwrap();
    let there = std::thread::spawn(move || {
        move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    });
    there.join().unwrap()
}

/// Finds the network namespace of the kubelet with this address, among the workers of this test.
fn find_network(dir: &Path, to: SocketAddr) -> Option<PathBuf> {
    let address = format!("--node-ip={}\0", to.ip());
    let processes = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let mut kubelets = processes.filter(|process| {
        let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
        let has = |text: Vec<u8>, part: &str| String::from_utf8_lossy(&text).contains(part);
        has(read("cmdline"), &address) && (has(read("cmdline"), path(dir)) || has(read("mountinfo"), path(dir)))
    });
    Some(kubelets.next()?.join("ns/net"))
}
