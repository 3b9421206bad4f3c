//! The page of conditions and reasons.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use yoke_api::Reason;

use super::comments::documented;
use super::markdown::head;

/// The source file of conditions and reasons.
pub(super) const SOURCE: &str = "api/src/condition.rs";

/// Builds the page from the text of the source file.
pub(super) fn build_conditions(source: &str) -> Result<String> {
    let types = documented(section(source, "pub enum ConditionType {")?, variant);
    let reasons = documented(section(source, "\nreasons! {")?, variant);
    let listed: Vec<_> = reasons.iter().map(|(name, _)| *name).collect();
    let known: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    ensure!(listed == known, "{SOURCE} lists other reasons than the crate has");
    let mut page = head("Conditions and reasons", SOURCE);
    page.push_str(
        "Conditions are the contract that people and tools wait on. The phase is only a summary of them. A reason is also the reason of an event, and a label of \
         metrics.\n\n## Types\n\n| type | `True` means |\n|---|---|\n",
    );
    for (name, meaning) in types {
        let _ = writeln!(page, "| `{name}` | {meaning} |");
    }
    page.push_str("\n## Reasons\n\n| reason | meaning | remedy |\n|---|---|---|\n");
    for (name, meaning) in reasons {
        let remedy = REMEDIES.iter().find(|(reason, _)| reason.as_str() == name);
        let remedy = remedy.map(|(_, remedy)| *remedy).unwrap_or_default();
        let _ = writeln!(page, "| `{name}` | {meaning} | {remedy} |");
    }
    page.push_str("\nSee [Troubleshooting](../admin/troubleshooting/index.md) for symptoms.\n");
    Ok(page)
}

fn variant(line: &str) -> Option<&str> {
    let name = line.strip_suffix(',')?;
    let is_name = name.chars().next().is_some_and(char::is_uppercase) && name.chars().all(char::is_alphanumeric);
    is_name.then_some(name)
}

/// The text between a line that begins with `begin` and the next line that is an unindented `}`.
fn section<'a>(text: &'a str, begin: &str) -> Result<&'a str> {
    let (_, behind) = text
        .split_once(begin)
        .with_context(|| format!("{begin:?} is not there"))?;
    Ok(behind.split_once("\n}").map_or(behind, |(inside, _)| inside))
}

/// Instructions for the reasons that require an action of the user.
const REMEDIES: [(Reason, &str); 40] = [
    (Reason::UnknownVersion, "Choose a version that the message names."),
    (
        Reason::VersionChangeRefused,
        "Go one minor version up at a time; upgrade or remove Nodes that are too old.",
    ),
    (
        Reason::UnknownClass,
        "Choose another class, or ask the host administrator for it.",
    ),
    (
        Reason::TenantMissing,
        "Use the namespace of a Tenant; the host administrator creates one.",
    ),
    (
        Reason::QuotaExceeded,
        "Delete a Cluster, request less storage, or ask for a higher quota.",
    ),
    (
        Reason::HostnameConflict,
        "Remove the name from `spec.endpoint.extraSANs`, or from the older Cluster.",
    ),
    (
        Reason::HostnameNotAllowed,
        "Ask the host administrator for the domain (`allowedDomains`).",
    ),
    (
        Reason::NetworkNotOffered,
        "Delete the Cluster and create it with an offered range or domain.",
    ),
    (Reason::SourceRangeInvalid, "Correct `spec.endpoint.allowedCIDRs`."),
    (
        Reason::ArgumentNotAllowed,
        "Remove the argument; the message lists the allowed ones.",
    ),
    (Reason::LifetimeInvalid, "Correct `spec.pki`."),
    (
        Reason::IdentityConflict,
        "Remove `spec.id` of the younger Cluster: create it again.",
    ),
    (
        Reason::NameInvalid,
        "Create the Cluster with a name of at most 40 characters.",
    ),
    (Reason::NameReserved, "Choose another name for the Tenant."),
    (
        Reason::NamespaceConflict,
        "Choose another name for the Tenant, or remove the namespace.",
    ),
    (
        Reason::SubjectConflict,
        "Remove the subject, key or domain from one of the two Tenants.",
    ),
    (Reason::Paused, "Set `spec.paused` to false."),
    (Reason::ClustersRemain, "Delete the Clusters of the Tenant."),
    (Reason::UsedUp, "Create another JoinToken."),
    (
        Reason::ClusterMissing,
        "Create the Cluster, or correct `spec.clusterName`.",
    ),
    (Reason::ClusterReplaced, "Create another JoinToken."),
    (Reason::ClusterNotReady, "Wake the Cluster; a JoinToken wakes none."),
    (
        Reason::SecretConflict,
        "Remove the Secret, or create a JoinToken with another name.",
    ),
    (
        Reason::CertificatesPending,
        "If it lasts, check that cert-manager runs.",
    ),
    (
        Reason::PodPending,
        "If it lasts, check that a node has room and images can be pulled.",
    ),
    (
        Reason::ContainerFailing,
        "Revert `spec.extraArgs`; read the log of the container.",
    ),
    (Reason::AddonsPending, "Check webhooks and policies of the cluster."),
    (
        Reason::AddonConflict,
        "Delete the object that the message names, or turn the add-on off.",
    ),
    (
        Reason::WorkersPending,
        "Repair or delete Nodes that are not ready, or raise `maxUnavailable`.",
    ),
    (
        Reason::WorkerUpgradeFailed,
        "Read the log of the worker; then remove the annotation `yoke.drzzl.io/kubelet-version` from its Node.",
    ),
    (Reason::WorkersUnmanaged, "Upgrade these kubelets yourself."),
    (
        Reason::StoreUnavailable,
        "If it lasts, check NATS and the operator's route to it.",
    ),
    (
        Reason::StoreLost,
        "Restore the streams of NATS from a backup, or delete the Cluster.",
    ),
    (
        Reason::KeyLost,
        "Restore the Secret in `yoke-pki` from a backup, or delete the Cluster.",
    ),
    (
        Reason::StoreQuotaExceeded,
        "Raise `max_file_store` of NATS, or delete Clusters.",
    ),
    (Reason::ScheduleInvalid, "Correct `spec.sleep.schedules`."),
    (
        Reason::WakeDelayed,
        "Read the condition `Ready`: it says why the control plane does not start.",
    ),
    (
        Reason::TakeoverFailed,
        "Make room on other nodes; it is tried again after 10 minutes.",
    ),
    (
        Reason::WebhookBlocksWake,
        "Let the webhook ignore failures, or exclude Nodes, Leases and tokens.",
    ),
    (Reason::JoinTokenHolds, "Revoke the JoinToken, or wait for its end."),
];
