use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::cluster::validate::*;
use crate::fixtures::{ID, argument, around, cluster, config, identity, made_at, tenant, with};
use crate::model::cluster_summary::ClusterSummary;

fn reason(cluster: &Cluster, around: &ValidationContext<'_, '_>) -> Option<Reason> {
    validate(cluster, &identity(cluster), around)
        .err()
        .map(|refusal| refusal.reason)
}

fn outline(cluster: &Cluster) -> Arc<ClusterSummary> {
    Arc::new(ClusterSummary::of(cluster))
}

#[test]
fn default_cluster_is_accepted() {
    let (config, tenant, cluster) = (config(), tenant(), cluster("a"));
    let accepted = validate(&cluster, &identity(&cluster), &around(&config, &tenant, &[])).unwrap();
    assert_eq!(accepted.version.to_string(), "v1.35.4");
    assert_eq!(accepted.class.name, "single");
    assert_eq!(accepted.quota, 256 << 20);
    assert_eq!(accepted.plan.leaves.len(), 7);
}

#[test]
fn specs_are_refused_for_their_reason() {
    let (config, tenant) = (config(), tenant());
    type Change = fn(&mut yoke_api::ClusterSpec);
    let rows: [(&str, Change, Option<Reason>); 22] = [
        (
            "schedule in a place that is none",
            |spec| {
                let schedule = yoke_api::sleep::SleepSchedule {
                    wake: Some("0 8 * * *".into()),
                    time_zone: Some("Europe/Atlantis".into()),
                    ..Default::default()
                };
                spec.sleep.schedules = vec![schedule];
            },
            Some(Reason::ScheduleInvalid),
        ),
        (
            "another offered version",
            |spec| spec.version = Some("1.35.5".into()),
            None,
        ),
        (
            "unknown version",
            |spec| spec.version = Some("v1.36.0".into()),
            Some(Reason::UnknownVersion),
        ),
        (
            "no version",
            |spec| spec.version = Some("latest".into()),
            Some(Reason::UnknownVersion),
        ),
        (
            "class not given to the Tenant",
            |spec| spec.class = Some("replicated".into()),
            Some(Reason::UnknownClass),
        ),
        (
            "class that is not there",
            |spec| spec.class = Some("gold".into()),
            Some(Reason::UnknownClass),
        ),
        ("default class by name", |spec| spec.class = Some("single".into()), None),
        (
            "service range",
            |spec| spec.network.service_cidr = "10.0.0.0/16".into(),
            Some(Reason::NetworkNotOffered),
        ),
        (
            "cluster domain",
            |spec| spec.network.cluster_domain = "a.local".into(),
            Some(Reason::NetworkNotOffered),
        ),
        (
            "pods over services",
            |spec| spec.network.pod_cidr = "10.96.0.0/12".into(),
            Some(Reason::NetworkNotOffered),
        ),
        (
            "pod range with host bits",
            |spec| spec.network.pod_cidr = "10.244.0.1/16".into(),
            Some(Reason::NetworkNotOffered),
        ),
        (
            "quota of the Tenant",
            |spec| spec.storage.quota = Quantity("2Gi".into()),
            Some(Reason::QuotaExceeded),
        ),
        (
            "quota that is no size",
            |spec| spec.storage.quota = Quantity("many".into()),
            Some(Reason::QuotaExceeded),
        ),
        (
            "own host name",
            |spec| spec.endpoint.extra_sans = vec!["api.example.org".into()],
            None,
        ),
        (
            "foreign host name",
            |spec| spec.endpoint.extra_sans = vec!["api.example.com".into()],
            Some(Reason::HostnameNotAllowed),
        ),
        (
            "host name under the base domain",
            |spec| spec.endpoint.extra_sans = vec!["b-zzzzzzzz.yoke.test".into()],
            Some(Reason::HostnameNotAllowed),
        ),
        (
            "host name that clusters use inside",
            |spec| spec.endpoint.extra_sans = vec!["kubernetes.example.org".into()],
            Some(Reason::HostnameNotAllowed),
        ),
        (
            "address as host name",
            |spec| spec.endpoint.extra_sans = vec!["10.96.0.1".into()],
            Some(Reason::HostnameNotAllowed),
        ),
        (
            "source ranges",
            |spec| spec.endpoint.allowed_cidrs = vec!["192.0.2.0/24".into(), "2001:db8::/32".into()],
            None,
        ),
        (
            "source range with host bits",
            |spec| spec.endpoint.allowed_cidrs = vec!["192.0.2.0/24".into(), "192.0.2.1/24".into()],
            Some(Reason::SourceRangeInvalid),
        ),
        (
            "source address without a prefix",
            |spec| spec.endpoint.allowed_cidrs = vec!["192.0.2.1".into()],
            Some(Reason::SourceRangeInvalid),
        ),
        (
            "lifetimes",
            |spec| spec.pki.ca_overlap = "8760h".into(),
            Some(Reason::LifetimeInvalid),
        ),
    ];
    for (rule, change, expected) in rows {
        let cluster = with(cluster("a"), change);
        assert_eq!(reason(&cluster, &around(&config, &tenant, &[])), expected, "{rule}");
    }
}

#[test]
fn names_are_checked() {
    let (config, tenant) = (config(), tenant());
    for (name, good) in [
        ("a", true),
        ("a-1", true),
        ("1a", false),
        ("a.b", false),
        (&"n".repeat(40), true),
        (&"n".repeat(41), false),
    ] {
        let refused = reason(&cluster(name), &around(&config, &tenant, &[]));
        assert_eq!(refused, (!good).then_some(Reason::NameInvalid), "{name}");
    }
}

#[test]
fn arguments_are_those_of_the_list() {
    let (config, tenant) = (config(), tenant());
    for (rule, arguments, good) in [
        ("allowed", vec![argument("event-ttl", "2h")], true),
        ("not allowed", vec![argument("etcd-servers", "http://10.0.0.1")], false),
        (
            "OIDC without client",
            vec![argument("oidc-issuer-url", "https://id.example")],
            false,
        ),
        (
            "OIDC without TLS",
            vec![
                argument("oidc-issuer-url", "http://id.example"),
                argument("oidc-client-id", "a"),
            ],
            false,
        ),
        (
            "OIDC on another port",
            vec![
                argument("oidc-issuer-url", "https://id.example:8443/realm"),
                argument("oidc-client-id", "a"),
            ],
            false,
        ),
        (
            "OIDC",
            vec![
                argument("oidc-issuer-url", "https://id.example"),
                argument("oidc-client-id", "a"),
            ],
            true,
        ),
    ] {
        let cluster = with(cluster("a"), |spec| spec.extra_args.api_server = arguments);
        let refused = reason(&cluster, &around(&config, &tenant, &[]));
        assert_eq!(refused, (!good).then_some(Reason::ArgumentNotAllowed), "{rule}");
    }
}

#[test]
fn tenant_must_own_the_namespace() {
    let (config, tenant) = (config(), tenant());
    let cluster = cluster("a");
    let mut surroundings = around(&config, &tenant, &[]);
    surroundings.namespace_is_tenants = false;
    assert_eq!(reason(&cluster, &surroundings), Some(Reason::TenantMissing));
    surroundings.tenant = None;
    assert_eq!(reason(&cluster, &surroundings), Some(Reason::TenantMissing));
}

#[test]
fn version_changes_follow_the_skew_policy() {
    let (config, tenant) = (config(), tenant());
    for (running, wanted, expected) in [
        ("v1.35.4", Some("v1.35.5"), None),
        ("v1.35.5", Some("v1.35.4"), None),
        ("v1.36.0", Some("v1.35.5"), Some(Reason::VersionChangeRefused)),
        ("v1.35.5", None, None),
        ("v1.35.3", None, Some(Reason::UnknownVersion)),
    ] {
        let cluster = with(cluster("a"), |spec| spec.version = wanted.map(str::to_owned));
        let mut surroundings = around(&config, &tenant, &[]);
        surroundings.running = Some(running.parse().unwrap());
        assert_eq!(reason(&cluster, &surroundings), expected, "{running} to {wanted:?}");
    }
    // Without a requested version the running one stays, whatever the host's default becomes.
    let cluster = cluster("a");
    let mut surroundings = around(&config, &tenant, &[]);
    surroundings.running = Some("v1.35.5".parse().unwrap());
    let accepted = validate(&cluster, &identity(&cluster), &surroundings).unwrap();
    assert_eq!(accepted.version.to_string(), "v1.35.5");
}

#[test]
fn no_minor_version_is_left_out() {
    let (mut config, tenant) = (config(), tenant());
    for version in ["v1.36.0", "v1.36.2", "v1.37.0"] {
        let mut newer = config.versions[0].clone();
        newer.version = version.into();
        config.versions.push(newer);
    }
    let run = |running: &str, answered: Option<&str>, wanted: &str| {
        let cluster = with(cluster("a"), |spec| spec.version = Some(wanted.into()));
        let mut surroundings = around(&config, &tenant, &[]);
        surroundings.running = Some(running.parse().unwrap());
        surroundings.answered = answered.map(|answered| answered.parse().unwrap());
        let accepted = validate(&cluster, &identity(&cluster), &surroundings);
        accepted.map(|accepted| {
            let heads_for = accepted.heads_for.map(|version| version.to_string());
            (accepted.version.to_string(), heads_for)
        })
    };
    let reached = Some("v1.35.4");
    for (rule, running, answered, wanted, expected) in [
        ("one that answered", "v1.36.2", Some("v1.36.2"), "v1.37.0", "v1.37.0"),
        ("asked for in sleep", "v1.36.2", reached, "v1.37.0", "v1.36.2"),
        ("never came up", "v1.36.0", reached, "v1.36.0", "v1.36.0"),
        ("its next patch may", "v1.36.0", reached, "v1.37.0", "v1.36.2"),
        ("two during a pause", "v1.35.4", reached, "v1.37.0", "v1.36.2"),
        ("it is offered no more", "v1.36.7", reached, "v1.37.0", "v1.36.2"),
        ("three behind", "v1.34.9", Some("v1.34.9"), "v1.37.0", "v1.35.5"),
        ("left out before", "v1.37.0", reached, "v1.37.0", "v1.37.0"),
        ("nothing is stored yet", "v1.36.0", None, "v1.37.0", "v1.37.0"),
    ] {
        let heads_for = (expected != wanted).then(|| wanted.to_owned());
        let found = run(running, answered, wanted);
        assert_eq!(found, Ok((expected.to_owned(), heads_for)), "{rule}");
    }
    let unknown = run("v1.36.0", reached, "v1.37.9").unwrap_err();
    assert_eq!(unknown.reason, Reason::UnknownVersion, "it is asked for at once");
    let refused = run("v1.33.1", Some("v1.33.1"), "v1.37.0").unwrap_err();
    assert_eq!(refused.reason, Reason::VersionChangeRefused);
    assert!(refused.message.contains("v1.34"), "{}", refused.message);
}

#[test]
fn no_version_is_begun_that_is_too_new_for_a_kubelet() {
    let (mut config, tenant) = (config(), tenant());
    let mut newer = config.versions[0].clone();
    newer.version = "v1.36.0".into();
    config.versions.push(newer);
    for (oldest, wanted, expected) in [
        (Some("v1.33.0"), "v1.36.0", None),
        (Some("v1.32.9"), "v1.36.0", Some(Reason::VersionChangeRefused)),
        (Some("v1.30.0"), "v1.35.5", None),
        (Some("nonsense"), "v1.36.0", None),
        (None, "v1.36.0", None),
    ] {
        let mut cluster = with(cluster("a"), |spec| spec.version = Some(wanted.into()));
        let workers = yoke_api::workers::WorkersStatus {
            oldest_version: oldest.map(str::to_owned),
            ..Default::default()
        };
        cluster.status.get_or_insert_default().workers = Some(workers);
        let mut surroundings = around(&config, &tenant, &[]);
        surroundings.running = Some("v1.35.4".parse().unwrap());
        assert_eq!(reason(&cluster, &surroundings), expected, "{oldest:?} and {wanted}");
    }
}

#[test]
fn the_older_comes_first() {
    let (config, tenant) = (config(), tenant());
    let other_id = |cluster, id: &str| with(cluster, |spec| spec.id = Some(id.into()));
    let named = |cluster| {
        with(cluster, |spec| {
            spec.endpoint.extra_sans = vec!["api.example.org".into()]
        })
    };
    for (rule, other, mine, expected) in [
        (
            "same identity",
            cluster("b"),
            cluster("a"),
            Some(Reason::IdentityConflict),
        ),
        (
            "same host name",
            other_id(named(cluster("b")), "zzzzzzzzz2"),
            named(cluster("a")),
            Some(Reason::HostnameConflict),
        ),
        (
            "another identity",
            other_id(cluster("b"), "zzzzzzzzz2"),
            cluster("a"),
            None,
        ),
    ] {
        let older = [outline(&made_at(other.clone(), 50))];
        assert_eq!(
            reason(&mine, &around(&config, &tenant, &older)),
            expected,
            "{rule}, older"
        );
        let younger = [outline(&made_at(other, 150))];
        assert_eq!(
            reason(&mine, &around(&config, &tenant, &younger)),
            None,
            "{rule}, younger"
        );
    }
}

#[test]
fn clusters_that_do_not_fit_take_nothing_from_others() {
    let (config, tenant) = (config(), tenant());
    let sized = |name: &str, id: &str, second, quota: &str| {
        outline(&with(made_at(cluster(name), second), |spec| {
            spec.id = Some(id.into());
            spec.storage.quota = Quantity(quota.into());
        }))
    };
    let mine = cluster("a");
    for (rule, others, expected) in [
        ("one older", vec![sized("b", "zzzzzzzzz2", 1, "768Mi")], None),
        (
            "no room left",
            vec![sized("b", "zzzzzzzzz2", 1, "769Mi")],
            Some(Reason::QuotaExceeded),
        ),
        (
            "the oldest is refused itself",
            vec![
                sized("b", "zzzzzzzzz2", 1, "100Gi"),
                sized("c", "zzzzzzzzz4", 2, "256Mi"),
            ],
            None,
        ),
        (
            "number",
            vec![sized("b", "zzzzzzzzz2", 1, "1Mi"), sized("c", "zzzzzzzzz4", 2, "1Mi")],
            Some(Reason::QuotaExceeded),
        ),
        (
            "younger ones do not count",
            vec![
                sized("b", "zzzzzzzzz2", 200, "768Mi"),
                sized("c", "zzzzzzzzz4", 201, "768Mi"),
            ],
            None,
        ),
    ] {
        assert_eq!(reason(&mine, &around(&config, &tenant, &others)), expected, "{rule}");
    }
}

#[test]
fn data_that_was_retained_counts() {
    let (config, tenant) = (config(), tenant());
    for (mebibytes, expected) in [(768, None), (769, Some(Reason::QuotaExceeded))] {
        let mut around = around(&config, &tenant, &[]);
        around.reserved = Arc::new([("zzzzzzzzz2".parse().unwrap(), mebibytes << 20)].into());
        assert_eq!(reason(&cluster("a"), &around), expected, "{mebibytes} MiB");
    }
}

#[test]
fn what_stores_have_counts_whatever_their_specs_say() {
    let (config, tenant) = (config(), tenant());
    let mine = cluster("a");
    let other = |second: i64, quota: &str| {
        let other = with(made_at(cluster("b"), second), |spec| {
            spec.id = Some("zzzzzzzzz2".into());
            spec.storage.quota = Quantity(quota.into());
        });
        vec![outline(&mine), outline(&other)]
    };
    let refused = Some(Reason::QuotaExceeded);
    for (rule, others, own, theirs, expected) in [
        ("older, asks for less than it has", other(1, "1Mi"), 0, 769, refused),
        (
            "older, asks for too much and is kept",
            other(1, "100Gi"),
            0,
            769,
            refused,
        ),
        ("older, leaves room", other(1, "1Mi"), 0, 768, None),
        ("younger, and this one has its store", other(200, "1Mi"), 256, 769, None),
        (
            "younger, and this one asks for more",
            other(200, "1Mi"),
            255,
            769,
            refused,
        ),
    ] {
        let mut around = around(&config, &tenant, &others);
        let sizes = [(ID, own), ("zzzzzzzzz2", theirs)];
        let sizes = sizes.map(|(id, mebibytes)| (id.parse().unwrap(), mebibytes << 20));
        around.reserved = Arc::new(sizes.into());
        assert_eq!(reason(&mine, &around), expected, "{rule}");
    }
}

#[test]
fn a_name_that_another_may_not_claim_is_free() {
    let (config, mine, named) = (config(), tenant(), |mut cluster: Cluster, namespace: &str| {
        cluster.metadata.namespace = Some(namespace.into());
        with(cluster, |spec| {
            spec.endpoint.extra_sans = vec!["api.example.org".into()]
        })
    });
    let cluster = named(cluster("a"), "demo");
    let older = with(made_at(named(cluster.clone(), "other"), 50), |spec| {
        spec.id = Some("zzzzzzzzz2".into())
    });
    let mut older = older;
    older.metadata.uid = Some("uid-other".into());
    let older = [outline(&older)];
    let other = |domains: &[&str]| {
        let mut other = Tenant::new("other", Default::default());
        other.spec.allowed_domains = domains.iter().map(|&domain| domain.into()).collect();
        vec![Arc::new(other)]
    };
    for (rule, tenants, expected) in [
        ("no Tenant", vec![], None),
        ("not its domain", other(&["example.com"]), None),
        (
            "its domain too",
            other(&["example.org"]),
            Some(Reason::HostnameConflict),
        ),
    ] {
        let mut surroundings = around(&config, &mine, &older);
        surroundings.tenants = &tenants;
        assert_eq!(reason(&cluster, &surroundings), expected, "{rule}");
    }
}

#[test]
fn only_an_older_cluster_takes_an_identity() {
    let mine = cluster("a");
    for (second, holds) in [(50, false), (150, true)] {
        let clusters = [outline(&mine), outline(&made_at(cluster("b"), second))];
        assert_eq!(holds_identity(&mine, &clusters), holds, "made at {second}");
    }
}

#[test]
fn names_are_had_as_long_as_they_may_be() {
    let (config, mine) = (config(), tenant());
    let named = |cluster: Cluster, names: &[&str]| {
        with(cluster, |spec| {
            spec.endpoint.extra_sans = names.iter().map(|&name| name.to_owned()).collect();
        })
    };
    let name = "api.example.org".to_owned();
    let older = |names: &[&str]| vec![outline(&made_at(named(cluster("b"), names), 50))];
    let younger = vec![outline(&made_at(named(cluster("b"), &[&name]), 150))];
    let mut without = mine.clone();
    without.spec.allowed_domains = vec!["example.net".into()];
    for (rule, names, tenant, others, expected) in [
        ("asked for", vec![name.as_str()], Some(&mine), vec![], true),
        ("not asked for", vec![], Some(&mine), vec![], false),
        ("withdrawn domain", vec![&name], Some(&without), vec![], false),
        ("no Tenant", vec![&name], None, vec![], false),
        ("an older claims it", vec![&name], Some(&mine), older(&[&name]), false),
        (
            "an older claims another",
            vec![&name],
            Some(&mine),
            older(&["b.example.org"]),
            true,
        ),
        ("a younger claims it", vec![&name], Some(&mine), younger, true),
    ] {
        let cluster = named(cluster("a"), &names);
        let mut surroundings = around(&config, &mine, &others);
        surroundings.tenant = tenant;
        assert_eq!(may_have(&cluster, &name, &surroundings), expected, "{rule}");
    }
}

#[test]
fn names_under_the_domain_of_another_tenant_are_refused() {
    let (config, mine) = (config(), tenant());
    let cluster = with(cluster("a"), |spec| {
        spec.endpoint.extra_sans = vec!["api.b.example.org".into()];
    });
    let mut narrow = mine.clone();
    narrow.spec.allowed_domains.push("b.example.org".into());
    let mut whole = mine.clone();
    whole.spec.allowed_domains = vec!["test".into()];
    let refused = Some(Reason::HostnameNotAllowed);
    for (rule, tenant, domains, expected) in [
        ("nobody else's", &mine, vec![], None),
        ("part of the domain is another's", &mine, vec!["b.example.org"], refused),
        ("the name is another's", &mine, vec!["api.b.example.org"], refused),
        ("another part is another's", &mine, vec!["c.example.org"], None),
        ("shared domain", &mine, vec!["example.org"], None),
        ("shared part", &narrow, vec!["b.example.org"], None),
        ("a part of another's domain", &narrow, vec!["example.org"], None),
    ] {
        let mut other = Tenant::new("other", Default::default());
        other.spec.allowed_domains = domains.into_iter().map(str::to_owned).collect();
        // The list of all Tenants includes this one.
        let tenants = [Arc::new(other), Arc::new(tenant.clone())];
        let mut surroundings = around(&config, tenant, &[]);
        surroundings.tenants = &tenants;
        assert_eq!(reason(&cluster, &surroundings), expected, "{rule}");
    }
    // No domain of a Tenant allows names under the host's own domain.
    for name in ["yoke.test", "a.yoke.test", "a.b.yoke.test"] {
        let cluster = with(cluster.clone(), |spec| spec.endpoint.extra_sans = vec![name.into()]);
        assert_eq!(reason(&cluster, &around(&config, &whole, &[])), refused, "{name}");
    }
}
