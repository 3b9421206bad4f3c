//! Builds the NetworkPolicy of a control-plane namespace.
//!
//! - Ingress: from the ingress, the operator, and the host's monitoring if it has one.
//! - Egress: to NATS, and to an OIDC provider if the Cluster has one.
//!
//! An API server connects to addresses that its users choose. So it may reach no network of the
//! host, and DNS only for the name of the provider. Requests to workers use the connections that
//! konnectivity agents open.

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use yoke_api::Cidr;
use yoke_api::labels::component;
use yoke_api::names::{API_PORT, KONNECTIVITY_PORT};

use crate::cluster::resources::ports::STORE_PORT;
use crate::config::{Config, OidcConfig};
use crate::model::identity::Identity;
use crate::model::public_ranges::PRIVATE;

/// Name of the NetworkPolicy.
pub const NAME: &str = "control-plane";
/// The only port on which an OIDC provider is reached.
const PROVIDER_PORT: u16 = 443;
const DNS_PORT: u16 = 53;

/// Connections that not every Cluster needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowedPeers {
    /// Egress to an OIDC provider, and to DNS for its name.
    pub provider: bool,
    /// Ingress for konnectivity agents.
    pub konnectivity: bool,
}

/// Builds the NetworkPolicy.
pub fn build_network_policy(identity: &Identity, config: &Config, open: AllowedPeers) -> NetworkPolicy {
    let from = config
        .ingress
        .pods
        .iter()
        .map(|pods| build_pods(&pods.namespace, pods.labels.clone()));
    let mut egress = vec![NetworkPolicyEgressRule {
        to: Some(config.nats.cidrs.iter().map(|cidr| build_block(cidr, &[])).collect()),
        ports: Some(vec![build_port("TCP", config.nats.port)]),
    }];
    if open.provider {
        egress.push(build_provider(&config.oidc));
        egress.push(build_dns(&config.oidc));
    }
    let mut ports = vec![build_port("TCP", API_PORT)];
    ports.extend(open.konnectivity.then(|| build_port("TCP", KONNECTIVITY_PORT)));
    let mut ingress = vec![NetworkPolicyIngressRule {
        from: Some(from.collect()),
        ports: Some(ports),
    }];
    // The operator reads from the store when the cluster was last used, and releases its pod.
    let operator = &config.operator_pods;
    ingress.push(NetworkPolicyIngressRule {
        from: Some(vec![build_pods(&operator.namespace, operator.labels.clone())]),
        ports: Some(vec![build_port("TCP", STORE_PORT)]),
    });
    if !config.metrics_from.is_empty() {
        let from = config.metrics_from.iter();
        ingress.push(NetworkPolicyIngressRule {
            from: Some(from.map(|peer| build_peer(peer, &config.namespace)).collect()),
            ports: Some(vec![build_port("TCP", STORE_PORT)]),
        });
    }
    NetworkPolicy {
        metadata: identity.hosted_meta(NAME, component::CONTROL_PLANE),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector::default()),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: Some(ingress),
            egress: Some(egress),
        }),
    }
}

fn build_provider(oidc: &OidcConfig) -> NetworkPolicyEgressRule {
    let except: Vec<&str> = PRIVATE
        .into_iter()
        .chain(oidc.except.iter().map(String::as_str))
        .collect();
    NetworkPolicyEgressRule {
        to: Some(oidc.cidrs.iter().map(|cidr| build_block(cidr, &except)).collect()),
        ports: Some(vec![build_port("TCP", PROVIDER_PORT)]),
    }
}

fn build_dns(oidc: &OidcConfig) -> NetworkPolicyEgressRule {
    let servers = oidc.nameservers.iter().map(|server| {
        let bits = if server.is_ipv4() { 32 } else { 128 };
        build_block(&format!("{server}/{bits}"), &[])
    });
    let to = match oidc.nameservers.is_empty() {
        true => vec![build_pods(
            "kube-system",
            [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
        )],
        false => servers.collect(),
    };
    NetworkPolicyEgressRule {
        to: Some(to),
        ports: Some(vec![build_port("UDP", DNS_PORT), build_port("TCP", DNS_PORT)]),
    }
}

/// A range without the excluded ranges. Ranges outside it are left out: the API server refuses such
/// exceptions.
fn build_block(cidr: &str, except: &[&str]) -> NetworkPolicyPeer {
    let parsed = |text: &str| text.parse::<Cidr>();
    let is_part =
        |part: &&&str| matches!((parsed(part), parsed(cidr)), (Ok(part), Ok(whole)) if part.is_part_of(whole));
    let except: Vec<_> = except.iter().filter(is_part).map(|part| (*part).to_owned()).collect();
    NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_owned(),
            except: Some(except).filter(|except| !except.is_empty()),
        }),
        ..NetworkPolicyPeer::default()
    }
}

/// A peer as seen from the operator's own namespace: a pod selector without a namespace selects
/// there, not beside the control plane.
fn build_peer(peer: &NetworkPolicyPeer, own: &str) -> NetworkPolicyPeer {
    match peer {
        NetworkPolicyPeer {
            pod_selector: Some(pods),
            namespace_selector: None,
            ..
        } => NetworkPolicyPeer {
            pod_selector: Some(pods.clone()),
            ..build_pods(own, std::collections::BTreeMap::new())
        },
        peer => peer.clone(),
    }
}

fn build_pods(namespace: &str, labels: std::collections::BTreeMap<String, String>) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: Some([("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())].into()),
            ..LabelSelector::default()
        }),
        pod_selector: Some(LabelSelector {
            match_labels: Some(labels),
            ..LabelSelector::default()
        }),
        ip_block: None,
    }
}

fn build_port(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn nobody_reads_what_a_store_counts_unless_it_is_allowed() {
        let identity = fixtures::identity(&fixtures::cluster("demo"));
        let open = |config: &Config| {
            let spec = build_network_policy(&identity, config, AllowedPeers::default())
                .spec
                .unwrap();
            let ports = spec.ingress.unwrap().into_iter().flat_map(|rule| rule.ports.unwrap());
            ports.map(|port| port.port.unwrap()).collect::<Vec<_>>()
        };
        let mut config = fixtures::config();
        assert_eq!(open(&config), [6443, 2381, 2381].map(IntOrString::Int));
        config.metrics_from.clear();
        assert_eq!(open(&config), [6443, 2381].map(IntOrString::Int), "the operator's");
    }

    #[test]
    fn the_operator_asks_stores_and_tells_them() {
        let identity = fixtures::identity(&fixtures::cluster("demo"));
        let mut config = fixtures::config();
        config.metrics_from.clear();
        let spec = build_network_policy(&identity, &config, AllowedPeers::default())
            .spec
            .unwrap();
        let rules: Vec<_> = spec.ingress.unwrap();
        assert_eq!(rules.len(), 2);
        let labels = [("app.kubernetes.io/name".to_owned(), "yoke-operator".to_owned())];
        let operator = build_pods("yoke-system", labels.into());
        assert_eq!(rules[1].from, Some(vec![operator]));
        assert_eq!(rules[1].ports, Some(vec![build_port("TCP", 2381)]));
    }

    #[test]
    fn agents_come_in_where_the_ingress_does() {
        let identity = fixtures::identity(&fixtures::cluster("demo"));
        let open = AllowedPeers {
            konnectivity: true,
            ..AllowedPeers::default()
        };
        let with = build_network_policy(&identity, &fixtures::config(), open).spec.unwrap();
        let without = build_network_policy(&identity, &fixtures::config(), AllowedPeers::default())
            .spec
            .unwrap();
        assert_eq!(with.egress, without.egress, "nothing is let out");
        let (with, without) = (with.ingress.unwrap(), without.ingress.unwrap());
        assert_eq!(with[0].from, without[0].from);
        assert_eq!(with[0].ports.as_ref().unwrap()[1], build_port("TCP", 8132));
        assert_eq!(with[1..], without[1..]);
    }

    fn ranges(rule: NetworkPolicyEgressRule) -> Vec<(String, Vec<String>)> {
        let blocks = rule.to.into_iter().flatten().filter_map(|peer| peer.ip_block);
        blocks
            .map(|block| (block.cidr, block.except.unwrap_or_default()))
            .collect()
    }

    #[test]
    fn networks_of_the_host_are_left_out_of_each_range() {
        let oidc = OidcConfig {
            cidrs: vec!["0.0.0.0/0".into(), "10.20.0.0/16".into(), "2000::/3".into()],
            except: vec!["203.0.113.0/24".into(), "2001:db8::/32".into(), "10.20.30.0/24".into()],
            nameservers: vec![],
        };
        let ranges = ranges(build_provider(&oidc));
        let except = |index: usize| ranges[index].1.iter().map(String::as_str).collect::<Vec<_>>();
        assert!(except(0).contains(&"10.0.0.0/8") && except(0).contains(&"203.0.113.0/24"));
        assert!(!except(0).iter().any(|range| range.contains(':')));
        assert_eq!(except(1), ["10.20.30.0/24"], "a private range that is named is meant");
        assert_eq!(except(2), ["2002::/16", "2001::/32", "2001:db8::/32"]);
    }

    #[test]
    fn nameservers_take_the_place_of_the_hosts_own() {
        let mut oidc = OidcConfig::default();
        assert!(ranges(build_dns(&oidc)).is_empty());
        oidc.nameservers = vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        let servers: Vec<_> = ranges(build_dns(&oidc)).into_iter().map(|(cidr, _)| cidr).collect();
        assert_eq!(servers, ["192.0.2.53/32", "2001:db8::53/128"]);
    }
}
