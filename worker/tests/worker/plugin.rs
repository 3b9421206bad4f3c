//! Workers of a cluster with a CNI plugin: they connect no Pod, and leave the folders to the
//! plugin.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde_json::json;
use yoke_api::join_token::JoinLine;

use crate::bundle::ECHO;
use crate::cluster::create;
use crate::machine::{Init, JOIN_LIMIT, POD_LIMIT, Worker, until};
use crate::network::run_in;
use crate::node::{NAME, Story};
use crate::program::path;

/// Name of the plugin's bridge.
const BRIDGE: &str = "theirs0";
/// Folder of workers at the path that CNI plugins expect.
const USUAL: &str = "/var/lib/yoke-worker";
/// Name of the Pod that installs a plugin.
const INSTALLER: &str = "installer";

impl Story {
    /// Writes a token that disables the built-in Pod network.
    fn disable_pod_network(&self) {
        let token = JoinLine {
            pod_network: false,
            ..JoinLine::parse(&self.cluster.token).unwrap()
        };
        std::fs::write(self.machine.token(), token.encode().unwrap()).unwrap();
    }

    /// Returns the reason why the Node is not Ready.
    async fn not_ready_reason(&self) -> Option<String> {
        let node = self.nodes.get_opt(NAME).await.unwrap()?;
        let conditions = node.status?.conditions?;
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready")?;
        (ready.status == "False").then(|| ready.message.unwrap_or_default())
    }

    /// Waits until only a CNI plugin is missing, and checks that the worker has created nothing for
    /// Pods.
    async fn until_unconnected(&self, worker: &Worker) {
        until(worker, "the Node to wait for a plugin", JOIN_LIMIT, async || {
            let not_ready_reason = self.not_ready_reason().await.unwrap_or_default();
            not_ready_reason.starts_with("container runtime network not ready")
                && not_ready_reason.contains("NetworkPluginNotReady")
        })
        .await;
        until(worker, "the worker to be admitted", JOIN_LIMIT, async || {
            !self.machine.root().join("config/bootstrap.kubeconfig").exists()
        })
        .await;
        let configurations = std::fs::read_dir(self.machine.root().join("config/cni")).unwrap();
        assert_eq!(configurations.count(), 0, "{}", worker.last_output());
    }

    /// Checks that a network namespace has nothing of the built-in Pod network.
    fn assert_no_network(&self, net: &str) {
        let ask = |program: &str, arguments: &[&str]| run_in(net, program, arguments).1;
        let links = ask("ip", &["-brief", "link"]);
        let tables = ask("nft", &["list", "tables"]);
        assert!(!links.contains("ykwg") && !links.contains("yoke"), "{links}");
        assert!(!tables.contains("yoke-worker-"), "{tables}");
        assert!(!self.machine.root().join("pki/wireguard.key").exists());
    }

    /// Writes the CNI configuration, the last step of a plugin's DaemonSet.
    fn connect(&self) {
        let config = json!({
            "cniVersion": "1.0.0", "name": "theirs", "plugins": [{
                "type": "bridge", "bridge": BRIDGE, "isGateway": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": self.machine.pods}]]},
            }],
        });
        let folder = self.machine.root().join("config/cni");
        std::fs::write(folder.join("10-theirs.conflist"), config.to_string()).unwrap();
    }

    async fn until_connected(&self, worker: &Worker) {
        self.connect();
        until(worker, "the Node to be Ready", JOIN_LIMIT, async || {
            self.machine.is_ready(&self.nodes).await
        })
        .await;
        self.machine.run_pod(worker, &self.client).await;
    }

    /// Runs a Pod like a plugin's DaemonSet: in the host's network, with the CNI folders, and with
    /// propagated mounts.
    async fn run_installer(&self, worker: &Worker) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": INSTALLER},
            "spec": {
                "nodeName": NAME, "hostNetwork": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
                "containers": [{
                    "name": "installer", "image": ECHO, "imagePullPolicy": "IfNotPresent",
                    "command": ["/host/bin/loopback"], "env": [{"name": "CNI_COMMAND", "value": "VERSION"}],
                    "volumeMounts": [
                        {"name": "bin", "mountPath": "/host/bin"},
                        {"name": "net", "mountPath": "/host/net", "mountPropagation": "HostToContainer"},
                    ],
                }],
                "volumes": [
                    {"name": "bin", "hostPath": {"path": format!("{USUAL}/bin"), "type": "Directory"}},
                    {"name": "net", "hostPath": {"path": format!("{USUAL}/config/cni"), "type": "Directory"}},
                ],
            },
        });
        create(&self.client, "/api/v1/namespaces/default/pods", &pod).await;
        let pods = Api::<Pod>::default_namespaced(self.client.clone());
        until(worker, "the installer to succeed", POD_LIMIT, async || {
            let status = pods.get(INSTALLER).await.unwrap().status.unwrap_or_default();
            status.phase.as_deref() == Some("Succeeded")
        })
        .await;
        until(worker, "the log of the installer", POD_LIMIT, async || {
            let output = pods.logs(INSTALLER, &LogParams::default()).await.unwrap_or_default();
            output.contains("supportedVersions")
        })
        .await;
    }
}

#[tokio::test]
async fn a_plugin_connects_the_pods_of_a_sandbox() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    story.disable_pod_network();
    let mut worker = story.machine.run(&["--rm"]);
    let connected = async {
        story.until_unconnected(&worker).await;
        let net = story.machine.own_network().expect("it has one");
        story.assert_no_network(path(&net));
        story.run_installer(&worker).await;
        story.until_connected(&worker).await;
        story.assert_no_network(path(&net));
    };
    story.sign_while(connected).await;
    assert!(
        worker.output().contains("if this worker is killed, Node"),
        "no reapAfter: {}",
        worker.output()
    );
    assert_eq!(worker.end().await, Some(0), "{}", worker.last_output());
    story.assert_gone(&worker.output()).await;
    assert!(
        story.machine.ask("ls", &[USUAL]).is_err(),
        "it was created for the sandbox"
    );
}

#[tokio::test]
async fn join_does_not_wait_for_a_cni_plugin() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin_with(dir.path(), Init::Systemd).await;
    story.disable_pod_network();
    let mut join = story.machine.join_for_good();
    let code = story.sign_while(join.ended()).await;
    assert_eq!(code, Some(0), "{}\n{}", join.output(), story.machine.journal());
    assert!(
        join.output().contains("becomes Ready when a CNI plugin"),
        "{}",
        join.output()
    );
    let net = format!("/run/netns/{}", story.machine.network.namespace);
    story.sign_while(story.until_unconnected(&join)).await;
    story.assert_no_network(&net);
    story.sign_while(story.until_connected(&join)).await;
    story.assert_no_network(&net);

    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.output());
    assert!(!Path::new(&story.machine.root()).exists(), "{}", leave.output());
    assert!(!story.has_pod().await && story.nodes.get_opt(NAME).await.unwrap().is_none());
    let links = story.machine.network.ask("ip", &["-brief", "link"]);
    assert!(links.contains(BRIDGE), "it is the plugin's: {links}");
}
