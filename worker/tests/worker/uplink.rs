//! Ephemeral workers have networks of their own, and leave the machine's network unchanged.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use rustix::process::{Pid, Signal};

use crate::egress::{connect_in, in_network};
use crate::machine::{END_LIMIT, JOIN_LIMIT, Machine, Worker, members, until};
use crate::network::run_in;
use crate::node::{NAME, Story};
use crate::pair::{pod_address, until_reached};
use crate::program::path;

/// Time after which a kubelet detects a dead connection (HTTP/2 of client-go).
const SILENT: Duration = Duration::from_secs(50);
const QUESTION: &[u8] = b"a question";

impl Machine {
    /// Returns everything of a network that must be unchanged at the end.
    fn snapshot(&self) -> Vec<String> {
        let ask = |program: &str, arguments: &[&str]| self.network.ask(program, arguments);
        let forwarding = [
            "net.ipv4.ip_forward",
            "net.ipv4.conf.eth0.forwarding",
            "net.ipv4.conf.lo.forwarding",
        ];
        vec![
            ask("ip", &["-4", "-oneline", "address"]),
            ask("ip", &["-brief", "link"]),
            ask("ip", &["-4", "route", "show", "table", "all"]),
            ask("ip", &["rule"]),
            sort_rules(&ask("nft", &["list", "ruleset"])),
            ask("sysctl", &forwarding),
        ]
    }

    /// Creates rules like those of kube-proxy with a permanent worker, and of Docker.
    fn add_others(&self) {
        for table in [
            "add table ip kube-proxy",
            "add table inet mine",
            "add chain inet mine c",
        ] {
            self.network.ask("nft", &[table]);
        }
        self.network.ask("iptables", &["-P", "FORWARD", "DROP"]);
    }

    /// Returns the names of the tables of ephemeral workers.
    fn tables(&self) -> BTreeSet<String> {
        let tables = self.network.ask("nft", &["list", "tables"]);
        let words = tables
            .split_whitespace()
            .filter(|word| word.starts_with("yoke-uplink-"));
        words.map(str::to_owned).collect()
    }

    fn networks_of(&self, program: &str) -> BTreeSet<PathBuf> {
        let pids = self
            .groups("/node")
            .into_iter()
            .flat_map(|group| members(&group).collect::<Vec<_>>());
        let folders = pids.map(|pid| PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero())));
        let own = folders
            .filter(|folder| std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == program));
        own.filter_map(|folder| std::fs::read_link(folder.join("ns/net")).ok())
            .collect()
    }

    fn kubelet_log(&self) -> String {
        std::fs::read_to_string(self.root().join("logs/kubelet.log")).unwrap_or_default()
    }
}

/// Sorts tables and removes counters, so that rules can be compared.
fn sort_rules(rules: &str) -> String {
    let is_kept =
        |word: &&str| *word != "counter" && *word != "packets" && *word != "bytes" && word.parse::<u64>().is_err();
    let lines = rules.lines().map(|line| match line.split_once("counter packets") {
        Some(_) => line.split_whitespace().filter(is_kept).collect::<Vec<_>>().join(" "),
        None => line.to_owned(),
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines.join("\n")
}

async fn node_address(client: &Client, name: &str) -> String {
    let node = Api::<Node>::all(client.clone()).get(name).await.unwrap();
    let addresses = node.status.unwrap().addresses.unwrap_or_default();
    let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP");
    internal.unwrap().address
}

/// Kills all processes of a worker at once, like a power failure.
fn kill_all(worker: &Worker) {
    let pid = worker.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    for child in children.split_whitespace() {
        let child = Pid::from_raw(child.parse().unwrap()).unwrap();
        let _ = rustix::process::kill_process(child, Signal::KILL);
    }
    worker.signal(Signal::KILL);
}

/// Runs a DNS server that returns each query as its response.
fn answer_names(machine: &Machine) {
    let net = Path::new("/run/netns").join(&machine.network.namespace);
    let socket = in_network(&net, || UdpSocket::bind("127.0.0.53:53").unwrap());
    std::thread::spawn(move || {
        let mut text = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut text) {
            let _ = socket.send_to(&text[..length], from);
        }
    });
}

/// Returns the response of a namespace's resolver.
fn ask_name(net: &Path, server: String) -> Option<Vec<u8>> {
    in_network(net, move || {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        socket.send_to(QUESTION, (server.as_str(), 53)).ok()?;
        let mut text = [0; 64];
        let length = socket.recv(&mut text).ok()?;
        Some(text[..length].to_vec())
    })
}

#[tokio::test]
async fn a_worker_has_a_network_of_its_own() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let machine = &story.machine;
    machine.add_others();
    let script = "rm /etc/resolv.conf; echo 'nameserver 127.0.0.53' > /etc/resolv.conf";
    machine.ask("sh", &["-c", script]).unwrap();
    answer_names(machine);
    let before = machine.snapshot();

    let mut worker = machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    let own = machine.own_network().expect("it has one");
    let number = std::fs::read_link(&own).unwrap();
    for program in ["kubelet", "containerd"] {
        assert_eq!(machine.networks_of(program), [number.clone()].into(), "{program}");
    }
    let links = |net: &str| run_in(net, "ip", &["-brief", "link"]).1;
    let outside = links(&format!("/run/netns/{}", machine.network.namespace));
    let inside = links(path(&own));
    for part in ["ykwg", "veth"] {
        assert!(inside.contains(part) && !outside.contains(part), "{inside}\n{outside}");
    }
    assert!(outside.contains("ykup") && !inside.contains("ykup"), "{outside}");
    assert_eq!(node_address(&story.client, NAME).await, "10.232.7.1");
    assert_eq!(story.ask_pod().trim(), NAME);

    let resolvers = std::fs::read_to_string(machine.root().join("usual/etc/resolv.conf")).unwrap();
    let server = resolvers
        .trim()
        .strip_prefix("nameserver ")
        .expect("one is named")
        .to_owned();
    let mount = own.parent().unwrap().join("mnt");
    let mount = format!("--mount={}", path(&mount));
    let seen = Command::new("nsenter")
        .args([&mount, "cat", "/etc/resolv.conf"])
        .output();
    assert_eq!(String::from_utf8(seen.unwrap().stdout).unwrap(), resolvers);
    assert_eq!(ask_name(&own, server).as_deref(), Some(QUESTION), "{resolvers}");

    assert_eq!(worker.end().await, Some(0), "{}", worker.last_output());
    assert!(!machine.root().exists(), "{}", worker.output());
    assert_eq!(machine.snapshot(), before);
}

/// Another program flushes the firewall, or deletes the link.
#[tokio::test]
async fn a_deleted_link_is_created_again() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let machine = &story.machine;
    let before = machine.snapshot();
    let mut worker = machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    let own = machine.own_network().unwrap();
    let api = story.cluster.address;
    assert!(connect_in(&own, api).is_some(), "control");
    let link = machine.network.ask("ip", &["-brief", "link"]);
    let link = link
        .split(['@', ' ', '\n'])
        .find(|word| word.starts_with("ykup"))
        .unwrap();
    machine.network.ask("ip", &["link", "delete", link]);
    machine.network.ask("nft", &["flush", "ruleset"]);
    machine
        .network
        .ask("sysctl", &["-w", "net.ipv4.conf.eth0.forwarding=0"]);
    assert!(connect_in(&own, api).is_none(), "control");
    until(&worker, "a connection through the uplink", END_LIMIT, async || {
        connect_in(&own, api).is_some()
    })
    .await;
    assert_eq!(worker.end().await, Some(0), "{}", worker.last_output());
    story.assert_gone(&worker.output()).await;
    assert_eq!(machine.snapshot(), before);
}

#[tokio::test]
async fn a_folder_is_used_again_at_once() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let machine = &story.machine;
    machine.add_others();
    let before = machine.snapshot();
    let mut first = machine.run(&["--rm"]);
    story.wait_joined(&first).await;
    assert_eq!(first.end().await, Some(0), "{}", first.last_output());

    let mut second = machine.run(&["--rm"]);
    story.wait_joined(&second).await;
    let tables = machine.tables();
    assert_eq!(tables.len(), 1, "{tables:?}");
    kill_all(&second);
    assert_eq!(second.ended().await, None);
    story.remove_pod().await;
    let mut third = machine.run(&["--rm"]);
    until(&third, "the table of the uplink", JOIN_LIMIT, async || {
        machine.tables().is_disjoint(&tables) && machine.tables().len() == 1
    })
    .await;
    story.wait_joined(&third).await;
    assert!(
        !machine.kubelet_log().contains("connection lost"),
        "{}",
        third.last_output()
    );
    assert_eq!(third.end().await, Some(0), "{}", third.last_output());
    assert!(!machine.root().exists(), "{}", third.output());
    assert_eq!(machine.snapshot(), before);
}

/// The next worker removes what a killed one left behind, even with another folder.
#[tokio::test]
async fn workers_are_side_by_side() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let kept = &story.machine;
    kept.network.ask("iptables", &["-P", "FORWARD", "DROP"]);
    let mut first = kept.run(&[]);
    story.wait_joined(&first).await;
    let before = kept.snapshot();
    let (two, three) = (
        kept.make_room(("two", "10.232.8.0/24")),
        kept.make_room(("three", "10.232.9.0/24")),
    );
    let (second, mut third) = (two.run(&["--rm"]), three.run(&["--rm"]));
    let client = &story.client;
    let joined = async { tokio::join!(two.join(&second, client), three.join(&third, client)) };
    story.sign_while(joined).await;

    let began = Instant::now();
    let (address, other) = (pod_address(client, "two").await, pod_address(client, "three").await);
    let plain = pod_address(client, NAME).await;
    until_reached(&second, &two, &other).await;
    until_reached(&second, &two, &plain).await;
    until_reached(&first, kept, &other).await;
    until_reached(&third, &three, &address).await;
    // The kubelet of another worker is reachable at its Node's address.
    let kubelet = format!("https://{}:10250/healthz", node_address(client, "three").await);
    let (asked, output) = run_in(
        &two.pod_network(),
        "curl",
        &["--silent", "--insecure", "--max-time", "5", &kubelet],
    );
    assert!(asked && output.contains("Unauthorized"), "{output}");
    // Other hosts reach only the WireGuard port.
    let direct = format!("{}:10250", three.worker_address()).parse().unwrap();
    assert!(connect_in(&two.own_network().unwrap(), direct).is_none());
    let nodes = Api::<Node>::all(client.clone());
    while began.elapsed() < SILENT {
        for (machine, worker) in [(kept, &first), (&two, &second), (&three, &third)] {
            assert!(machine.is_ready(&nodes).await, "{}", worker.last_output());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for machine in [&two, &three] {
        assert!(!machine.kubelet_log().contains("connection lost"), "{}", machine.name);
    }

    let tables = kept.tables();
    assert_eq!(tables.len(), 2, "{tables:?}");
    let mut second = second;
    kill_all(&second);
    assert_eq!(second.ended().await, None);
    // The table of the running worker stays.
    assert!(
        three
            .own_network()
            .is_some_and(|own| connect_in(&own, story.cluster.address).is_some())
    );
    assert_eq!(third.end().await, Some(0), "{}", third.last_output());
    assert_eq!(kept.tables().len(), 1);
    let mut fourth = three.run(&["--rm"]);
    until(&fourth, "the remains to be removed", JOIN_LIMIT, async || {
        kept.tables().is_disjoint(&tables) && kept.tables().len() == 1
    })
    .await;
    assert_eq!(fourth.end().await, Some(0), "{}", fourth.last_output());
    let mut leave = two.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.output());
    // The permanent worker detects that the others have left.
    until(&first, "the machine to be as before", END_LIMIT, async || {
        kept.snapshot() == before
    })
    .await;
    assert_eq!(first.end().await, Some(0), "{}", first.last_output());
}
