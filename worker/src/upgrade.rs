//! Brings the kubelet to the version that the cluster asks for, or back to the one that it had.
//!
//! ```text
//!  Node: annotation kubelet-version ─▶ plan.rs ◀── record.rs: upgrade.json
//!                                        │ one step at a time, each begun by what the record says
//!    Begin     bundle ─▶ bin/kubelet.next, by its digest; it says its version        ─▶ record: Draining
//!    Drain     cordon, evict, after the time to drain delete                         ─▶ record: Replacing
//!    Replace   kubelet ends · kubelet.previous, kubelet.next ─▶ kubelet · it starts · Node ready, with its version?
//!      yes     Node takes Pods again, and says Done; no record is left
//!      no      record: Reverting · kubelet.previous ─▶ kubelet · it starts · Node ready ─▶ record: Failed, and the Node says why
//! ```
//!
//! Whoever is killed goes on with what is recorded: [`settle`] has the file of the kubelet be the one that goes with the record
//! before any is started.

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

use crate::clock::to_line;
use crate::drain::{self, Target};
use crate::layout::Layout;
use crate::node::{self, limited};
use crate::output::say;
use crate::state::Worker;
use crate::{Error, bundle};

pub(crate) use kubelet::Kubelet;
use plan::{Progress, Seen, Step, plan};
use record::{Record, Stage};
pub(crate) use record::{forget, settle};

/// Between two looks at the Node while something is being done.
const WATCH: Duration = Duration::from_secs(5);
/// And while nothing is.
const CALM: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);
/// How long Pods may take to end that were deleted.
const DELETE_LIMIT: Duration = Duration::from_secs(120);

/// Does as the Node is asked to, as long as it is awaited. Nothing that fails ends the worker.
pub(crate) async fn follow(layout: &Layout, worker: &Worker, kubelet: &mut Kubelet) -> std::convert::Infallible {
    let mut said = String::new();
    let mut known = None;
    loop {
        let Some((client, stamp)) = connect(layout, worker, known.take()).await else {
            sleep(WATCH).await;
            continue;
        };
        let turn = Turn {
            layout,
            worker,
            kubelet: &mut *kubelet,
        };
        let pause = match turn.take(&client).await {
            Ok(next) => {
                said.clear();
                known = Some((client, stamp));
                match next {
                    Next::Now => continue,
                    Next::Soon => WATCH,
                    Next::Later => CALM,
                }
            }
            Err(error) => {
                let line = format!("the kubelet's version: {}", to_line(&error));
                if line != said {
                    say(&line);
                    said = line;
                }
                WATCH
            }
        };
        sleep(pause).await;
    }
}

/// By what a certificate's file is known: its number, and when it was written.
type Stamp = Option<(u64, i64, i64)>;

/// The client that is known, as long as the certificate is the same that it was made with.
async fn connect(layout: &Layout, worker: &Worker, known: Option<(Client, Stamp)>) -> Option<(Client, Stamp)> {
    let meta = std::fs::metadata(layout.client_certificate()).ok();
    let stamp = meta.map(|meta| (meta.ino(), meta.mtime(), meta.mtime_nsec()));
    match known.filter(|(_, before)| *before == stamp) {
        Some(known) => Some(known),
        None => Some((node::connect(layout, worker).await?, stamp)),
    }
}

/// When the next step may follow.
enum Next {
    Now,
    Soon,
    /// Nothing is asked, and nothing is being done.
    Later,
}

/// A step cannot be done now.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("the API does not answer")]
    Api(#[from] Box<kube::Error>),
    #[error(transparent)]
    Local(#[from] Error),
}

struct Turn<'a> {
    layout: &'a Layout,
    worker: &'a Worker,
    kubelet: &'a mut Kubelet,
}

impl Turn<'_> {
    /// Takes one step, if there is one to take.
    async fn take(self, client: &Client) -> Result<Next, TurnError> {
        let nodes = Api::<Node>::all(client.clone());
        let Some(node) = limited(nodes.get_opt(&self.worker.name)).await.map_err(Box::new)? else {
            return Ok(Next::Soon);
        };
        let (seen, record) = (Seen::of(&node), Record::read(self.layout)?);
        match plan(&seen, record.as_ref()) {
            Step::Nothing if record.is_none() && seen.kubelet.is_some() => return Ok(Next::Later),
            Step::Nothing => return Ok(Next::Soon),
            Step::Say(said) => {
                say_on(client, &node, &said).await?;
                return Ok(Next::Soon);
            }
            Step::Clear(said) => end_on(client, &node, &said, false, true).await?,
            Step::Begin(to) => self.begin(client, &seen, to).await?,
            Step::Abandon(record) => {
                let said = KubeletUpgrade {
                    version: record.from,
                    state: UpgradeState::Done,
                };
                end_on(client, &node, &said, !record.cordoned, false).await?;
                forget(self.layout)?;
            }
            Step::Drain(record) => self.drain(client, &node, &seen, record).await?,
            Step::Verify(record) => self.verify(client, record).await?,
            Step::Return(record) => self.go_back(client, record).await?,
            Step::Forget => forget(self.layout)?,
        }
        Ok(Next::Now)
    }

    /// Before anything is touched, all that is needed is there.
    async fn begin(&self, client: &Client, seen: &Seen, to: KubernetesVersion) -> Result<(), TurnError> {
        let Some(from) = seen.kubelet else { return Ok(()) };
        let serves = limited(client.apiserver_version()).await.map_err(Box::new)?;
        let checked = KubernetesVersion::parse_build(&serves.git_version)
            .map_err(|error| error.to_string())
            .and_then(|api| bundle::check_skew(to, api).map_err(|error| to_line(&error)));
        let made = match checked {
            Ok(()) => {
                say(&format!("the kubelet is to be {to}, and is {from}"));
                source::stage(self.layout, &self.worker.bundle, to)
                    .await
                    .map_err(|error| to_line(&error))
            }
            Err(why) => Err(why),
        };
        let stage = if made.is_ok() { Stage::Draining } else { Stage::Failed };
        if let Err(why) = &made {
            say(&format!("the kubelet stays {from}: {why}"));
        }
        // Meanwhile somebody may have cordoned the Node.
        let nodes = Api::<Node>::all(client.clone());
        let node = limited(nodes.get(&self.worker.name)).await.map_err(Box::new)?;
        let record = Record {
            from,
            to,
            cordoned: Seen::of(&node).cordoned,
            stage,
            why: made.err(),
        };
        record.write(self.layout)?;
        Ok(())
    }

    async fn drain(self, client: &Client, node: &Node, seen: &Seen, mut record: Record) -> Result<(), TurnError> {
        let said = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Draining,
        };
        say_on(client, node, &said).await?;
        let target = Target {
            name: &self.worker.name,
            uid: node.metadata.uid.as_deref().unwrap_or_default(),
        };
        if !drain::drain(client, target, seen.drain).await {
            say("Pods that are left are deleted");
            drain::delete_pods(client, target, DELETE_LIMIT).await;
        }
        let said = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Replacing,
        };
        say_on(client, node, &said).await?;
        record.stage = Stage::Replacing;
        record.write(self.layout)?;
        self.restart(record.stage).await
    }

    /// Whether the new one is what it should be.
    async fn verify(self, client: &Client, mut record: Record) -> Result<(), TurnError> {
        match self.wait(client, record.to).await {
            Ok(node) => {
                let said = KubeletUpgrade {
                    version: record.to,
                    state: UpgradeState::Done,
                };
                end_on(client, &node, &said, !record.cordoned, true).await?;
                forget(self.layout)?;
                say(&format!("the kubelet is {}", record.to));
            }
            Err(why) => {
                say(&format!("kubelet {} does not do: {why}", record.to));
                record.stage = Stage::Reverting;
                record.why = Some(why);
                let written = record.write(self.layout);
                // Be it written or not: this one does not do.
                self.restart(record.stage).await?;
                written?;
            }
        }
        Ok(())
    }

    /// Has the kubelet run that goes with the stage. There is to be one in any case.
    async fn restart(self, stage: Stage) -> Result<(), TurnError> {
        self.kubelet.stop().await;
        let arranged = record::arrange(self.layout, stage);
        self.kubelet.start();
        Ok(arranged?)
    }

    async fn go_back(self, client: &Client, mut record: Record) -> Result<(), TurnError> {
        let node = match self.wait(client, record.from).await {
            Ok(node) => node,
            // There is no other. The Node is not ready, and says so by itself.
            Err(why) => {
                say(&format!("kubelet {} does not do either: {why}", record.from));
                let nodes = Api::<Node>::all(client.clone());
                limited(nodes.get(&self.worker.name)).await.map_err(Box::new)?
            }
        };
        let said = KubeletUpgrade {
            version: record.to,
            state: UpgradeState::Failed(record.why.clone().unwrap_or_default()),
        };
        end_on(client, &node, &said, !record.cordoned, false).await?;
        record.stage = Stage::Failed;
        record.write(self.layout)?;
        Ok(())
    }

    /// Waits until the kubelet has said that the Node is ready, and that it is of this version; or why it never will.
    async fn wait(&self, client: &Client, version: KubernetesVersion) -> Result<Node, String> {
        let nodes = Api::<Node>::all(client.clone());
        let mut progress = Progress::default();
        loop {
            // Who cannot ask does not know: only what was answered counts.
            if let Ok(Some(node)) = limited(nodes.get_opt(&self.worker.name)).await {
                let seen = Seen::of(&node);
                if seen.is_ready(version, self.kubelet.since()) {
                    return Ok(node);
                }
                if let Some(why) = progress.note(&seen, self.kubelet.ends()) {
                    let last = self.kubelet.last_words();
                    return Err(last.map_or(why.clone(), |last| format!("{why}: {last}")));
                }
            }
            sleep(PAUSE).await;
        }
    }
}

/// Writes how far it is on the Node. Only on the one that was seen: another machine's may have its name by now.
async fn say_on(client: &Client, node: &Node, said: &KubeletUpgrade) -> Result<(), TurnError> {
    let annotations = json!({labels::KUBELET_UPGRADE: said.to_string()});
    patch(
        client,
        node,
        &json!({"metadata": {"uid": node.metadata.uid, "annotations": annotations}}),
    )
    .await
}

/// The same, and the Node takes Pods again; what it was asked is done, or stays to say what was not.
async fn end_on(
    client: &Client,
    node: &Node,
    said: &KubeletUpgrade,
    uncordon: bool,
    done: bool,
) -> Result<(), TurnError> {
    let mut change = json!({"metadata": {
        "uid": node.metadata.uid,
        "annotations": {labels::KUBELET_UPGRADE: said.to_string()},
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

async fn patch(client: &Client, node: &Node, change: &serde_json::Value) -> Result<(), TurnError> {
    let nodes = Api::<Node>::all(client.clone());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let patched = limited(nodes.patch(name, &PatchParams::default(), &Patch::Merge(change))).await;
    patched.map(|_| ()).map_err(|error| Box::new(error).into())
}
