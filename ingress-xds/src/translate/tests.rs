use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::extensions::matching::common_inputs::transport_socket::v3::{
    FilterStateInput, TransportSocketNameAction,
};
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::MatcherType;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_tree::TreeType;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::on_match::OnMatch as Outcome;

use super::*;
use crate::model::route::Route;
use crate::test_util::fixtures::{BASE_DOMAIN, cluster, pems};
use crate::validate::{Rules, validate_config};

fn target(addresses: &[&str]) -> Target {
    let config = validate_config(&Rules::new(BASE_DOMAIN), &cluster("a", "bcdfghjk24").config_map());
    Target {
        route: Arc::new(config.unwrap().route),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        port: 6443,
    }
}

fn serve(addresses: &[&str]) -> Entry {
    translate("a-bcdfghjk.yoke.test", &target(addresses), EnvoyLimits::default())
}

fn decode(entry: &Entry) -> Cluster {
    Cluster::decode(entry.cluster.body.as_ref()).unwrap()
}

/// The thresholds of connections and of requests.
fn thresholds(cluster: &Cluster) -> [Thresholds; 2] {
    let breakers = cluster.circuit_breakers.clone().unwrap();
    let [connections, requests] = breakers.thresholds.try_into().unwrap();
    assert_eq!(connections.priority(), RoutingPriority::Default);
    assert_eq!(requests.priority(), RoutingPriority::High);
    [connections, requests]
}

fn addresses_of(entry: &Entry) -> Vec<(String, u32)> {
    let assignment = ClusterLoadAssignment::decode(entry.endpoints.body.as_ref()).unwrap();
    assert_eq!(assignment.cluster_name, "name/a-bcdfghjk.yoke.test");
    let endpoints = assignment
        .endpoints
        .into_iter()
        .flat_map(|locality| locality.lb_endpoints);
    endpoints
        .map(|endpoint| {
            let Some(HostIdentifier::Endpoint(endpoint)) = endpoint.host_identifier else {
                panic!("endpoints are inline");
            };
            let Some(AddressKind::SocketAddress(socket)) = endpoint.address.unwrap().address else {
                panic!("addresses are sockets");
            };
            let Some(PortSpecifier::PortValue(port)) = socket.port_specifier else {
                panic!("ports are numbers");
            };
            (socket.address, port)
        })
        .collect()
}

#[test]
fn a_cluster_gets_its_endpoints_by_ads() {
    let cluster = decode(&serve(&["10.0.0.1"]));
    assert_eq!(cluster.name, "name/a-bcdfghjk.yoke.test");
    assert_eq!(
        cluster.cluster_discovery_type,
        Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()))
    );
    let source = cluster.eds_cluster_config.clone().unwrap().eds_config.unwrap();
    assert_eq!(
        source.config_source_specifier,
        Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {}))
    );
    assert_eq!(cluster.connect_timeout.as_ref().unwrap().seconds, 5);
    let [connections, _] = thresholds(&cluster);
    assert_eq!(connections.max_connections.unwrap().value, 4096);
    assert_eq!(
        connections.max_requests.unwrap().value,
        0,
        "a request has its own priority"
    );
}

#[test]
fn endpoints_are_the_ready_addresses() {
    let entry = serve(&["10.0.0.2", "10.0.0.1", "fd00::1"]);
    let expected = [("10.0.0.1", 6443), ("10.0.0.2", 6443), ("fd00::1", 6443)];
    assert_eq!(addresses_of(&entry), expected.map(|(ip, port)| (ip.to_owned(), port)));
    assert!(entry.reachable);
    let entry = serve(&[]);
    assert!(addresses_of(&entry).is_empty());
    assert!(!entry.reachable);
}

#[test]
fn a_version_is_a_hash_of_the_content() {
    let (one, same, other) = (serve(&["10.0.0.1"]), serve(&["10.0.0.1"]), serve(&["10.0.0.2"]));
    assert_eq!(one.cluster.version, same.cluster.version);
    assert_eq!(one.endpoints.version, same.endpoints.version);
    assert_ne!(one.endpoints.version, other.endpoints.version);
    assert_eq!(
        one.cluster.version, other.cluster.version,
        "an address is no part of the cluster"
    );
    let limits = EnvoyLimits {
        connections: 1,
        ..EnvoyLimits::default()
    };
    let limited = translate("a-bcdfghjk.yoke.test", &target(&["10.0.0.1"]), limits);
    assert_ne!(one.cluster.version, limited.cluster.version);
    assert_ne!(
        one.endpoints.version, limited.endpoints.version,
        "owed again after the cluster"
    );
}

/// If this fails, an upgrade sends every cluster to every Envoy again. Change the value only if
/// that is intended.
#[test]
fn versions_are_stable_across_releases() {
    // Without a CA, which tests generate at random.
    let entry = translate("a.example.org", &target(&["10.0.0.1"]), EnvoyLimits::default());
    assert_eq!(&*entry.cluster.version, "bc1319f762cc6409");
    assert_eq!(&*entry.endpoints.version, "bfc2bc014dc389d8");
}

#[test]
fn resources_are_small() {
    let entry = translate("a.example.org", &target(&["10.0.0.1"]), EnvoyLimits::default());
    let (cluster, endpoints) = (entry.cluster.body.len(), entry.endpoints.body.len());
    assert!(cluster < 256 && endpoints < 128, "{cluster} {endpoints}");
    let entry = serve(&["10.0.0.1"]);
    let (cluster, endpoints) = (entry.cluster.body.len(), entry.endpoints.body.len());
    assert!(cluster < 2048 && endpoints < 128, "{cluster} {endpoints}");
}

#[test]
fn requests_use_upstream_tls_verified_by_the_clusters_ca() {
    let entry = serve(&["10.0.0.1"]);
    let cluster = decode(&entry);
    assert_eq!(cluster.name, "name/a-bcdfghjk.yoke.test");
    let Some(ConfigType::TypedConfig(config)) = cluster.transport_socket.clone().unwrap().config_type else {
        panic!("TLS is configured");
    };
    let tls = UpstreamTlsContext::decode(config.value.as_slice()).unwrap();
    assert_eq!(tls.sni, "a.yoke-bcdfghjk24.svc");
    let common = tls.common_tls_context.unwrap();
    assert!(common.tls_certificates.is_empty() && common.tls_certificate_sds_secret_configs.is_empty());
    let Some(ValidationContextType::ValidationContext(validation)) = common.validation_context_type else {
        panic!("the server is verified");
    };
    let exact = MatchPattern::Exact("a.yoke-bcdfghjk24.svc".into());
    let name = &validation.match_typed_subject_alt_names[..];
    assert_eq!(name.len(), 1);
    assert_eq!(name[0].san_type, i32::from(SanType::Dns));
    assert_eq!(name[0].matcher.clone().unwrap().match_pattern, Some(exact));
    let Some(Specifier::InlineString(ca)) = validation.trusted_ca.unwrap().specifier else {
        panic!("the CA is inline");
    };
    assert_eq!(ca.replace('\r', ""), pems().0.replace('\r', ""));
    assert!(!validation.allow_expired_certificate);
    let [_, requests] = thresholds(&cluster);
    assert_eq!(requests.max_requests.unwrap().value, 4096);
    assert_eq!(requests.max_connections.unwrap().value, u32::MAX);
}

/// The mark is the value that the passthrough chain of Envoy's bootstrap sets.
#[test]
fn only_marked_connections_skip_upstream_tls() {
    let cluster = decode(&serve(&["10.0.0.1"]));
    let [other] = &cluster.transport_socket_matches[..] else {
        panic!("there is one other socket");
    };
    assert_eq!(other.name, "passthrough");
    assert_eq!(
        other.r#match.as_ref().unwrap().fields.len(),
        1,
        "an older Envoy must not match"
    );
    let Some(ConfigType::TypedConfig(raw)) = other.transport_socket.clone().unwrap().config_type else {
        panic!("it is configured");
    };
    assert_eq!(raw.type_url, RawBuffer::type_url());

    let matcher = cluster.transport_socket_matcher.unwrap();
    assert_eq!(matcher.on_no_match, None, "the default is TLS");
    let Some(MatcherType::MatcherTree(tree)) = matcher.matcher_type else {
        panic!("the value is looked up");
    };
    let input = tree.input.unwrap().typed_config.unwrap();
    assert_eq!(
        FilterStateInput::decode(input.value.as_slice()).unwrap().key,
        "yoke.transport"
    );
    let Some(TreeType::ExactMatchMap(map)) = tree.tree_type else {
        panic!("the value is exact");
    };
    let [(value, outcome)] = &Vec::from_iter(map.map)[..] else {
        panic!("there is one value");
    };
    assert_eq!(value, "passthrough");
    let Some(Outcome::Action(action)) = outcome.on_match.clone() else {
        panic!("the outcome is a socket");
    };
    let action = TransportSocketNameAction::decode(action.typed_config.unwrap().value.as_slice()).unwrap();
    assert_eq!(action.name, other.name);

    let bootstrap = include_str!("../../envoy/bootstrap.yaml");
    for line in ["object_key: yoke.transport", "{inline_string: passthrough}"] {
        assert_eq!(bootstrap.matches(line).count(), 1, "{line}");
    }
}

/// For example the name of its konnectivity agents.
#[test]
fn no_request_uses_another_name() {
    let cluster = decode(&translate(
        "a.example.org",
        &target(&["10.0.0.1"]),
        EnvoyLimits::default(),
    ));
    assert_eq!(cluster.name, "name/a.example.org");
    assert!(cluster.transport_socket.is_none(), "what passes is TLS");
    let [connections, requests] = thresholds(&cluster);
    assert_eq!(connections.max_connections.unwrap().value, 4096);
    for limit in [requests.max_requests, requests.max_pending_requests] {
        assert_eq!(limit.unwrap().value, 0);
    }
}

#[test]
fn connection_windows_fit_all_stream_windows() {
    let entry = serve(&["10.0.0.1"]);
    let cluster = decode(&entry);
    let options = &cluster.typed_extension_protocol_options[HTTP_OPTIONS];
    let options = HttpProtocolOptions::decode(options.value.as_slice()).unwrap();
    let idle = options.common_http_protocol_options.unwrap().idle_timeout.unwrap();
    assert!(
        idle.seconds < 90,
        "kube-apiserver does not close one that is about to be used"
    );
    let Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(config)) = options.upstream_protocol_options else {
        panic!("the protocol is the client's");
    };
    let http2 = config.http2_protocol_options.unwrap();
    let [streams, stream, connection] = [
        http2.max_concurrent_streams,
        http2.initial_stream_window_size,
        http2.initial_connection_window_size,
    ]
    .map(|value| value.unwrap().value);
    assert_eq!((streams, stream), (100, 65_536));
    assert_eq!(connection, streams * stream);
}

/// Envoy is not sent the token keys.
#[test]
fn a_new_key_changes_no_resource() {
    let mut changed = target(&["10.0.0.1"]);
    let mut route = Route::clone(&changed.route);
    route.tokens.keys.clear();
    changed.route = Arc::new(route);
    let (before, after) = (
        serve(&["10.0.0.1"]),
        translate("a-bcdfghjk.yoke.test", &changed, EnvoyLimits::default()),
    );
    assert_eq!(before.cluster.version, after.cluster.version);
    assert_eq!(before.endpoints.version, after.endpoints.version);
}
