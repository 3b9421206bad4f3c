//! WireGuard in this process: a TUN device, a UDP socket, and the peers of a plan.
//!
//! The device disappears with the process, however that exits, and its routes with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use gotatun::device::{DefaultDeviceTransports, Device, DeviceBuilder, Peer as Remote};
use gotatun::tun::tun_async_device::TunDevice;
use gotatun::x25519::{PublicKey, StaticSecret};

use super::key::Key;
use super::plan::Peer;
use crate::process::stdin_program::call;

/// Keepalive interval in seconds. Few NATs forget a mapping earlier.
const KEEPALIVE: u16 = 25;
/// Time for handshakes to be sent.
const HANDSHAKE_LIMIT: Duration = Duration::from_millis(200);

/// Parameters of a tunnel.
pub(super) struct Parts<'a> {
    pub(super) name: &'a str,
    pub(super) secret: &'a StaticSecret,
    pub(super) port: u16,
    /// Source address of the machine for packets to other workers' Pods.
    pub(super) address: IpAddr,
    pub(super) mtu: u32,
}

/// An open WireGuard device.
pub(super) struct Tunnel {
    device: Device<DefaultDeviceTransports>,
    name: String,
    peers: BTreeMap<Key, Peer>,
}

impl Tunnel {
    pub(super) async fn open(parts: &Parts<'_>) -> Result<Self, String> {
        let to_text = |error: gotatun::device::Error| error.to_string();
        let Parts { name, address, mtu, .. } = parts;
        let tun = TunDevice::from_name(name).map_err(|error| error.to_string())?;
        // No IPv6 link-local address: the device needs only this address, and no neighbor
        // discovery.
        let script = format!(
            "link set dev {name} addrgenmode none\n\
             address replace {address}/32 dev {name}\n\
             link set dev {name} mtu {mtu} up\n"
        );
        call("ip", &["-batch", "-"], &script).await?;
        let builder = DeviceBuilder::new().with_default_udp().with_ip(tun);
        let device = builder
            .with_private_key(parts.secret.clone())
            .build()
            .await
            .map_err(to_text)?;
        // A device that is built without peers opens its socket only when its port changes.
        device.set_listen_port(parts.port).await.map_err(to_text)?;
        Ok(Self {
            device,
            name: parts.name.to_owned(),
            peers: BTreeMap::new(),
        })
    }

    /// Sets the peers. For a peer whose configured endpoint has not changed, the last observed
    /// endpoint stays in use.
    pub(super) async fn set_peers(&mut self, wanted: &[Peer]) -> Result<(), String> {
        let wanted: BTreeMap<Key, Peer> = wanted.iter().map(|peer| (peer.key, peer.clone())).collect();
        let gone: Vec<_> = self
            .peers
            .values()
            .filter(|peer| wanted.get(&peer.key) != Some(*peer))
            .collect();
        let new: Vec<_> = wanted
            .values()
            .filter(|peer| self.peers.get(&peer.key) != Some(*peer))
            .collect();
        let changed = self.device.write(async |device| {
            for peer in &gone {
                device.remove_peer(&peer.key.into()).await;
            }
            for peer in &new {
                device.add_peer(to_remote(peer));
            }
        });
        changed.await.map_err(|error| error.to_string())?;
        let is_routed = |range| wanted.values().any(|peer| peer.range == range);
        let unrouted = gone.iter().map(|peer| peer.range).filter(|range| !is_routed(*range));
        let unrouted: Vec<_> = unrouted.collect();
        let keys: Vec<_> = new.iter().map(|peer| peer.key).collect();
        self.peers = wanted;
        self.send_handshakes(keys).await;
        let mut script = String::new();
        for range in unrouted {
            let _ = writeln!(script, "route delete {range} dev {}", self.name);
        }
        for peer in self.peers.values() {
            let _ = writeln!(script, "route replace {} dev {}", peer.range, self.name);
        }
        // `-force` continues after errors: a route that is already removed is the desired state.
        call("ip", &["-force", "-batch", "-"], &script).await.map(drop)
    }

    /// Starts new handshakes with all peers. The device gives up on a silent peer until a Pod sends
    /// a packet to it. A worker behind a NAT would be unreachable until then.
    pub(super) async fn restart_handshakes(&self) {
        self.send_handshakes(self.peers.keys().copied().collect()).await;
    }

    async fn send_handshakes(&self, keys: Vec<Key>) {
        let begin = |key: Key| async move {
            // The device itself retries a handshake without response.
            let _ = self.device.force_handshake(&PublicKey::from(key)).await;
        };
        let all = futures::future::join_all(keys.into_iter().map(begin));
        let _ = tokio::time::timeout(HANDSHAKE_LIMIT, all).await;
    }

    /// Resolves when the device stops working.
    pub(super) async fn wait_failed(&mut self) {
        self.device.wait().await;
    }

    pub(super) async fn close(self) {
        self.device.stop().await;
    }
}

fn to_remote(peer: &Peer) -> Remote {
    let mut remote = Remote::new(peer.key.into()).with_endpoint(peer.endpoint);
    remote.keepalive = Some(KEEPALIVE);
    remote.with_allowed_ip(peer.range.to_string().parse().expect("a range is one"))
}
