//! Builds table rows for Clusters and Tenants: the printer columns of the CRDs, plus a few more in
//! the wide format. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use yoke_api::cluster::Phase;
use yoke_api::{Cluster, ConditionType, Tenant};

use crate::table::Table;

/// Selects the columns to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// Adds the namespace as the first column.
    pub namespace: bool,
    /// Adds the columns of kubectl's `-o wide`.
    pub wide: bool,
}

/// Returns an empty table of Clusters.
pub fn cluster_table(columns: Columns) -> Table {
    head(
        columns,
        &["NAME", "VERSION", "PHASE", "READY", "ENDPOINT", "NODES", "AGE"],
        &["KUBECONFIG", "CA-EXPIRES", "COST", "MESSAGE"],
    )
}

/// Returns the row of one Cluster.
pub fn cluster_row(cluster: &Cluster, columns: Columns, now: Timestamp) -> Vec<String> {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, ConditionType::Ready);
    let mut row = leading(cluster.namespace(), columns);
    row.extend([
        cluster.name_any(),
        status.version.unwrap_or_default(),
        status
            .phase
            .map(|phase| phase_text(phase).to_owned())
            .unwrap_or_default(),
        ready.map(|ready| ready.status.clone()).unwrap_or_default(),
        status.endpoint.map(|endpoint| endpoint.url).unwrap_or_default(),
        status.nodes.map(|nodes| nodes.to_string()).unwrap_or_default(),
        age_of(cluster.creation_timestamp(), now),
    ]);
    if columns.wide {
        row.extend([
            status.kubeconfig_ref.map(|secret| secret.name).unwrap_or_default(),
            status
                .pki
                .and_then(|pki| pki.current)
                .map(|ca| span(now, ca.not_after.0))
                .unwrap_or_default(),
            status
                .usage
                .and_then(|usage| usage.cost(now))
                .map(|cost| cost.to_string())
                .unwrap_or_default(),
            ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        ]);
    }
    row
}

/// Returns an empty table of Tenants.
pub fn tenant_table(columns: Columns) -> Table {
    head(
        Columns {
            namespace: false,
            ..columns
        },
        &["NAME", "READY", "CLUSTERS", "AGE"],
        &["SUBJECTS", "MESSAGE"],
    )
}

/// Returns the row of one Tenant.
pub fn tenant_row(tenant: &Tenant, columns: Columns, now: Timestamp) -> Vec<String> {
    let status = tenant.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, ConditionType::Ready);
    let mut row = vec![
        tenant.name_any(),
        ready.map(|ready| ready.status.clone()).unwrap_or_default(),
        status.clusters.map(|clusters| clusters.to_string()).unwrap_or_default(),
        age_of(tenant.creation_timestamp(), now),
    ];
    if columns.wide {
        let subjects: Vec<_> = tenant
            .spec
            .subjects
            .iter()
            .map(|subject| subject.name.as_str())
            .collect();
        row.extend([
            subjects.join(","),
            ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        ]);
    }
    row
}

/// Returns a table of conditions: `Ready` first, the others sorted by type.
pub fn condition_table(conditions: &[Condition], now: Timestamp) -> Table {
    let mut table = Table::new(["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    let mut ordered: Vec<_> = conditions.iter().collect();
    ordered.sort_by_key(|condition| {
        (
            condition.type_ != ConditionType::Ready.as_str(),
            condition.type_.clone(),
        )
    });
    for condition in ordered {
        table.push(vec![
            condition.type_.clone(),
            condition.status.clone(),
            span(condition.last_transition_time.0, now),
            condition.reason.clone(),
            condition.message.clone(),
        ]);
    }
    table
}

/// Returns when an event was last observed.
pub fn time_of(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(event.event_time.as_ref().map(|time| time.0))
}

/// Returns the conditions of a Cluster; an empty slice without a status.
pub fn conditions(cluster: &Cluster) -> &[Condition] {
    let status = cluster.status.as_ref();
    status.map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// Returns the condition of the given type.
pub fn find(conditions: &[Condition], wanted: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == wanted.as_str())
}

/// Returns the phase's name in the API.
pub fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Refused => "Refused",
        Phase::Provisioning => "Provisioning",
        Phase::Running => "Running",
        Phase::Updating => "Updating",
        Phase::Unavailable => "Unavailable",
        Phase::Asleep => "Asleep",
        Phase::Deleting => "Deleting",
    }
}

/// Formats the time since `then` as kubectl formats an age. Returns an empty string without `then`.
pub fn age_of(then: Option<Time>, now: Timestamp) -> String {
    then.map(|Time(then)| span(then, now)).unwrap_or_default()
}

/// Formats the time between two instants as kubectl formats an age: two units while the first is
/// small, then one.
pub fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second());
    u64::try_from(seconds).map_or_else(|_| "passed".to_owned(), seconds_text)
}

/// Formats seconds as kubectl formats an age.
pub fn seconds_text(seconds: u64) -> String {
    let (minutes, hours, days, years) = (seconds / 60, seconds / 3600, seconds / 86_400, seconds / (365 * 86_400));
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        small => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => format!("{years}y"),
    }
}

fn head(columns: Columns, always: &[&str], wide: &[&str]) -> Table {
    let mut head = Vec::new();
    if columns.namespace {
        head.push("NAMESPACE".to_owned());
    }
    head.extend(always.iter().map(|&cell| cell.to_owned()));
    if columns.wide {
        head.extend(wide.iter().map(|&cell| cell.to_owned()));
    }
    Table::from_head(head)
}

fn leading(namespace: Option<String>, columns: Columns) -> Vec<String> {
    if columns.namespace {
        vec![namespace.unwrap_or_default()]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
