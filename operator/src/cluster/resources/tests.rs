//! Golden files: `testdata/build/<case>/in.yaml` to `out.<object>.yaml`, rewritten by `UPDATE=1`.
//! Other tests check rules for every Secret, whatever was issued.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::DeepMerge as _;
use serde::Serialize;
use yoke_api::Cluster;
use yoke_pki::plan::{AuthorityRole, LeafRole};
use yoke_pki::service_account::ServiceAccountKey;

use crate::cluster::accepted::Accepted;
use crate::cluster::resources::secrets::{Data, Sources};
use crate::cluster::resources::*;
use crate::cluster::validate;
use crate::fixtures::{around, cluster, config, identity, tenant};
use crate::host_nodes::loss::LostPod;
use crate::nats::streams;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/build");
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    cases
}

fn compare<T: Serialize>(case: &Path, object: &str, value: &T) {
    let path = case.join(format!("out.{object}.yaml"));
    let text = serde_saphyr::to_string(value).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}; UPDATE=1 writes it anew", path.display());
}

#[test]
fn objects_are_those_of_the_golden_files() {
    let cases = cases();
    assert!(cases.len() >= 2);
    for case in cases {
        let text = std::fs::read_to_string(case.join("in.yaml")).unwrap();
        let cluster: Cluster = serde_saphyr::from_str(&text).unwrap();
        let (config, mut tenant) = (config(), tenant());
        tenant.spec.allowed_classes = vec!["single".into(), "replicated".into()];
        let identity = identity(&cluster);
        let accepted = validate::validate(&cluster, &identity, &around(&config, &tenant, &[])).unwrap();
        let blueprint = Blueprint {
            identity: &identity,
            accepted: &accepted,
            spec: &cluster.spec,
            config: &config,
        };
        let start = stateful_set::Start {
            incarnation: 3,
            digest: "0123456789abcdef".into(),
            replicas: i32::from(cluster.spec.state == yoke_api::cluster::DesiredState::Running),
            first: 0,
            has_spare: streams::has_spare(accepted.class.store_replicas),
            has_konnectivity: cluster.spec.konnectivity.is_enabled(),
            lost: None,
        };
        let set = stateful_set::build_stateful_set(&blueprint, &start);
        let later = stateful_set::Start {
            incarnation: 9,
            digest: "fedcba9876543210".into(),
            lost: Some(LostPod {
                pod: "former".into(),
                nodes: ["a".into(), "b".into()].into(),
            }),
            ..start.clone()
        };
        // Merged as by the API server: containers by their names.
        let mut restarted = set.clone();
        restarted.merge_from(stateful_set::build_restart(
            &set,
            later.incarnation,
            &later.digest,
            later.lost.as_ref(),
        ));
        let expected = stateful_set::build_stateful_set(&blueprint, &later);
        assert_eq!(restarted.spec, expected.spec, "{}", case.display());
        let (mut kept, mut kept_later) = (set.clone(), expected.clone());
        stateful_set::keep_facts(&mut kept);
        stateful_set::keep_facts(&mut kept_later);
        for (set, later_set) in [(&set, &expected), (&kept, &kept_later)] {
            assert_eq!(
                (affinity::read_lost(set), affinity::read_lost(later_set)),
                (None, later.lost.clone())
            );
            assert_eq!(stateful_set::read_digest(set), Some(&start.digest));
            assert_eq!(stateful_set::has_dns(set), blueprint.has_provider());
            assert_eq!(stateful_set::uses_spare(set), start.has_spare);
            assert_eq!(stateful_set::has_konnectivity(set), start.has_konnectivity);
        }
        let size = |set: &k8s_openapi::api::apps::v1::StatefulSet| serde_json::to_vec(set).unwrap().len();
        assert!(size(&kept) * 3 < size(&set), "{} of {}", size(&kept), size(&set));
        assert_ne!(
            stateful_set::template_digest(&blueprint, &start),
            stateful_set::template_digest(
                &blueprint,
                &stateful_set::Start {
                    lost: later.lost,
                    ..start.clone()
                }
            ),
        );
        let standing_by = stateful_set::Start {
            replicas: 2,
            first: 4,
            ..start.clone()
        };
        let spec = stateful_set::build_stateful_set(&blueprint, &standing_by).spec.unwrap();
        assert_eq!(Some(spec.template), set.spec.clone().map(|spec| spec.template));
        assert_eq!((spec.replicas, spec.ordinals.unwrap().start), (Some(2), Some(4)));
        compare(
            &case,
            "statefulset",
            &stateful_set::build_stateful_set(&blueprint, &start),
        );
        compare(&case, "poddisruptionbudget", &objects::build_budget(&identity));
        compare(
            &case,
            "networkpolicy",
            &network_policy::build_network_policy(&identity, &config, blueprint.open()),
        );
        compare(
            &case,
            "service",
            &objects::build_service(&identity, blueprint.open().konnectivity, 0),
        );
        compare(
            &case,
            "namespace",
            &objects::build_namespace(&identity, cluster.spec.deletion_policy),
        );
        compare(&case, "configmap", &objects::build_api_server_files(&blueprint));
    }
}

struct Authority {
    params: rcgen::CertificateParams,
    key: rcgen::KeyPair,
    certificate: String,
}

fn authority(name: &str, parent: Option<&Authority>) -> Authority {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = match parent {
        Some(parent) => params.signed_by(&key, &rcgen::Issuer::from_params(&parent.params, &parent.key)),
        None => params.self_signed(&key),
    };
    Authority {
        certificate: certificate.unwrap().pem(),
        params,
        key,
    }
}

/// Certificates as cert-manager would issue them: Secrets by name, the root, and the private keys
/// of the CAs.
fn issue(accepted: &Accepted<'_>) -> (BTreeMap<String, Data>, String, Vec<String>) {
    let root = authority("root", None);
    let by_role: BTreeMap<_, _> = AuthorityRole::ALL
        .into_iter()
        .map(|role| {
            let parent = (role == AuthorityRole::Cluster).then_some(&root);
            (role, authority(&format!("{role:?}"), parent))
        })
        .collect();
    let data = |certificate: String, key: String| {
        Data::from([
            ("tls.crt".to_owned(), certificate.into_bytes()),
            ("tls.key".to_owned(), key.into_bytes()),
        ])
    };
    let mut secrets = BTreeMap::new();
    for planned in &accepted.plan.authorities {
        let issued = &by_role[&planned.role];
        secrets.insert(
            planned.name.clone(),
            data(issued.certificate.clone(), issued.key.serialize_pem()),
        );
    }
    for planned in &accepted.plan.leaves {
        let issuer = &by_role[&planned.role.authority()];
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["a.example".into()])
            .unwrap()
            .signed_by(&key, &rcgen::Issuer::from_params(&issuer.params, &issuer.key))
            .unwrap();
        let chain = format!("{}{}", leaf.pem(), issuer.certificate);
        secrets.insert(planned.name.clone(), data(chain, key.serialize_pem()));
    }
    let keys = by_role
        .values()
        .chain([&root])
        .map(|authority| authority.key.serialize_pem());
    (secrets, root.certificate.clone(), keys.collect())
}

fn read(accepted: &Accepted<'_>, secrets: &BTreeMap<String, Data>, root: &str) -> Result<Materials, Vec<String>> {
    read_with(accepted, secrets, root, &Data::new()).unwrap()
}

fn read_with(
    accepted: &Accepted<'_>,
    secrets: &BTreeMap<String, Data>,
    root: &str,
    copied: &Data,
) -> Result<Result<Materials, Vec<String>>, crate::error::MaterialError> {
    let key = ServiceAccountKey::generate().unwrap();
    let sources = Sources {
        secret: |name: &str| secrets.get(name).cloned(),
        root,
        service_account: key.private_pem(),
        store_credentials: "creds",
        nats_ca: "ca",
        copied,
        now: "2026-11-21T00:00:00Z".parse().unwrap(),
    };
    Materials::read(&accepted.plan, &sources)
}

#[test]
fn no_hosted_secret_holds_a_ca_key_and_clients_are_not_verified_by_the_root() {
    let (config, tenant, cluster) = (config(), tenant(), cluster("a"));
    let identity = identity(&cluster);
    let accepted = validate::validate(&cluster, &identity, &around(&config, &tenant, &[])).unwrap();
    let (secrets, root, keys) = issue(&accepted);
    let materials = read(&accepted, &secrets, &root).unwrap();
    let hosted = secrets::build_component_secrets(&identity, &materials).unwrap();
    let texts: Vec<_> = hosted
        .iter()
        .flat_map(|secret| secret.data.iter().flatten())
        .map(|(name, value)| (name.as_str(), String::from_utf8(value.0.clone()).unwrap()))
        .collect();
    for key in &keys {
        assert!(!texts.iter().any(|(_, text)| text.contains(key.trim())));
    }
    let body = |pem: &str| pem.lines().nth(1).unwrap().to_owned();
    let client_ca = &texts.iter().find(|(name, _)| *name == "client-ca.crt").unwrap().1;
    assert!(!client_ca.contains(&body(&root)));
    assert!(materials.root_ca.contains(&body(&root)));
    // The certificates of the operator and the tenant stay out of the control-plane namespace.
    for role in [LeafRole::Operator, LeafRole::Admin] {
        let key = &materials.leaf(role).key;
        assert!(!texts.iter().any(|(_, text)| text.contains(key.trim())), "{role:?}");
    }
    let kubeconfig = secrets::build_kubeconfig(&identity, &config, &materials).unwrap();
    let text = String::from_utf8(kubeconfig.data.unwrap()["value"].0.clone()).unwrap();
    let parsed = yoke_pki::Kubeconfig::from_yaml(&text).unwrap();
    assert_eq!(parsed.server, "https://100.64.0.2:443");
    assert_eq!(parsed.tls_server_name.as_deref(), Some("a-bcdfghjk.yoke.test"));
    assert_eq!(kubeconfig.metadata.namespace.as_deref(), Some("demo"));
    let told = objects::build_ingress(&identity, objects::IngressIntent::default(), &materials.trust());
    let told: yoke_api::ingress::IngressConfig = serde_json::from_str(&told.data.unwrap()["ingress.json"]).unwrap();
    assert_eq!(
        told.audiences,
        ["https://a-bcdfghjk.yoke.test", "https://kubernetes.default.svc"]
    );
    assert_eq!(told.client_ca, materials.client_ca);
    assert_eq!(told.allowed_sources, None);
}

#[test]
fn a_range_that_is_none_lets_nobody_in() {
    let sources = |ranges: &[&str]| {
        let mut spec = yoke_api::ClusterSpec::default();
        spec.endpoint.allowed_cidrs = ranges.iter().map(ToString::to_string).collect();
        objects::IngressIntent::of(&spec).sources
    };
    let range: yoke_api::Cidr = "192.0.2.0/24".parse().unwrap();
    assert_eq!(sources(&["192.0.2.0/24", "none"]), Some(vec![range]));
    assert_eq!(sources(&["none"]), Some(vec![]));
    assert_eq!(sources(&[]), None);
}

#[test]
fn missing_and_mismatched_leaves_are_told() {
    let (config, tenant, cluster) = (config(), tenant(), cluster("a"));
    let identity = identity(&cluster);
    let accepted = validate::validate(&cluster, &identity, &around(&config, &tenant, &[])).unwrap();
    let (mut secrets, root, _) = issue(&accepted);
    secrets.remove("bcdfghjk24-admin");
    assert_eq!(read(&accepted, &secrets, &root).unwrap_err(), ["bcdfghjk24-admin"]);
    let (mut secrets, root, _) = issue(&accepted);
    let other = secrets["bcdfghjk24-admin"]["tls.key"].clone();
    secrets
        .get_mut("bcdfghjk24-operator")
        .unwrap()
        .insert("tls.key".into(), other);
    let key = ServiceAccountKey::generate().unwrap();
    let sources = Sources {
        secret: |name: &str| secrets.get(name).cloned(),
        root: &root,
        service_account: key.private_pem(),
        store_credentials: "",
        nats_ca: "",
        copied: &Data::new(),
        now: "2026-11-21T00:00:00Z".parse().unwrap(),
    };
    assert!(matches!(
        Materials::read(&accepted.plan, &sources),
        Err(crate::error::MaterialError::Mismatch(name)) if name == "bcdfghjk24-operator"
    ));
}

#[test]
fn ca_that_was_lost_is_trusted_while_a_leaf_is_of_it() {
    let (config, tenant, cluster) = (config(), tenant(), cluster("a"));
    let identity = identity(&cluster);
    let accepted = validate::validate(&cluster, &identity, &around(&config, &tenant, &[])).unwrap();
    let (mut secrets, root, _) = issue(&accepted);
    let first = read(&accepted, &secrets, &root).unwrap();
    assert!(first.former.is_empty());
    let copied = Data::from([("client-ca.crt".to_owned(), first.client_ca.clone().into_bytes())]);
    // cert-manager reissues a CA whose Secret is gone, and none of the certificates that it signed.
    let anew = issue(&accepted).0["bcdfghjk24-ca-g1"].clone();
    secrets.insert("bcdfghjk24-ca-g1".into(), anew);
    let both = read_with(&accepted, &secrets, &root, &copied).unwrap().unwrap();
    assert!(both.client_ca.contains(first.client_ca.trim()), "{}", both.client_ca);
    assert_eq!(both.client_ca.matches("BEGIN").count(), 2);
    assert_eq!(both.former.len(), 6, "{:?}", both.former);
    assert!(matches!(
        read_with(&accepted, &secrets, &root, &Data::new()),
        Err(crate::error::MaterialError::Stray(name)) if name == "bcdfghjk24-apiserver"
    ));
}
