//! The Pod network between workers: each worker has a WireGuard tunnel to each other one, and a
//! packet filter that protects it.
//!
//! ```text
//!  API ──watch──▶ nodes.rs ──PeerNode──▶ plan.rs (pure) ──Peer──▶ tunnel.rs: WireGuard over a TUN device, and routes
//!   ▲                                      ▲   └─ranges─▶ table.rs (pure) ──▶ nft
//!   └── own Node: key, endpoint            └── host.rs: what the machine reaches without the Pod network
//! ```
//!
//! The table stays while the worker is stopped temporarily, because Pods keep running. The device
//! does not.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use gotatun::x25519::StaticSecret;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use yoke_api::Cidr;

use crate::error::Error;
use crate::host::{iptables, nftables};
use crate::layout::Layout;
use crate::output::progress;
use crate::process::stdin_program::call;
use crate::state::Worker;

mod host;
mod key;
mod nodes;
mod plan;
mod table;
mod tunnel;

use host::HostNetwork;
use key::Key;
use nodes::Nodes;
use plan::{LocalWorker, Plan};
use table::{Table, build_table};
use tunnel::{Parts, Tunnel};

/// Interval of a full reconcile, even without changes: other programs flush rules and routes, and
/// peers need new handshakes.
const RESYNC: Duration = Duration::from_secs(60);
/// Delay after an error, and between two reconciles.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Timeout for resolving the API server's name, which must not delay a reconcile.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);
const ADDRESSES_MAX: usize = 64;

/// A maintained Pod network. Dropping it stops the task without waiting for it.
#[derive(Debug)]
pub(crate) struct Network {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// MTU of the Pods' interfaces.
    pub(crate) mtu: u32,
}

impl Network {
    /// Creates the Pod network, and maintains it from then on. Tunnels may follow later.
    pub(crate) async fn start(layout: &Layout, worker: &Worker, range: Cidr) -> Result<Self, Error> {
        if !range.address().is_ipv4() {
            let why = format!("the Pod range {range} is not IPv4");
            return Err(Error::Network(why));
        }
        let secret = key::load_or_generate(&layout.wireguard_key())?;
        let mut reconciler = PodNetworkReconciler {
            layout: layout.clone(),
            worker: worker.clone(),
            range,
            key: Key::from(&secret),
            secret,
            tunnel: None,
            plan: Plan::default(),
            api: Vec::new(),
            last_message: String::new(),
        };
        // An existing table already has the peers.
        if !nftables::has_table(&worker.id.network()).await {
            reconciler.apply_table().await.map_err(Error::Network)?;
        }
        let host = reconciler.observe().await.map_err(Error::Network)?;
        reconciler.reconcile(&None).await;
        let (stop, stop_requested) = oneshot::channel();
        Ok(Self {
            stop,
            task: tokio::spawn(reconciler.run(stop_requested)),
            mtu: host.mtu,
        })
    }

    /// Resolves if the task ends without being stopped.
    pub(crate) async fn wait_failed(&mut self) -> Error {
        let ended = (&mut self.task).await;
        let why = ended.err().map_or_else(String::new, |error| error.to_string());
        Error::Network(format!("its task ended unexpectedly {why}"))
    }

    /// Removes the device. The table stays.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Adds an address to the loopback device, so that the network namespace has it before the bridge
/// exists.
pub(crate) async fn add_address(address: IpAddr) -> Result<(), String> {
    let address = Cidr::of(address).to_string();
    call("ip", &["address", "replace", &address, "dev", "lo"], "")
        .await
        .map(drop)
}

struct PodNetworkReconciler {
    layout: Layout,
    worker: Worker,
    range: Cidr,
    key: Key,
    secret: StaticSecret,
    tunnel: Option<Tunnel>,
    plan: Plan,
    /// Last known addresses of the API server.
    api: Vec<Cidr>,
    last_message: String,
}

impl PodNetworkReconciler {
    async fn run(mut self, stop_requested: oneshot::Receiver<()>) {
        let (known, changes) = watch::channel(None);
        let (layout, worker) = (self.layout.clone(), self.worker.clone());
        tokio::select! {
            () = nodes::follow(&layout, &worker, &known) => {}
            () = self.follow(changes) => {}
            _ = stop_requested => {}
        }
        if let Some(tunnel) = self.tunnel.take() {
            tunnel.close().await;
        }
    }

    async fn follow(&mut self, mut changes: watch::Receiver<Nodes>) {
        let mut backoff = BACKOFF_MIN;
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = wait_failed(&mut self.tunnel) => {
                    self.tunnel = None;
                    progress("the WireGuard device stopped; creating it again");
                    sleep(BACKOFF_MIN).await;
                }
                () = sleep(backoff) => {}
            }
            let nodes = changes.borrow_and_update().clone();
            backoff = if self.reconcile(&nodes).await {
                RESYNC
            } else {
                (backoff * 2).min(RESYNC)
            };
            // Limits reconciles to one per second, because any client that may write a Node can
            // cause them.
            sleep(BACKOFF_MIN).await;
        }
    }

    /// Reconciles everything, and prints an error once. Returns whether it succeeded.
    async fn reconcile(&mut self, nodes: &Nodes) -> bool {
        let why = self.try_reconcile(nodes).await.err().unwrap_or_default();
        if !why.is_empty() && why != self.last_message {
            progress(&format!("cannot reconcile the Pod network: {why}"));
        }
        self.last_message = why;
        self.last_message.is_empty()
    }

    async fn try_reconcile(&mut self, nodes: &Nodes) -> Result<(), String> {
        let host = self.observe().await?;
        if let Some(nodes) = nodes {
            let own = LocalWorker {
                name: self.worker.name.clone(),
                key: self.key,
                range: self.range,
                reserved: host.reserved,
            };
            let plan = plan::plan(&own, nodes);
            for (name, fault) in &plan.rejected {
                if self.plan.rejected.get(name) != Some(fault) {
                    progress(&format!("cannot reach Pods of Node {name}: {fault}"));
                }
            }
            self.plan = plan;
            self.apply_table().await?;
        }
        let tunnel = match &mut self.tunnel {
            Some(tunnel) => tunnel,
            None => {
                let parts = Parts {
                    name: &self.worker.id.tunnel(),
                    secret: &self.secret,
                    port: self.worker.wireguard_port,
                    address: self.range.address(),
                    mtu: host.mtu,
                };
                self.tunnel.insert(Tunnel::open(&parts).await?)
            }
        };
        tunnel.set_peers(&self.plan.peers).await?;
        tunnel.restart_handshakes().await;
        self.publish(nodes).await
    }

    /// Writes this worker's key and endpoint on its Node, if they differ.
    async fn publish(&self, nodes: &Nodes) -> Result<(), String> {
        let Some(seen) = nodes.as_ref().and_then(|nodes| nodes.get(&self.worker.name)) else {
            return Ok(());
        };
        let own = seen.address.as_deref().and_then(|address| address.parse().ok());
        // Other workers reach an ephemeral worker at the machine's address.
        let own = match &self.worker.uplink {
            Some(uplink) => uplink.machine,
            None => own,
        };
        let Some(address) = self.worker.public_address.or(own) else {
            return Err("the Node has no InternalIP address yet".to_owned());
        };
        let (key, endpoint) = (
            self.key.to_string(),
            SocketAddr::new(address, self.worker.wireguard_port).to_string(),
        );
        if seen.key.as_ref() == Some(&key) && seen.endpoint.as_ref() == Some(&endpoint) {
            return Ok(());
        }
        nodes::publish(&self.layout, &self.worker, &seen.uid, &key, &endpoint).await
    }

    async fn observe(&mut self) -> Result<HostNetwork, String> {
        let lookup = tokio::net::lookup_host(self.worker.server.clone());
        if let Ok(Ok(found)) = tokio::time::timeout(LOOKUP_LIMIT, lookup).await {
            let addresses = found.map(|address| address.ip().to_canonical());
            self.api = addresses.take(ADDRESSES_MAX).map(Cidr::of).collect();
        }
        let own = [self.worker.id.bridge(), self.worker.id.tunnel()];
        let mut host = host::observe(&own).await?;
        host.reserved.extend(&self.api);
        host.reserved
            .extend(self.worker.address.map(|address| Cidr::of(address.to_canonical())));
        Ok(host)
    }

    async fn apply_table(&self) -> Result<(), String> {
        let peers: Vec<_> = self.plan.peers.iter().map(|peer| peer.range).collect();
        let text = build_table(&Table {
            name: &self.worker.id.network(),
            bridge: &self.worker.id.bridge(),
            tunnel: &self.worker.id.tunnel(),
            own: self.range,
            peers: &peers,
            is_alone: self.worker.uplink.is_some(),
        });
        nftables::apply(&text).await?;
        iptables::accept_forwarding(&self.worker.id.bridge(), &self.worker.id.network()).await
    }
}

async fn wait_failed(tunnel: &mut Option<Tunnel>) {
    match tunnel {
        Some(tunnel) => tunnel.wait_failed().await,
        None => std::future::pending().await,
    }
}
