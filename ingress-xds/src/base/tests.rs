//! Tests which configurations are refused and why, and which one is served then.
//! `tests/ingress/base.rs` shows that Envoy accepts the others.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::resources::Base;
use super::*;
use crate::model::observation::{ObjectKey, Watched, to_chain};
use crate::snapshot::resource::ResourceKind;

const PORTS: [u16; 2] = [8443, 9901];

fn map(data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some("yoke-system".into()),
            name: Some("ingress-base".into()),
            ..Default::default()
        },
        data: Some(
            data.iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                .collect(),
        ),
        ..Default::default()
    }
}

fn seen(data: &[(&str, &str)]) -> Input {
    Input::Seen(Watched::Applied(Box::new(map(data))))
}

#[test]
fn resources_are_read_in_both_forms() {
    let yaml =
        "- {name: b, connect_timeout: 1.5s}\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: a";
    let json = r#"[{"connectTimeout": "1.500s", "name": "b"}]"#;
    let (yaml, json) = (
        read(&map(&[("clusters", yaml)]), &PORTS),
        read(&map(&[("clusters", json)]), &PORTS),
    );
    let (yaml, json) = (yaml.unwrap(), json.unwrap());
    let names: Vec<_> = yaml.names(ResourceKind::Cluster).map(AsRef::as_ref).collect();
    assert_eq!(names, ["a", "b"]);
    let body = |base: &Base| base.get(ResourceKind::Cluster, "b").unwrap().body.clone();
    assert_eq!(body(&yaml), body(&json));
    assert_eq!(
        *body(&yaml),
        [0x0a, 1, b'b', 0x22, 8, 8, 1, 0x10, 0x80, 0xca, 0xb5, 0xee, 1][..]
    );
    assert_eq!((yaml.len(), json.len()), (2, 1));
    assert!(read(&map(&[]), &PORTS).unwrap().is_empty());
    assert!(read(&map(&[("listeners", "")]), &PORTS).unwrap().is_empty());
}

#[test]
fn versions_follow_contents() {
    let version = |clusters: &str, endpoints: &str| {
        let base = read(&map(&[("clusters", clusters), ("endpoints", endpoints)]), &PORTS).unwrap();
        base.get(ResourceKind::Endpoints, "a").unwrap().version.clone()
    };
    let first = version("[{name: a}]", "[{cluster_name: a}]");
    assert_eq!(first, version("[{name: a}]", "[{'cluster_name': 'a'}]"));
    assert_ne!(first, version("[{name: a}]", "[{cluster_name: a, policy: {}}]"));
    assert_ne!(
        first,
        version("[{name: a, type: EDS}]", "[{cluster_name: a}]"),
        "they are owed again"
    );
}

#[test]
fn reserved_resources_are_refused() {
    let listener = |more: &str| format!("[{{name: a, {more}}}]");
    let at = |address: &str| listener(&format!("address: {{{address}}}"));
    let to = |host: &str, port: &str| {
        format!(
            "[{{cluster_name: a, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socketAddress: {{address: '{host}', \
             portValue: {port}}}}}}}}}]}}]}}]"
        )
    };
    let route = |action: &str| {
        format!(
            "[{{name: a, virtual_hosts: [{{name: a, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{{action}}}}}]}}]}}]"
        )
    };
    let proxy = |field: &str| {
        listener(&format!(
            "address: {{socket_address: {{address: '::', port_value: 80}}}}, filter_chains: [{{filters: [{{name: tcp, \
             typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, \
             stat_prefix: a, {field}}}}}]}}]"
        ))
    };
    let filter = |name: &str, config: &str| {
        listener(&format!(
            "address: {{socket_address: {{address: '::', port_value: 80}}}}, filter_chains: [{{filters: [{{name: {name}, \
             typed_config: {{{config}}}}}]}}]"
        ))
    };
    let eds = |more: &str| format!("[{{name: a, type: EDS, eds_cluster_config: {{{more}}}}}]");
    for (rule, key, text, reason) in [
        ("a list", "clusters", "name: a".to_owned(), "reading the key clusters"),
        (
            "of objects",
            "clusters",
            "[a]".into(),
            "clusters[0] is not envoy.config.cluster.v3.Cluster",
        ),
        (
            "of the key's type",
            "clusters",
            "[{'@type': type.googleapis.com/envoy.config.listener.v3.Listener, name: a}]".into(),
            "clusters[0] is not envoy.config.cluster.v3.Cluster",
        ),
        (
            "with known fields",
            "clusters",
            "[{name: a}, {name: b, nam: c}]".into(),
            "reading clusters[1]: ",
        ),
        (
            "with a name",
            "endpoints",
            "[{endpoints: []}]".into(),
            "endpoints[0] has no name",
        ),
        (
            "each once",
            "routes",
            "[{name: a}, {name: a}]".into(),
            "routes contains a twice",
        ),
        (
            "no key of another name",
            "secrets",
            "[]".into(),
            "the key secrets is unknown",
        ),
        (
            "no cluster of ours",
            "clusters",
            "[{name: xds}]".into(),
            "clusters xds: has a name that is reserved for the ingress",
        ),
        (
            "no tenant's",
            "clusters",
            "[{name: name/a}]".into(),
            "clusters name/a: has a name that",
        ),
        (
            "no tenant's endpoints",
            "endpoints",
            "[{cluster_name: name/a}]".into(),
            "endpoints name/a: has a name that",
        ),
        (
            "no routes of ours",
            "routes",
            "[{name: terminated}]".into(),
            "has a name that",
        ),
        (
            "no listener of ours",
            "listeners",
            at("").replace("name: a", "name: health"),
            "has a name that",
        ),
        (
            "no port of ours",
            "listeners",
            at("socket_address: {address: '::', port_value: 9901}"),
            "listens on port 9901",
        ),
        (
            "nor a further one",
            "listeners",
            listener(
                "address: {socket_address: {address: '::', port_value: 80}}, additional_addresses: [{address: \
                 {socket_address: {address: '::', port_value: 8443}}}]",
            ),
            "listens on port 8443",
        ),
        (
            "no pipe",
            "listeners",
            at("pipe: {path: /tmp/a}"),
            "listens on something other",
        ),
        (
            "no listener without an address",
            "listeners",
            listener("internal_listener: {}"),
            "listens on something other",
        ),
        (
            "no way to the admin interface",
            "endpoints",
            to("127.0.0.1", "9901"),
            "leads to port 9901",
        ),
        (
            "nor by another form",
            "endpoints",
            to("::ffff:127.0.0.1", "'9901'"),
            "leads to port 9901",
        ),
        (
            "no control plane",
            "endpoints",
            to("a.yoke-bcdfghjk24.svc", "6443"),
            "names a.yoke-bcdfghjk24.svc",
        ),
        (
            "by any of its names",
            "endpoints",
            to("A.Yoke-bcdfghjk24", "6443"),
            "names A.Yoke-bcdfghjk24",
        ),
        (
            "no route to our clusters",
            "routes",
            route("cluster: admin"),
            "leads to admin",
        ),
        (
            "drawn or not",
            "routes",
            route("weighted_clusters: {clusters: [{name: a, weight: 1}, {name: gate, weight: 1}]}"),
            "leads to gate",
        ),
        (
            "nor to a tenant's",
            "routes",
            route("cluster: name/a"),
            "leads to name/a",
        ),
        (
            "in an extension either",
            "listeners",
            proxy("cluster: name/a"),
            "leads to name/a",
        ),
        (
            "no choice by a header",
            "routes",
            route("clusterHeader: x-to"),
            "lets a client choose the cluster by clusterHeader",
        ),
        (
            "nor by the name that TLS begins with",
            "listeners",
            filter(
                "sni",
                "'@type': type.googleapis.com/envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
            ),
            "lets a client choose the cluster by type.googleapis.com/",
        ),
        (
            "an unknown extension",
            "listeners",
            filter("new", "'@type': type.googleapis.com/envoy.extensions.New"),
            "message 'envoy.extensions.New' not found",
        ),
        (
            "no cluster that leads where a client says",
            "clusters",
            "[{name: a, type: ORIGINAL_DST, original_dst_lb_config: {use_http_header: true}}]".into(),
            "has an unsupported type; allowed are STATIC",
        ),
        (
            "in its newer form either",
            "clusters",
            "[{name: a, cluster_type: {name: envoy.cluster.original_dst}}]".into(),
            "has an unsupported type; allowed are STATIC",
        ),
        (
            "no endpoints by another name",
            "clusters",
            eds("service_name: b"),
            "has endpoints of another name, b",
        ),
        (
            "no wait for ever",
            "clusters",
            eds("eds_config: {ads: {}, initial_fetch_timeout: 0s}"),
            "sets initial_fetch_timeout",
        ),
        (
            "nothing from our own server by another way",
            "clusters",
            eds("eds_config: {api_config_source: {api_type: GRPC, cluster_names: [xds]}}"),
            "leads to xds",
        ),
        (
            "nothing without an end",
            "clusters",
            "[".repeat(10_000),
            "reading the key clusters",
        ),
    ] {
        let error = read(&map(&[(key, &text)]), &PORTS).expect_err(rule);
        let chain = to_chain(&error);
        assert!(chain.contains(reason), "{rule}: {chain}");
    }
    for (rule, key, text) in [
        ("a listener of their own", "listeners", proxy("cluster: admins")),
        (
            "that name elsewhere",
            "routes",
            route("cluster: a, prefix_rewrite: /admin"),
        ),
        ("endpoints by its own name", "clusters", eds("service_name: a")),
        (
            "names of DNS in their newer form",
            "clusters",
            "[{name: a, cluster_type: {name: envoy.cluster.dns, typed_config: {'@type': \
             type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster}}}]"
                .into(),
        ),
        ("their port on another machine", "endpoints", to("192.0.2.1", "9901")),
        ("another namespace of theirs", "endpoints", to("a.yoke-web.svc", "80")),
    ] {
        let read = read(&map(&[(key, &text)]), &PORTS);
        assert!(read.is_ok(), "{rule}: {read:?}");
    }
}

/// All values inside a value, as paths.
fn paths(value: &Value) -> Vec<String> {
    let mut paths = vec![String::new()];
    let members: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(members) => (0..).map(|index: u32| index.to_string()).zip(members).collect(),
        _ => vec![],
    };
    for (name, member) in members {
        let name = name.replace('~', "~0").replace('/', "~1");
        paths.extend(self::paths(member).iter().map(|path| format!("/{name}{path}")));
    }
    paths
}

/// A panic would end the process, and each restarted one as well.
#[test]
fn no_config_map_ends_the_process() {
    let good = serde_json::json!([{
        "name": "a",
        "address": {"socketAddress": {"address": "::", "portValue": 80}},
        "bindToPort": true,
        "drainType": "MODIFY_ONLY",
        "listenerFiltersTimeout": "1.5s",
        "metadata": {"filterMetadata": {"a": {"b": [null, true, 1.5, "c", {}]}}},
        "filterChains": [{"filters": [{"name": "http", "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "statPrefix": "a",
            "tracing": {"randomSampling": {"value": 12.5}},
            "routeConfig": {"virtualHosts": [{
                "name": "a",
                "domains": ["*"],
                "routes": [{
                    "match": {"prefix": "/"},
                    "directResponse": {"status": 200, "body": {"inlineBytes": "YQ=="}},
                    "typedPerFilterConfig": {"a": {
                        "@type": "type.googleapis.com/google.protobuf.Duration",
                        "value": "1s",
                    }},
                }],
            }]},
        }}]}],
    }]);
    let others = [
        serde_json::json!(null),
        serde_json::json!(true),
        serde_json::json!(-1),
        serde_json::json!(u64::MAX),
        serde_json::json!(-1e300),
        serde_json::json!(""),
        serde_json::json!("-9223372036854775808.9999999999s"),
        serde_json::json!("\u{e9}s"),
        serde_json::json!([[]]),
        serde_json::json!({"": {}}),
        serde_json::json!({"@type": "/"}),
        serde_json::json!({"@type": "type.googleapis.com/google.protobuf.Any", "value": {}}),
    ];
    let pool = read::decode_pool();
    let read = |value: &Value| read::read_with(&pool, &map(&[("listeners", &value.to_string())]), &PORTS);
    assert_eq!(read(&good).unwrap().len(), 1);
    let (mut taken, mut refused) = (0, 0);
    for path in paths(&good) {
        for other in &others {
            let mut value = good.clone();
            value.pointer_mut(&path).unwrap().clone_from(other);
            match read(&value) {
                Ok(_) => taken += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(taken > 0 && refused > taken, "{taken} {refused}");
}

fn names(tracker: &Tracker) -> Option<Vec<String>> {
    let served = tracker.served()?;
    Some(served.names(ResourceKind::Cluster).map(ToString::to_string).collect())
}

fn refuse(tracker: &Tracker, name: &str) -> Input {
    Input::Refused(Rejection {
        kind: ResourceKind::Cluster,
        name: name.into(),
        version: tracker
            .served()
            .unwrap()
            .get(ResourceKind::Cluster, name)
            .unwrap()
            .version
            .clone(),
        reason: "no".into(),
    })
}

#[test]
fn the_newest_good_one_is_served() {
    let mut tracker = Tracker::new(&PORTS);
    assert!(tracker.served().is_none() && !tracker.is_listed());
    assert_eq!(tracker.apply(Input::Seen(Watched::Listed([].into()))), None);
    assert!(tracker.is_listed());
    assert_eq!(names(&tracker), Some(vec![]), "without a ConfigMap there is nothing");

    let notice = tracker.apply(seen(&[("clusters", "[{name: a}]")])).unwrap();
    assert_eq!(
        (notice.refused, notice.note.as_str()),
        (false, "1 resources are served.")
    );
    assert_eq!(names(&tracker), Some(vec!["a".into()]));
    assert_eq!(
        tracker.apply(seen(&[("clusters", "[{name: a}]")])),
        None,
        "the same again"
    );

    let notice = tracker.apply(seen(&[("clusters", "[{}]")])).unwrap();
    assert_eq!(
        notice.note,
        "clusters[0] has no name. The last good configuration is still served."
    );
    assert_eq!(names(&tracker), Some(vec!["a".into()]));
    assert!(tracker.is_refused());
    assert_eq!(tracker.apply(seen(&[("clusters", "[{}]")])), None, "it is said once");

    tracker.apply(seen(&[("clusters", "[{name: b}]")])).unwrap();
    let late = refuse(&tracker, "b");
    let notice = tracker.apply(refuse(&tracker, "b")).unwrap();
    assert_eq!(
        notice.note,
        "Envoy rejected b: no. The last good configuration is still served."
    );
    assert_eq!(names(&tracker), Some(vec!["a".into()]));
    assert_eq!(tracker.apply(late), None, "another Envoy says the same");
    assert_eq!(
        tracker.apply(seen(&[("clusters", "[{name: b}]")])),
        None,
        "it is not tried again"
    );
    assert_eq!(names(&tracker), Some(vec!["a".into()]));

    let notice = tracker.apply(seen(&[("clusters", "[{name: a}]")])).unwrap();
    assert!(!notice.refused && !tracker.is_refused(), "it is mended");
    let gone = Watched::Deleted(ObjectKey::of(&map(&[]).metadata));
    tracker.apply(Input::Seen(gone)).unwrap();
    assert_eq!(names(&tracker), Some(vec![]));
}

#[test]
fn without_a_good_configuration_none_is_served() {
    let mut tracker = Tracker::new(&PORTS);
    let notice = tracker.apply(seen(&[("clusters", "[{}]")])).unwrap();
    assert!(
        notice
            .note
            .ends_with("Each Envoy continues with the resources that it has.")
    );
    assert_eq!(names(&tracker), None);
    tracker.apply(seen(&[("clusters", "[{name: a}]")])).unwrap();
    tracker.apply(refuse(&tracker, "a")).unwrap();
    assert_eq!(names(&tracker), None);

    // The refused resource may be part of the previous configuration too.
    tracker.apply(seen(&[("clusters", "[{name: b}]")])).unwrap();
    tracker.apply(seen(&[("clusters", "[{name: b}, {name: c}]")])).unwrap();
    tracker.apply(refuse(&tracker, "b")).unwrap();
    assert_eq!(names(&tracker), None);
}
