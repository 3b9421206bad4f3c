//! Validates a Tenant's spec. Pure.

pub use crate::model::refusal::Refusal;

use std::sync::Arc;

use kube::ResourceExt as _;
use yoke_api::names;
use yoke_api::tenant::TenantSubject;
use yoke_api::{Reason, Tenant};

use crate::config::Config;
use crate::model::quantity;

const NAME_MAX: usize = 40;
const RESERVED: [&str; 2] = ["default", "cert-manager"];
const RESERVED_PREFIXES: [&str; 2] = ["kube-", "yoke-"];

/// Validates a Tenant, also against all other Tenants.
pub fn validate(tenant: &Tenant, tenants: &[Arc<Tenant>], config: &Config) -> Result<(), Refusal> {
    let name = tenant.name_any();
    let reserved = RESERVED.contains(&name.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name == config.namespace;
    if reserved {
        return refuse(Reason::NameReserved, format!("The name {name} is reserved."));
    }
    if !names::is_label(&name) || name.len() > NAME_MAX || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return refuse(
            Reason::NameInvalid,
            format!("The name must be a DNS label of at most {NAME_MAX} characters that starts with a letter."),
        );
    }
    if let Some(subject) = tenant.spec.subjects.iter().find(|subject| !may_act(subject)) {
        return refuse(
            Reason::SubjectConflict,
            format!(
                "Subject {} is reserved by Kubernetes (system:) and cannot act for a Tenant.",
                subject.name
            ),
        );
    }
    if let Err(error) = quantity::to_bytes(&tenant.spec.quota.storage) {
        return refuse(Reason::QuotaExceeded, format!("spec.quota.storage: {error}."));
    }
    for domain in &tenant.spec.allowed_domains {
        check_domain(domain, &config.base_domain)?;
    }
    check_keys(tenant, tenants)
}

/// Each SSH key belongs to one Tenant: the oldest, as in the SSH server.
fn check_keys(tenant: &Tenant, tenants: &[Arc<Tenant>]) -> Result<(), Refusal> {
    let order = |tenant: &Tenant| (tenant.creation_timestamp(), tenant.name_any());
    let own = order(tenant);
    for key in &tenant.spec.ssh_keys {
        let claims = |other: &&Arc<Tenant>| {
            let mut keys = other.spec.ssh_keys.iter();
            order(other) < own && keys.any(|theirs| theirs.material() == key.material())
        };
        if tenants.iter().any(|other| claims(&other)) {
            // The message does not name the other Tenant.
            let message = format!("SSH key {} belongs to another Tenant.", key.name);
            return refuse(Reason::SubjectConflict, message);
        }
    }
    Ok(())
}

/// Returns whether a subject may act for a Tenant.
pub fn may_act(subject: &TenantSubject) -> bool {
    !subject.name.starts_with("system:")
}

/// The domains become name constraints of a cluster's CA: a domain that is too wide would allow it
/// to sign for another's names.
fn check_domain(domain: &str, base: &str) -> Result<(), Refusal> {
    let inside = ["svc", "local"].iter().any(|end| names::is_within(domain, end));
    let overlaps = names::is_within(domain, base) || names::is_within(base, domain);
    if !names::is_domain(domain) || domain.starts_with("kubernetes") || inside || overlaps {
        return refuse(
            Reason::HostnameNotAllowed,
            format!(
                "Domain {domain} is not allowed: it must be a DNS name outside svc, local, kubernetes* and the \
         host's base domain."
            ),
        );
    }
    Ok(())
}

fn refuse<T>(reason: Reason, message: String) -> Result<T, Refusal> {
    Err(Refusal { reason, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use yoke_api::tenant::{SshKey, SubjectKind, TenantSpec};

    fn config() -> Config {
        Config::parse(include_str!("../../testdata/config.yaml")).unwrap()
    }

    #[test]
    fn names_are_checked() {
        for (name, expected) in [
            ("demo", None),
            ("default", Some(Reason::NameReserved)),
            ("kube-system", Some(Reason::NameReserved)),
            ("yoke-system", Some(Reason::NameReserved)),
            ("cert-manager", Some(Reason::NameReserved)),
            ("1a", Some(Reason::NameInvalid)),
            ("a.b", Some(Reason::NameInvalid)),
        ] {
            let refused = validate(&Tenant::new(name, TenantSpec::default()), &[], &config()).err();
            assert_eq!(refused.map(|refusal| refusal.reason), expected, "{name}");
        }
    }

    #[test]
    fn domains_and_subjects_are_checked() {
        for (domain, good) in [
            ("example.org", true),
            ("yoke.test", false),
            ("a.yoke.test", false),
            ("test", false),
            ("kubernetes.example.org", false),
            ("cluster.local", false),
        ] {
            let spec = TenantSpec {
                allowed_domains: vec![domain.into()],
                ..TenantSpec::default()
            };
            assert_eq!(
                validate(&Tenant::new("demo", spec), &[], &config()).is_ok(),
                good,
                "{domain}"
            );
        }
        let spec = TenantSpec {
            subjects: vec![TenantSubject {
                kind: SubjectKind::Group,
                name: "system:authenticated".into(),
            }],
            ..TenantSpec::default()
        };
        let refusal = validate(&Tenant::new("demo", spec), &[], &config()).unwrap_err();
        assert_eq!(refusal.reason, Reason::SubjectConflict);
    }

    #[test]
    fn a_key_belongs_to_the_older_tenant() {
        let tenant = |name: &str, created: &str, comment: &str| {
            let mut tenant = Tenant::new(name, TenantSpec::default());
            tenant.metadata.creation_timestamp = Some(Time(created.parse().unwrap()));
            tenant.spec.ssh_keys.push(SshKey {
                name: "laptop".into(),
                public_key: format!("ssh-ed25519 AAAA {comment}"),
            });
            Arc::new(tenant)
        };
        let older = tenant("b", "2026-01-01T00:00:00Z", "me");
        let younger = tenant("a", "2026-01-02T00:00:00Z", "you");
        let all = [older.clone(), younger.clone()];
        validate(&older, &all, &config()).unwrap();
        let refusal = validate(&younger, &all, &config()).unwrap_err();
        assert_eq!(refusal.reason, Reason::SubjectConflict);
        assert_eq!(refusal.message, "SSH key laptop belongs to another Tenant.");
    }
}
