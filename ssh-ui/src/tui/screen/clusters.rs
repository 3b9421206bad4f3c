//! The list of Clusters on the screen, and the selected one. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use yoke_api::cluster::{DesiredState, Phase};
use yoke_api::usage::UsageStatus;
use yoke_api::{Cluster, ConditionType};
use yoke_view::render::find;

use super::text::clip;

/// Maximum number of stored Clusters; `ssh HOST clusters` shows more.
const ROWS: usize = 500;

/// The shown fields of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) state: DesiredState,
    pub(super) phase: Option<Phase>,
    pub(super) ready: Option<bool>,
    pub(super) version: Option<String>,
    pub(super) url: Option<String>,
    pub(super) address: Option<String>,
    pub(super) nodes: Option<i32>,
    pub(super) storage: String,
    pub(super) created: Option<Timestamp>,
    pub(super) usage: Option<UsageStatus>,
    pub(super) message: String,
    pub(super) has_kubeconfig: bool,
}

impl Row {
    /// Returns the cost of the hours awake, if the host has a price.
    pub(super) fn cost(&self, now: Timestamp) -> Option<String> {
        let cost = self.usage.as_ref()?.cost(now)?;
        Some(cost.to_string())
    }
}

/// The Clusters, sorted by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Clusters {
    current: Rows,
    /// A list that is being received and will replace the rows.
    fresh: Rows,
    chosen: Option<String>,
    /// Name of a Cluster that is selected as soon as it appears.
    awaited: Option<String>,
    pub(super) is_listed: bool,
    /// After a deletion a row may be free for a Cluster that did not fit before; only a new list
    /// can tell.
    pub(super) is_short: bool,
}

/// Rows up to the maximum, and whether some did not fit.
#[derive(Clone, Debug, Default)]
struct Rows {
    rows: BTreeMap<String, Row>,
    has_more: bool,
}

impl Clusters {
    /// Applies an event of the watch.
    pub(super) fn follow(&mut self, event: Event<Cluster>) {
        match event {
            Event::Init => {
                self.fresh = Rows::default();
                self.is_short = false;
            }
            Event::InitApply(cluster) => self.fresh.insert(&cluster),
            Event::InitDone => {
                let index = self.index();
                self.current = std::mem::take(&mut self.fresh);
                self.is_listed = true;
                self.restore_selection(index);
            }
            Event::Apply(cluster) => {
                let index = self.index();
                self.current.insert(&cluster);
                self.restore_selection(index);
            }
            Event::Delete(cluster) => {
                let index = self.index();
                self.current.rows.remove(&clip(&cluster.name_any()));
                self.is_short |= self.current.has_more;
                self.restore_selection(index);
            }
        }
    }

    /// Returns the rows, sorted by name.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, &Row)> {
        self.current.rows.iter().map(|(name, row)| (name.as_str(), row))
    }

    pub(super) fn len(&self) -> usize {
        self.current.rows.len()
    }

    /// Returns whether there are Clusters that are not stored.
    pub(super) fn has_more(&self) -> bool {
        self.current.has_more
    }

    pub(super) fn get(&self, name: &str) -> Option<&Row> {
        self.current.rows.get(name)
    }

    /// Returns the selected Cluster.
    pub(super) fn chosen(&self) -> Option<(&str, &Row)> {
        let (name, row) = self.current.rows.get_key_value(self.chosen.as_deref()?)?;
        Some((name, row))
    }

    /// Returns the index of the selected row.
    pub(super) fn index(&self) -> usize {
        let chosen = self.chosen.as_deref();
        self.current
            .rows
            .keys()
            .position(|name| Some(name.as_str()) == chosen)
            .unwrap_or(0)
    }

    /// Selects a row, or the last one if there are fewer. An expected Cluster is no longer selected
    /// when it appears.
    pub(super) fn choose(&mut self, index: usize) {
        self.awaited = None;
        self.pick(index);
    }

    fn pick(&mut self, index: usize) {
        let last = self.len().saturating_sub(1);
        self.chosen = self.current.rows.keys().nth(index.min(last)).cloned();
    }

    /// Selects a Cluster as soon as it appears.
    pub(super) fn expect(&mut self, name: &str) {
        self.awaited = Some(name.to_owned());
        self.restore_selection(self.index());
    }

    /// Keeps the selected Cluster wherever it has moved. If it is gone, selects the row at its
    /// index.
    fn restore_selection(&mut self, index: usize) {
        if let Some(name) = self.awaited.take_if(|name| self.current.rows.contains_key(name)) {
            self.chosen = Some(name);
        }
        if self.chosen().is_none() {
            self.pick(index);
        }
    }
}

impl Rows {
    fn insert(&mut self, cluster: &Cluster) {
        let name = clip(&cluster.name_any());
        if self.rows.len() < ROWS || self.rows.contains_key(&name) {
            self.rows.insert(name, to_row(cluster));
        } else {
            self.has_more = true;
        }
    }
}

fn to_row(cluster: &Cluster) -> Row {
    let status = cluster.status.as_ref();
    let ready = status.and_then(|status| find(&status.conditions, ConditionType::Ready));
    let endpoint = status.and_then(|status| status.endpoint.as_ref());
    Row {
        state: match status.and_then(|status| status.phase) {
            // The Cluster may be asleep although its spec says `Running`: see the annotation
            // `yoke.drzzl.io/sleep`.
            Some(Phase::Asleep) => DesiredState::Asleep,
            _ => cluster.spec.state,
        },
        phase: status.and_then(|status| status.phase),
        ready: ready.map(|ready| ready.status == "True"),
        version: status.and_then(|status| status.version.as_deref()).map(clip),
        url: endpoint.map(|endpoint| clip(&endpoint.url)),
        address: endpoint.map(|endpoint| clip(&endpoint.address)),
        nodes: status.and_then(|status| status.nodes),
        storage: clip(&cluster.spec.storage.quota.0),
        created: cluster.creation_timestamp().map(|time| time.0),
        usage: status.and_then(|status| status.usage.clone()),
        message: ready.map(|ready| clip(&ready.message)).unwrap_or_default(),
        has_kubeconfig: status.is_some_and(|status| status.kubeconfig_ref.is_some()),
    }
}
