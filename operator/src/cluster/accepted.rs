//! A spec that passed validation.

use yoke_api::KubernetesVersion;
use yoke_pki::plan::{ClusterFacts, Plan};

use crate::config::{ClassEntry, VersionEntry};

/// A spec that can be applied, with its names resolved.
#[derive(Clone, Debug)]
pub struct Accepted<'a> {
    /// The version to run.
    pub version: KubernetesVersion,
    /// The requested version, if another version comes before it.
    pub heads_for: Option<KubernetesVersion>,
    /// Entry of the version in the catalogue.
    pub catalogue: &'a VersionEntry,
    /// Entry of the class in the configuration.
    pub class: &'a ClassEntry,
    /// The store's quota in bytes.
    pub quota: i64,
    /// Plan of the certificates to issue.
    pub plan: Plan,
    /// The facts that the certificate plan is made from.
    pub facts: ClusterFacts,
}
