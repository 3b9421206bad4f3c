//! Maps SSH keys to Tenants. Pure.
//!
//! A key belongs to one Tenant. If several Tenants list it, the oldest Tenant owns it; the operator
//! uses the same rule. When that Tenant is deleted or removes the key, the next oldest owns it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt as _;
use russh::keys::{HashAlg, PublicKey};
use yoke_api::Tenant;
use yoke_api::tenant::SshKey;

/// The Tenant and the key of an authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the Tenant.
    pub tenant: String,
    /// Name of the key in the Tenant's spec.
    pub key: String,
    /// Fingerprint of the key, `SHA256:…`.
    pub fingerprint: String,
}

/// An entry in a Tenant's spec that is not a usable key.
#[derive(Debug, thiserror::Error)]
#[error("reading the SSH key {name}")]
pub struct UnusableKey {
    /// Name of the key in the Tenant's spec.
    pub name: String,
    /// Cause.
    #[source]
    pub source: russh::keys::ssh_key::Error,
}

/// All keys of all Tenants.
#[derive(Clone, Debug, Default)]
pub struct KeyRegistry {
    claims: BTreeMap<String, BTreeSet<Claim>>,
    fingerprints: BTreeMap<String, Vec<String>>,
}

/// A Tenant's claim to a key. The first claim in sort order owns the key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    since: Option<Timestamp>,
    tenant: String,
    key: String,
}

impl KeyRegistry {
    /// Replaces the keys of a Tenant with those of its current spec. Returns the entries that are
    /// not usable keys.
    pub fn set(&mut self, tenant: &Tenant) -> Vec<UnusableKey> {
        let name = tenant.name_any();
        self.remove(&name);
        let since = tenant.creation_timestamp().map(|time| time.0);
        let (mut fingerprints, mut unusable) = (Vec::new(), Vec::new());
        for key in &tenant.spec.ssh_keys {
            match to_fingerprint(key) {
                Ok(fingerprint) => {
                    let claim = Claim {
                        since,
                        tenant: name.clone(),
                        key: key.name.clone(),
                    };
                    self.claims.entry(fingerprint.clone()).or_default().insert(claim);
                    fingerprints.push(fingerprint);
                }
                Err(error) => unusable.push(error),
            }
        }
        if !fingerprints.is_empty() {
            self.fingerprints.insert(name, fingerprints);
        }
        unusable
    }

    /// Copies the keys of a Tenant from another registry.
    pub fn copy_keys(&mut self, tenant: &str, known: &Self) {
        let Some(fingerprints) = known.fingerprints.get(tenant) else {
            return;
        };
        self.remove(tenant);
        for fingerprint in fingerprints {
            let claims = known.claims.get(fingerprint).into_iter().flatten();
            let own = claims.filter(|claim| claim.tenant == tenant).cloned();
            self.claims.entry(fingerprint.clone()).or_default().extend(own);
        }
        self.fingerprints.insert(tenant.to_owned(), fingerprints.clone());
    }

    /// Removes the keys of a Tenant.
    pub fn remove(&mut self, tenant: &str) {
        for fingerprint in self.fingerprints.remove(tenant).unwrap_or_default() {
            if let Some(claims) = self.claims.get_mut(&fingerprint) {
                claims.retain(|claim| claim.tenant != tenant);
                if claims.is_empty() {
                    self.claims.remove(&fingerprint);
                }
            }
        }
    }

    /// Returns the owner of the key with this fingerprint.
    pub fn find(&self, fingerprint: &str) -> Option<Identity> {
        let claim = self.claims.get(fingerprint)?.first()?;
        Some(Identity {
            tenant: claim.tenant.clone(),
            key: claim.key.clone(),
            fingerprint: fingerprint.to_owned(),
        })
    }

    /// Returns the number of keys that have an owner.
    pub fn key_count(&self) -> usize {
        self.claims.len()
    }
}

impl Ord for Claim {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.since, &self.tenant, &self.key).cmp(&(other.since, &other.tenant, &other.key))
    }
}

impl PartialOrd for Claim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the fingerprint that identifies a key here.
pub fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn to_fingerprint(key: &SshKey) -> Result<String, UnusableKey> {
    PublicKey::from_openssh(key.public_key.trim())
        .map(|parsed| fingerprint(&parsed))
        .map_err(|source| UnusableKey {
            name: key.name.clone(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use yoke_api::TenantSpec;

    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF4cgSdJJO3P31gplLK1wwX2772BJdKbpzrsz5kIkyuV";
    const ONE_PRINT: &str = "SHA256:Wm7ycGW1bWVYMCDn8uhkj7UthRwNsKvs+YAWmNh4kE8";

    fn tenant(name: &str, made: &str, keys: &[(&str, &str)]) -> Tenant {
        let mut tenant = Tenant::new(name, TenantSpec::default());
        tenant.metadata.creation_timestamp = Some(Time(made.parse().unwrap()));
        tenant.spec.ssh_keys = keys
            .iter()
            .map(|(name, line)| SshKey {
                name: (*name).to_owned(),
                public_key: (*line).to_owned(),
            })
            .collect();
        tenant
    }

    fn found(keys: &KeyRegistry) -> Option<(String, String)> {
        let identity = keys.find(ONE_PRINT)?;
        assert_eq!(identity.fingerprint, ONE_PRINT);
        Some((identity.tenant, identity.key))
    }

    #[test]
    fn oldest_tenant_owns_a_key() {
        let mut keys = KeyRegistry::default();
        let whose = |tenant: &str, key: &str| Some((tenant.to_owned(), key.to_owned()));
        assert_eq!(found(&keys), None);
        let older = tenant("b", "2026-01-01T00:00:00Z", &[("laptop", ONE)]);
        keys.set(&tenant(
            "a",
            "2026-01-02T00:00:00Z",
            &[("mine", &format!("{ONE} me@home"))],
        ));
        assert_eq!(found(&keys), whose("a", "mine"));
        keys.set(&older);
        assert_eq!(found(&keys), whose("b", "laptop"));
        keys.set(&tenant("b", "2026-01-01T00:00:00Z", &[]));
        assert_eq!(found(&keys), whose("a", "mine"), "given up");
        keys.set(&older);
        keys.remove("b");
        assert_eq!(found(&keys), whose("a", "mine"), "gone");
        keys.remove("a");
        assert_eq!(found(&keys), None);
        assert_eq!(keys.key_count(), 0);
    }

    #[test]
    fn unusable_keys_are_reported_and_others_used() {
        let mut keys = KeyRegistry::default();
        let bad = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA";
        let unusable = keys.set(&tenant("a", "2026-01-01T00:00:00Z", &[("bad", bad), ("good", ONE)]));
        assert_eq!(unusable.len(), 1);
        assert_eq!(unusable[0].name, "bad");
        assert_eq!(found(&keys), Some(("a".to_owned(), "good".to_owned())));
    }
}
