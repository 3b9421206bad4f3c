use std::path::Path;

use super::*;
use crate::limits::Limits;
use crate::uplink::link::{Run, Uplink};

fn layout() -> Layout {
    Layout::new(Path::new("/w")).unwrap()
}

fn id() -> Id {
    "00c0ffee".to_owned().try_into().unwrap()
}

fn machine() -> MachineFacts {
    MachineFacts {
        pods_cgroup: "/yoke-worker-00c0ffee/pods".into(),
        cgroup_v1: false,
        may_raise_oom_score: true,
        capacity: Some(Capacity {
            cpus: 4000,
            memory: 8 << 30,
        }),
        resolv_conf: "/etc/resolv.conf".into(),
        pods: None,
    }
}

#[test]
fn a_kubelet_authorizes_requests() {
    let config: Value = serde_json::from_str(&build_kubelet(&layout(), &Worker::example(), &machine())).unwrap();
    let expected = json!({
        "anonymous": {"enabled": false},
        "webhook": {"enabled": true},
        "x509": {"clientCAFile": "/w/pki/client-ca.crt"},
    });
    assert_eq!(config["authentication"], expected);
    assert_eq!(config["authorization"], json!({"mode": "Webhook"}));
    assert_eq!(config["serverTLSBootstrap"], true);
    assert_eq!(config["rotateCertificates"], true);
    assert_eq!(config["makeIPTablesUtilChains"], false);
    assert_eq!(config["cgroupRoot"], "/yoke-worker-00c0ffee/pods");
    assert_eq!(config["clusterDNS"], json!(["10.96.0.10"]));
    // A kubelet before 1.31 does not know it.
    assert_eq!(config.get("failCgroupV1"), None);
}

#[test]
fn the_kubelet_accepts_cgroup_v1() {
    let machine = MachineFacts {
        cgroup_v1: true,
        ..machine()
    };
    let config: Value = serde_json::from_str(&build_kubelet(&layout(), &Worker::example(), &machine)).unwrap();
    assert_eq!(config["failCgroupV1"], false);
}

#[test]
fn a_kubelet_gives_pods_no_more_than_the_worker_may_take() {
    let read =
        |worker: &Worker| -> Value { serde_json::from_str(&build_kubelet(&layout(), worker, &machine())).unwrap() };
    let all = read(&Worker::example());
    assert_eq!((all.get("systemReserved"), all.get("kubeReserved")), (None, None));
    let part = read(&Worker {
        limits: Limits {
            cpus: Some(1500),
            memory: Some(2 << 30),
        },
        ..Worker::example()
    });
    assert_eq!(part["systemReserved"], json!({"cpu": "2500m", "memory": "6442450944"}));
    assert_eq!(part["kubeReserved"], json!({"memory": "268435456"}));
}

#[test]
fn containerd_keeps_to_the_workers_folder() {
    let config = build_containerd(&layout(), &Worker::example(), &machine());
    assert!(config.contains("restrict_oom_score_adj = false\n"), "{config}");
    for line in config
        .lines()
        .filter(|line| line.contains('/') && !line.contains(PAUSE_IMAGE))
    {
        assert!(line.contains("\"/w/"), "{line}");
    }
    let weak = MachineFacts {
        may_raise_oom_score: false,
        ..machine()
    };
    let config = build_containerd(&layout(), &Worker::example(), &weak);
    assert!(config.contains("restrict_oom_score_adj = true\n"));
    assert!(config.contains("enable_cdi = false\n"));
    let given = Worker {
        gpus: true,
        ..Worker::example()
    };
    let for_good = Worker {
        ephemeral: false,
        ..Worker::example()
    };
    for worker in [given, for_good] {
        assert!(build_containerd(&layout(), &worker, &machine()).contains("enable_cdi = true\n"));
    }
}

#[test]
fn pods_get_the_nodes_addresses() {
    let config = build_cni(&layout(), &id(), "10.244.3.0/24".parse().unwrap(), 1380);
    let config: Value = serde_json::from_str(&config).unwrap();
    let ipam = &config["plugins"][0]["ipam"];
    assert_eq!(ipam["ranges"], json!([[{"subnet": "10.244.3.0/24"}]]));
    assert_eq!(ipam["dataDir"], "/w/cni");
    assert_eq!(config["plugins"][1]["snat"], false);
    assert_eq!(config["plugins"][0]["bridge"], "yoke00c0ffee");
    assert_eq!(config["plugins"][0]["mtu"], 1380);
    assert_eq!(config["name"], "yoke-worker-00c0ffee");
}

#[test]
fn the_bootstrap_token_goes_to_the_server_that_the_ca_signed() {
    let line = JoinLine {
        server: "demo.yoke.example:443".into(),
        address: None,
        ca: String::new(),
        client_ca: String::new(),
        token: "abcdef.0123456789abcdef".into(),
        version: "v1.35.4".into(),
        node_labels: Default::default(),
        taints: Vec::new(),
        pod_network: true,
        program: Default::default(),
    };
    let yaml = build_bootstrap(&layout(), &line).unwrap();
    let config = Kubeconfig::from_yaml(&yaml).unwrap();
    assert_eq!(config.server, "https://demo.yoke.example:443");
    assert_eq!(config.authority, Authority::File("/w/pki/ca.crt".into()));
    assert_eq!(config.credential, Credential::Token("abcdef.0123456789abcdef".into()));
}

#[test]
fn a_kubelet_is_called_with_its_own_folders() {
    let with_address = Worker {
        node_ip: Some("10.200.0.2".parse().unwrap()),
        ..Worker::example()
    };
    let expected = [
        "--config=/w/config/kubelet.json",
        "--kubeconfig=/w/config/kubelet.kubeconfig",
        "--bootstrap-kubeconfig=/w/config/bootstrap.kubeconfig",
        "--cert-dir=/w/pki",
        "--root-dir=/w/kubelet",
        "--hostname-override=box-1",
        "--node-ip=10.200.0.2",
    ];
    assert_eq!(build_kubelet_arguments(&layout(), &with_address, None), expected);
    assert_eq!(
        build_kubelet_arguments(&layout(), &Worker::example(), None),
        expected[..6]
    );
}

#[test]
fn a_kubelet_in_a_network_of_its_own_has_the_address_that_pods_reach() {
    let uplink = Uplink {
        address: "198.18.0.2".parse().unwrap(),
        ..Uplink::unassigned(Run::new(7))
    };
    let worker = Worker {
        node_ip: Some("10.200.0.2".parse().unwrap()),
        uplink: Some(uplink),
        ..Worker::example()
    };
    for (pod_network, pods, address, asks) in [
        (true, None, "198.18.0.2", false),
        (true, Some("10.244.3.0/24"), "10.244.3.1", true),
        (true, Some("10.244.3.7/32"), "198.18.0.2", true),
        (false, None, "198.18.0.2", true),
    ] {
        let worker = Worker {
            pod_network,
            ..worker.clone()
        };
        let pods = pods.map(|pods: &str| pods.parse().unwrap());
        let last = build_kubelet_arguments(&layout(), &worker, pods).pop().unwrap();
        assert_eq!(last, format!("--node-ip={address}"));
        let machine = MachineFacts { pods, ..machine() };
        let config: Value = serde_json::from_str(&build_kubelet(&layout(), &worker, &machine)).unwrap();
        assert_eq!(config["serverTLSBootstrap"], asks, "of a certificate for {address}");
    }
}

#[test]
fn a_kubelet_registers_with_what_the_token_said() {
    let worker = Worker {
        node_labels: [("example.org/disk", "ssd"), ("a", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        taints: vec!["gpu=a:NoSchedule".parse().unwrap(), "spot:NoExecute".parse().unwrap()],
        ..Worker::example()
    };
    let last = build_kubelet_arguments(&layout(), &worker, None).pop().unwrap();
    assert_eq!(last, "--node-labels=a=,example.org/disk=ssd");
    let config: Value = serde_json::from_str(&build_kubelet(&layout(), &worker, &machine())).unwrap();
    let expected = json!([
        {"key": "gpu", "value": "a", "effect": "NoSchedule"},
        {"key": "spot", "effect": "NoExecute"},
    ]);
    assert_eq!(config["registerWithTaints"], expected);
}
