//! Folders and files in the containers of a control plane.

/// Folder of a component's Secret.
pub(crate) const PKI: &str = "/etc/kubernetes/pki";
/// Folder of kube-apiserver's ConfigMap.
pub(crate) const CONFIG: &str = "/etc/kubernetes/config";
/// Folder of kine-nats's Secret.
pub(crate) const STORE: &str = "/etc/kine-nats";
/// Name of the authentication configuration in [`CONFIG`].
pub(crate) const AUTHENTICATION_FILE: &str = "authentication.yaml";
/// Name of kube-apiserver's file that routes these requests to the socket.
pub(crate) const EGRESS_FILE: &str = "egress-selector.yaml";
/// Folder of the store's socket.
pub(crate) const SOCKET_DIR: &str = "/run/kine";
/// Folder of konnectivity-server's socket.
pub(crate) const KONNECTIVITY_SOCKET_DIR: &str = "/run/konnectivity";
/// Folder into which the store copies the launcher of the other components.
pub(crate) const LAUNCH_DIR: &str = "/run/launch";
/// Name of the launcher in that folder and in the store's image.
pub(crate) const LAUNCH: &str = "yoke-launch";
