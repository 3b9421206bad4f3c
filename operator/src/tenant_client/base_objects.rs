//! Builds the objects that every tenant cluster must have. Pure.

use std::net::IpAddr;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use kube::api::ObjectMeta;
use yoke_pki::plan::{ADMIN_GROUP, KUBELET_CLIENT_GROUP};

use crate::model::rbac::{build_binding, build_role, build_rule, to_group};
use crate::tenant_client::groups::{JOINING_GROUP, NODES_GROUP};
use crate::tenant_client::node_admission_policy::build_policy;

/// Namespace of the Service through which workloads reach their API.
pub(crate) const NAMESPACE: &str = "default";
/// Name of that Service, and of the objects with its addresses.
pub(crate) const SERVICE: &str = "kubernetes";

const ADMIN_ROLE: &str = "cluster-admin";
const LEAVING_ROLE: &str = "yoke:leaving-nodes";
const NETWORK_ROLE: &str = "yoke:worker-network";

/// Objects that every tenant cluster must have.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseObjects {
    /// Roles that Kubernetes does not provide.
    pub roles: Vec<ClusterRole>,
    /// Bindings of roles to groups.
    pub bindings: Vec<ClusterRoleBinding>,
    /// Denies kubelets to shed taints and labels of their Nodes.
    pub policy: (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding),
    /// `default/kubernetes`; absent if the ingress has a name instead of an address.
    pub endpoints: Option<(EndpointSlice, Endpoints)>,
}

/// Builds [`BaseObjects`] for clusters behind an ingress.
pub fn build_base(ingress_address: &str, ingress_port: u16) -> BaseObjects {
    BaseObjects {
        roles: vec![
            // A worker that leaves deletes its Node, so that another can join with that name. The
            // admission plugin NodeRestriction limits each kubelet to its own Node. The policy
            // prevents that it sheds taints and labels.
            build_role(LEAVING_ROLE, vec![build_rule(&[""], &["nodes"], &["delete"])]),
            // Each worker has a tunnel to every other one. By the default rules of Kubernetes a
            // kubelet can read only its own Node.
            build_role(
                NETWORK_ROLE,
                vec![build_rule(&[""], &["nodes"], &["get", "list", "watch"])],
            ),
        ],
        policy: build_policy(),
        bindings: vec![
            build_binding("yoke:cluster-admins", to_group(ADMIN_GROUP), ADMIN_ROLE),
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
                to_group(NODES_GROUP),
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            ),
            build_binding("yoke:leaving-nodes", to_group(NODES_GROUP), LEAVING_ROLE),
            build_binding("yoke:worker-network", to_group(NODES_GROUP), NETWORK_ROLE),
        ],
        endpoints: ingress_address
            .parse()
            .ok()
            .filter(|address: &IpAddr| !address.is_loopback())
            .map(|address| build_endpoints(address, ingress_port)),
    }
}

/// Kubernetes' own role of superusers, as an API server creates it a second after its first start
/// (<https://kubernetes.io/docs/reference/access-authn-authz/rbac/#user-facing-roles>).
pub(crate) fn build_admin_role() -> ClusterRole {
    let every = || vec!["*".to_owned()];
    let mut role = build_role(
        ADMIN_ROLE,
        vec![
            build_rule(&["*"], &["*"], &["*"]),
            PolicyRule {
                non_resource_urls: Some(every()),
                verbs: every(),
                ..PolicyRule::default()
            },
        ],
    );
    let entry = |key: &str, value: &str| Some([(key.to_owned(), value.to_owned())].into());
    role.metadata.labels = entry("kubernetes.io/bootstrapping", "rbac-defaults");
    role.metadata.annotations = entry("rbac.authorization.kubernetes.io/autoupdate", "true");
    role
}

/// Builds the endpoints of the Service `default/kubernetes`, which has no selector. They point to
/// the ingress.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The tests of `yoke-worker` create these objects in their own clusters.
    #[test]
    fn base_objects_equal_the_golden_file() {
        let base = build_base("192.0.2.1", 443);
        let roles = base.roles.iter().map(serde_json::to_value);
        let bindings = base.bindings.iter().map(serde_json::to_value);
        let policy = [
            serde_json::to_value(&base.policy.0),
            serde_json::to_value(&base.policy.1),
        ];
        let items = roles
            .chain(bindings)
            .chain(policy)
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
        let text = format!("{list:#}\n");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/base.json");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}; UPDATE=1 writes it anew", path.display());
    }
}
