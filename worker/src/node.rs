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

/// The addresses that the Node may give to Pods: waits until the cluster has let it in, and has said which they are.
pub(crate) async fn wait_pods(layout: &Layout, name: &str) -> Cidr {
    let mut rounds = 0;
    loop {
        if let Some(cidr) = read_pods(layout, name).await {
            return cidr;
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

async fn read_pods(layout: &Layout, name: &str) -> Option<Cidr> {
    let nodes = Api::<Node>::all(connect(layout).await?);
    let node = tokio::time::timeout(REQUEST, nodes.get(name)).await.ok()?.ok()?;
    node.spec?.pod_cidr?.parse().ok()
}
