//! What every tenant cluster must have, and whether something found is that. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use kube::api::ObjectMeta;
use serde::Serialize;
use serde_json::Value;
use yoke_pki::plan::{ADMIN_GROUP, KUBELET_CLIENT_GROUP};

use super::workers::JOINING_GROUP;

/// Namespace of the Service by which workloads find their API.
pub(super) const NAMESPACE: &str = "default";
/// Name of that Service, and of what holds its addresses.
pub(super) const SERVICE: &str = "kubernetes";

/// What every tenant cluster must have.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseObjects {
    /// Bindings.
    pub bindings: Vec<ClusterRoleBinding>,
    /// `default/kubernetes`; absent if the ingress has a name and no address.
    pub endpoints: Option<(EndpointSlice, Endpoints)>,
}

/// Builds [`BaseObjects`] for clusters behind an ingress.
pub fn build_base(ingress_address: &str, ingress_port: u16) -> BaseObjects {
    BaseObjects {
        bindings: vec![
            build_binding("yoke:cluster-admins", to_group(ADMIN_GROUP), "cluster-admin"),
            build_binding(
                "yoke:kubelet-api-admins",
                to_group(KUBELET_CLIENT_GROUP),
                "system:kubelet-api-admin",
            ),
            build_binding(
                "yoke:joining-nodes",
                to_group(JOINING_GROUP),
                "system:node-bootstrapper",
            ),
            build_binding(
                "yoke:joining-nodes-approval",
                to_group(JOINING_GROUP),
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            ),
            build_binding(
                "yoke:nodes-renewal",
                to_group("system:nodes"),
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            ),
        ],
        endpoints: ingress_address
            .parse()
            .ok()
            .filter(|address: &IpAddr| !address.is_loopback())
            .map(|address| build_endpoints(address, ingress_port)),
    }
}

fn to_group(name: &str) -> Subject {
    to_subject("Group", name)
}

pub(super) fn to_user(name: &str) -> Subject {
    to_subject("User", name)
}

fn to_subject(kind: &str, name: &str) -> Subject {
    Subject {
        api_group: Some("rbac.authorization.k8s.io".into()),
        kind: kind.into(),
        name: name.into(),
        namespace: None,
    }
}

pub(super) fn build_binding(name: &str, subject: Subject, role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: role.into(),
        },
        subjects: Some(vec![subject]),
    }
}

/// The Service `default/kubernetes` has no selector; its addresses are the ingress, which workloads are sent to.
fn build_endpoints(address: IpAddr, port: u16) -> (EndpointSlice, Endpoints) {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let metadata = |label: (&str, &str)| ObjectMeta {
        name: Some(SERVICE.into()),
        namespace: Some(NAMESPACE.into()),
        labels: Some([(label.0.to_owned(), label.1.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let slice = EndpointSlice {
        metadata: metadata(("kubernetes.io/service-name", SERVICE)),
        address_type: family.into(),
        endpoints: vec![Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }],
        ports: Some(vec![SlicePort {
            name: Some("https".into()),
            port: Some(port.into()),
            protocol: Some("TCP".into()),
            ..SlicePort::default()
        }]),
    };
    let endpoints = Endpoints {
        metadata: metadata(("endpointslice.kubernetes.io/skip-mirror", "true")),
        subsets: Some(vec![EndpointSubset {
            addresses: Some(vec![EndpointAddress {
                ip: address.to_string(),
                ..EndpointAddress::default()
            }]),
            ports: Some(vec![EndpointPort {
                name: Some("https".into()),
                port: port.into(),
                protocol: Some("TCP".into()),
                ..EndpointPort::default()
            }]),
            ..EndpointSubset::default()
        }]),
    };
    (slice, endpoints)
}

/// Whether `found` says all that `wanted` says.
pub(super) fn is_so<K: Serialize>(wanted: &K, found: &K) -> bool {
    match (serde_json::to_value(wanted), serde_json::to_value(found)) {
        (Ok(wanted), Ok(found)) => is_part(&wanted, &found),
        _ => false,
    }
}

/// Whether all of `wanted` is in `found`, which may say more.
fn is_part(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| is_part(value, found))),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(wanted, found)| is_part(wanted, found))
        }
        _ => wanted == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_objects_are_recognised_among_what_a_server_adds() {
        let wanted = serde_json::to_value(build_binding("a", to_group("group"), "role")).expect("keys are strings");
        let mut found = wanted.clone();
        found["metadata"]["uid"] = "1".into();
        assert!(is_part(&wanted, &found));
        found["subjects"][0]["name"] = "other".into();
        assert!(!is_part(&wanted, &found));
        let mut more = wanted.clone();
        more["subjects"] = serde_json::json!([wanted["subjects"][0], wanted["subjects"][0]]);
        assert!(!is_part(&wanted, &more));
    }
}
