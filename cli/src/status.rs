//! `status`: shows the state of Clusters, the reason, and what to do next.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use yoke_api::Cluster;
use yoke_view::plain::plain;
use yoke_view::render::{
    Columns, age_of, cluster_row, cluster_table, condition_table, conditions, phase_text, span, time_of,
};
use yoke_view::table::Table;
use yoke_view::verdict::{Verdict, judge};

use crate::advice::advise;
use crate::arguments::{ObjectFormat, StatusFormat, StatusOptions};
use crate::report::{Reports, report};
use crate::session::Session;
use crate::{Error, output};

const EVENTS_SHOWN: usize = 10;

/// Shows one Cluster in detail, or a summary of all.
pub(crate) async fn status(session: &Session, options: &StatusOptions) -> Result<(), Error> {
    match &options.name {
        Some(name) => one(session, name, options.output).await,
        None => all(session, options).await,
    }
}

async fn one(session: &Session, name: &str, format: Option<StatusFormat>) -> Result<(), Error> {
    let now = Timestamp::now();
    let clusters = session.api::<Cluster>();
    let doing = format!("getting Cluster {name}");
    let cluster = session.request(&doing, || clusters.get(name)).await?;
    // Not every Tenant may read events; the conditions contain the essentials.
    let events = latest_events(session, &cluster).await;
    if let Some(format) = to_data(format) {
        if let Err(error) = &events {
            output::print_message(&format!("warning: {}", error.with_causes()));
        }
        let report = report(&cluster, &events.unwrap_or_default());
        return output::put(&output::show(format, name, &report)?);
    }
    let mut text = summary(&cluster, now);
    let conditions = conditions(&cluster);
    if !conditions.is_empty() {
        text += &format!("\n{}", condition_table(conditions, now).to_text());
    }
    match events {
        Ok(events) if events.is_empty() => {}
        Ok(events) => text += &format!("\n{}", event_table(&events, now).to_text()),
        Err(error) => text += &format!("\n(no events: {})\n", error.with_causes()),
    }
    text += "\nNEXT\n";
    for advice in advise(&cluster, name, &session.namespace) {
        text += &format!("  {advice}\n");
    }
    output::put_plain(&text)
}

async fn latest_events(session: &Session, cluster: &Cluster) -> Result<Vec<Event>, Error> {
    let fields = format!("involvedObject.uid={}", cluster.uid().unwrap_or_default());
    let parameters = ListParams::default().fields(&fields);
    let api = session.api::<Event>();
    let mut events = session
        .request("listing its events", || api.list(&parameters))
        .await?
        .items;
    events.sort_by_key(|event| Reverse(time_of(event)));
    events.truncate(EVENTS_SHOWN);
    Ok(events)
}

fn to_data(format: Option<StatusFormat>) -> Option<ObjectFormat> {
    match format {
        Some(StatusFormat::Json) => Some(ObjectFormat::Json),
        Some(StatusFormat::Yaml) => Some(ObjectFormat::Yaml),
        Some(StatusFormat::Wide) | None => None,
    }
}

async fn all(session: &Session, options: &StatusOptions) -> Result<(), Error> {
    let now = Timestamp::now();
    let api = if options.all_namespaces {
        Api::all(session.client.clone())
    } else {
        session.api::<Cluster>()
    };
    let parameters = ListParams {
        label_selector: options.selector.clone(),
        ..ListParams::default()
    };
    let list = session.request("listing clusters", || api.list(&parameters)).await?;
    if let Some(format) = to_data(options.output) {
        let items = list.items.iter().map(|cluster| report(cluster, &[])).collect();
        return output::put(&output::show(format, "", &Reports { items })?);
    }
    if list.items.is_empty() {
        output::print_message("no clusters found; create one with `kubectl yoke create cluster NAME`");
        return Ok(());
    }
    let columns = Columns {
        namespace: options.all_namespaces,
        wide: options.output == Some(StatusFormat::Wide),
    };
    let mut table = cluster_table(columns);
    let mut notes = String::new();
    for cluster in &list.items {
        table.push(cluster_row(cluster, columns, now));
        let problem = match judge(cluster) {
            Verdict::Done => continue,
            Verdict::Refused(refusal) => refusal.to_string(),
            Verdict::Waiting(message) => message.unwrap_or_else(|| "there is no status yet".into()),
        };
        let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
        let problem = plain(&problem);
        notes += &format!("  {namespace}/{name}: {problem}\n    kubectl yoke status {name} -n {namespace}\n");
    }
    let mut text = table.to_text();
    if !notes.is_empty() {
        text += &format!("\nNOT READY\n{notes}");
    }
    output::put_plain(&text)
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
    add("Ends", ending(cluster, now));
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

/// Returns when the host deletes the Cluster, if its spec has a ttl.
fn ending(cluster: &Cluster, now: Timestamp) -> Option<String> {
    let lifetime = cluster.spec.lifetime()?;
    if cluster.spec.paused {
        return Some("not while it is paused".to_owned());
    }
    let end = cluster.creation_timestamp()?.0.checked_add(lifetime).ok()?;
    Some(match span(now, end) {
        left if end > now => format!("in {left}"),
        _ => "now".to_owned(),
    })
}

fn event_table(events: &[Event], now: Timestamp) -> Table {
    let mut table = Table::new(["EVENT", "AGE", "REASON", "MESSAGE"]);
    for event in events {
        table.push(vec![
            event.type_.clone().unwrap_or_default(),
            time_of(event).map(|then| span(then, now)).unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
            event.message.clone().unwrap_or_default(),
        ]);
    }
    table
}
