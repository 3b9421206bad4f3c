//! Replaces the kubelet with the version that the cluster requests, and restores the previous one
//! on failure.
//!
//! ```text
//!  Node: annotation kubelet-version ─▶ plan.rs ◀── record.rs: upgrade.json
//!                                        │ one step at a time, chosen by the record
//!    Prepare   bundle ─▶ bin/kubelet.next; digest and version are checked                ─▶ record: Draining
//!    Drain     cordon, evict; after the drain timeout, delete                           ─▶ record: Replacing
//!    Replace   kubelet stops · kubelet.previous, kubelet.next ─▶ kubelet · it starts · Node Ready, with the version?
//!      yes     Node is uncordoned, status Done; the record is removed
//!      no      record: Reverting · kubelet.previous ─▶ kubelet · it starts · Node Ready ─▶ record: Failed, with the reason on the Node
//! ```
//!
//! A worker that was killed continues from the record. [`arrange_kubelet`] arranges the kubelet's file to
//! match the record before any kubelet starts.

mod kubelet;
mod plan;
mod record;
mod source;

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;
use yoke_api::KubernetesVersion;
use yoke_api::labels;
use yoke_api::workers::{KubeletUpgrade, UpgradeState};

use crate::bundle;
use crate::drain::{self, Target};
use crate::error::Error;
use crate::error_chain::format_chain;
use crate::layout::Layout;
use crate::node::{self, with_limit};
use crate::output::progress;
use crate::state::Worker;

pub(crate) use kubelet::Kubelet;
use plan::{KubeletWait, Step, UpgradeNode, plan};
use record::{Record, Stage};
pub(crate) use record::{arrange_kubelet, remove_record};

/// Interval between two reads of the Node during an upgrade.
const ACTIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval without an upgrade.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for deleted Pods to terminate.
const DELETE_LIMIT: Duration = Duration::from_secs(120);

/// Performs upgrades that the Node's annotation requests, until dropped. An error never ends the
/// worker.
pub(crate) async fn follow(layout: &Layout, worker: &Worker, kubelet: &mut Kubelet) -> std::convert::Infallible {
    let mut last_message = String::new();
    let mut known = None;
    loop {
        let Some((client, stamp)) = connect(layout, worker, known.take()).await else {
            sleep(ACTIVE_INTERVAL).await;
            continue;
        };
        let context = StepContext {
            layout,
            worker,
            kubelet: &mut *kubelet,
        };
        let interval = match context.take_step(&client).await {
            Ok(next) => {
                last_message.clear();
                known = Some((client, stamp));
                match next {
                    Next::Now => continue,
                    Next::Soon => ACTIVE_INTERVAL,
                    Next::Later => IDLE_INTERVAL,
                }
            }
            Err(error) => {
                let line = format!("cannot upgrade the kubelet now: {}", format_chain(&error));
                if line != last_message {
                    progress(&line);
                    last_message = line;
                }
                ACTIVE_INTERVAL
            }
        };
        sleep(interval).await;
    }
}

/// Identifies a version of the certificate's file: inode and modification time.
type Stamp = Option<(u64, i64, i64)>;

/// Reuses the client as long as the certificate's file has not changed.
async fn connect(layout: &Layout, worker: &Worker, known: Option<(Client, Stamp)>) -> Option<(Client, Stamp)> {
    let meta = std::fs::metadata(layout.client_certificate()).ok();
    let stamp = meta.map(|meta| (meta.ino(), meta.mtime(), meta.mtime_nsec()));
    match known.filter(|(_, before)| *before == stamp) {
        Some(known) => Some(known),
        None => Some((node::connect(layout, worker).await?, stamp)),
    }
}

/// When to take the next step.
enum Next {
    Now,
    Soon,
    /// No upgrade is requested or in progress.
    Later,
}

/// The reason why a step could not be taken now.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("the API server does not respond")]
    Api(#[from] Box<kube::Error>),
    #[error(transparent)]
    Local(#[from] Error),
}

struct StepContext<'a> {
    layout: &'a Layout,
    worker: &'a Worker,
    kubelet: &'a mut Kubelet,
}

impl StepContext<'_> {
    /// Takes one step, if there is one.
    async fn take_step(self, client: &Client) -> Result<Next, StepError> {
        let nodes = Api::<Node>::all(client.clone());
        let Some(node) = with_limit(nodes.get_opt(&self.worker.name)).await.map_err(Box::new)? else {
            return Ok(Next::Soon);
        };
        let (seen, record) = (UpgradeNode::from_node(&node), Record::read(self.layout)?);
        match plan(&seen, record.as_ref()) {
            Step::Nothing if record.is_none() && seen.kubelet.is_some() => return Ok(Next::Later),
            Step::Nothing => return Ok(Next::Soon),
            Step::WriteStatus(status) => {
                write_status(client, &node, &status).await?;
                return Ok(Next::Soon);
            }
            Step::ClearRequest(status) => finish(client, &node, &status, false, true).await?,
            Step::Prepare(to) => self.prepare(client, &seen, to).await?,
            Step::Cancel(record) => {
                let status = KubeletUpgrade {
                    version: record.from,
                    state: UpgradeState::Done,
                };
                finish(client, &node, &status, !record.cordoned, false).await?;
                remove_record(self.layout)?;
            }
            Step::Drain(record) => self.drain(client, &node, &seen, record).await?,
            Step::Verify(record) => self.verify(client, record).await?,
            Step::VerifyPrevious(record) => self.verify_previous(client, record).await?,
            Step::RemoveRecord => remove_record(self.layout)?,
        }
        Ok(Next::Now)
    }

    /// Prepares an upgrade completely before it changes the running kubelet.
    async fn prepare(&self, client: &Client, seen: &UpgradeNode, to: KubernetesVersion) -> Result<(), StepError> {
        let Some(from) = seen.kubelet else { return Ok(()) };
        let serves = with_limit(client.apiserver_version()).await.map_err(Box::new)?;
        let checked = KubernetesVersion::parse_build(&serves.git_version)
            .map_err(|error| error.to_string())
            .and_then(|api| bundle::check_skew(to, api).map_err(|error| format_chain(&error)));
        let staged = match checked {
            Ok(()) => {
                progress(&format!("upgrading the kubelet from {from} to {to}"));
                source::stage(self.layout, &self.worker.bundle, to)
                    .await
                    .map_err(|error| format_chain(&error))
            }
            Err(why) => Err(why),
        };
        let stage = if staged.is_ok() { Stage::Draining } else { Stage::Failed };
        if let Err(why) = &staged {
            progress(&format!("the kubelet remains at {from}: {why}"));
        }
        // Read the Node again, because a user may have cordoned it meanwhile.
        let nodes = Api::<Node>::all(client.clone());
        let node = with_limit(nodes.get(&self.worker.name)).await.map_err(Box::new)?;
        let record = Record {
            from,
            to,
            cordoned: UpgradeNode::from_node(&node).cordoned,
            stage,
            why: staged.err(),
        };
        record.write(self.layout)?;
        Ok(())
    }

    async fn drain(
        self,
        client: &Client,
        node: &Node,
        seen: &UpgradeNode,
        mut record: Record,
    ) -> Result<(), StepError> {
        let status = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Draining,
        };
        write_status(client, node, &status).await?;
        let target = Target {
            name: &self.worker.name,
            uid: node.metadata.uid.as_deref().unwrap_or_default(),
        };
        if !drain::drain(client, target, seen.drain).await {
            progress("deleting the remaining Pods");
            drain::delete_pods(client, target, DELETE_LIMIT).await;
        }
        let status = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Replacing,
        };
        write_status(client, node, &status).await?;
        record.stage = Stage::Replacing;
        record.write(self.layout)?;
        self.restart(record.stage).await
    }

    /// Checks that the new kubelet works.
    async fn verify(self, client: &Client, mut record: Record) -> Result<(), StepError> {
        match self.wait(client, record.to).await {
            Ok(node) => {
                let status = KubeletUpgrade {
                    version: record.to,
                    state: UpgradeState::Done,
                };
                finish(client, &node, &status, !record.cordoned, true).await?;
                remove_record(self.layout)?;
                progress(&format!("upgraded the kubelet to {}", record.to));
            }
            Err(why) => {
                progress(&format!(
                    "kubelet {} does not work; restoring the previous one: {why}",
                    record.to
                ));
                record.stage = Stage::Reverting;
                record.why = Some(why);
                let written = record.write(self.layout);
                // Revert even if the record could not be written: this kubelet does not work.
                self.restart(record.stage).await?;
                written?;
            }
        }
        Ok(())
    }

    /// Restarts the kubelet with the file for this stage. A kubelet runs afterwards in any case.
    async fn restart(self, stage: Stage) -> Result<(), StepError> {
        self.kubelet.stop().await;
        let arranged = record::arrange(self.layout, stage);
        self.kubelet.start();
        Ok(arranged?)
    }

    async fn verify_previous(self, client: &Client, mut record: Record) -> Result<(), StepError> {
        let node = match self.wait(client, record.from).await {
            Ok(node) => node,
            // There is no other kubelet to try. The Node is not Ready, which its conditions show.
            Err(why) => {
                progress(&format!(
                    "the previous kubelet {} does not work either: {why}",
                    record.from
                ));
                let nodes = Api::<Node>::all(client.clone());
                with_limit(nodes.get(&self.worker.name)).await.map_err(Box::new)?
            }
        };
        let status = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Failed(record.why.clone().unwrap_or_default()),
        };
        finish(client, &node, &status, !record.cordoned, false).await?;
        record.stage = Stage::Failed;
        record.write(self.layout)?;
        Ok(())
    }

    /// Waits until a kubelet of this version reports the Node Ready. Fails with the reason if that
    /// takes too long.
    async fn wait(&self, client: &Client, version: KubernetesVersion) -> Result<Node, String> {
        let nodes = Api::<Node>::all(client.clone());
        let mut progress = KubeletWait::default();
        loop {
            // An unreachable API proves nothing: only responses count.
            if let Ok(Some(node)) = with_limit(nodes.get_opt(&self.worker.name)).await {
                let seen = UpgradeNode::from_node(&node);
                if seen.is_ready(version, self.kubelet.since()) {
                    return Ok(node);
                }
                if let Some(why) = progress.count_response(&seen, self.kubelet.exits()) {
                    let last = self.kubelet.last_log_line();
                    return Err(last.map_or(why.clone(), |last| format!("{why}: {last}")));
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Writes the status on the Node, but only on the one that was read: another machine may have a
/// Node of this name by now.
async fn write_status(client: &Client, node: &Node, status: &KubeletUpgrade) -> Result<(), StepError> {
    let annotations = json!({labels::KUBELET_UPGRADE: status.to_string()});
    patch(
        client,
        node,
        &json!({"metadata": {"uid": node.metadata.uid, "annotations": annotations}}),
    )
    .await
}

/// Writes the status, and uncordons the Node if `uncordon`. With `done` it removes the request;
/// otherwise the request stays as a record of what failed.
async fn finish(
    client: &Client,
    node: &Node,
    status: &KubeletUpgrade,
    uncordon: bool,
    done: bool,
) -> Result<(), StepError> {
    let mut change = json!({"metadata": {
        "uid": node.metadata.uid,
        "annotations": {labels::KUBELET_UPGRADE: status.to_string()},
    }});
    if done {
        change["metadata"]["annotations"][labels::KUBELET_VERSION] = json!(null);
        change["metadata"]["annotations"][labels::DRAIN_TIMEOUT] = json!(null);
    }
    if uncordon {
        change["spec"] = json!({"unschedulable": null});
    }
    patch(client, node, &change).await
}

async fn patch(client: &Client, node: &Node, change: &serde_json::Value) -> Result<(), StepError> {
    let nodes = Api::<Node>::all(client.clone());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let patched = with_limit(nodes.patch(name, &PatchParams::default(), &Patch::Merge(change))).await;
    patched.map(|_| ()).map_err(|error| Box::new(error).into())
}
