//! Builds the Secrets: what each component of a control plane may know, and the tenant's
//! kubeconfig.

pub use crate::cluster::resources::materials::{Data, Leaf, Materials, Sources};
pub(crate) use crate::cluster::resources::names::{API_SERVER, KONNECTIVITY, STORE};

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use yoke_api::labels::component;
use yoke_api::names::{API_PORT, KUBECONFIG_KEY, kubeconfig_secret};
use yoke_pki::Kubeconfig;
use yoke_pki::kubeconfig::{Authority, Credential, KubeconfigError};
use yoke_pki::plan::{LeafRole, SLEEPER_LEAF};

use crate::cluster::resources::names::{
    CERTIFICATE, CLIENT_CA, CONTROLLER_MANAGER, FRONT_PROXY_CA, KEY, SCHEDULER, SERVING_CERTIFICATE, SERVING_KEY,
};
use crate::cluster::resources::paths::PKI;
use crate::config::{Config, ingress_url};
use crate::model::identity::Identity;

/// Whether a Secret has a certificate and its key.
pub fn is_issued(secret: &Secret) -> bool {
    let has = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value.is_some_and(|value| !value.0.is_empty())
    };
    has(CERTIFICATE) && has(KEY)
}

/// Names of the Secrets that [`build_component_secrets`] builds for these certificates.
pub fn component_secrets(leaves: impl Iterator<Item = LeafRole>) -> Vec<&'static str> {
    let optional = leaves.filter_map(|role| match role {
        LeafRole::Konnectivity => Some(KONNECTIVITY),
        LeafRole::Sleeper => Some(SLEEPER_LEAF),
        _ => None,
    });
    [API_SERVER, CONTROLLER_MANAGER, SCHEDULER, STORE]
        .into_iter()
        .chain(optional)
        .collect()
}

/// Builds the Secrets of the control plane's components, one for each container, and the Secret
/// with the certificate that the ingress presents for the extra names while no API runs.
pub fn build_component_secrets(identity: &Identity, materials: &Materials) -> Result<Vec<Secret>, KubeconfigError> {
    let kubeconfig = build_component_kubeconfig(identity)?;
    let optional = [
        build_konnectivity_secret(identity, materials, &kubeconfig),
        build_sleeper_secret(identity, materials),
    ];
    let all = [
        build_api_server_secret(identity, materials),
        build_controller_manager_secret(identity, materials, &kubeconfig),
        build_scheduler_secret(identity, materials, &kubeconfig),
        build_store_secret(identity, materials),
    ];
    Ok(all.into_iter().chain(optional.into_iter().flatten()).collect())
}

fn build_api_server_secret(identity: &Identity, materials: &Materials) -> Secret {
    let serving = materials.leaf(LeafRole::ApiServer);
    let kubelet = materials.leaf(LeafRole::ApiServerKubeletClient);
    let front = materials.leaf(LeafRole::FrontProxyClient);
    let private = materials.service_account.private_pem();
    build_hosted(
        identity,
        API_SERVER,
        component::PKI,
        &[
            (CERTIFICATE, &serving.certificate),
            (KEY, &serving.key),
            ("kubelet-client.crt", &kubelet.certificate),
            ("kubelet-client.key", &kubelet.key),
            ("front-proxy-client.crt", &front.certificate),
            ("front-proxy-client.key", &front.key),
            (CLIENT_CA, &materials.client_ca),
            ("kubelet-ca.crt", &materials.kubelet_ca),
            (FRONT_PROXY_CA, &materials.front_proxy_ca),
            ("sa.key", private),
            ("sa.pub", &materials.service_account_public),
        ],
    )
}

fn build_controller_manager_secret(identity: &Identity, materials: &Materials, kubeconfig: &str) -> Secret {
    let manager = materials.leaf(LeafRole::ControllerManager);
    let private = materials.service_account.private_pem();
    build_hosted(
        identity,
        CONTROLLER_MANAGER,
        component::PKI,
        &[
            (CERTIFICATE, &manager.certificate),
            (KEY, &manager.key),
            ("root-ca.crt", &materials.root_ca),
            ("sa.key", private),
            ("kubeconfig", kubeconfig),
        ],
    )
}

fn build_scheduler_secret(identity: &Identity, materials: &Materials, kubeconfig: &str) -> Secret {
    let scheduler = materials.leaf(LeafRole::Scheduler);
    build_hosted(
        identity,
        SCHEDULER,
        component::PKI,
        &[
            (CERTIFICATE, &scheduler.certificate),
            (KEY, &scheduler.key),
            ("root-ca.crt", &materials.root_ca),
            ("kubeconfig", kubeconfig),
        ],
    )
}

fn build_store_secret(identity: &Identity, materials: &Materials) -> Secret {
    build_hosted(
        identity,
        STORE,
        component::STORE,
        &[
            ("user.creds", &materials.store_credentials),
            ("ca.crt", &materials.nats_ca),
        ],
    )
}

/// Builds the Secret of konnectivity-server, if its certificate was issued.
fn build_konnectivity_secret(identity: &Identity, materials: &Materials, kubeconfig: &str) -> Option<Secret> {
    let serving = materials.leaf(LeafRole::ApiServer);
    materials.leaves.get(&LeafRole::Konnectivity).map(|own| {
        build_hosted(
            identity,
            KONNECTIVITY,
            component::PKI,
            &[
                (CERTIFICATE, &own.certificate),
                (KEY, &own.key),
                (SERVING_CERTIFICATE, &serving.certificate),
                (SERVING_KEY, &serving.key),
                ("root-ca.crt", &materials.root_ca),
                ("kubeconfig", kubeconfig),
            ],
        )
    })
}

/// Builds the Secret with the certificate that the ingress presents, if it was issued.
fn build_sleeper_secret(identity: &Identity, materials: &Materials) -> Option<Secret> {
    materials.leaves.get(&LeafRole::Sleeper).map(|own| {
        let data = [(CERTIFICATE, own.certificate.as_str()), (KEY, &own.key)];
        build_hosted(identity, SLEEPER_LEAF, component::PKI, &data)
    })
}

/// The kubeconfig of a component: its own files, which client-go reloads when they change, and the
/// API server of the same pod.
fn build_component_kubeconfig(identity: &Identity) -> Result<String, KubeconfigError> {
    Kubeconfig {
        context: identity.cluster.clone(),
        user: "component".into(),
        namespace: None,
        server: format!("https://127.0.0.1:{API_PORT}"),
        tls_server_name: Some(identity.upstream_name()),
        authority: Authority::File(format!("{PKI}/root-ca.crt")),
        credential: Credential::Files {
            certificate: format!("{PKI}/{CERTIFICATE}"),
            key: format!("{PKI}/{KEY}"),
        },
    }
    .to_yaml()
}

/// The kubeconfig for the tenant.
pub fn build_kubeconfig(
    identity: &Identity,
    config: &Config,
    materials: &Materials,
) -> Result<Secret, KubeconfigError> {
    let admin = materials.leaf(LeafRole::Admin);
    let text = Kubeconfig {
        context: identity.cluster.clone(),
        user: format!("{}-admin", identity.cluster),
        namespace: None,
        server: ingress_url(config),
        tls_server_name: Some(identity.public_name.to_string()),
        authority: Authority::Data(materials.root_ca.clone()),
        credential: Credential::Data {
            certificate: admin.certificate.clone(),
            key: admin.key.clone(),
        },
    }
    .to_yaml()?;
    Ok(Secret {
        metadata: identity.tenant_meta(&kubeconfig_secret(&identity.cluster), component::PKI),
        data: Some(to_data(&[(KUBECONFIG_KEY, &text)])),
        // The type is that of Cluster API's contract, which other tools look for.
        type_: Some("cluster.x-k8s.io/secret".into()),
        ..Secret::default()
    })
}

fn build_hosted(identity: &Identity, name: &str, component: &str, data: &[(&str, &str)]) -> Secret {
    Secret {
        metadata: identity.hosted_meta(name, component),
        data: Some(to_data(data)),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

fn to_data(pairs: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
    pairs
        .iter()
        .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())))
        .collect()
}
