//! Watches the Tenants of the host and keeps the [`KeyRegistry`] up to date. An adapter.
//!
//! A list replaces the registry only when it is complete, because with half a list a key may seem
//! to belong to another Tenant. A list also removes Tenants that were deleted while the watch was
//! down. While the host API is unavailable, the last state stays; no command can be executed then
//! anyway. A Tenant that cannot be parsed keeps its last keys, and does not affect other Tenants.

use std::pin::pin;

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use yoke_api::lenient::Unreadable;
use yoke_api::{Lenient, Tenant};
use yoke_runtime::{Check, Drain};

use crate::identity::key_registry::KeyRegistry;
use crate::metrics::Metrics;

/// The watch of Tenants ended, which never happens by itself.
#[derive(Debug, thiserror::Error)]
#[error("the watch of Tenants ended")]
pub struct WatchEnded;

/// Keeps the registry up to date. Sets `listed` to ready after the first complete list.
pub async fn keep_key_registry(
    client: Client,
    keys: watch::Sender<KeyRegistry>,
    metrics: Metrics,
    listed: Check,
    drain: Drain,
) -> Result<(), WatchEnded> {
    let mut events = pin!(watcher(Api::<Lenient<Tenant>>::all(client), watcher::Config::default()).default_backoff());
    let mut list = KeyRegistry::default();
    while let Some(event) = drain.until_started(events.next()).await {
        match event.ok_or(WatchEnded)? {
            Ok(event) => {
                if follow(event, &mut list, &keys) {
                    listed.set_ready();
                }
            }
            Err(error) => {
                metrics.count_watch_error();
                tracing::warn!(error = &error as &dyn std::error::Error, "watch of Tenants failed");
            }
        }
        metrics.set_keys(keys.borrow().key_count());
    }
    Ok(())
}

/// Applies an event to the registry and to the list that will replace it. Returns true once a list
/// is complete.
fn follow(event: watcher::Event<Lenient<Tenant>>, list: &mut KeyRegistry, keys: &watch::Sender<KeyRegistry>) -> bool {
    match event {
        watcher::Event::Init => *list = KeyRegistry::default(),
        watcher::Event::InitApply(Lenient(Ok(tenant))) => set(list, &tenant),
        watcher::Event::InitApply(Lenient(Err(unreadable))) => {
            log_unreadable(&unreadable);
            list.copy_keys(&unreadable.metadata.name.unwrap_or_default(), &keys.borrow());
        }
        watcher::Event::InitDone => {
            keys.send_replace(std::mem::take(list));
            return true;
        }
        watcher::Event::Apply(Lenient(Err(unreadable))) => log_unreadable(&unreadable),
        watcher::Event::Apply(Lenient(Ok(tenant))) => keys.send_modify(|keys| set(keys, &tenant)),
        watcher::Event::Delete(tenant) => keys.send_modify(|keys| keys.remove(&tenant.name_any())),
    }
    false
}

fn log_unreadable(unreadable: &Unreadable) {
    let tenant = unreadable.metadata.name.as_deref();
    tracing::warn!(
        tenant,
        error = unreadable as &dyn std::error::Error,
        "cannot parse Tenant; its last known keys stay in use"
    );
}

fn set(keys: &mut KeyRegistry, tenant: &Tenant) {
    for error in keys.set(tenant) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(tenant = tenant.name_any(), error, "SSH key of a Tenant is invalid");
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use yoke_api::TenantSpec;
    use yoke_api::tenant::SshKey;

    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF4cgSdJJO3P31gplLK1wwX2772BJdKbpzrsz5kIkyuV";
    const PRINT: &str = "SHA256:Wm7ycGW1bWVYMCDn8uhkj7UthRwNsKvs+YAWmNh4kE8";

    fn unreadable(name: &str) -> Lenient<Tenant> {
        let text = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant", "metadata": {"name": name},
            "spec": {"sshKeys": "none"}});
        serde_json::from_value(text).unwrap()
    }

    fn tenant(name: &str) -> Lenient<Tenant> {
        let mut tenant = Tenant::new(name, TenantSpec::default());
        tenant.spec.ssh_keys.push(SshKey {
            name: "k".to_owned(),
            public_key: KEY.to_owned(),
        });
        Lenient(Ok(tenant))
    }

    #[test]
    fn incomplete_list_changes_nothing() {
        let (keys, mut known) = watch::channel(KeyRegistry::default());
        let mut list = KeyRegistry::default();
        let whose = |known: &watch::Receiver<KeyRegistry>| known.borrow().find(PRINT).map(|identity| identity.tenant);
        for (event, complete, owner) in [
            (Event::Init, false, None),
            (Event::InitApply(tenant("b")), false, None),
            (Event::InitDone, true, Some("b")),
            (Event::Apply(tenant("a")), false, Some("a")),
            (Event::Init, false, Some("a")),
            (Event::InitApply(tenant("c")), false, Some("a")),
            (Event::InitDone, true, Some("c")),
            (Event::Apply(unreadable("c")), false, Some("c")),
            (Event::Init, false, Some("c")),
            (Event::InitApply(unreadable("c")), false, Some("c")),
            (Event::InitApply(unreadable("never seen")), false, Some("c")),
            (Event::InitDone, true, Some("c")),
            (Event::Delete(unreadable("c")), false, None),
            (Event::Apply(tenant("a")), false, Some("a")),
            (Event::Delete(tenant("a")), false, None),
        ] {
            let before = format!("{event:?}");
            assert_eq!(follow(event, &mut list, &keys), complete, "{before}");
            assert_eq!(whose(&known).as_deref(), owner, "{before}");
            assert_eq!(known.has_changed().unwrap() && complete, complete, "{before}");
        }
        known.mark_unchanged();
    }
}
