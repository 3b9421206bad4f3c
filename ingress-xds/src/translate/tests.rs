use super::*;
use crate::fixtures::{BASE_DOMAIN, cluster, pems};
use crate::model::Route;
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
    translate_connections("a-bcdfghjk.yoke.test", &target(addresses), Limits::default())
}

fn addresses_of(entry: &Entry) -> Vec<(String, u32)> {
    let assignment = ClusterLoadAssignment::decode(entry.endpoints.body.as_ref()).unwrap();
    assert_eq!(assignment.cluster_name, "l4/a-bcdfghjk.yoke.test");
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
    let cluster = Cluster::decode(serve(&["10.0.0.1"]).cluster.body.as_ref()).unwrap();
    assert_eq!(cluster.name, "l4/a-bcdfghjk.yoke.test");
    assert_eq!(
        cluster.cluster_discovery_type,
        Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()))
    );
    let source = cluster.eds_cluster_config.unwrap().eds_config.unwrap();
    assert_eq!(
        source.config_source_specifier,
        Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {}))
    );
    assert_eq!(cluster.connect_timeout.unwrap().seconds, 5);
    let thresholds = &cluster.circuit_breakers.unwrap().thresholds[0];
    assert_eq!(thresholds.max_connections.unwrap().value, 4096);
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
    let limits = Limits {
        connections: 1,
        ..Limits::default()
    };
    let limited = translate_connections("a-bcdfghjk.yoke.test", &target(&["10.0.0.1"]), limits);
    assert_ne!(one.cluster.version, limited.cluster.version);
    assert_ne!(
        one.endpoints.version, limited.endpoints.version,
        "owed again after the cluster"
    );
}

/// When this fails, every Envoy is sent every cluster again on upgrade: right if it is meant.
#[test]
fn versions_outlive_a_release() {
    let entry = serve(&["10.0.0.1"]);
    assert_eq!(&*entry.cluster.version, "bc63062615099f87");
    assert_eq!(&*entry.endpoints.version, "3c119c85f16e533f");
}

#[test]
fn resources_are_small() {
    let entry = serve(&["10.0.0.1"]);
    let (cluster, endpoints) = (entry.cluster.body.len(), entry.endpoints.body.len());
    assert!(cluster < 256 && endpoints < 128, "{cluster} {endpoints}");
    let entry = translate_requests(&target(&["10.0.0.1"]), Limits::default());
    let (cluster, endpoints) = (entry.cluster.body.len(), entry.endpoints.body.len());
    assert!(cluster < 2048 && endpoints < 128, "{cluster} {endpoints}");
}

#[test]
fn requests_go_on_in_tls_that_the_clusters_own_ca_vouches_for() {
    let entry = translate_requests(&target(&["10.0.0.1"]), Limits::default());
    let cluster = Cluster::decode(entry.cluster.body.as_ref()).unwrap();
    assert_eq!(cluster.name, "l7/a-bcdfghjk.yoke.test");
    let Some(ConfigType::TypedConfig(config)) = cluster.transport_socket.unwrap().config_type else {
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
    let thresholds = &cluster.circuit_breakers.unwrap().thresholds[0];
    assert_eq!(thresholds.max_requests.unwrap().value, 4096);
    assert_eq!(thresholds.max_connections.unwrap().value, u32::MAX);
}

#[test]
fn connections_for_requests_hold_what_their_streams_may() {
    let entry = translate_requests(&target(&["10.0.0.1"]), Limits::default());
    let cluster = Cluster::decode(entry.cluster.body.as_ref()).unwrap();
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

/// A key for tokens is nothing that Envoy is told.
#[test]
fn a_new_key_changes_no_resource() {
    let mut changed = target(&["10.0.0.1"]);
    let mut route = Route::clone(&changed.route);
    route.tokens.keys.clear();
    changed.route = Arc::new(route);
    let (before, after) = (
        translate_requests(&target(&["10.0.0.1"]), Limits::default()),
        translate_requests(&changed, Limits::default()),
    );
    assert_eq!(before.cluster.version, after.cluster.version);
    assert_eq!(before.endpoints.version, after.endpoints.version);
}
