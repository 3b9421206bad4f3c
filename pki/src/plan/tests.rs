use std::path::Path;
use std::time::Duration;

use yoke_api::cluster::PkiSpec;

use super::*;
use crate::cert_manager::RotationPolicy;
use crate::fixtures::facts;

const ID: &str = "bcdfghjk24";

fn refusal(change: impl FnOnce(&mut ClusterFacts)) -> PlanError {
    let mut facts = facts(ID);
    change(&mut facts);
    Plan::new(&facts).expect_err("the plan is refused")
}

#[test]
fn plan_is_as_written_down() {
    let mut facts = facts(ID);
    facts.generations = Generations::new(Generation::new(2).unwrap(), [Generation::FIRST]);
    let plan = Plan::new(&facts).unwrap();
    let issuers = plan.issuers.iter().map(serde_saphyr::to_string);
    let certificates = plan.certificates.iter().map(serde_saphyr::to_string);
    let documents: Vec<_> = issuers.chain(certificates).map(Result::unwrap).collect();
    let text = documents.join("---\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/plan/out.yaml");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "the plan differs from {path:?}; UPDATE=1 rewrites it");
}

#[test]
fn leaves_go_where_they_belong() {
    let plan = Plan::new(&facts(ID)).unwrap();
    let names = |destination| {
        plan.leaves_for(destination)
            .map(|leaf| leaf.name.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(Destination::Hosted),
        [
            "bcdfghjk24-apiserver",
            "bcdfghjk24-apiserver-kubelet-client",
            "bcdfghjk24-front-proxy-client",
            "bcdfghjk24-kube-controller-manager",
            "bcdfghjk24-kube-scheduler",
            "bcdfghjk24-konnectivity-server",
            "bcdfghjk24-sleeper",
        ]
    );
    assert_eq!(names(Destination::Operator), ["bcdfghjk24-operator"]);
    assert_eq!(names(Destination::TenantKubeconfig), ["bcdfghjk24-admin"]);
}

#[test]
fn only_the_operator_is_of_system_masters() {
    let plan = Plan::new(&facts(ID)).unwrap();
    let masters: Vec<_> = plan
        .certificates
        .iter()
        .filter(|certificate| {
            let subject = certificate.spec.subject.as_ref();
            subject.is_some_and(|subject| subject.organizations.iter().any(|group| group == "system:masters"))
        })
        .map(|certificate| certificate.spec.secret_name.as_str())
        .collect();
    assert_eq!(masters, ["bcdfghjk24-operator"]);
}

#[test]
fn generations_keep_their_keys_and_only_one_signs() {
    let mut facts = facts(ID);
    facts.generations = Generations::new(Generation::FIRST, [Generation::new(2).unwrap()]);
    let plan = Plan::new(&facts).unwrap();
    let trusted: Vec<_> = plan
        .trusted(AuthorityRole::Cluster)
        .map(|ca| ca.name.as_str())
        .collect();
    assert_eq!(trusted, ["bcdfghjk24-ca-g1", "bcdfghjk24-ca-g2"]);
    assert_eq!(plan.issuers.len(), 6);
    for certificate in &plan.certificates {
        let spec = &certificate.spec;
        let key = spec.private_key.as_ref().unwrap();
        let policy = if spec.is_ca {
            RotationPolicy::Never
        } else {
            RotationPolicy::Always
        };
        assert_eq!(key.rotation_policy, policy, "{}", spec.secret_name);
        if !spec.is_ca {
            assert!(spec.issuer_ref.name.ends_with("-g1"), "{}", spec.secret_name);
        }
    }
}

#[test]
fn secrets_are_those_of_the_certificates() {
    let plan = Plan::new(&facts(ID)).unwrap();
    let secrets: Vec<_> = plan.secrets().collect();
    let certificates: Vec<_> = plan.certificates.iter().map(|c| c.spec.secret_name.as_str()).collect();
    assert_eq!(secrets, certificates);
    assert_eq!(secrets.len(), 12);
}

#[test]
fn a_cluster_without_agents_has_nothing_for_them() {
    let plan = Plan::new(&ClusterFacts {
        konnectivity: false,
        ..facts(ID)
    })
    .unwrap();
    assert_eq!(plan.leaves.len(), 8);
    let text = serde_saphyr::to_string(&plan.certificates).unwrap();
    assert!(!text.contains("konnectivity"), "{text}");
}

#[test]
fn a_cluster_without_extra_names_has_nothing_for_their_sleep() {
    let plan = Plan::new(&ClusterFacts {
        extra_sans: vec![],
        ..facts(ID)
    })
    .unwrap();
    assert_eq!(plan.leaves.len(), 8);
    assert!(plan.leaves.iter().all(|leaf| leaf.role != LeafRole::Sleeper));
}

#[test]
fn no_leaf_outlives_the_overlap() {
    let hours = Duration::from_hours;
    for (rule, overlap, leaf, role, expected) in [
        ("as asked", hours(2880), hours(720), LeafRole::ApiServer, hours(720)),
        (
            "at most the overlap",
            hours(100),
            hours(720),
            LeafRole::ApiServer,
            hours(100),
        ),
        ("90 days", hours(2880), hours(720), LeafRole::Admin, hours(2160)),
        (
            "90 days at most the overlap",
            hours(100),
            hours(720),
            LeafRole::Admin,
            hours(100),
        ),
    ] {
        let lifetimes = Lifetimes {
            ca: hours(8760),
            overlap,
            leaf,
        };
        assert_eq!(lifetimes.of(role), expected, "{rule}");
    }
}

#[test]
fn lifetimes_come_from_the_spec() {
    let lifetimes = Lifetimes::from_spec(&PkiSpec::default()).unwrap();
    assert_eq!(lifetimes, facts(ID).lifetimes);
    for text in ["", "h", "10", "10m", "-1h", "1.5h", "99999999999h"] {
        let spec = PkiSpec {
            leaf_duration: text.into(),
            ..PkiSpec::default()
        };
        assert!(matches!(Lifetimes::from_spec(&spec), Err(PlanError::Duration(t)) if t == text));
    }
}

#[test]
fn lifetimes_must_fit() {
    for (rule, change) in [
        (
            "leaf too short",
            (|l| l.leaf = Duration::from_mins(59)) as fn(&mut Lifetimes),
        ),
        ("overlap too short", |l| l.overlap = Duration::from_mins(59)),
        ("overlap as long as the CA", |l| l.overlap = l.ca),
        ("a CA for more than ten years", |l| l.ca = Duration::from_hours(87_601)),
    ] {
        let error = refusal(|facts| change(&mut facts.lifetimes));
        assert!(matches!(error, PlanError::Lifetimes), "{rule}");
    }
    assert!(matches!(Generation::new(0), Err(PlanError::Generation)));
}

#[test]
fn domains_that_cover_others_are_refused() {
    for domain in [
        "com",
        "svc",
        "yoke-zxwvtsrq24.svc",
        "cluster.local",
        "yoke.test",
        "demo-zxwvtsrq.yoke.test",
        "test",
        "kubernetes.example.com",
        "*.example.com",
        ".example.com",
        "Example.com",
        "10.0.0.1",
        "",
    ] {
        let error = refusal(|facts| facts.allowed_domains.push(domain.into()));
        assert!(matches!(error, PlanError::Domain(d) if d == domain), "{domain:?}");
    }
}

#[test]
fn names_outside_the_domains_are_refused() {
    for name in [
        "example.com",
        "xclusters.example.com",
        "demo-zxwvtsrq.yoke.test",
        "demo-bcdfghjk.yoke.test",
        "kubernetes.default.svc",
        "kubernetes.clusters.example.com",
        "*.clusters.example.com",
        "a..clusters.example.com",
        ".clusters.example.com",
        "10.96.0.1",
        "",
    ] {
        let error = refusal(|facts| facts.extra_sans.push(name.into()));
        assert!(matches!(error, PlanError::ExtraName(n) if n == name), "{name:?}");
    }
}

#[test]
fn order_and_repetition_of_names_do_not_matter() {
    let text = |names: &[&str]| {
        let mut facts = facts(ID);
        facts.allowed_domains = vec!["b.example".into(), "a.example".into(), "b.example".into()];
        facts.extra_sans = names.iter().map(|name| (*name).to_owned()).collect();
        serde_json::to_string(&Plan::new(&facts).unwrap().certificates).unwrap()
    };
    assert_eq!(
        text(&["x.b.example", "a.example"]),
        text(&["a.example", "x.b.example", "a.example"])
    );
}
