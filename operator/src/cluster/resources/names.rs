//! Names of the Secrets and the ConfigMap of a control plane, their keys, and the labels that select its pods.

use std::collections::BTreeMap;

use yoke_api::labels::{self, component};

use crate::model::identity::Identity;

/// Secret of kube-apiserver.
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// Secret of kube-controller-manager.
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Secret of kube-scheduler.
pub(crate) const SCHEDULER: &str = "kube-scheduler";
/// Secret of konnectivity-server.
pub(crate) const KONNECTIVITY: &str = "konnectivity-server";
/// Secret of kine-nats.
pub(crate) const STORE: &str = "kine-nats";
/// Name of the ConfigMap with kube-apiserver's files.
pub(crate) const API_SERVER_FILES: &str = "kube-apiserver";
/// Key of a certificate chain.
pub(crate) const CERTIFICATE: &str = "tls.crt";
/// Key of a private key.
pub(crate) const KEY: &str = "tls.key";
/// Files of the certificate that konnectivity-server presents to agents.
pub(crate) const SERVING_CERTIFICATE: &str = "serving.crt";
pub(crate) const SERVING_KEY: &str = "serving.key";
/// Key of the CAs that verify clients.
pub(crate) const CLIENT_CA: &str = "client-ca.crt";
/// Key of the CA of the front proxy.
pub(crate) const FRONT_PROXY_CA: &str = "front-proxy-ca.crt";

/// Labels that select the control plane's pods.
pub(crate) fn selector(identity: &Identity) -> BTreeMap<String, String> {
    [
        (labels::ID.to_owned(), identity.id.to_string()),
        (labels::COMPONENT.to_owned(), component::CONTROL_PLANE.to_owned()),
    ]
    .into()
}
