//! Builds the objects of a plan. It cannot fail: the facts have been checked.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::ObjectMeta;
use yoke_api::names::PKI_NAMESPACE;

use super::{
    ADMIN_GROUP, ADMIN_USER, Authority, AuthorityRole, ClusterFacts, FRONT_PROXY_USER, Generation, KONNECTIVITY_USER,
    KUBELET_CLIENT_GROUP, KUBELET_CLIENT_USER, Leaf, LeafRole, OPERATOR_USER, Plan, ROOT, SELF_SIGNED_ISSUER,
};
use crate::cert_manager::{
    CaIssuer, Certificate, CertificateSpec, Issuer, IssuerRef, IssuerSpec, KeyAlgorithm, NameConstraintItem,
    NameConstraints, PrivateKey, RotationPolicy, SecretTemplate, Subject, Usage,
};

/// The minimum that cert-manager accepts. A CA is renewed, with its own key, only if nothing
/// replaced it before it expires.
const CA_RENEW_BEFORE: Duration = Duration::from_mins(5);
/// A certificate is reissued when two thirds of its lifetime have passed.
const LEAF_RENEWALS_PER_LIFE: u32 = 3;
const CERTIFICATE_REQUESTS_KEPT: i32 = 1;

struct Identity {
    common_name: Option<&'static str>,
    organization: Option<&'static str>,
    dns_names: Vec<String>,
    usage: Usage,
}

pub(super) fn build_plan(facts: &ClusterFacts) -> Plan {
    let authorities: Vec<_> = AuthorityRole::ALL
        .into_iter()
        .flat_map(|role| facts.generations.all().map(move |generation| (role, generation)))
        .map(|(role, generation)| Authority {
            role,
            generation,
            name: role.object_name(&facts.id, generation),
        })
        .collect();
    let leaves: Vec<_> = LeafRole::ALL
        .into_iter()
        .filter(|role| match role {
            LeafRole::Konnectivity => facts.konnectivity,
            LeafRole::Sleeper => !facts.extra_sans.is_empty(),
            _ => true,
        })
        .map(|role| Leaf::new(role, &facts.id))
        .collect();
    let ca_certificates = authorities.iter().map(|authority| build_authority(facts, authority));
    let leaf_certificates = leaves.iter().map(|leaf| build_leaf(facts, leaf));
    Plan {
        issuers: authorities
            .iter()
            .map(|authority| build_issuer(facts, authority))
            .collect(),
        certificates: ca_certificates.chain(leaf_certificates).collect(),
        authorities,
        leaves,
    }
}

fn build_issuer(facts: &ClusterFacts, authority: &Authority) -> Issuer {
    Issuer {
        metadata: build_metadata(facts, &authority.name),
        spec: IssuerSpec {
            ca: Some(CaIssuer {
                secret_name: authority.name.clone(),
            }),
            self_signed: None,
        },
        status: None,
    }
}

fn build_authority(facts: &ClusterFacts, authority: &Authority) -> Certificate {
    let (issuer, name_constraints) = match authority.role {
        AuthorityRole::Cluster => (ROOT, Some(build_name_constraints(facts))),
        AuthorityRole::KubeletServing | AuthorityRole::FrontProxy => (SELF_SIGNED_ISSUER, None),
    };
    let spec = CertificateSpec {
        is_ca: true,
        common_name: Some(authority.name.clone()),
        duration: Some(to_go_duration(facts.lifetimes.ca)),
        renew_before: Some(to_go_duration(CA_RENEW_BEFORE)),
        private_key: Some(build_key(RotationPolicy::Never)),
        usages: vec![Usage::CertSign, Usage::CrlSign, Usage::DigitalSignature],
        name_constraints,
        ..build_spec(facts, &authority.name, issuer.to_owned())
    };
    build_certificate(facts, &authority.name, spec)
}

fn build_leaf(facts: &ClusterFacts, leaf: &Leaf) -> Certificate {
    let identity = identity_of(facts, leaf.role);
    let lifetime = facts.lifetimes.of(leaf.role);
    let signing: Generation = facts.generations.signing();
    let spec = CertificateSpec {
        common_name: identity.common_name.map(str::to_owned),
        subject: identity.organization.map(|organization| Subject {
            organizations: vec![organization.to_owned()],
        }),
        dns_names: identity.dns_names,
        duration: Some(to_go_duration(lifetime)),
        renew_before: Some(to_go_duration(lifetime / LEAF_RENEWALS_PER_LIFE)),
        private_key: Some(build_key(RotationPolicy::Always)),
        usages: vec![Usage::DigitalSignature, identity.usage],
        ..build_spec(facts, &leaf.name, leaf.role.authority().object_name(&facts.id, signing))
    };
    build_certificate(facts, &leaf.name, spec)
}

fn identity_of(facts: &ClusterFacts, role: LeafRole) -> Identity {
    let client = |common_name, organization| Identity {
        common_name: Some(common_name),
        organization,
        dns_names: vec![],
        usage: Usage::ClientAuth,
    };
    let server = |dns_names| Identity {
        common_name: None,
        organization: None,
        dns_names,
        usage: Usage::ServerAuth,
    };
    match role {
        LeafRole::ApiServer => server(serving_names(facts)),
        LeafRole::Sleeper => server(extra_names(facts)),
        LeafRole::ApiServerKubeletClient => client(KUBELET_CLIENT_USER, Some(KUBELET_CLIENT_GROUP)),
        LeafRole::FrontProxyClient => client(FRONT_PROXY_USER, None),
        LeafRole::ControllerManager => client("system:kube-controller-manager", None),
        LeafRole::Scheduler => client("system:kube-scheduler", None),
        LeafRole::Konnectivity => client(KONNECTIVITY_USER, None),
        LeafRole::Operator => client(OPERATOR_USER, Some("system:masters")),
        LeafRole::Admin => client(ADMIN_USER, Some(ADMIN_GROUP)),
    }
}

/// The name inside the host, the public name, the konnectivity-server's name, then the extra names
/// sorted and without duplicates.
fn serving_names(facts: &ClusterFacts) -> Vec<String> {
    let mut names = vec![facts.upstream_name(), facts.public_name.as_str().to_owned()];
    names.extend(facts.konnectivity.then(|| facts.public_name.konnectivity()));
    names.extend(extra_names(facts));
    names
}

fn extra_names(facts: &ClusterFacts) -> Vec<String> {
    let names: BTreeSet<_> = facts.extra_sans.iter().cloned().collect();
    names.into_iter().collect()
}

fn build_name_constraints(facts: &ClusterFacts) -> NameConstraints {
    let allowed: BTreeSet<_> = facts.allowed_domains.iter().cloned().collect();
    let mut dns_domains = vec![facts.upstream_name(), facts.public_name.as_str().to_owned()];
    dns_domains.extend(allowed);
    NameConstraints {
        critical: true,
        permitted: Some(NameConstraintItem {
            dns_domains,
            ip_ranges: vec![],
        }),
        excluded: Some(NameConstraintItem {
            dns_domains: vec![],
            ip_ranges: vec!["0.0.0.0/0".into(), "::/0".into()],
        }),
    }
}

fn build_certificate(facts: &ClusterFacts, name: &str, spec: CertificateSpec) -> Certificate {
    Certificate {
        metadata: build_metadata(facts, name),
        spec,
        status: None,
    }
}

/// The fields that all Certificates of the plan have in common.
fn build_spec(facts: &ClusterFacts, name: &str, issuer: String) -> CertificateSpec {
    CertificateSpec {
        secret_name: name.to_owned(),
        secret_template: Some(SecretTemplate { labels: facts.labels() }),
        issuer_ref: IssuerRef {
            name: issuer,
            kind: Some("Issuer".into()),
        },
        revision_history_limit: Some(CERTIFICATE_REQUESTS_KEPT),
        ..CertificateSpec::default()
    }
}

fn build_key(rotation_policy: RotationPolicy) -> PrivateKey {
    PrivateKey {
        algorithm: KeyAlgorithm::ECDSA,
        size: 256,
        rotation_policy,
    }
}

fn build_metadata(facts: &ClusterFacts, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(PKI_NAMESPACE.into()),
        labels: Some(facts.labels()),
        ..ObjectMeta::default()
    }
}

/// A duration in Go's notation, in the largest unit that represents it exactly. Fractions of a
/// second are dropped.
fn to_go_duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_as_go_writes_them() {
        for (seconds, expected) in [
            (0, "0h"),
            (3600, "1h"),
            (5400, "90m"),
            (61, "61s"),
            (31_536_000, "8760h"),
        ] {
            assert_eq!(to_go_duration(Duration::from_secs(seconds)), expected);
        }
    }
}
