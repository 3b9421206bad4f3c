//! Ports of the containers of a control plane, apart from the port of its API.

/// Port of the store's metrics and probes, and of its activity report.
pub(crate) const STORE_PORT: u16 = 2381;
/// Port of kube-controller-manager's probes.
pub(crate) const CONTROLLER_MANAGER_PORT: u16 = 10257;
/// Port of kube-scheduler's probes.
pub(crate) const SCHEDULER_PORT: u16 = 10259;
