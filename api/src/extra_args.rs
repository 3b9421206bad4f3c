//! Arguments of control-plane components that a tenant may set. All others are refused: with
//! arbitrary flags, a tenant could take over the host or a neighbor.

/// kube-apiserver flags that a tenant may set, without the leading dashes.
///
/// OIDC:
/// <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens>.
/// Never add a flag that names a file, an address, an admission plugin or a trust anchor.
pub const API_SERVER: &[&str] = &[
    "audit-log-format",
    "default-not-ready-toleration-seconds",
    "default-unreachable-toleration-seconds",
    "event-ttl",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-issuer-url",
    "oidc-required-claim",
    "oidc-username-claim",
    "oidc-username-prefix",
];

/// kube-controller-manager flags that a tenant may set, without the leading dashes.
pub const CONTROLLER_MANAGER: &[&str] = &["node-monitor-grace-period", "terminated-pod-gc-threshold"];

/// kube-scheduler flags that a tenant may set, without the leading dashes.
pub const SCHEDULER: &[&str] = &["v"];
