//! Validates host objects before the ingress uses them. Pure; called by [`crate::model`].
//!
//! A user who can label a ConfigMap could otherwise impersonate any cluster, so no value is trusted
//! as it is:
//! - The namespace determines the ID.
//! - The ID and the cluster's name determine the public name, the issuer and the upstream's name.
//! - Free values (extra names, certificates, keys) are checked by form, because one field that
//!   Envoy cannot accept makes it drop a complete response.

mod certificate;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use yoke_api::ingress::{Asleep, CONFIG_KEY, IngressConfig, MAX_SOURCES};
use yoke_api::labels;
use yoke_api::names::{
    API_PORT, HOSTED_NAMESPACE_PREFIX, INGRESS_CONFIG_MAP, KONNECTIVITY_PORT, is_domain, is_label, is_within,
};
use yoke_pki::bundle::{Bundle, BundleError, Trust};

use crate::authz::token::{KeyError, TokenKey, TokenTrust};
use crate::model::route::{Route, Sleep, UpstreamTrust};

pub use certificate::{CertificateError, IngressCertificate, validate_activator, validate_ingress};

/// The well-known label with which an EndpointSlice names its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

const MAX_EXTRA_NAMES: usize = 32;
const MAX_KEYS: usize = 16;
/// Maximum number of ignored user agents: more than `spec.sleep.ignoreUserAgents` allows.
const MAX_AGENTS: usize = 64;
const MAX_ADDRESSES: usize = 16;
/// An audience that an API server may accept beside its own. It is the same in every cluster and
/// not meant for the API, so it is ignored here.
const KONNECTIVITY_AUDIENCE: &str = "system:konnectivity-server";
const MAX_CONFIG_BYTES: usize = 256 * 1024;
/// Top-level domains that exist only inside a cluster or network. No external client may be routed
/// by them.
const INTERNAL_DOMAINS: [&str; 4] = ["svc", "local", "localhost", "internal"];

/// Settings that apply to the complete host.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Base domain; every public name is one label below it.
    pub base_domain: String,
    /// Port of every API server.
    pub port: u16,
    /// Port of every konnectivity-server.
    pub konnectivity_port: u16,
    /// Whether endpoints may have loopback addresses. Only for hosts where control planes run as
    /// processes beside Envoy.
    pub loopback: bool,
    /// The address at which Envoy reaches this process's activator, if it has one.
    pub activator: Option<SocketAddr>,
    /// Whether EndpointSlices give the addresses of other replicas' activators, at the same port.
    pub replicas: bool,
}

impl Rules {
    /// Default rules for a host cluster.
    pub fn new(base_domain: &str) -> Self {
        Self {
            base_domain: base_domain.to_owned(),
            port: API_PORT,
            konnectivity_port: KONNECTIVITY_PORT,
            loopback: false,
            activator: None,
            replicas: false,
        }
    }
}

/// Why a ConfigMap is invalid. Its cluster is then not routed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The object is not the ingress ConfigMap of a control-plane namespace.
    #[error("the object is not {INGRESS_CONFIG_MAP} in a control-plane namespace")]
    WrongObject,
    /// The key is missing.
    #[error("the key {CONFIG_KEY} is missing")]
    Missing,
    /// The text exceeds the size limit.
    #[error("the key {CONFIG_KEY} is longer than {MAX_CONFIG_BYTES} bytes")]
    Size,
    /// The text is not a valid configuration.
    #[error("reading the key {CONFIG_KEY}")]
    Read(#[source] serde_json::Error),
    /// A value differs from the one that the namespace and the cluster's name determine.
    #[error("{field} is {given:?} and must be {expected:?}")]
    Mismatch {
        /// The field.
        field: &'static str,
        /// The value in the ConfigMap.
        given: String,
        /// The required value.
        expected: String,
    },
    /// A value is not a valid name.
    #[error("{field} is not a valid name: {given:?}")]
    InvalidName {
        /// The field.
        field: &'static str,
        /// The value in the ConfigMap.
        given: String,
    },
    /// A list has too many members.
    #[error("{field} has {given} members, and at most {limit} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Number of members.
        given: usize,
        /// Maximum number of members.
        limit: usize,
    },
    /// A CA bundle is invalid.
    #[error("reading {field}")]
    Certificates {
        /// The field.
        field: &'static str,
        /// The problem with the bundle.
        #[source]
        source: BundleError,
    },
    /// A public key cannot verify tokens.
    #[error("reading service account key {index}")]
    Key {
        /// Index in the list of keys.
        index: usize,
        /// The problem with the key.
        #[source]
        source: KeyError,
    },
}

/// Why an EndpointSlice is invalid. Its addresses are then not used.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// The object is not in a control-plane namespace, or its labels belong to another cluster.
    #[error("the labels do not match the control plane of the namespace")]
    WrongObject,
    /// No port is the API server's.
    #[error("no TCP port is {expected}, the port of API servers")]
    Port {
        /// The port of every API server.
        expected: u16,
    },
    /// The addresses are names, or of an unknown family.
    #[error("the address type is {0:?} and must be IPv4 or IPv6")]
    Type(String),
}

/// A valid ConfigMap.
#[derive(Debug)]
pub struct Config {
    /// The cluster and its names.
    pub route: Route,
    /// Extra names that are ignored because of their form.
    pub refused_names: Vec<String>,
}

/// A valid EndpointSlice.
#[derive(Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the Service that it belongs to.
    pub service: String,
    /// Ready addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// Validates the ingress ConfigMap of a cluster.
pub fn validate_config(rules: &Rules, object: &ConfigMap) -> Result<Config, ConfigError> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let in_place =
        object.metadata.name.as_deref() == Some(INGRESS_CONFIG_MAP) && namespace.starts_with(HOSTED_NAMESPACE_PREFIX);
    if !in_place {
        return Err(ConfigError::WrongObject);
    }
    let data = object.data.as_ref().and_then(|data| data.get(CONFIG_KEY));
    let text = data.ok_or(ConfigError::Missing)?;
    if text.len() > MAX_CONFIG_BYTES {
        return Err(ConfigError::Size);
    }
    let config: IngressConfig = serde_json::from_str(text).map_err(ConfigError::Read)?;
    validate_identity(rules, namespace, &config)?;
    let client_ca = check_bundle("clientCa", &config.client_ca)?;
    let upstream = UpstreamTrust {
        ca: check_bundle("upstream.ca", &config.upstream.ca)?,
        server_name: config.upstream.server_name,
    };
    let tokens = validate_tokens(config.issuer, config.audiences, &config.service_account_keys)?;
    let count = config.extra_names.len();
    check_count("extraNames", count, MAX_EXTRA_NAMES)?;
    let sources = config.allowed_sources;
    check_count("allowedSources", sources.as_ref().map_or(0, Vec::len), MAX_SOURCES)?;
    if let Some(Asleep::OnConnect { ignored_agents, .. }) = &config.asleep {
        check_count("asleep.onConnect.ignoredAgents", ignored_agents.0.len(), MAX_AGENTS)?;
    }
    let extra: BTreeSet<String> = config.extra_names.into_iter().collect();
    let (extra_names, refused_names) = extra.into_iter().partition(|name| is_extra_name(rules, name));
    Ok(Config {
        route: Route {
            namespace: namespace.to_owned(),
            id: config.id,
            tenant: config.tenant,
            cluster: config.cluster,
            konnectivity_name: config.konnectivity.then(|| config.public_name.konnectivity()),
            public_name: config.public_name.as_str().to_owned(),
            extra_names,
            sources,
            service: config.upstream.service,
            upstream,
            tokens,
            asleep: config.asleep.map(|state| Sleep { state, client_ca }),
        },
        refused_names,
    })
}

/// Validates an EndpointSlice of a control plane.
pub fn validate_slice(rules: &Rules, object: &EndpointSlice) -> Result<Slice, SliceError> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let labels = object.metadata.labels.as_ref().ok_or(SliceError::WrongObject)?;
    let service = labels.get(SERVICE_NAME).filter(|name| is_label(name));
    let service = service.ok_or(SliceError::WrongObject)?;
    let id = labels.get(labels::ID).map(String::as_str).unwrap_or_default();
    let own = labels.get(labels::COMPONENT).map(String::as_str) == Some(labels::component::CONTROL_PLANE)
        && namespace.strip_prefix(HOSTED_NAMESPACE_PREFIX) == Some(id);
    if !own {
        return Err(SliceError::WrongObject);
    }
    if !matches!(object.address_type.as_str(), "IPv4" | "IPv6") {
        return Err(SliceError::Type(object.address_type.clone()));
    }
    let ports = object.ports.as_deref().unwrap_or_default();
    // Kubernetes omits the ports while there are no addresses.
    if !object.endpoints.is_empty() && !ports.iter().any(|port| is_api_port(rules, port)) {
        return Err(SliceError::Port { expected: rules.port });
    }
    Ok(Slice {
        service: service.clone(),
        addresses: ready_addresses(rules, object),
    })
}

/// Ready addresses in an EndpointSlice that may be dialed, whichever Service they belong to.
pub fn ready_addresses(rules: &Rules, object: &EndpointSlice) -> BTreeSet<IpAddr> {
    let ready = object.endpoints.iter().filter(|endpoint| is_ready(endpoint));
    let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
    let good: BTreeSet<IpAddr> = addresses
        .filter_map(|text| text.parse().ok())
        .filter(|address| is_unicast(rules, *address))
        .collect();
    good.into_iter().take(MAX_ADDRESSES).collect()
}

fn validate_identity(rules: &Rules, namespace: &str, config: &IngressConfig) -> Result<(), ConfigError> {
    for (field, given) in [
        ("tenant", &config.tenant),
        ("cluster", &config.cluster),
        ("upstream.service", &config.upstream.service),
    ] {
        if !is_label(given) {
            let given = given.clone();
            return Err(ConfigError::InvalidName { field, given });
        }
    }
    let hosted = config.id.hosted_namespace();
    let public = config.id.public_name(&config.cluster, &rules.base_domain);
    for (field, given, expected) in [
        ("id", hosted.as_str(), namespace),
        ("publicName", config.public_name.as_str(), public.as_str()),
        ("issuer", config.issuer.as_str(), public.issuer().as_str()),
        (
            "upstream.serverName",
            config.upstream.server_name.as_str(),
            hosted.upstream_name(&config.cluster).as_str(),
        ),
    ] {
        if given != expected {
            return Err(ConfigError::Mismatch {
                field,
                given: given.to_owned(),
                expected: expected.to_owned(),
            });
        }
    }
    if !is_domain(public.as_str()) {
        return Err(ConfigError::InvalidName {
            field: "publicName",
            given: public.as_str().to_owned(),
        });
    }
    Ok(())
}

/// Normalizes a CA bundle. Envoy would reject an invalid one.
fn check_bundle(field: &'static str, text: &str) -> Result<String, ConfigError> {
    let bundle = Bundle::new(Trust::Client, [text]).map_err(|source| ConfigError::Certificates { field, source })?;
    Ok(bundle.to_pem())
}

fn validate_tokens(issuer: String, audiences: Vec<String>, keys: &[String]) -> Result<TokenTrust, ConfigError> {
    check_count("serviceAccountKeys", keys.len(), MAX_KEYS)?;
    check_count("audiences", audiences.len(), MAX_KEYS)?;
    let read =
        |(index, text): (usize, &String)| TokenKey::from_pem(text).map_err(|source| ConfigError::Key { index, source });
    let own = audiences
        .into_iter()
        .filter(|audience| audience != KONNECTIVITY_AUDIENCE);
    Ok(TokenTrust {
        issuer,
        audiences: own.collect(),
        keys: keys.iter().enumerate().map(read).collect::<Result<_, _>>()?,
    })
}

fn check_count(field: &'static str, given: usize, limit: usize) -> Result<(), ConfigError> {
    if given > limit {
        return Err(ConfigError::TooMany { field, given, limit });
    }
    Ok(())
}

/// Whether an extra name is allowed. It must be a DNS name outside the base domain, which is the
/// host's, and outside the names with which a pod addresses its own cluster.
fn is_extra_name(rules: &Rules, name: &str) -> bool {
    is_domain(name)
        && !is_within(name, &rules.base_domain)
        && !name.starts_with("kubernetes")
        && !INTERNAL_DOMAINS.iter().any(|domain| is_within(name, domain))
}

fn is_api_port(rules: &Rules, port: &EndpointPort) -> bool {
    port.port == Some(i32::from(rules.port)) && port.protocol.as_deref().unwrap_or("TCP") == "TCP"
}

// A missing condition means ready; this is the rule of the EndpointSlice API.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn is_unicast(rules: &Rules, address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !local && !address.is_unspecified() && !address.is_multicast() && (rules.loopback || !address.is_loopback())
}

#[cfg(test)]
mod tests;
