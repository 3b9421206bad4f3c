//! Checks the Kubernetes version of a Cluster, and plans the next one on the way to it. Pure.

use yoke_api::cluster::Cluster;
use yoke_api::version::KUBELET_MINORS_BEHIND;
use yoke_api::{KubernetesVersion, Reason};

use crate::cluster::validate::context::ValidationContext;
use crate::cluster::validate::refuse::refuse;
use crate::config::{Config, VersionEntry};
use crate::model::refusal::Refusal;

/// The versions of an accepted spec.
pub(super) struct Versions<'c> {
    /// The version to run, with its catalog entry.
    pub(super) now: (KubernetesVersion, &'c VersionEntry),
    /// The requested version, if another version comes before it.
    pub(super) heads_for: Option<KubernetesVersion>,
}

pub(super) fn check_version<'c>(
    cluster: &Cluster,
    around: &ValidationContext<'c, '_>,
) -> Result<Versions<'c>, Refusal> {
    let config = around.config;
    let wanted = match cluster.spec.version.as_deref() {
        Some(text) => text
            .parse::<KubernetesVersion>()
            .or_else(|error| refuse(Reason::UnknownVersion, format!("spec.version: {error}.")))?,
        None => around.running.unwrap_or_else(|| config.default_version()),
    };
    let version = plan_step(wanted, around)?;
    if let Some(running) = around.running
        && !running.may_change_to(version)
    {
        return refuse(
            Reason::VersionChangeRefused,
            format!(
                "Kubernetes {running} is running and cannot change to {version}: upgrades go one minor version at a \
         time, and minor downgrades are not possible."
            ),
        );
    }
    // The condition `WorkersUpdated` reports old workers while the control plane does not change.
    let oldest = cluster
        .status
        .as_ref()
        .and_then(|status| status.workers.as_ref()?.oldest_version.as_deref());
    let oldest = oldest.and_then(|oldest| oldest.parse::<KubernetesVersion>().ok());
    if let (Some(running), Some(oldest)) = (around.running, oldest)
        && running.minor < version.minor
        && version.minor.saturating_sub(oldest.minor) > KUBELET_MINORS_BEHIND
    {
        return refuse(
            Reason::VersionChangeRefused,
            format!(
                "A Node has kubelet {oldest}, which is too old for an API server of {version}. Upgrade that kubelet \
         to {running}, or delete the Node."
            ),
        );
    }
    Ok(Versions {
        now: (version, check_offered(version, config)?),
        heads_for: (version != wanted).then_some(wanted),
    })
}

/// The next version to run on the way to the wanted one.
///
/// Each minor version migrates the stored objects; a later one may not read objects that skipped a
/// version. A version that was requested while the Cluster slept or was paused, or that never
/// became available, has migrated nothing. The owner cannot revert such a version: the CRD allows
/// no downgrade.
fn plan_step(wanted: KubernetesVersion, around: &ValidationContext<'_, '_>) -> Result<KubernetesVersion, Refusal> {
    let Some(running) = around.running else {
        return Ok(wanted);
    };
    // The rollout that started last has answered, or it is the first one.
    let is_reached = around.answered.is_none_or(|answered| answered.minor >= running.minor);
    let next = running.minor.saturating_add(u16::from(is_reached));
    if wanted.major != running.major || wanted.minor <= next {
        return Ok(wanted);
    }
    check_offered(wanted, around.config)?;
    let offered = around.config.versions.iter();
    let offered = offered.filter_map(|entry| entry.version.parse::<KubernetesVersion>().ok());
    // The newest patch release, as an earlier one may have failed through a bug of its own.
    let between = offered.filter(|offered| offered.major == running.major && offered.minor == next);
    between.max().ok_or_else(|| Refusal {
        reason: Reason::VersionChangeRefused,
        message: format!(
            "An upgrade from {running} to {wanted} needs v{}.{next} in between, which this host does not offer. \
         Offered versions: {}.",
            running.major,
            list_offered(around.config)
        ),
    })
}

fn check_offered(version: KubernetesVersion, config: &Config) -> Result<&VersionEntry, Refusal> {
    config.version(version).ok_or_else(|| Refusal {
        reason: Reason::UnknownVersion,
        message: format!(
            "This host does not offer Kubernetes {version}. Offered versions: {}.",
            list_offered(config)
        ),
    })
}

fn list_offered(config: &Config) -> String {
    let offered: Vec<_> = config.versions.iter().map(|entry| entry.version.as_str()).collect();
    offered.join(", ")
}
