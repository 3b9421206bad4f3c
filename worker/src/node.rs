//! The worker's Node, read and written with the client certificate of the worker's kubelet.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use yoke_api::Cidr;
use yoke_api::labels::REAP_AFTER;
use yoke_runtime::clock::since_boot;

use crate::error::Error;
use crate::error_chain::format_chain;
use crate::host::etc_hosts;
use crate::layout::Layout;
use crate::netns::read_boot_id;
use crate::output::progress;
use crate::pods;
use crate::state::Worker;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks whether the Node still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Minimum time without contact after which a removed Node counts as reaped rather than deleted by
/// a user.
const NO_CONTACT_MIN: Duration = Duration::from_secs(45);
/// Upper bound for a status message of a Node, in characters.
const MESSAGE_MAX: usize = 300;
/// Start of the Ready message of a kubelet that lacks only a CNI configuration, as of 1.35.
const UNCONNECTED: &str = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady";
/// Namespace of the kubelets' Leases.
const LEASES: &str = "kube-node-lease";
/// Rounds between two messages that the worker is still waiting.
const ROUNDS_PER_MESSAGE: u32 = 30;

/// Returns a client with the kubelet's certificate, if the kubelet has one.
pub(crate) async fn connect(layout: &Layout, worker: &Worker) -> Option<Client> {
    connect_by(&layout.kubeconfig(), worker).await
}

/// Returns a client for a kubeconfig, if that can be read.
pub(crate) async fn connect_by(kubeconfig: &Path, worker: &Worker) -> Option<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).ok()?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .ok()?;
    etc_hosts::set_server_address(&mut config, &worker.server, worker.address);
    // Every caller retries at its own interval. A retry in the client would block: one Pod with an
    // exhausted PodDisruptionBudget (429) must not delay the others.
    config.default_retry = false;
    Client::try_from(config).ok()
}

/// Bounds a request by `REQUEST_LIMIT`, so that an unresponsive control plane does not block the worker.
pub(crate) async fn with_limit<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = |_| kube::Error::Service(format!("no response within {REQUEST_LIMIT:?}").into());
    tokio::time::timeout(REQUEST_LIMIT, request).await.map_err(late)?
}

/// The fields of the Node that the worker uses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnNode {
    uid: String,
    /// The Node's Pod range.
    pods: Option<Cidr>,
    /// Boot ID that the kubelet reports.
    boot: Option<String>,
}

impl OwnNode {
    fn from_node(node: Node) -> Option<Self> {
        let info = node.status.and_then(|status| status.node_info);
        Some(Self {
            uid: node.metadata.uid?,
            pods: node.spec.and_then(|spec| spec.pod_cidr?.parse().ok()),
            boot: info.map(|info| info.boot_id),
        })
    }
}

/// Returns the UID of the Node of this name, or `None` if no such Node exists.
pub(crate) async fn read_uid(client: &Client, name: &str) -> kube::Result<Option<String>> {
    Ok(read_node(client, name).await?.map(|seen| seen.uid))
}

/// Waits until the cluster has admitted the Node and, with the built-in Pod network, assigned its
/// Pod range. Persists the Node's UID as soon as it is known: deleting the Node needs it.
pub(crate) async fn wait_joined(layout: &Layout, worker: &mut Worker) -> Result<Option<Cidr>, Error> {
    let mut rounds = 0;
    loop {
        if let Some(seen) = read_existing(layout, worker).await {
            persist_uid(layout, worker, &seen).await?;
            if !worker.pod_network {
                return Ok(None);
            }
            if seen.pods.is_some() {
                return Ok(seen.pods);
            }
        }
        rounds += 1;
        if rounds % ROUNDS_PER_MESSAGE == 0 {
            let log = layout.logs().join("kubelet.log");
            progress(&format!(
                "still waiting for admission as Node {}; see {}",
                worker.name,
                log.display()
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// How close the Node is to Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Only a CNI plugin is missing.
    Unconnected,
    /// Another requirement is missing.
    Missing(String),
}

/// Reads how close the worker's Node is to Ready.
pub(crate) async fn observe_readiness(layout: &Layout, worker: &Worker) -> Readiness {
    let name = &worker.name;
    let Some(client) = connect(layout, worker).await else {
        return Readiness::Missing("the cluster has not admitted the kubelet yet".to_owned());
    };
    match with_limit(Api::<Node>::all(client).get_opt(name)).await {
        Ok(Some(node)) => to_readiness(worker, node),
        Ok(None) => Readiness::Missing(format!("Node {name} does not exist yet")),
        Err(error) => Readiness::Missing(format!("the API server does not respond: {}", format_chain(&error))),
    }
}

/// Derives the readiness from the Node. Pure.
fn to_readiness(worker: &Worker, node: Node) -> Readiness {
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    if ready.as_ref().is_some_and(|ready| ready.status == "True") {
        return Readiness::Ready;
    }
    let why = ready.and_then(|ready| ready.message).unwrap_or_default();
    // If another problem exists too, the kubelet lists all of them in brackets, so the message
    // starts differently.
    if !worker.pod_network && why.starts_with(UNCONNECTED) {
        return Readiness::Unconnected;
    }
    let why: String = why.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect();
    Readiness::Missing(format!("Node {} is not Ready yet: {why}", worker.name))
}

/// Reports whether the cluster removes the Node after a time without heartbeats; `None` if that
/// cannot be read.
pub(crate) async fn is_reaped(layout: &Layout, worker: &Worker) -> Option<bool> {
    let leases = Api::<Lease>::namespaced(connect(layout, worker).await?, LEASES);
    let lease = with_limit(leases.get_opt(&worker.name)).await.ok()?;
    Some(lease.is_some_and(|lease| lease.labels().contains_key(REAP_AFTER)))
}

/// Resolves when the worker must stop because its Node was removed or belongs to another machine.
///
/// A permanent worker distinguishes two cases when its Node is gone:
/// - The worker had no contact with the API before, so the node reaper removed the Node: register
///   again.
/// - The worker had contact, so a user deleted the Node: continue until the kubelet is restarted,
///   registers a new Node, and the worker starts over.
pub(crate) async fn wait_lost(layout: &Layout, worker: &mut Worker) -> Error {
    let (mut existed, mut last_contact) = (true, since_boot());
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        // Pods run even while the API is unreachable.
        let Some(found) = read(layout, worker).await else {
            continue;
        };
        let no_contact = since_boot().saturating_sub(last_contact);
        last_contact = since_boot();
        if existed && found.is_none() && !worker.ephemeral && no_contact >= NO_CONTACT_MIN {
            return Error::RemovedWhileSilent(worker.name.clone());
        }
        if existed && found.is_none() && !worker.ephemeral {
            progress(&format!(
                "Node {} was deleted; restart this worker to register a new Node",
                worker.name
            ));
        }
        existed = found.is_some();
        if let Err(error) = check_node_exists(layout, worker, found) {
            return error;
        }
    }
}

/// Decides what the worker does, given the Node that has its name now.
fn check_node_exists(layout: &Layout, worker: &mut Worker, found: Option<OwnNode>) -> Result<(), Error> {
    let removed = Error::Removed(worker.name.clone());
    // Controllers that see the Node removed assume that its Pods have stopped, and may run them
    // elsewhere.
    match found {
        None if worker.ephemeral => Err(removed),
        None => Ok(()),
        Some(found) if is_own(worker, &found)? => Ok(()),
        Some(found) if worker.ephemeral => {
            // Cleanup needs this UID to delete the Node.
            write_uid(layout, worker, &found)?;
            Err(removed)
        }
        // The Pod network still has the range of the previous Node.
        Some(_) => Err(Error::NewNode(worker.name.clone())),
    }
}

async fn read_existing(layout: &Layout, worker: &Worker) -> Option<OwnNode> {
    read(layout, worker).await?
}

/// Returns the worker's Node, `Some(None)` if it does not exist, or `None` if the API does not
/// answer.
async fn read(layout: &Layout, worker: &Worker) -> Option<Option<OwnNode>> {
    read_node(&connect(layout, worker).await?, &worker.name).await.ok()
}

/// Returns the Node of this name.
pub(crate) async fn read_node(client: &Client, name: &str) -> kube::Result<Option<OwnNode>> {
    let found = with_limit(Api::<Node>::all(client.clone()).get_opt(name)).await?;
    Ok(found.and_then(OwnNode::from_node))
}

/// Persists the Node's UID. Stops the Pods of a previous Node first: if the worker is killed in
/// between, it still knows that they have to stop.
pub(crate) async fn persist_uid(layout: &Layout, worker: &mut Worker, found: &OwnNode) -> Result<(), Error> {
    if is_own(worker, found)? {
        return Ok(());
    }
    if worker.node_uid.is_some() {
        pods::stop_pods(layout, worker).await?;
    }
    write_uid(layout, worker, found)
}

/// Writes the Node's address. The kubelet does that too, but requests a serving certificate for the
/// address that it finds on the Node.
pub(crate) async fn write_address(layout: &Layout, worker: &Worker, address: IpAddr) {
    let Some(client) = connect(layout, worker).await else {
        return;
    };
    let patch = json!({"metadata": {"uid": worker.node_uid}, "status": {"addresses": [
        {"type": "InternalIP", "address": address},
        {"type": "Hostname", "address": worker.name},
    ]}});
    let nodes = Api::<Node>::all(client);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    if let Err(error) = with_limit(nodes.patch_status(&worker.name, &params, &patch)).await {
        progress(&format!("cannot write the Node's address: {}", format_chain(&error)));
    }
}

/// Reports whether this is the known Node. A Node with another UID was registered by another
/// machine, which is an error. The exception: the kubelet registered it in this boot, to replace a
/// deleted Node.
fn is_own(worker: &Worker, found: &OwnNode) -> Result<bool, Error> {
    match &worker.node_uid {
        Some(known) if *known == found.uid => Ok(true),
        Some(_) if found.boot != Some(read_boot_id()?) => Err(Error::Replaced(worker.name.clone())),
        _ => Ok(false),
    }
}

fn write_uid(layout: &Layout, worker: &mut Worker, found: &OwnNode) -> Result<(), Error> {
    worker.node_uid = Some(found.uid.clone());
    worker.write(layout)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use yoke_test_support::eventually_some;

    use super::*;
    use crate::host::files;

    /// A worker that an API has admitted, with this Node.
    async fn join(dir: &std::path::Path, node: &Arc<Mutex<Value>>) -> (Layout, Worker) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let node = node.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let body = node.lock().unwrap().to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let layout = Layout::new(dir).unwrap();
        let config = json!({
            "clusters": [{"name": "a", "cluster": {"server": server}}], "users": [],
            "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a",
        });
        files::make_folder(layout.kubeconfig().parent().unwrap()).unwrap();
        files::write(&layout.kubeconfig(), config.to_string(), files::SECRET).unwrap();
        (layout, Worker::example())
    }

    #[tokio::test]
    async fn the_node_is_known_as_soon_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(Mutex::new(json!({"metadata": {"name": "box-1", "uid": "u1"}})));
        let (layout, mut worker) = join(dir.path(), &node).await;
        let known = eventually_some("worker.json", Duration::from_secs(20), async || {
            Worker::read(&layout).unwrap()
        });
        let known = tokio::select! {
            joined = wait_joined(&layout, &mut worker) => panic!("it has no addresses yet: {joined:?}"),
            known = known => known.unwrap().node_uid,
        };
        assert_eq!(known.as_deref(), Some("u1"));
        node.lock().unwrap()["spec"] = json!({"podCIDR": "10.1.2.0/24"});
        let pods = wait_joined(&layout, &mut worker).await.unwrap();
        assert_eq!(pods, "10.1.2.0/24".parse().ok());
        worker.pod_network = false;
        assert_eq!(wait_joined(&layout, &mut worker).await.unwrap(), None);
    }

    #[test]
    fn a_node_without_a_plugin_lacks_nothing_else() {
        let network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:x";
        let both = format!("[{network}, CSINode is not yet initialized]");
        let missing = |why: &str| Readiness::Missing(format!("Node box-1 is not Ready yet: {why}"));
        for (rule, pod_network, status, message, expected) in [
            ("it is ready", false, "True", "", Readiness::Ready),
            ("it waits for a plugin", false, "False", network, Readiness::Unconnected),
            ("for something else, too", false, "False", &both, missing(&both)),
            ("for this program", true, "False", network, missing(network)),
        ] {
            let worker = Worker {
                pod_network,
                ..Worker::example()
            };
            let condition = json!({"type": "Ready", "status": status, "message": message});
            let node = json!({"metadata": {"name": "box-1"}, "status": {"conditions": [condition]}});
            assert_eq!(
                to_readiness(&worker, serde_json::from_value(node).unwrap()),
                expected,
                "{rule}"
            );
        }
        let new = serde_json::from_value(json!({"metadata": {"name": "box-1"}})).unwrap();
        assert_eq!(to_readiness(&Worker::example(), new), missing(""));
    }

    #[tokio::test]
    async fn a_node_of_another_machine_is_not_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let node = json!({"metadata": {"name": "box-1", "uid": "u2"}, "spec": {"podCIDR": "10.1.2.0/24"}});
        let (layout, mut worker) = join(dir.path(), &Arc::new(Mutex::new(node))).await;
        worker.node_uid = Some("u1".into());
        worker.write(&layout).unwrap();
        let joined = wait_joined(&layout, &mut worker).await;
        assert!(
            matches!(&joined, Err(Error::Replaced(name)) if *name == worker.name),
            "{joined:?}"
        );
        assert_eq!(worker.node_uid.as_deref(), Some("u1"));
        assert_eq!(Worker::read(&layout).unwrap(), Some(worker));
    }

    /// A worker that is killed in between detects again which Pods have to stop.
    #[tokio::test]
    async fn pods_of_a_previous_node_stop_before_a_new_uid_is_persisted() {
        let dir = tempfile::tempdir().unwrap();
        let node = json!({
            "metadata": {"name": "box-1", "uid": "u2"}, "spec": {"podCIDR": "10.1.2.0/24"},
            "status": {"nodeInfo": {
                "architecture": "", "bootID": read_boot_id().unwrap(), "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": "",
            }},
        });
        let (layout, mut worker) = join(dir.path(), &Arc::new(Mutex::new(node))).await;
        worker.node_uid = Some("u1".into());
        worker.write(&layout).unwrap();
        // A file that cannot be removed blocks the removal of Pods.
        std::fs::write(layout.cni_config(), "").unwrap();
        let joined = wait_joined(&layout, &mut worker).await;
        assert!(matches!(joined, Err(Error::File(_))), "{joined:?}");
        assert_eq!(Worker::read(&layout).unwrap().unwrap().node_uid.as_deref(), Some("u1"));
        std::fs::remove_file(layout.cni_config()).unwrap();
        let plugins = layout.cni_config().join("05-theirs.conflist");
        std::fs::create_dir(layout.cni_config()).unwrap();
        for file in [&layout.network_config(), &plugins] {
            std::fs::write(file, "{}").unwrap();
        }
        wait_joined(&layout, &mut worker).await.unwrap();
        assert_eq!(Worker::read(&layout).unwrap().unwrap().node_uid.as_deref(), Some("u2"));
        assert!(
            !layout.network_config().exists() && !plugins.exists(),
            "no Pod gets an address of before"
        );
    }

    #[test]
    fn a_worker_whose_node_was_removed_ends_if_it_is_ephemeral() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let (here, elsewhere) = (
            read_boot_id().unwrap(),
            "c0f3cb44-0d5e-4f2f-8f6c-6a1f3a1d2b3c".to_owned(),
        );
        let seen = |uid: &str, boot: &str| OwnNode {
            uid: uid.into(),
            pods: None,
            boot: Some(boot.into()),
        };
        for (rule, ephemeral, found, ends, uid) in [
            ("there", true, Some(seen("u1", &elsewhere)), "", "u1"),
            ("gone", true, None, "removed", "u1"),
            (
                "registered again by its kubelet",
                true,
                Some(seen("u2", &here)),
                "removed",
                "u2",
            ),
            (
                "another machine's",
                true,
                Some(seen("u2", &elsewhere)),
                "replaced",
                "u1",
            ),
            ("removed, and it is permanent", false, None, "", "u1"),
            (
                "registered again, and it is permanent",
                false,
                Some(seen("u2", &here)),
                "renewed",
                "u1",
            ),
            (
                "another machine's, for good",
                false,
                Some(seen("u2", &elsewhere)),
                "replaced",
                "u1",
            ),
        ] {
            let mut worker = Worker {
                ephemeral,
                node_uid: Some("u1".into()),
                ..Worker::example()
            };
            let ended = match check_node_exists(&layout, &mut worker, found) {
                Ok(()) => "",
                Err(Error::Removed(_)) => "removed",
                Err(Error::Replaced(_)) => "replaced",
                Err(Error::NewNode(_)) => "renewed",
                Err(error) => panic!("{rule}: {error:?}"),
            };
            assert_eq!((ended, worker.node_uid.as_deref()), (ends, Some(uid)), "{rule}");
        }
    }
}
