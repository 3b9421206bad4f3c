//! Plain HTTP: metrics and probes on the metrics listener and on the listeners of the etcd API, and
//! the audit webhook of a kube-apiserver on a loopback listener.

pub(crate) mod activity;
pub(crate) mod admin;
pub(crate) mod audit_webhook;
