use k8s_openapi::api::core::v1::ConfigMap;
use yoke_api::ingress::{Callers, IgnoredAgents, IngressConfig};

use super::*;
use crate::test_util::fixtures::{BASE_DOMAIN, ClusterFixture, cluster, pems, since};

fn rules() -> Rules {
    Rules::new(BASE_DOMAIN)
}

fn good() -> ClusterFixture {
    cluster("a", "bcdfghjk24")
}

fn with(change: impl Fn(&mut IngressConfig)) -> ConfigMap {
    let mut fixture = good();
    let metadata = fixture.config_map().metadata;
    change(&mut fixture.config);
    // Name and namespace stay valid, whatever the text is.
    ConfigMap {
        metadata,
        ..fixture.config_map()
    }
}

fn text(text: &str) -> ConfigMap {
    let mut object = good().config_map();
    object.data = Some([(CONFIG_KEY.to_owned(), text.to_owned())].into());
    object
}

#[test]
fn config_maps_of_the_operator_are_valid() {
    let names = ["api.example.org", "zz.example.org"];
    let config = validate_config(&rules(), &good().with_extra_names(&names).config_map()).unwrap();
    assert_eq!(config.route.namespace, "yoke-bcdfghjk24");
    assert_eq!(config.route.public_name, "a-bcdfghjk.yoke.test");
    assert_eq!(config.route.extra_names, names);
    assert_eq!(config.route.service, "a");
    assert!(config.refused_names.is_empty());
}

#[test]
fn no_config_map_can_impersonate_another_cluster() {
    for (rule, field, object) in [
        ("other identity", "id", with(|c| c.id = "zzzzzzzz24".parse().unwrap())),
        ("other cluster's name", "publicName", with(|c| c.cluster = "b".into())),
        (
            "public name of another",
            "publicName",
            with(|c| c.public_name = cluster("b", "zzzzzzzz24").config.public_name),
        ),
        (
            "issuer of another",
            "issuer",
            with(|c| c.issuer = "https://b-zzzzzzzz.yoke.test".into()),
        ),
        (
            "upstream of another",
            "upstream.serverName",
            with(|c| c.upstream.server_name = "b.yoke-zzzzzzzz24.svc".into()),
        ),
    ] {
        let error = validate_config(&rules(), &object).unwrap_err();
        let found = matches!(&error, ConfigError::Mismatch { field: found, .. } if *found == field);
        assert!(found, "{rule}: {error:?}");
    }
}

#[test]
fn invalid_forms_are_refused() {
    let long = "n".repeat(300);
    for (rule, object, expected) in [
        ("wildcard as cluster", with(|c| c.cluster = "*".into()), "cluster"),
        ("dot as cluster", with(|c| c.cluster = ".".into()), "cluster"),
        ("slash in the cluster", with(|c| c.cluster = "a/b".into()), "cluster"),
        ("long cluster", with(|c| c.cluster.clone_from(&long)), "cluster"),
        ("empty tenant", with(|c| c.tenant = String::new()), "tenant"),
        (
            "service elsewhere",
            with(|c| c.upstream.service = "b.other".into()),
            "upstream.service",
        ),
    ] {
        let error = validate_config(&rules(), &object).unwrap_err();
        let found = matches!(&error, ConfigError::InvalidName { field, .. } if *field == expected);
        assert!(found, "{rule}: {error:?}");
    }
}

#[test]
fn broken_trust_is_refused() {
    let broken = pems().0.replace("MII", "AAA");
    for (rule, object) in [
        ("no client CA", with(|c| c.client_ca = String::new())),
        ("client CA is no PEM", with(|c| c.client_ca = "PEM".into())),
        (
            "client CA is no certificate",
            with(|c| c.client_ca.clone_from(&pems().1)),
        ),
        ("broken upstream CA", with(|c| c.upstream.ca.clone_from(&broken))),
    ] {
        let error = validate_config(&rules(), &object).unwrap_err();
        assert!(matches!(error, ConfigError::Certificates { .. }), "{rule}: {error:?}");
    }
    for (rule, object) in [
        ("key is no PEM", with(|c| c.service_account_keys.push("PEM".into()))),
        (
            "key is a certificate",
            with(|c| c.service_account_keys.push(pems().0.clone())),
        ),
    ] {
        let error = validate_config(&rules(), &object).unwrap_err();
        assert!(matches!(error, ConfigError::Key { index: 1, .. }), "{rule}: {error:?}");
    }
}

#[test]
fn wrong_objects_are_refused() {
    let mut elsewhere = good().config_map();
    elsewhere.metadata.namespace = Some("default".into());
    let mut named = good().config_map();
    named.metadata.name = Some("yoke-ingress-2".into());
    for object in [elsewhere, named] {
        assert!(matches!(
            validate_config(&rules(), &object),
            Err(ConfigError::WrongObject)
        ));
    }
    let empty = ConfigMap {
        data: None,
        ..good().config_map()
    };
    assert!(matches!(validate_config(&rules(), &empty), Err(ConfigError::Missing)));
    assert!(matches!(
        validate_config(&rules(), &text("{")),
        Err(ConfigError::Read(_))
    ));
    let long = " ".repeat(MAX_CONFIG_BYTES + 1);
    assert!(matches!(
        validate_config(&rules(), &text(&long)),
        Err(ConfigError::Size)
    ));
    let keys = with(|c| c.service_account_keys = vec![pems().1.clone(); 17]);
    assert!(matches!(
        validate_config(&rules(), &keys),
        Err(ConfigError::TooMany { given: 17, .. })
    ));
    let agents = with(|c| {
        c.asleep = Some(Asleep::OnConnect {
            callers: Callers::Any,
            ignored_agents: IgnoredAgents((0..65).map(|number| number.to_string()).collect()),
            since: since(),
            uid: "u-1".into(),
        });
    });
    assert!(matches!(
        validate_config(&rules(), &agents),
        Err(ConfigError::TooMany { given: 65, .. })
    ));
}

#[test]
fn bad_extra_names_are_left_out() {
    let long = format!("{}.example.org", "n".repeat(64));
    let refused = [
        "*.example.org",
        "10.0.0.1",
        "Upper.example.org",
        "a..org",
        "kubernetes.example.org",
        "pod.cluster.local",
        "single",
        "x.yoke-bcdfghjk24.svc",
        "yoke.test",
        "b-zzzzzzzz.yoke.test",
        "name/a.example.org",
        long.as_str(),
    ];
    let mut names = refused.to_vec();
    names.push("api.example.org");
    let config = validate_config(&rules(), &good().with_extra_names(&names).config_map()).unwrap();
    assert_eq!(config.route.extra_names, ["api.example.org"]);
    let mut expected = refused.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(config.refused_names, expected);
}

#[test]
fn ready_addresses_are_used() {
    let addresses = [
        "10.0.0.2",
        "10.0.0.1",
        "10.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "169.254.169.254",
        "255.255.255.255",
        "api.example.org",
        "",
    ];
    let mut object = good().at(&addresses, 6443).slice();
    let mut waiting = object.endpoints[0].clone();
    waiting.addresses = vec!["10.0.0.3".into()];
    waiting.conditions.as_mut().unwrap().ready = Some(false);
    object.endpoints.push(waiting);
    let slice = validate_slice(&rules(), &object).unwrap();
    assert_eq!(slice.service, "a");
    let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
    assert_eq!(slice.addresses.into_iter().collect::<Vec<_>>(), expected);
}

/// Kubernetes writes neither addresses nor ports while no pod exists. The cluster then has no
/// address, not its previous ones.
#[test]
fn a_slice_without_addresses_needs_no_port() {
    let mut object = good().at(&[], 6443).slice();
    object.ports = None;
    object.endpoints = vec![];
    assert!(validate_slice(&rules(), &object).unwrap().addresses.is_empty());
}

#[test]
fn local_addresses_of_the_other_family_are_not_used() {
    let mut object = good()
        .at(
            &["fd00::1", "::1", "::", "fe80::1", "ff02::1", "::ffff:127.0.0.1"],
            6443,
        )
        .slice();
    object.address_type = "IPv6".into();
    let slice = validate_slice(&rules(), &object).unwrap();
    assert_eq!(slice.addresses, BTreeSet::from(["fd00::1".parse().unwrap()]));
}

#[test]
fn wrong_slices_are_refused() {
    let relabelled = |key: &str, value: Option<&str>| {
        let mut object = good().slice();
        let labels = object.metadata.labels.as_mut().unwrap();
        match value {
            Some(value) => labels.insert(key.into(), value.into()),
            None => labels.remove(key),
        };
        object
    };
    for (rule, object) in [
        ("other identity", relabelled(labels::ID, Some("zzzzzzzz24"))),
        ("no identity", relabelled(labels::ID, None)),
        ("other component", relabelled(labels::COMPONENT, Some("store"))),
        ("no service", relabelled(SERVICE_NAME, None)),
        ("service is no label", relabelled(SERVICE_NAME, Some("a/b"))),
    ] {
        assert!(
            matches!(validate_slice(&rules(), &object), Err(SliceError::WrongObject)),
            "{rule}"
        );
    }
    let other_port = good().at(&["10.0.0.1"], 443).slice();
    assert!(matches!(
        validate_slice(&rules(), &other_port),
        Err(SliceError::Port { expected: 6443 })
    ));
    let mut names = good().slice();
    names.address_type = "FQDN".into();
    assert!(matches!(validate_slice(&rules(), &names), Err(SliceError::Type(_))));
}
