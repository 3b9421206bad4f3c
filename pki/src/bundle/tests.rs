use super::*;
use crate::fixtures::{Host, facts, now};
use crate::plan::{AuthorityRole, Generation, Generations, LeafRole};

#[test]
fn bundle_is_sorted_and_has_each_member_once() {
    let mut facts = facts("bcdfghjk24");
    facts.generations = Generations::new(Generation::FIRST, [Generation::new(2).unwrap()]);
    let host = Host::new(now()).with(&facts);
    let first = host.authority(&facts, AuthorityRole::Cluster).chain.clone();
    facts.generations = Generations::new(Generation::new(2).unwrap(), []);
    let second = host.authority(&facts, AuthorityRole::Cluster).chain.clone();

    let bundle = Bundle::new(Trust::Client, [&first, &second]).unwrap();
    let again = Bundle::new(Trust::Client, [&format!("{second}{first}"), &second]).unwrap();
    assert_eq!(bundle, again);
    assert_eq!(bundle.certificates().len(), 2);
    assert_eq!(bundle.to_pem(), again.to_pem());
    assert!(!bundle.to_pem().contains('\r'));
    assert_eq!(Bundle::new(Trust::Client, [bundle.to_pem()]).unwrap(), bundle);
}

#[test]
fn members_must_fit_the_trust() {
    let facts = facts("bcdfghjk24");
    let host = Host::new(now()).with(&facts);
    let root = &host.root().chain;
    let cluster = &host.authority(&facts, AuthorityRole::Cluster).chain;
    let kubelet = &host.authority(&facts, AuthorityRole::KubeletServing).chain;
    let front_proxy = &host.authority(&facts, AuthorityRole::FrontProxy).chain;
    for (trust, good, bad) in [
        (Trust::Client, cluster, root),
        (Trust::Client, cluster, kubelet),
        (Trust::Root, root, cluster),
        (Trust::KubeletServing, kubelet, cluster),
        (Trust::FrontProxy, front_proxy, cluster),
    ] {
        assert_eq!(Bundle::new(trust, [good]).unwrap().trust(), trust);
        let error = Bundle::new(trust, [good, bad]).unwrap_err();
        match trust {
            Trust::Client => assert!(matches!(error, BundleError::RootForClients(_)), "{error}"),
            _ => assert!(matches!(error, BundleError::NotARoot(_)), "{error}"),
        }
    }
}

#[test]
fn leaves_keys_and_nothing_are_refused() {
    let facts = facts("bcdfghjk24");
    let host = Host::new(now()).with(&facts);
    let leaf = host.leaf(&facts, LeafRole::ApiServer);
    let refused = |text: &str| Bundle::new(Trust::Client, [text]).unwrap_err();
    assert!(matches!(refused(&leaf.chain), BundleError::NotAnAuthority(_)));
    assert!(matches!(
        refused(&leaf.key),
        BundleError::Read(InspectError::NotACertificate(_))
    ));
    assert!(matches!(refused(""), BundleError::Read(InspectError::Empty)));
    assert!(matches!(
        Bundle::new(Trust::Client, [""; 0]).unwrap_err(),
        BundleError::Empty
    ));
}
