//! Host objects → the routing table: which SNI name leads to which addresses. Pure; owned by
//! [`crate::routing`].
//!
//! ```text
//!  Event ─▶ validate ─▶ routes, slices (by namespace) ─▶ claims (by name) ─▶ targets ─▶ take_changes()
//! ```
//!
//! The table is updated incrementally, because with 10,000 clusters one change must not cost 10,000
//! validations. It is nevertheless a function of the objects alone, not of the order in which they
//! arrived, so replicas give the same answers. There is one exception: a cluster that woke counts
//! as waking until its address is seen.
//!
//! A name that two clusters claim belongs to the older one (creation time of the ConfigMap, then
//! namespace). A cluster with an invalid ConfigMap loses its own routes, and no other cluster loses
//! any.

pub mod activators;
mod claims;
pub mod observation;
pub mod report;
pub mod route;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use yoke_api::ingress::Asleep;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::INGRESS_LEAF;

use crate::validate::{IngressCertificate, Rules, Slice, validate_config, validate_ingress, validate_slice};

use activators::{Activators, AffectedNames};
use claims::Claims;
use observation::{Event, ObjectKey, Watched, to_chain};
use report::{Problem, Report};
use route::Route;

/// The destination of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The cluster.
    pub route: Arc<Route>,
    /// Ready addresses of the control plane, or of the activators while the cluster sleeps.
    pub addresses: BTreeSet<IpAddr>,
    /// The port at each address.
    pub port: u16,
}

/// The routing table.
#[derive(Debug)]
pub struct Table {
    rules: Rules,
    /// Every ConfigMap, with its route if it is valid.
    configs: BTreeMap<ObjectKey, Option<(Timestamp, Arc<Route>)>>,
    routes: BTreeMap<String, Arc<Route>>,
    slices: BTreeMap<ObjectKey, Option<Slice>>,
    claims: Claims,
    targets: BTreeMap<String, Target>,
    changed: BTreeSet<String>,
    problems: BTreeMap<(ProblemSource, ObjectKey), Vec<Problem>>,
    reports: Vec<Report>,
    certificate: Option<IngressCertificate>,
    configs_listed: bool,
    slices_listed: bool,
    certificate_listed: bool,
    activators: Activators,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProblemSource {
    Config,
    Slice,
    Certificate,
}

impl Table {
    /// An empty table.
    pub fn new(rules: Rules) -> Self {
        Self {
            activators: Activators::new(rules.clone()),
            rules,
            configs: BTreeMap::new(),
            routes: BTreeMap::new(),
            slices: BTreeMap::new(),
            claims: Claims::default(),
            targets: BTreeMap::new(),
            changed: BTreeSet::new(),
            problems: BTreeMap::new(),
            reports: Vec::new(),
            certificate: None,
            configs_listed: false,
            slices_listed: false,
            certificate_listed: false,
        }
    }

    /// Applies one observation. Returns problems that did not exist before.
    pub fn apply(&mut self, event: Event) -> Vec<Report> {
        match event {
            // An object that is being deleted counts as deleted: a finalizer of another controller
            // must not keep it routed.
            Event::Config(Watched::Applied(object)) if object.metadata.deletion_timestamp.is_some() => {
                self.remove_config(&ObjectKey::of(&object.metadata));
            }
            Event::Config(Watched::Applied(object)) => self.apply_config(&object),
            Event::Config(Watched::Deleted(key)) => self.remove_config(&key),
            Event::Config(Watched::Listed(keys)) => {
                let gone: Vec<_> = self.configs.keys().filter(|key| !keys.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.remove_config(key));
                self.configs_listed = true;
            }
            Event::Slice(Watched::Applied(object)) => self.apply_slice(&object),
            Event::Slice(Watched::Deleted(key)) => self.remove_slice(&key),
            Event::Slice(Watched::Listed(keys)) => {
                let gone: Vec<_> = self.slices.keys().filter(|key| !keys.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.remove_slice(key));
                self.slices_listed = true;
            }
            Event::Certificate(Watched::Applied(object)) => self.apply_certificate(&object),
            Event::Certificate(Watched::Deleted(key)) => self.remove_certificate(&key),
            Event::Certificate(Watched::Listed(keys)) => {
                let own = certificate_key();
                if !keys.contains(&own) {
                    self.remove_certificate(&own);
                }
                self.certificate_listed = true;
            }
            Event::ActivatorCertificate(seen) => {
                let affected = self.activators.apply(seen);
                self.resolve_sleeping(affected);
            }
            Event::Replicas(seen) => {
                let affected = self.activators.apply_replicas(seen);
                self.resolve_sleeping(affected);
            }
        }
        std::mem::take(&mut self.reports)
    }

    /// Whether every kind of object was listed once. Before that, absence means nothing.
    pub fn is_synced(&self) -> bool {
        self.configs_listed && self.slices_listed && self.certificate_listed && self.activators.is_listed()
    }

    /// The ingress certificate, if there is a valid one.
    pub fn certificate(&self) -> Option<&IngressCertificate> {
        self.certificate.as_ref()
    }

    /// Names whose target changed since the last call, with the new target or `None` for removed
    /// names.
    pub fn take_changes(&mut self) -> BTreeMap<String, Option<Target>> {
        let changed = std::mem::take(&mut self.changed);
        let targets = &self.targets;
        let pair = |name: String| {
            let target = targets.get(&name).cloned();
            (name, target)
        };
        changed.into_iter().map(pair).collect()
    }

    /// Number of routed clusters.
    pub fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// Number of SNI names that lead to a cluster.
    pub fn name_count(&self) -> usize {
        self.targets.len()
    }

    /// Number of objects with problems, plus names that more than one cluster claims.
    pub fn problem_count(&self) -> usize {
        self.problems.len() + self.claims.contest_count()
    }

    fn apply_config(&mut self, object: &ConfigMap) {
        let key = ObjectKey::of(&object.metadata);
        // An object without a creation time counts as the youngest.
        let created = object.metadata.creation_timestamp.as_ref();
        let created = created.map_or(Timestamp::MAX, |time| time.0);
        let (route, problems) = match validate_config(&self.rules, object) {
            Ok(config) => {
                let problems = config.refused_names.into_iter().map(Problem::Name).collect();
                (Some(Arc::new(config.route)), problems)
            }
            Err(error) => (None, vec![Problem::Config(to_chain(&error))]),
        };
        self.set_route(&key, route.map(|route| (created, route)));
        self.record(ProblemSource::Config, key, problems);
    }

    fn remove_config(&mut self, key: &ObjectKey) {
        self.set_route(key, None);
        self.configs.remove(key);
        self.record(ProblemSource::Config, key.clone(), Vec::new());
    }

    fn set_route(&mut self, key: &ObjectKey, route: Option<(Timestamp, Arc<Route>)>) {
        let before = self.configs.insert(key.clone(), route.clone()).flatten();
        if before == route {
            return;
        }
        let mut touched = BTreeSet::new();
        if let Some((created, old)) = before {
            let claim = (created, key.namespace.clone());
            self.routes.remove(&key.namespace);
            for name in old.names() {
                self.claims.remove(name, &claim);
                touched.insert(name.to_owned());
            }
        }
        if let Some((created, new)) = route {
            let claim = (created, key.namespace.clone());
            for name in new.names() {
                self.claims.add(name, claim.clone());
                touched.insert(name.to_owned());
            }
            self.routes.insert(key.namespace.clone(), new);
        }
        for name in touched {
            self.resolve(&name);
        }
    }

    fn apply_slice(&mut self, object: &EndpointSlice) {
        let key = ObjectKey::of(&object.metadata);
        let (slice, problems) = match validate_slice(&self.rules, object) {
            Ok(slice) => (Some(slice), Vec::new()),
            Err(error) => (None, vec![Problem::Slice(to_chain(&error))]),
        };
        self.slices.insert(key.clone(), slice);
        self.resolve_namespace(&key.namespace);
        self.record(ProblemSource::Slice, key, problems);
    }

    fn remove_slice(&mut self, key: &ObjectKey) {
        self.slices.remove(key);
        self.resolve_namespace(&key.namespace);
        self.record(ProblemSource::Slice, key.clone(), Vec::new());
    }

    fn apply_certificate(&mut self, object: &Secret) {
        let key = ObjectKey::of(&object.metadata);
        let (certificate, problems) = match validate_ingress(object) {
            Ok(certificate) => (Some(certificate), Vec::new()),
            Err(error) => (None, vec![Problem::Certificate(to_chain(&error))]),
        };
        self.certificate = certificate;
        self.record(ProblemSource::Certificate, key, problems);
    }

    fn remove_certificate(&mut self, key: &ObjectKey) {
        self.certificate = None;
        self.record(ProblemSource::Certificate, key.clone(), Vec::new());
    }

    fn resolve_sleeping(&mut self, affected: AffectedNames) {
        let namespaces = match affected {
            AffectedNames::Namespaces(namespaces) => namespaces,
            AffectedNames::All => {
                let asleep = self.routes.values().filter(|route| route.asleep.is_some());
                asleep.map(|route| route.namespace.clone()).collect()
            }
        };
        namespaces
            .iter()
            .for_each(|namespace| self.resolve_namespace(namespace));
    }

    fn resolve_namespace(&mut self, namespace: &str) {
        let Some(route) = self.routes.get(namespace).cloned() else {
            return;
        };
        for name in route.names() {
            self.resolve(name);
        }
    }

    /// Recomputes the target of one name.
    fn resolve(&mut self, name: &str) {
        self.reports.extend(self.claims.update_contest(name));
        let route = self.claims.owner(name).and_then(|namespace| self.routes.get(namespace));
        let target = route.map(|route| self.find_target(name, route));
        if self.targets.get(name) == target.as_ref() {
            return;
        }
        self.changed.insert(name.to_owned());
        match target {
            Some(target) => self.targets.insert(name.to_owned(), target),
            None => self.targets.remove(name),
        };
    }

    fn find_target(&self, name: &str, route: &Arc<Route>) -> Target {
        let addresses = self.addresses(route);
        let route = match addresses.is_empty() {
            true => self.preserve_waking(name, route),
            false => Arc::clone(route),
        };
        let found = route
            .asleep
            .as_ref()
            .and_then(|_| self.activators.endpoints_of(name, &route));
        if let Some((addresses, port)) = found {
            return Target { route, addresses, port };
        }
        Target {
            addresses,
            port: match route.is_konnectivity(name) {
                true => self.rules.konnectivity_port,
                false => self.rules.port,
            },
            route,
        }
    }

    /// A cluster that was waking continues to count as waking until its address is seen. The end of
    /// the wake and the address arrive on different watches.
    fn preserve_waking(&self, name: &str, route: &Arc<Route>) -> Arc<Route> {
        let before = self.targets.get(name).map(|target| &target.route);
        let sleep = before
            .filter(|before| before.id == route.id)
            .and_then(|before| before.asleep.as_ref());
        match sleep {
            Some(sleep) if route.asleep.is_none() && matches!(sleep.state, Asleep::Waking { .. }) => Arc::new(Route {
                asleep: Some(sleep.clone()),
                ..route.as_ref().clone()
            }),
            _ => Arc::clone(route),
        }
    }

    fn addresses(&self, route: &Route) -> BTreeSet<IpAddr> {
        let first = ObjectKey {
            namespace: route.namespace.clone(),
            name: String::new(),
        };
        self.slices
            .range(first..)
            .take_while(|(key, _)| key.namespace == route.namespace)
            .filter_map(|(_, slice)| slice.as_ref())
            .filter(|slice| slice.service == route.service)
            .flat_map(|slice| slice.addresses.iter().copied())
            .collect()
    }

    fn record(&mut self, kind: ProblemSource, key: ObjectKey, problems: Vec<Problem>) {
        let before = self.problems.remove(&(kind, key.clone())).unwrap_or_default();
        let new = problems.iter().filter(|problem| !before.contains(problem));
        self.reports.extend(new.map(|problem| Report {
            object: key.clone(),
            problem: problem.clone(),
        }));
        if !problems.is_empty() {
            self.problems.insert((kind, key), problems);
        }
    }
}

fn certificate_key() -> ObjectKey {
    ObjectKey {
        namespace: PKI_NAMESPACE.to_owned(),
        name: INGRESS_LEAF.to_owned(),
    }
}

#[cfg(test)]
mod tests;
