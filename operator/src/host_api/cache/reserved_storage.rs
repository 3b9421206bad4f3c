//! Bytes that stores have reserved at NATS. Every reconciliation of a Cluster compares it with the
//! other stores of its Tenant. There may be thousands, so their Secrets are not decoded each time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use yoke_api::ClusterId;
use yoke_api::labels::{self, component};
use yoke_api::names::PKI_NAMESPACE;

use crate::host_api::cache::sink::WatchSink;
use crate::host_api::compact_store::CompactWriter;
use crate::nats::account::QUOTA;

/// Bytes that stores have reserved at NATS, by identity. Includes the stores of deleted Clusters.
#[derive(Clone, Debug, Default)]
pub struct Reserved(Arc<RwLock<ByTenant>>);

/// Bytes by identity. A snapshot: writers replace it, so readers do not block them.
pub type ByIdentity = Arc<HashMap<ClusterId, i64>>;

type ByTenant = BTreeMap<String, ByIdentity>;

/// Writes the events of the Secrets' watch, and counts the reserved bytes of stores.
#[derive(Debug)]
pub(crate) struct ReservedWriter {
    writer: CompactWriter<Secret>,
    reserved: Reserved,
    /// Counts of a list that is not complete yet.
    listed: ByTenant,
}

impl Reserved {
    /// Returns the bytes that the stores of a Tenant have reserved.
    pub fn of(&self, tenant: &str) -> ByIdentity {
        self.read().get(tenant).cloned().unwrap_or_default()
    }

    fn read(&self) -> RwLockReadGuard<'_, ByTenant> {
        // Every change is one insert or removal, so each entry is complete after a panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ByTenant> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReservedWriter {
    pub(crate) fn new(writer: CompactWriter<Secret>) -> (Reserved, Self) {
        let reserved = Reserved::default();
        let sink = Self {
            writer,
            reserved: reserved.clone(),
            listed: ByTenant::new(),
        };
        (reserved, sink)
    }
}

impl WatchSink<Secret> for ReservedWriter {
    fn apply(&mut self, event: &Event<Secret>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(secret) => count(&mut self.listed, secret),
            Event::InitDone => *self.reserved.write() = std::mem::take(&mut self.listed),
            Event::Apply(secret) => count(&mut self.reserved.write(), secret),
            Event::Delete(secret) => forget(&mut self.reserved.write(), secret),
        }
        self.writer.apply_event(event);
    }

    fn find_deleted(&mut self, key: ObjectRef<Secret>) -> Option<Secret> {
        self.writer.find_deleted(key)
    }
}

fn count(all: &mut ByTenant, secret: &Secret) {
    let Some((tenant, id)) = store_owner(secret) else {
        return;
    };
    let quota = secret.data.as_ref().and_then(|data| data.get(QUOTA));
    let quota = quota.and_then(|quota| std::str::from_utf8(&quota.0).ok()?.parse().ok());
    let of_tenant = Arc::make_mut(all.entry(tenant.to_owned()).or_default());
    match quota {
        Some(quota) => of_tenant.insert(id, quota),
        None => of_tenant.remove(&id),
    };
}

fn forget(all: &mut ByTenant, secret: &Secret) {
    let Some((tenant, id)) = store_owner(secret) else {
        return;
    };
    let is_empty = all.get_mut(tenant).is_some_and(|of_tenant| {
        Arc::make_mut(of_tenant).remove(&id);
        of_tenant.is_empty()
    });
    if is_empty {
        all.remove(tenant);
    }
}

/// Tenant and identity if this is the Secret of a store, else `None`.
fn store_owner(secret: &Secret) -> Option<(&str, ClusterId)> {
    let label = |key: &str| secret.labels().get(key).map(String::as_str);
    let is_store = secret.metadata.namespace.as_deref() == Some(PKI_NAMESPACE)
        && label(labels::COMPONENT) == Some(component::STORE);
    Some((label(labels::TENANT)?, label(labels::ID)?.parse().ok()?)).filter(|_| is_store)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::host_api::cache::retention::SECRETS;
    use crate::host_api::compact_store;

    fn store(id: &str, namespace: &str, quota: &str) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(format!("{id}-store"));
        secret.metadata.namespace = Some(namespace.into());
        let labels = [
            (labels::ID, id),
            (labels::TENANT, "t"),
            (labels::COMPONENT, component::STORE),
        ];
        for (key, value) in labels {
            secret.labels_mut().insert(key.into(), value.into());
        }
        secret.data = Some([(QUOTA.to_owned(), ByteString(quota.into()))].into());
        secret
    }

    #[test]
    fn reserved_bytes_of_a_tenant_follow_its_secrets() {
        let (a, b) = ("bcdfghjk24", "bcdfghjk25");
        let (reserved, mut sink) = ReservedWriter::new(compact_store::open(SECRETS).1);
        let known = || {
            let mut known: Vec<_> = reserved
                .of("t")
                .iter()
                .map(|(id, bytes)| (id.to_string(), *bytes))
                .collect();
            known.sort();
            known
        };
        sink.apply(&Event::Init);
        sink.apply(&Event::InitApply(store(a, PKI_NAMESPACE, "7")));
        sink.apply(&Event::InitApply(store(b, "yoke-c-x", "8")));
        assert!(known().is_empty(), "the list is not complete");
        sink.apply(&Event::InitDone);
        assert_eq!(known(), [(a.to_owned(), 7)]);
        sink.apply(&Event::Apply(store(b, PKI_NAMESPACE, "8")));
        sink.apply(&Event::Apply(store(a, PKI_NAMESPACE, "9")));
        assert_eq!(known(), [(a.to_owned(), 9), (b.to_owned(), 8)]);
        sink.apply(&Event::Apply(store(a, PKI_NAMESPACE, "x")));
        sink.apply(&Event::Delete(store(b, PKI_NAMESPACE, "8")));
        assert!(known().is_empty());
    }
}
