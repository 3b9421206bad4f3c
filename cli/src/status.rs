//! `status`: how Clusters are, why, and what to do next.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use yoke_api::Cluster;

use crate::advice::advise;
use crate::arguments::StatusOptions;
use crate::render::{Columns, age_of, cluster_row, cluster_table, condition_table, phase_text, span};
use crate::session::Session;
use crate::table::Table;
use crate::wait::{Verdict, judge};
use crate::{Error, output};

const EVENTS_SHOWN: usize = 10;

/// Shows one Cluster at length, or all of them in short.
pub(crate) async fn status(session: &Session, options: &StatusOptions) -> Result<(), Error> {
    let now = Timestamp::now();
    let Some(name) = &options.name else {
        return all(session, options.all_namespaces, now).await;
    };
    let cluster = session
        .ask(&format!("getting Cluster {name}"), session.api::<Cluster>().get(name))
        .await?;
    let mut text = summary(&cluster, now);
    let conditions = cluster
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    if !conditions.is_empty() {
        text += &format!("\n{}", condition_table(conditions, now).to_text());
    }
    let fields = format!("involvedObject.uid={}", cluster.uid().unwrap_or_default());
    let events = session
        .api::<Event>()
        .list(&ListParams::default().fields(&fields))
        .await;
    match events {
        Ok(events) if events.items.is_empty() => {}
        Ok(events) => text += &format!("\n{}", event_table(events.items, now).to_text()),
        // Not every Tenant may read events; the conditions say the essential.
        Err(_) => text += "\n(events cannot be read)\n",
    }
    text += "\nNEXT\n";
    for advice in advise(&cluster, name, &session.namespace) {
        text += &format!("  {advice}\n");
    }
    output::put(&text)
}

async fn all(session: &Session, everywhere: bool, now: Timestamp) -> Result<(), Error> {
    let api = if everywhere {
        Api::all(session.client.clone())
    } else {
        session.api::<Cluster>()
    };
    let list = session
        .ask("listing clusters", api.list(&ListParams::default()))
        .await?;
    if list.items.is_empty() {
        output::say("no clusters found; make one with `kubectl yoke create cluster NAME`");
        return Ok(());
    }
    let columns = Columns {
        namespace: everywhere,
        wide: false,
    };
    let mut table = cluster_table(columns);
    let mut notes = String::new();
    for cluster in &list.items {
        table.push(cluster_row(cluster, columns, now));
        let problem = match judge(cluster) {
            Verdict::Done => continue,
            Verdict::Refused { reason, message } => format!("refused ({reason}): {message}"),
            Verdict::Waiting(message) => message.unwrap_or_else(|| "nothing is known yet".into()),
        };
        let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
        notes += &format!("  {namespace}/{name}: {problem}\n    kubectl yoke status {name} -n {namespace}\n");
    }
    let mut text = table.to_text();
    if !notes.is_empty() {
        text += &format!("\nNOT READY\n{notes}");
    }
    output::put(&text)
}

fn summary(cluster: &Cluster, now: Timestamp) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let mut lines = vec![(
        "Cluster",
        format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any()),
    )];
    let mut add = |label, value: Option<String>| lines.extend(value.map(|value| (label, value)));
    add(
        "Age",
        Some(age_of(cluster.creation_timestamp(), now)).filter(|age| !age.is_empty()),
    );
    add("Phase", status.phase.map(|phase| phase_text(phase).to_owned()));
    add("Version", status.version.clone());
    add("Name", status.endpoint.as_ref().map(|endpoint| endpoint.url.clone()));
    add(
        "Address",
        status.endpoint.as_ref().map(|endpoint| endpoint.address.clone()),
    );
    add(
        "Kubeconfig",
        status
            .kubeconfig_ref
            .as_ref()
            .map(|secret| format!("Secret {}", secret.name)),
    );
    add("Nodes", status.nodes.map(|nodes| nodes.to_string()));
    let used = status.storage.as_ref().and_then(|storage| storage.bytes);
    add(
        "Storage",
        Some(match used {
            Some(bytes) => format!("{} KiB stored; quota {}", bytes / 1024, cluster.spec.storage.quota.0),
            None => format!("quota {}", cluster.spec.storage.quota.0),
        }),
    );
    let authority = status.pki.as_ref().and_then(|pki| pki.current.as_ref());
    add(
        "CA expires",
        authority.map(|ca| format!("in {} (generation {})", span(now, ca.not_after.0), ca.generation)),
    );
    let wide = lines.iter().map(|(label, _)| label.len()).max().unwrap_or_default() + 1;
    lines
        .into_iter()
        .map(|(label, value)| format!("{:<wide$}  {value}\n", format!("{label}:")))
        .collect()
}

fn event_table(mut events: Vec<Event>, now: Timestamp) -> Table {
    let time = |event: &Event| {
        let series = event
            .series
            .as_ref()
            .and_then(|series| series.last_observed_time.as_ref())
            .map(|time| time.0);
        let single = event.event_time.as_ref().map(|time| time.0);
        series.or(event.last_timestamp.as_ref().map(|time| time.0)).or(single)
    };
    events.sort_by_key(time);
    let mut table = Table::new(["EVENT", "AGE", "REASON", "MESSAGE"]);
    for event in events.iter().rev().take(EVENTS_SHOWN) {
        table.push(vec![
            event.type_.clone().unwrap_or_default(),
            time(event).map(|then| span(then, now)).unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
            event.message.clone().unwrap_or_default(),
        ]);
    }
    table
}
