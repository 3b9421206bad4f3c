mod requests;

use jiff::ToSpan as _;
use webpki::Error;

use super::*;
use crate::bundle::{Bundle, Trust};
use crate::fixtures::{Host, facts, now};
use crate::plan::{AuthorityRole, ClusterFacts, Generation, Generations, LeafRole};

const A: &str = "bcdfghjk24";
const B: &str = "zxwvtsrq24";
const UPSTREAM_A: &str = "demo.yoke-bcdfghjk24.svc";
const PUBLIC_A: &str = "demo-bcdfghjk.yoke.test";

fn parse(pem: &str) -> Vec<ParsedCertificate> {
    ParsedCertificate::from_pem(pem).unwrap()
}

#[test]
fn leaf_says_who_it_is() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let chain = parse(&host.leaf(&facts, LeafRole::Admin).chain);
    assert_eq!(chain.len(), 2, "the leaf and I, without R");
    let leaf = &chain[0];
    assert_eq!(leaf.subject.common_name.as_deref(), Some("yoke:admin"));
    assert_eq!(leaf.subject.organizations, ["yoke:cluster-admins"]);
    assert_eq!(leaf.issuer.common_name.as_deref(), Some("bcdfghjk24-ca-g1"));
    assert_eq!(leaf.not_before, now());
    assert_eq!(leaf.not_after, now() + 2160.hours());
    assert!(!leaf.is_ca && !leaf.self_issued);
    assert_eq!(leaf.permitted_dns, None);
    assert_eq!(
        chain[0].to_pem() + &chain[1].to_pem(),
        host.leaf(&facts, LeafRole::Admin).chain.replace('\r', "")
    );
}

#[test]
fn intermediate_says_what_it_may_sign() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let intermediate = &parse(&host.authority(&facts, AuthorityRole::Cluster).chain)[0];
    assert!(intermediate.is_ca && !intermediate.self_issued);
    assert_eq!(
        intermediate.permitted_dns.as_deref(),
        Some(
            [UPSTREAM_A, PUBLIC_A, "clusters.example.com"]
                .map(str::to_owned)
                .as_slice()
        )
    );
    for (name, permitted) in [
        ("api.clusters.example.com", true),
        ("clusters.example.com", true),
        ("konnectivity.demo-bcdfghjk.yoke.test", true),
        ("otherclusters.example.com", false),
        ("example.com", false),
        ("kubernetes.default.svc", false),
    ] {
        assert_eq!(intermediate.permits_dns(name), permitted, "{name}");
    }
}

#[test]
fn alternative_names_are_read() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let leaf = host.rogue_leaf(&facts, &["a.example", "10.96.0.1", "fd00::1"]);
    let leaf = &parse(&leaf.chain)[0];
    assert_eq!(leaf.dns_names, ["a.example"]);
    assert_eq!(
        leaf.ip_addresses,
        ["10.96.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]
    );
}

#[test]
fn key_belongs_to_its_certificate_only() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let leaf = host.leaf(&facts, LeafRole::ApiServer);
    let certificate = &parse(&leaf.chain)[0];
    assert!(certificate.matches_key(&leaf.key).unwrap());
    assert!(
        !certificate
            .matches_key(&host.leaf(&facts, LeafRole::Admin).key)
            .unwrap()
    );
    assert!(matches!(certificate.matches_key("no PEM"), Err(InspectError::Key(_))));
}

#[test]
fn key_in_the_form_of_cert_manager_is_read() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let leaf = host.leaf(&facts, LeafRole::ApiServer);
    // PKCS#8 of a P-256 key wraps SEC1, after the version, the algorithm and the header of an octet
    // string.
    let pkcs8 = pem::parse(&leaf.key).unwrap().into_contents();
    let sec1 = crate::bundle::to_pem("EC PRIVATE KEY", &pkcs8[29..]);
    assert!(parse(&leaf.chain)[0].matches_key(&sec1).unwrap());
}

#[test]
fn texts_that_are_no_certificates_are_refused() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let leaf = host.leaf(&facts, LeafRole::ApiServer);
    assert!(matches!(ParsedCertificate::from_pem(""), Err(InspectError::Empty)));
    assert!(matches!(
        ParsedCertificate::from_pem(&format!("{}{}", leaf.chain, leaf.key)),
        Err(InspectError::NotACertificate(tag)) if tag == "PRIVATE KEY"
    ));
    let garbage = crate::bundle::to_pem("CERTIFICATE", b"garbage");
    assert!(matches!(
        ParsedCertificate::from_pem(&garbage),
        Err(InspectError::Certificate(_))
    ));
    let mut longer = parse(&leaf.chain)[0].der().to_vec();
    longer.push(0);
    assert!(matches!(
        ParsedCertificate::from_der(longer),
        Err(InspectError::Certificate(_))
    ));
}

#[test]
fn planned_leaves_verify_where_they_are_used_and_nowhere_else() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let root = parse(&host.root().chain);
    let cluster = parse(&host.authority(&facts, AuthorityRole::Cluster).chain);
    let kubelet = parse(&host.authority(&facts, AuthorityRole::KubeletServing).chain);
    let front_proxy = parse(&host.authority(&facts, AuthorityRole::FrontProxy).chain);
    let serving = |names: &[&'static str]| names.iter().copied().map(Purpose::Server).collect::<Vec<_>>();
    for role in LeafRole::ALL {
        let chain = parse(&host.leaf(&facts, role).chain);
        let (purposes, wrong) = match role {
            LeafRole::ApiServer => (
                serving(&[
                    UPSTREAM_A,
                    PUBLIC_A,
                    "konnectivity.demo-bcdfghjk.yoke.test",
                    "api.clusters.example.com",
                ]),
                Purpose::Client,
            ),
            LeafRole::Sleeper => (serving(&["api.clusters.example.com"]), Purpose::Client),
            _ => (vec![Purpose::Client], Purpose::Server(PUBLIC_A)),
        };
        let under_root = role != LeafRole::FrontProxyClient;
        for purpose in purposes {
            let verifies = |anchors: &[_]| verify_chain(&chain, anchors, purpose, now()).is_ok();
            assert_eq!(verifies(&root), under_root, "{role:?} under R");
            assert_eq!(verifies(&cluster), under_root, "{role:?} under I");
            assert_eq!(verifies(&front_proxy), !under_root, "{role:?} under FP");
            assert!(!verifies(&kubelet), "{role:?} under K");
        }
        let anchors = if under_root { &root } else { &front_proxy };
        let result = verify_chain(&chain, anchors, wrong, now());
        assert!(
            matches!(result, Err(VerifyError::Chain(Error::RequiredEkuNotFoundContext(_)))),
            "{role:?} {result:?}"
        );
    }
}

#[test]
fn no_leaf_of_a_cluster_speaks_for_others_under_the_root() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let root = parse(&host.root().chain);
    for (names, asked, good) in [
        (
            &["konnectivity.demo-bcdfghjk.yoke.test"][..],
            "konnectivity.demo-bcdfghjk.yoke.test",
            true,
        ),
        (&["other.clusters.example.com"], "other.clusters.example.com", true),
        (&["demo-zxwvtsrq.yoke.test"], "demo-zxwvtsrq.yoke.test", false),
        (&["xdemo-bcdfghjk.yoke.test"], "xdemo-bcdfghjk.yoke.test", false),
        (&["*.yoke.test"], "demo-zxwvtsrq.yoke.test", false),
        (&["demo.yoke-zxwvtsrq24.svc"], "demo.yoke-zxwvtsrq24.svc", false),
        (&["kubernetes.default.svc"], "kubernetes.default.svc", false),
        (&["kubernetes"], "kubernetes", false),
        (&["10.96.0.1"], "10.96.0.1", false),
        (&["fd00::1"], "fd00::1", false),
        (&[PUBLIC_A, "10.96.0.1"], PUBLIC_A, false),
    ] {
        let chain = parse(&host.rogue_leaf(&facts, names).chain);
        let result = verify_chain(&chain, &root, Purpose::Server(asked), now());
        if good {
            assert!(result.is_ok(), "{names:?} {result:?}");
        } else {
            assert!(
                matches!(result, Err(VerifyError::Chain(Error::NameConstraintViolation))),
                "{names:?} {result:?}"
            );
        }
    }
}

#[test]
fn administrator_of_another_cluster_is_a_stranger() {
    let (a, b) = (facts(A), facts(B));
    let host = Host::new(now()).with(&a).with(&b);
    let trusted_by_a = Bundle::new(Trust::Client, [&host.authority(&a, AuthorityRole::Cluster).chain]).unwrap();
    let admin_of_b = parse(&host.leaf(&b, LeafRole::Admin).chain);
    let result = verify_chain(&admin_of_b, trusted_by_a.certificates(), Purpose::Client, now());
    assert!(
        matches!(result, Err(VerifyError::Chain(Error::UnknownIssuer))),
        "{result:?}"
    );
    // Demonstrates why Bundle refuses a client bundle with the root.
    let result = verify_chain(&admin_of_b, &parse(&host.root().chain), Purpose::Client, now());
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn both_generations_are_trusted_during_the_overlap() {
    let old = facts(A);
    let second = Generation::new(2).unwrap();
    let mut new = facts(A);
    new.generations = Generations::new(second, [Generation::FIRST]);
    let host = Host::new(now()).with(&old).with(&new);
    let of = |generation| {
        let only = ClusterFacts {
            generations: Generations::new(generation, []),
            ..facts(A)
        };
        host.authority(&only, AuthorityRole::Cluster).chain.clone()
    };
    let leaf = parse(&host.leaf(&old, LeafRole::Admin).chain);
    let verifies = |texts: &[String]| {
        let bundle = Bundle::new(Trust::Client, texts).unwrap();
        verify_chain(&leaf[..1], bundle.certificates(), Purpose::Client, now()).is_ok()
    };
    assert!(verifies(&[of(Generation::FIRST)]));
    assert!(verifies(&[of(second), of(Generation::FIRST)]));
    assert!(!verifies(&[of(second)]));
}

#[test]
fn validity_of_leaf_and_anchor_counts() {
    let facts = facts(A);
    let host = Host::new(now()).with(&facts);
    let chain = parse(&host.leaf(&facts, LeafRole::Scheduler).chain);
    let cluster = parse(&host.authority(&facts, AuthorityRole::Cluster).chain);
    let at = |now| verify_chain(&chain, &cluster, Purpose::Client, now);
    assert!(at(now() + 720.hours()).is_ok());
    assert!(matches!(
        at(now() + 720.hours() + 1.second()),
        Err(VerifyError::Chain(Error::CertExpired { .. }))
    ));
    assert!(matches!(
        at(now() - 1.second()),
        Err(VerifyError::NoValidAnchor { given: 1 })
    ));
    assert!(matches!(
        at(now() + 8760.hours() + 1.second()),
        Err(VerifyError::NoValidAnchor { given: 1 })
    ));
    assert!(matches!(
        verify_chain(&[], &cluster, Purpose::Client, now()),
        Err(VerifyError::EmptyChain)
    ));
}

#[test]
fn server_name_is_verified() {
    let facts = ClusterFacts {
        konnectivity: false,
        ..facts(A)
    };
    let host = Host::new(now()).with(&facts);
    let chain = parse(&host.leaf(&facts, LeafRole::ApiServer).chain);
    let root = parse(&host.root().chain);
    let as_server = |name| verify_chain(&chain, &root, Purpose::Server(name), now());
    assert!(matches!(
        as_server("konnectivity.demo-bcdfghjk.yoke.test"),
        Err(VerifyError::Name { .. })
    ));
    assert!(matches!(as_server("no name"), Err(VerifyError::ServerName(name)) if name == "no name"));
}
