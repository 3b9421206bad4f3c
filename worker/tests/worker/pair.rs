//! Pods of two workers that are connected through a router.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, create};
use crate::machine::{END_LIMIT, Init, JOIN_LIMIT, Machine, Worker, members, until};
use crate::network::{Network, run_in};
use crate::signer::{Authority, sign_all};

/// Timeout for Pods to reach each other. WireGuard retries a handshake after five seconds.
const MEET_LIMIT: Duration = Duration::from_secs(60);

impl Machine {
    /// Returns the network namespace of the worker's Pod.
    pub(crate) fn pod_network(&self) -> String {
        let pid = self.groups("/pods").iter().flat_map(|group| members(group)).next();
        format!("/proc/{}/ns/net", pid.expect("it has a Pod").as_raw_nonzero())
    }

    /// Reports whether the Pod gets a response from an address.
    pub(crate) fn pod_reaches(&self, address: &str) -> bool {
        ask(&self.pod_network(), address)
    }

    /// Counts the packets that the worker has sent through its tunnels.
    fn sent(&self) -> u64 {
        let links = self.network.ask("ip", &["-json", "-statistics", "link"]);
        let links: Value = serde_json::from_str(&links).unwrap();
        let device = self.device();
        let link = links.as_array().unwrap().iter().find(|link| link["ifname"] == device);
        link.expect("it has a device")["stats64"]["tx"]["packets"]
            .as_u64()
            .unwrap()
    }

    fn device(&self) -> String {
        format!("ykwg{}", self.read("worker.json").unwrap()["id"].as_str().unwrap())
    }

    fn has_device(&self) -> bool {
        self.network.ask("ip", &["-brief", "link"]).contains(&self.device())
    }
}

fn ask(net: &str, address: &str) -> bool {
    let url = format!("http://{address}:8080/");
    run_in(net, "curl", &["--silent", "--fail", "--max-time", "2", &url]).0
}

pub(crate) async fn pod_address(client: &Client, name: &str) -> String {
    let pod = Api::<Pod>::default_namespaced(client.clone()).get(name).await.unwrap();
    pod.status.unwrap().pod_ip.unwrap()
}

pub(crate) async fn until_reached(worker: &Worker, from: &Machine, address: &str) {
    until(worker, "an answer of the Pod", MEET_LIMIT, async || {
        from.pod_reaches(address)
    })
    .await;
}

/// Lets only this address reach a Pod, so that a response proves the source address.
fn allow_only(net: &str, address: &str) {
    let rule = format!(
        "add table inet t; add chain inet t c {{ type filter hook input priority filter; }}; \
         add rule inet t c tcp dport 8080 ip saddr != {address} drop"
    );
    let (good, output) = run_in(net, "nft", &[&rule]);
    assert!(good, "{output}");
}

pub(crate) async fn join_both(
    client: &Client,
    signers: &(Authority, Authority),
    one: (&Machine, &Worker),
    two: (&Machine, &Worker),
) {
    let joined = async { tokio::join!(one.0.join(one.1, client), two.0.join(two.1, client)) };
    tokio::select! {
        _ = joined => {}
        () = sign_all(client.clone(), &signers.0, &signers.1, None) => {}
    }
}

async fn assert_left(machine: &Machine, client: &Client, output: &str) {
    let nodes = Api::<Node>::all(client.clone());
    assert!(nodes.get_opt(machine.name).await.unwrap().is_none(), "{output}");
    for (kind, found) in machine.left_over() {
        assert_eq!(found, [""; 0], "{kind}: {output}");
    }
}

#[tokio::test]
async fn pods_of_two_workers_reach_each_other() {
    assert!(rustix::process::geteuid().is_root(), "a worker needs root");
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let (router, networks) = Network::make_two();
    let signers = (Authority::new("clients"), Authority::new("kubelets"));
    let cluster = Cluster::start(dir.path(), &router.host, &signers.0, &signers.1).await;
    let client = cluster.client.clone();
    let make = |network, name: &'static str, pods| {
        Machine::make(&dir.path().join(name), network, &cluster, (name, pods), Init::None)
    };
    let [near, far] = networks;
    let (one, two) = (make(near, "one", "10.232.7.0/24"), make(far, "two", "10.232.8.0/24"));
    // Docker sets this policy.
    two.network.ask("iptables", &["-P", "FORWARD", "DROP"]);
    let (mut first, mut second) = (one.run(&[]), two.run(&["--rm"]));
    join_both(&client, &signers, (&one, &first), (&two, &second)).await;

    let (here, there) = (pod_address(&client, "one").await, pod_address(&client, "two").await);
    until_reached(&first, &one, &there).await;
    assert!(two.pod_reaches(&here), "and back: {}", second.last_output());
    // The worker reconciles its table once a minute.
    one.network.ask("nft", &["flush", "ruleset"]);
    until(
        &first,
        "the nftables table to exist again",
        MEET_LIMIT * 2,
        async || one.network.ask("nft", &["list", "tables"]).contains("yoke-worker-"),
    )
    .await;
    allow_only(&two.pod_network(), &here);
    let before = one.sent();
    assert!(
        one.pod_reaches(&there),
        "it shows its own address: {}",
        first.last_output()
    );
    // The handshake, its response, and the query. Later packets may carry more than one message.
    assert!(one.sent() >= before + 3, "it went through the tunnel");
    let machine = format!("/run/netns/{}", one.network.namespace);
    assert!(!ask(&machine, &there), "the machine has another address");

    // A Node that a malicious user creates to receive another Node's traffic.
    let evil = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "evil", "annotations": {
            "yoke.drzzl.io/wireguard-public-key": "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=",
            "yoke.drzzl.io/wireguard-endpoint": "192.0.2.1:51820",
        }},
        "spec": {"podCIDR": "10.232.8.0/25", "podCIDRs": ["10.232.8.0/25"]},
    });
    create(&client, "/api/v1/nodes", &evil).await;
    until(
        &first,
        "the report of the overlapping Pod range",
        MEET_LIMIT,
        async || {
            let output = first.output();
            output.contains("cannot reach Pods of Node evil: its Pod range overlaps the one of Node two")
        },
    )
    .await;
    assert!(
        one.pod_reaches(&there),
        "the older one is right: {}",
        first.last_output()
    );
    let nodes = Api::<Node>::all(client.clone());
    nodes.delete("evil", &DeleteParams::default()).await.unwrap();

    // A worker that is killed: its Pods keep running, and their traffic takes no other path.
    first.signal(Signal::KILL);
    assert_eq!(first.ended().await, None);
    until(&first, "the device to be removed", END_LIMIT, async || {
        !one.has_device()
    })
    .await;
    assert!(!one.pod_reaches(&there), "there is no tunnel");
    let mut again = one.start("again", &["run"]);
    until(&again, "the worker to continue", JOIN_LIMIT, async || {
        again.output().contains("this machine is Node one")
    })
    .await;
    until_reached(&again, &one, &there).await;
    assert!(two.pod_reaches(&here), "and back: {}", again.last_output());

    // A worker that leaves and joins again with another key.
    assert_eq!(second.end().await, Some(0), "{}", second.last_output());
    assert!(!two.root().exists(), "{}", second.output());
    assert_left(&two, &client, &second.output()).await;
    until(&again, "the route to be removed", MEET_LIMIT, async || {
        let routes = one.network.ask("ip", &["route"]);
        !routes.contains("10.232.8.")
    })
    .await;
    let third = two.run(&["--rm"]);
    tokio::select! {
        () = two.join(&third, &client) => {}
        () = sign_all(client.clone(), &signers.0, &signers.1, None) => {}
    }
    let there = pod_address(&client, "two").await;
    until_reached(&again, &one, &there).await;

    assert_eq!(again.end().await, Some(0), "{}", again.output());
    assert!(!one.has_device(), "{}", again.output());
    let mut leave = one.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.output());
    // The network was up during the drain, so its Pod could have contacted the other one.
    assert!(
        leave.output().contains("this machine is Node one"),
        "{}",
        leave.output()
    );
    assert!(!one.root().exists(), "{}", leave.output());
    assert_left(&one, &client, &leave.output()).await;
}
