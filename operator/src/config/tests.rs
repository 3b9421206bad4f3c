use crate::config::*;

const GOOD: &str = include_str!("../../testdata/config.yaml");

#[test]
fn example_is_valid() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.default_version().to_string(), "v1.35.4");
    assert_eq!(config.class(None).unwrap().name, "single");
    assert_eq!(config.class(Some("replicated")).unwrap().store_replicas, 3);
    assert!(config.class(Some("other")).is_none());
    assert_eq!(config.max_store_replicas(), 3);
    assert!(config.version("1.35.5".parse().unwrap()).is_some());
    assert!(config.version("1.36.0".parse().unwrap()).is_none());
}

#[test]
fn errors_name_the_field() {
    for (from, to, field) in [
        ("baseDomain: yoke.test", "baseDomain: Yoke_test", "baseDomain"),
        ("tls://100.64.0.2:4222", "nats://100.64.0.2:4222", "nats.urls[0]"),
        ("tls://100.64.0.2:4222", "tls://nats.example:4222", "nats.urls[0]"),
        ("tls://100.64.0.2:4222", "tls://100.64.0.2:4223", "nats.urls[0]"),
        ("100.64.0.2/32", "100.64.0.2/33", "nats.cidrs[0]"),
        ("version: 1.35.4", "version: latest", "versions[0].version"),
        ("version: 1.35.5", "version: v1.35.4", "versions[1].version"),
        ("defaultVersion: 1.35.4", "defaultVersion: 1.34.0", "defaultVersion"),
        ("storeReplicas: 3", "storeReplicas: 2", "classes[1].storeReplicas"),
        ("defaultClass: single", "defaultClass: gold", "defaultClass"),
        ("name: replicated", "name: single", "classes[1].name"),
        ("10.96.0.0/16", "10.96.0.1/16", "serviceCIDRs[0]"),
        ("10.96.0.0/16", "10.96.0.0/29", "serviceCIDRs[0]"),
        (
            "runAsUser: 65532",
            "addons: {registry: ''}\nrunAsUser: 65532",
            "addons.registry",
        ),
        (
            "runAsUser: 65532",
            "worker: {digests: {amd64: abc}}\nrunAsUser: 65532",
            "worker.digests",
        ),
        (
            "runAsUser: 65532",
            "worker: {ssh: 'a; b'}\nrunAsUser: 65532",
            "worker.ssh",
        ),
        (
            "runAsUser: 65532",
            "oidc: {cidrs: [0.0.0.0/0, 10.0.0.1/8]}\nrunAsUser: 65532",
            "oidc.cidrs[1]",
        ),
        ("runAsUser: 65532", "oidc: {cidrs: []}\nrunAsUser: 65532", "oidc.cidrs"),
        (
            "runAsUser: 65532",
            "pricePerHour: 2 cents\nrunAsUser: 65532",
            "pricePerHour",
        ),
        (
            "runAsUser: 65532",
            "oidc: {cidrs: [0.0.0.0/0, 203.0.113.0/25], except: [203.0.113.0/24]}\nrunAsUser: 65532",
            "oidc.except[0]",
        ),
        ("runAsUser: 65532", "runAsUser: 0", "runAsUser"),
        (
            "- podSelector: {matchLabels: {app: prometheus}}",
            "- {podSelectors: {matchLabels: {app: prometheus}}}",
            "metricsFrom[1]",
        ),
        ("app.kubernetes.io/name: envoy", "", "ingress.pods[0].labels"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let text = if to.is_empty() {
            GOOD.replace("{app.kubernetes.io/name: envoy}", "{}")
        } else {
            GOOD.replacen(from, to, 1)
        };
        match Config::parse(&text) {
            Err(ConfigError::Value { field: at, .. }) => assert_eq!(at, field, "{from} -> {to}"),
            other => panic!("{from} -> {to}: {other:?}"),
        }
    }
}

#[test]
fn unknown_field_is_refused() {
    let text = format!("{GOOD}\nbaseDomian: x\n");
    assert!(matches!(Config::parse(&text), Err(ConfigError::Parse(_))));
}

/// The files contain what the chart renders, with all values and with few. `UPDATE=1 cargo xtask
/// check-chart` writes them.
#[test]
fn configurations_of_the_chart_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/chart");
    let read = |case: &str| {
        let text = std::fs::read_to_string(folder.join(case).with_extension("yaml")).unwrap();
        Config::parse(&text).unwrap_or_else(|error| panic!("{case}: {error:?}"))
    };
    for (case, cidrs, except, nameservers) in [
        ("minimal", &["0.0.0.0/0"][..], &[][..], &[][..]),
        ("development", &["0.0.0.0/0"], &[], &[]),
        (
            "everything",
            &["0.0.0.0/0", "10.20.0.0/16", "2000::/3"],
            &["203.0.113.0/24", "2001:db8::/32"],
            &["192.0.2.53", "2001:db8::53"],
        ),
    ] {
        let Config { oidc, metrics_from, .. } = read(case);
        assert_eq!(metrics_from.len(), usize::from(case == "everything"), "{case}");
        let found: Vec<_> = oidc.nameservers.iter().map(ToString::to_string).collect();
        assert_eq!(
            (oidc.cidrs, oidc.except),
            (to_strings(cidrs), to_strings(except)),
            "{case}"
        );
        assert_eq!(found, nameservers, "{case}");
    }
}

fn to_strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
