//! Claims of clusters on SNI names: the older cluster owns a name that several claim. Pure; a part
//! of [`super::Table`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use yoke_api::names::INGRESS_CONFIG_MAP;

use super::observation::ObjectKey;
use super::report::{Problem, Report};

/// Creation time and control-plane namespace of a cluster: the order of precedence.
pub(super) type Claim = (Timestamp, String);

/// The claims on all names.
#[derive(Debug, Default)]
pub(super) struct Claims {
    names: BTreeMap<String, BTreeSet<Claim>>,
    contests: BTreeMap<String, Contest>,
}

/// Control-plane namespaces that claim the same name.
#[derive(Debug)]
struct Contest {
    winner: String,
    losers: BTreeSet<String>,
}

impl Claims {
    pub(super) fn add(&mut self, name: &str, claim: Claim) {
        self.names.entry(name.to_owned()).or_default().insert(claim);
    }

    pub(super) fn remove(&mut self, name: &str, claim: &Claim) {
        if let Some(claims) = self.names.get_mut(name) {
            claims.remove(claim);
        }
    }

    /// Control-plane namespace of the cluster that owns a name.
    pub(super) fn owner(&self, name: &str) -> Option<&str> {
        let (_, namespace) = self.names.get(name)?.first()?;
        Some(namespace)
    }

    /// Number of names that more than one cluster claims.
    pub(super) fn contest_count(&self) -> usize {
        self.contests.len()
    }

    /// Compares the claims on a name with the previous ones. Returns a report for each cluster that
    /// has newly lost it.
    pub(super) fn update_contest(&mut self, name: &str) -> Vec<Report> {
        let Some(claims) = self.names.get(name) else {
            return Vec::new();
        };
        let mut namespaces = claims.iter().map(|(_, namespace)| namespace.clone());
        let Some(winner) = namespaces.next() else {
            self.names.remove(name);
            self.contests.remove(name);
            return Vec::new();
        };
        let contest = Contest {
            winner,
            losers: namespaces.collect(),
        };
        let before = self.contests.get(name);
        let is_known = |loser: &String| {
            before.is_some_and(|before| before.winner == contest.winner && before.losers.contains(loser))
        };
        let new = contest.losers.iter().filter(|loser| !is_known(loser));
        let reports = new.map(|loser| Report {
            object: config_key(loser),
            problem: Problem::NameTaken {
                name: name.to_owned(),
                by: contest.winner.clone(),
            },
        });
        let reports = reports.collect();
        if contest.losers.is_empty() {
            self.contests.remove(name);
        } else {
            self.contests.insert(name.to_owned(), contest);
        }
        reports
    }
}

fn config_key(namespace: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: INGRESS_CONFIG_MAP.to_owned(),
    }
}
