//! Attacks by a tenant with its own CA: a client that trusts the root must reject everything that I
//! signs for other names. Both webpki and OpenSSL verify each chain, because two verifiers may
//! treat a chain differently.

use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};

use super::*;
use crate::fixtures::Issued;

const PUBLIC_B: &str = "demo-zxwvtsrq.yoke.test";
const UPSTREAM_B: &str = "demo.yoke-zxwvtsrq24.svc";

/// A request for these names with this common name, and its key.
fn request(common_name: Option<&str>, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap();
    (request.pem().unwrap(), key.serialize_pem())
}

/// Verifies a server's chain with OpenSSL. The error is OpenSSL's output.
fn openssl(chain: &str, root: &str, name: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let certificates = parse(chain);
    let (leaf, others) = certificates.split_first().unwrap();
    let others: String = others.iter().map(ParsedCertificate::to_pem).collect();
    let check = if name.parse::<IpAddr>().is_ok() {
        "-verify_ip"
    } else {
        "-verify_hostname"
    };
    let path = |path: &Path| path.display().to_string();
    let output = Command::new("openssl")
        .args(["verify", "-no-CApath", "-no-CAstore", "-purpose", "sslserver"])
        .args(["-attime", &now().as_second().to_string(), check, name])
        .args(["-CAfile", &path(&file("root", root))])
        .args(["-untrusted", &path(&file("others", &others))])
        .arg(file("leaf", &leaf.to_pem()))
        .output()
        .expect("the Debian package openssl");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn what_a_cluster_is_asked_to_sign_for_others_is_nothing_under_the_root() {
    let (a, b) = (facts(A), facts(B));
    let host = Host::new(now()).with(&a).with(&b);
    let root = host.root().chain.clone();
    let authority = host.authority(&a, AuthorityRole::Cluster);
    let own = [
        ("its own public name", None, &[PUBLIC_A][..], PUBLIC_A),
        ("its own name on the host", None, &[UPSTREAM_A], UPSTREAM_A),
    ];
    let foreign = [
        (
            "a pod's API",
            None,
            &["kubernetes.default.svc"][..],
            "kubernetes.default.svc",
        ),
        ("the same in short", None, &["kubernetes"], "kubernetes"),
        (
            "the same in full",
            None,
            &["kubernetes.default.svc.cluster.local"],
            "kubernetes.default.svc.cluster.local",
        ),
        ("all of svc", None, &["*.default.svc"], "kubernetes.default.svc"),
        ("its address", None, &["10.96.0.1"], "10.96.0.1"),
        ("its address in IPv6", None, &["fd00::1"], "fd00::1"),
        ("both", None, &["kubernetes.default.svc", "10.96.0.1"], "10.96.0.1"),
        ("behind its own", None, &[PUBLIC_A, "kubernetes.default.svc"], PUBLIC_A),
        ("an address behind its own", None, &[PUBLIC_A, "10.96.0.1"], PUBLIC_A),
        ("B's public name", None, &[PUBLIC_B], PUBLIC_B),
        (
            "B's agents",
            None,
            &["konnectivity.demo-zxwvtsrq.yoke.test"],
            "konnectivity.demo-zxwvtsrq.yoke.test",
        ),
        ("B on the host", None, &[UPSTREAM_B], UPSTREAM_B),
        ("all of the base domain", None, &["*.yoke.test"], PUBLIC_B),
        ("the ingress itself", None, &["yoke.test"], "yoke.test"),
        (
            "by common name alone",
            Some("kubernetes.default.svc"),
            &[],
            "kubernetes.default.svc",
        ),
        ("B by common name alone", Some(PUBLIC_B), &[], PUBLIC_B),
    ];
    let rows = own
        .map(|row| (row, true))
        .into_iter()
        .chain(foreign.map(|row| (row, false)));
    for ((rule, common_name, names, asked), good) in rows {
        let (request, _) = request(common_name, names, |_| {});
        let chain = host.sign_request(authority, &request);
        let webpki = verify_chain(&parse(&chain), &parse(&root), Purpose::Server(asked), now());
        let openssl = openssl(&chain, &root, asked);
        if good {
            assert!(webpki.is_ok() && openssl.is_ok(), "{rule}: {webpki:?} {openssl:?}");
            continue;
        }
        // Only OpenSSL treats a common name as a name.
        let expected = if names.is_empty() {
            matches!(webpki, Err(VerifyError::Name { .. }))
        } else {
            matches!(webpki, Err(VerifyError::Chain(Error::NameConstraintViolation)))
        };
        assert!(expected, "{rule}: {webpki:?}");
        let said = openssl.expect_err(rule);
        assert!(said.contains("subtree violation"), "{rule}: {said}");
    }
}

/// I does not limit the length of a chain below it, and its constraints apply to the complete
/// chain.
#[test]
fn a_ca_that_a_cluster_is_asked_for_can_do_no_more() {
    let a = facts(A);
    let host = Host::new(now()).with(&a);
    let root = host.root().chain.clone();
    let (asked, key) = request(Some("ca"), &[], |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages.clear();
    });
    let chain = host.sign_request(host.authority(&a, AuthorityRole::Cluster), &asked);
    let below = Issued { chain, key };
    for (name, good) in [
        (PUBLIC_A, true),
        (PUBLIC_B, false),
        ("kubernetes.default.svc", false),
        ("10.96.0.1", false),
    ] {
        let (asked, _) = request(None, &[name], |_| {});
        let chain = host.sign_request(&below, &asked);
        let webpki = verify_chain(&parse(&chain), &parse(&root), Purpose::Server(name), now());
        let openssl = openssl(&chain, &root, name);
        if good {
            assert!(webpki.is_ok() && openssl.is_ok(), "{name}: {webpki:?} {openssl:?}");
        } else {
            assert!(
                matches!(webpki, Err(VerifyError::Chain(Error::NameConstraintViolation))),
                "{name}: {webpki:?}"
            );
            let said = openssl.expect_err(name);
            assert!(said.contains("subtree violation"), "{name}: {said}");
        }
    }
}
