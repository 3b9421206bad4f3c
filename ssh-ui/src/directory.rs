//! Whose a key is. Pure.
//!
//! A key is one Tenant's. If several claim it, the oldest has it, which is also how the operator judges; when that one goes or
//! gives it up, the next has it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt as _;
use russh::keys::{HashAlg, PublicKey};
use yoke_api::Tenant;
use yoke_api::tenant::SshKey;

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the Tenant.
    pub tenant: String,
    /// What the Tenant calls the key.
    pub key: String,
    /// The key's fingerprint, `SHA256:…`.
    pub fingerprint: String,
}

/// A key of a Tenant that is none.
#[derive(Debug, thiserror::Error)]
#[error("reading the SSH key {name}")]
pub struct UnusableKey {
    /// What the Tenant calls the key.
    pub name: String,
    /// What is wrong with it.
    #[source]
    pub source: russh::keys::ssh_key::Error,
}

/// All keys of all Tenants.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    claims: BTreeMap<String, BTreeSet<Claim>>,
    fingerprints: BTreeMap<String, Vec<String>>,
}

/// A Tenant's claim to a key. The first in order has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    since: Option<Timestamp>,
    tenant: String,
    key: String,
}

impl Directory {
    /// Puts a Tenant as it is now in place of what was known of it. Keys that are none are left out, and told.
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

    /// Takes over what another directory knows of a Tenant.
    pub fn keep(&mut self, tenant: &str, known: &Self) {
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

    /// Forgets a Tenant.
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

    /// Whose a key is, by its fingerprint.
    pub fn find(&self, fingerprint: &str) -> Option<Identity> {
        let claim = self.claims.get(fingerprint)?.first()?;
        Some(Identity {
            tenant: claim.tenant.clone(),
            key: claim.key.clone(),
            fingerprint: fingerprint.to_owned(),
        })
    }

    /// Number of keys that somebody has.
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

/// The fingerprint by which a key is known here.
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

    fn found(directory: &Directory) -> Option<(String, String)> {
        let identity = directory.find(ONE_PRINT)?;
        assert_eq!(identity.fingerprint, ONE_PRINT);
        Some((identity.tenant, identity.key))
    }

    #[test]
    fn a_key_is_the_oldest_tenants() {
        let mut directory = Directory::default();
        let whose = |tenant: &str, key: &str| Some((tenant.to_owned(), key.to_owned()));
        assert_eq!(found(&directory), None);
        let older = tenant("b", "2026-01-01T00:00:00Z", &[("laptop", ONE)]);
        directory.set(&tenant(
            "a",
            "2026-01-02T00:00:00Z",
            &[("mine", &format!("{ONE} me@home"))],
        ));
        assert_eq!(found(&directory), whose("a", "mine"));
        directory.set(&older);
        assert_eq!(found(&directory), whose("b", "laptop"));
        directory.set(&tenant("b", "2026-01-01T00:00:00Z", &[]));
        assert_eq!(found(&directory), whose("a", "mine"), "given up");
        directory.set(&older);
        directory.remove("b");
        assert_eq!(found(&directory), whose("a", "mine"), "gone");
        directory.remove("a");
        assert_eq!(found(&directory), None);
        assert_eq!(directory.key_count(), 0);
    }

    #[test]
    fn what_is_no_key_is_told_and_others_count() {
        let mut directory = Directory::default();
        let bad = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA";
        let unusable = directory.set(&tenant("a", "2026-01-01T00:00:00Z", &[("bad", bad), ("good", ONE)]));
        assert_eq!(unusable.len(), 1);
        assert_eq!(unusable[0].name, "bad");
        assert_eq!(found(&directory), Some(("a".to_owned(), "good".to_owned())));
    }
}
