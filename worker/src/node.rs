//! The worker's Node, as the worker itself sees it: with the certificate that its kubelet was given.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use yoke_api::Cidr;

use crate::layout::Layout;
use crate::output::say;

const PAUSE: Duration = Duration::from_secs(1);
const REQUEST: Duration = Duration::from_secs(10);
/// How often it is said that there is still nothing.
const SILENCE: u32 = 30;

/// A client with the kubelet's certificate, once it has one.
pub(crate) async fn connect(layout: &Layout) -> Option<Client> {
    let kubeconfig = Kubeconfig::read_from(layout.kubeconfig()).ok()?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .ok()?;
    Client::try_from(config).ok()
}

/// A request of few; a control plane that does not answer keeps no worker.
pub(crate) async fn limited<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = |_| kube::Error::Service(format!("no answer within {REQUEST:?}").into());
    tokio::time::timeout(REQUEST, request).await.map_err(late)?
}

/// What the cluster has made of the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Of the Node.
    pub(crate) uid: String,
    /// The addresses that it may give to Pods.
    pub(crate) pods: Cidr,
}

/// The UID of the Node of this name; nothing if there is none.
pub(crate) async fn ask_uid(client: &Client, name: &str) -> kube::Result<Option<String>> {
    let node = limited(Api::<Node>::all(client.clone()).get_opt(name)).await?;
    Ok(node.and_then(|node| node.metadata.uid))
}

/// Waits until the cluster has let the Node in, and has said which addresses it may give to Pods.
pub(crate) async fn wait_joined(layout: &Layout, name: &str) -> Joined {
    let mut rounds = 0;
    loop {
        if let Some(joined) = read_joined(layout, name).await {
            return joined;
        }
        rounds += 1;
        if rounds % SILENCE == 0 {
            let log = layout.logs().join("kubelet.log");
            say(&format!(
                "still waiting to be let in as Node {name}; see {}",
                log.display()
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read_joined(layout: &Layout, name: &str) -> Option<Joined> {
    let nodes = Api::<Node>::all(connect(layout).await?);
    let node = limited(nodes.get(name)).await.ok()?;
    Some(Joined {
        uid: node.metadata.uid?,
        pods: node.spec?.pod_cidr?.parse().ok()?,
    })
}
