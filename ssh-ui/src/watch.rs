//! The Tenants of the host → the [`Directory`]. An adapter.
//!
//! After a lost watch the whole list is read again, and Tenants that went in between are forgotten. While the host API is away,
//! what was seen last holds; nothing can be done for anybody then anyway.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use yoke_api::Tenant;
use yoke_runtime::{Check, Drain};

use crate::directory::Directory;
use crate::metrics::Metrics;

/// The watch of Tenants ended, which it never does by itself.
#[derive(Debug, thiserror::Error)]
#[error("the watch of Tenants ended")]
pub struct WatchEnded;

/// Keeps the directory as the host's Tenants are. `listed` is ready once all have been seen.
pub async fn keep_directory(
    client: Client,
    directory: watch::Sender<Directory>,
    metrics: Metrics,
    listed: Check,
    drain: Drain,
) -> Result<(), WatchEnded> {
    let mut events = pin!(watcher(Api::<Tenant>::all(client), watcher::Config::default()).default_backoff());
    let mut seen = BTreeSet::new();
    while let Some(event) = drain.until_started(events.next()).await {
        match event.ok_or(WatchEnded)? {
            Ok(watcher::Event::Init) => seen.clear(),
            Ok(watcher::Event::InitApply(tenant)) => {
                seen.insert(tenant.name_any());
                set(&directory, &tenant);
            }
            Ok(watcher::Event::InitDone) => {
                directory.send_modify(|directory| directory.keep_only(&seen));
                listed.set_ready();
            }
            Ok(watcher::Event::Apply(tenant)) => set(&directory, &tenant),
            Ok(watcher::Event::Delete(tenant)) => directory.send_modify(|it| it.remove(&tenant.name_any())),
            Err(error) => {
                metrics.count_watch_error();
                tracing::warn!(error = &error as &dyn std::error::Error, "watch of Tenants failed");
            }
        }
        metrics.set_keys(directory.borrow().key_count());
    }
    Ok(())
}

fn set(directory: &watch::Sender<Directory>, tenant: &Tenant) {
    let mut unusable = Vec::new();
    directory.send_modify(|directory| unusable = directory.set(tenant));
    for error in unusable {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(tenant = tenant.name_any(), error, "SSH key of a Tenant cannot be used");
    }
}
