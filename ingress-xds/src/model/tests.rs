use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::activators::activator_secret_key;
use super::observation::ActivatorNames;
use super::*;
use crate::test_util::fixtures::{
    BASE_DOMAIN, ClusterFixture, certificate_secret, cluster, ingress_pems, replica_slice, since, waking,
};

type Routes = BTreeMap<String, (String, Vec<String>)>;

const A: &str = "a-bcdfghjk.yoke.test";
const B: &str = "b-zzzzzzzz.yoke.test";

fn a() -> ClusterFixture {
    cluster("a", "bcdfghjk24").at(&["10.0.0.1"], 6443)
}

fn b() -> ClusterFixture {
    cluster("b", "zzzzzzzz24").at(&["10.0.0.2"], 6443).created_at(2000)
}

fn table() -> Table {
    Table::new(Rules::new(BASE_DOMAIN))
}

fn config(fixture: &ClusterFixture) -> Event {
    Event::Config(Watched::Applied(Box::new(fixture.config_map())))
}

fn slice(fixture: &ClusterFixture) -> Event {
    Event::Slice(Watched::Applied(Box::new(fixture.slice())))
}

fn config_gone(fixture: &ClusterFixture) -> Event {
    Event::Config(Watched::Deleted(ObjectKey::of(&fixture.config_map().metadata)))
}

fn slice_gone(fixture: &ClusterFixture) -> Event {
    Event::Slice(Watched::Deleted(ObjectKey::of(&fixture.slice().metadata)))
}

fn broken(fixture: &ClusterFixture) -> Event {
    let mut fixture = fixture.clone();
    fixture.config.client_ca = "PEM".into();
    config(&fixture)
}

fn to_route(target: Target) -> (String, Vec<String>) {
    let addresses = target.addresses.iter().map(ToString::to_string).collect();
    (target.route.namespace.clone(), addresses)
}

/// Builds the table from its changes.
fn follow(routes: &mut Routes, table: &mut Table) {
    for (name, target) in table.take_changes() {
        match target {
            Some(target) => routes.insert(name, to_route(target)),
            None => routes.remove(&name),
        };
    }
}

fn apply(events: impl IntoIterator<Item = Event>) -> (Routes, Vec<Report>, Table) {
    let mut table = table();
    let reports = events.into_iter().flat_map(|event| table.apply(event)).collect();
    let mut routes = Routes::new();
    follow(&mut routes, &mut table);
    (routes, reports, table)
}

fn expected(rows: &[(&str, &ClusterFixture, &[&str])]) -> Routes {
    let row = |(name, fixture, addresses): &(&str, &ClusterFixture, &[&str])| {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        ((*name).to_owned(), (fixture.namespace(), addresses))
    };
    rows.iter().map(row).collect()
}

const ACTIVATOR: &str = "10.9.9.9:18443";

fn with_activator() -> Rules {
    Rules {
        activator: Some(ACTIVATOR.parse().unwrap()),
        ..Rules::new(BASE_DOMAIN)
    }
}

/// The activator has a certificate for these names.
fn shown(namespace: &str, names: &[&str]) -> Event {
    Event::ActivatorCertificate(Watched::Applied(Box::new(ActivatorNames {
        key: activator_secret_key(namespace),
        names: names.iter().map(ToString::to_string).collect(),
    })))
}

fn shown_for_all() -> Event {
    shown(PKI_NAMESPACE, &["*.yoke.test"])
}

fn not_shown(namespace: &str) -> Event {
    Event::ActivatorCertificate(Watched::Deleted(activator_secret_key(namespace)))
}

#[test]
fn the_public_name_of_a_sleeping_cluster_leads_to_the_activator() {
    let extra = "api.example.org";
    let a = a().with_extra_names(&[extra]).with_konnectivity();
    let asleep = a.clone().asleep(waking(since(), None));
    let konnectivity = a.konnectivity_name();
    let address: &[&str] = &["10.0.0.1"];
    let sleeper: &[&str] = &["10.9.9.9"];
    for (rule, rules, first, expected_address) in [
        ("asleep", with_activator(), &asleep, sleeper),
        ("awake", with_activator(), &a, address),
        ("without a sleeper", Rules::new(BASE_DOMAIN), &asleep, address),
    ] {
        let mut table = Table::new(rules);
        table.apply(slice(first));
        table.apply(config(first));
        let mut routes = Routes::new();
        follow(&mut routes, &mut table);
        assert_eq!(routes[A].1, address, "{rule}, without a certificate");
        table.apply(shown_for_all());
        follow(&mut routes, &mut table);
        let rows = [
            (A, first, expected_address),
            (extra, first, address),
            (konnectivity.as_str(), first, address),
        ];
        assert_eq!(routes, expected(&rows), "{rule}");
        // And back again.
        table.apply(config(&a));
        follow(&mut routes, &mut table);
        assert_eq!(routes[A].1, address, "{rule}");
    }
    let mut table = Table::new(with_activator());
    table.apply(shown_for_all());
    table.apply(config(&asleep));
    let target = table.take_changes().remove(A).flatten().unwrap();
    assert_eq!(target.port, 18443);
    let client_ca = &target.route.asleep.as_ref().unwrap().client_ca;
    assert!(client_ca.starts_with("-----BEGIN CERTIFICATE-----"), "{client_ca}");
}

/// The EndpointSlice of this process's Service.
fn replicas(addresses: &[&str]) -> Event {
    Event::Replicas(Watched::Applied(Box::new(replica_slice(addresses))))
}

#[test]
fn sleeping_clusters_lead_to_the_activators_of_all_replicas() {
    let asleep = a().asleep(waking(since(), None));
    let table_of = |own: &str| {
        let mut table = Table::new(Rules {
            activator: Some(own.parse().unwrap()),
            replicas: true,
            ..Rules::new(BASE_DOMAIN)
        });
        for event in [config(&asleep), config(&b()), slice(&b()), shown_for_all()] {
            table.apply(event);
        }
        table
    };
    let mut table = table_of(ACTIVATOR);
    let mut routes = Routes::new();
    let gone = |key: ObjectKey| Event::Replicas(Watched::Deleted(key));
    let key = ObjectKey::of(&replica_slice(&[]).metadata);
    let all = ["10.9.9.7", "10.9.9.8", "10.9.9.9"];
    let many: Vec<_> = (1..=20).map(|number| format!("10.0.1.{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for (rule, event, expected) in [
        ("not ready itself", replicas(&["10.9.9.8"]), &all[1..]),
        ("all", replicas(&all), &all),
        ("of another family", replicas(&["fd00::1"]), &all[2..]),
        ("one left", replicas(&["10.9.9.7"]), &["10.9.9.7", "10.9.9.9"]),
        ("gone", gone(key.clone()), &all[2..]),
        ("again", replicas(&all), &all),
        ("gone at a list", Event::Replicas(Watched::Listed([].into())), &all[2..]),
    ] {
        table.apply(event);
        follow(&mut routes, &mut table);
        assert_eq!(routes[A].1, expected, "{rule}");
        assert_eq!(routes[B].1, ["10.0.0.2"], "{rule}: one that is awake");
    }
    table.apply(replicas(&many));
    follow(&mut routes, &mut table);
    assert_eq!(routes[A].1.len(), 16, "there is a limit");
    assert!(routes[A].1.contains(&"10.9.9.9".to_owned()));
    let mut other = table_of("10.9.9.8:18443");
    for table in [&mut table, &mut other] {
        table.apply(replicas(&all));
    }
    let [of_one, of_other] = [table, other].map(|mut table| table.take_changes().remove(A));
    assert_eq!(of_one, of_other, "replicas tell the same");
}

#[test]
fn extra_names_lead_to_the_activator_with_a_certificate() {
    let names = ["api.example.org", "www.example.org"];
    let state = || waking(since(), None);
    let a = a().with_extra_names(&names).with_konnectivity().asleep(state());
    let b = b().with_extra_names(&names[..1]).asleep(state());
    let konnectivity = a.konnectivity_name();
    let mut table = Table::new(with_activator());
    let mut routes = Routes::new();
    for event in [config(&a), config(&b), slice(&a), slice(&b), shown_for_all()] {
        table.apply(event);
    }
    let (of_a, of_b) = (a.namespace(), b.namespace());
    let at_activator = ["10.9.9.9"];
    let at_a = ["10.0.0.1"];
    for (rule, event, expected) in [
        ("of nobody", not_shown("yoke-zxwvtsrq24"), [false, false]),
        ("of the younger", shown(&of_b, &names), [false, false]),
        ("of the public name", shown(&of_a, &[A]), [false, false]),
        ("of one name", shown(&of_a, &names[..1]), [true, false]),
        (
            "of both, and of agents",
            shown(&of_a, &[names[0], names[1], &konnectivity]),
            [true, true],
        ),
        ("gone", not_shown(&of_a), [false, false]),
        ("there again", shown(&of_a, &names), [true, true]),
        (
            "gone at a list",
            Event::ActivatorCertificate(Watched::Listed(
                [activator_secret_key(PKI_NAMESPACE), activator_secret_key(&of_b)].into(),
            )),
            [false, false],
        ),
    ] {
        table.apply(event);
        follow(&mut routes, &mut table);
        for (name, sleeps) in names.into_iter().zip(expected) {
            let addresses = if sleeps { at_activator } else { at_a };
            assert_eq!(
                routes[name],
                (of_a.clone(), addresses.map(String::from).to_vec()),
                "{rule}: {name}"
            );
        }
        assert_eq!(routes[A].1, at_activator, "{rule}");
        assert_eq!(routes[&konnectivity].1, at_a, "{rule}");
    }
}

#[test]
fn a_cluster_wakes_when_its_address_is_seen() {
    let address: &[&str] = &["10.0.0.1"];
    let sleeper: &[&str] = &["10.9.9.9"];
    let none: &[&str] = &[];
    let held = Asleep::Held { why: "No.".into() };
    for (rule, before, expected) in [
        ("being woken", Some(waking(since(), None)), sleeper),
        ("held", Some(held), none),
        ("new", None, none),
    ] {
        let mut table = Table::new(with_activator());
        table.apply(shown_for_all());
        if let Some(before) = before {
            table.apply(config(&a().asleep(before)));
        }
        let mut routes = Routes::new();
        follow(&mut routes, &mut table);
        for _ in 0..2 {
            table.apply(config(&a()));
            follow(&mut routes, &mut table);
            assert_eq!(routes[A].1, expected, "{rule}");
        }
        table.apply(slice(&a()));
        follow(&mut routes, &mut table);
        assert_eq!(routes[A].1, address, "{rule}");
        table.apply(slice(&a().at(&[], 6443)));
        follow(&mut routes, &mut table);
        assert_eq!(routes[A].1, none, "{rule}: one that fails later does not sleep");
    }
}

#[test]
fn activators_are_listed_before_the_table_is_synced() {
    for (rule, rules, expected) in [
        ("none", Rules::new(BASE_DOMAIN), true),
        ("one", with_activator(), false),
        (
            "of several",
            Rules {
                replicas: true,
                ..with_activator()
            },
            false,
        ),
    ] {
        let mut table = Table::new(rules);
        table.apply(Event::Config(Watched::Listed(BTreeSet::new())));
        table.apply(Event::Slice(Watched::Listed(BTreeSet::new())));
        table.apply(Event::Certificate(Watched::Listed(BTreeSet::new())));
        assert_eq!(table.is_synced(), expected, "{rule}");
        table.apply(Event::ActivatorCertificate(Watched::Listed(BTreeSet::new())));
        assert_eq!(table.is_synced(), rule != "of several", "{rule}");
        table.apply(Event::Replicas(Watched::Listed(BTreeSet::new())));
        assert!(table.is_synced(), "{rule}");
    }
}

#[test]
fn objects_make_routes() {
    let (a, b) = (a(), b());
    let shared = ["api.example.org"];
    let (a2, b2) = (a.clone().with_extra_names(&shared), b.clone().with_extra_names(&shared));
    let mut terminating = a.config_map();
    terminating.metadata.deletion_timestamp = terminating.metadata.creation_timestamp.clone();
    let one: &[&str] = &["10.0.0.1"];
    let two: &[&str] = &["10.0.0.2"];
    let only_a = expected(&[(A, &a, one)]);
    let only_b = expected(&[(B, &b, two)]);
    let both = expected(&[(A, &a, one), (B, &b, two)]);
    let moved = b.clone().at(&["10.0.0.9"], 6443);
    let all = || vec![config(&a), slice(&a), config(&b), slice(&b)];
    let then = |more: Vec<Event>| [all(), more].concat();
    let contested = |name_of: &ClusterFixture, address: &[&str]| {
        let row = ("api.example.org", name_of, address);
        expected(&[(A, &a, one), (B, &b, two), row])
    };
    for (rule, events, routes) in [
        ("two clusters", all(), both.clone()),
        ("slices first", vec![slice(&a), config(&a)], only_a.clone()),
        (
            "no slice: known, no address",
            vec![config(&a)],
            expected(&[(A, &a, &[])]),
        ),
        ("a slice alone is no route", vec![slice(&a)], Routes::new()),
        ("config deleted", then(vec![config_gone(&a)]), only_b.clone()),
        (
            "config being deleted",
            then(vec![Event::Config(Watched::Applied(Box::new(terminating)))]),
            only_b.clone(),
        ),
        (
            "slice deleted",
            then(vec![slice_gone(&b)]),
            expected(&[(A, &a, one), (B, &b, &[])]),
        ),
        (
            "moved",
            then(vec![slice(&moved)]),
            expected(&[(A, &a, one), (B, &b, &["10.0.0.9"])]),
        ),
        ("broken", then(vec![broken(&a)]), only_b.clone()),
        ("broken and mended", then(vec![broken(&a), config(&a)]), both.clone()),
        (
            "deleted and made again",
            then(vec![config_gone(&a), config(&a)]),
            both.clone(),
        ),
        (
            "missed deletions are seen by a list",
            then(vec![
                Event::Config(Watched::Listed([ObjectKey::of(&a.config_map().metadata)].into())),
                Event::Slice(Watched::Listed([ObjectKey::of(&a.slice().metadata)].into())),
            ]),
            only_a,
        ),
        (
            "the older has the name",
            then(vec![config(&b2), config(&a2)]),
            contested(&a, one),
        ),
        (
            "order is no matter",
            then(vec![config(&a2), config(&b2)]),
            contested(&a, one),
        ),
        (
            "the name is inherited",
            then(vec![config(&a2), config(&b2), config(&a)]),
            contested(&b, two),
        ),
    ] {
        assert_eq!(apply(events).0, routes, "{rule}");
    }
}

#[test]
fn konnectivity_agents_reach_the_second_port() {
    let ports = |events: Vec<Event>| {
        let mut table = table();
        events.into_iter().for_each(|event| {
            table.apply(event);
        });
        let changes = table.take_changes().into_iter();
        let ports = changes.filter_map(|(name, target)| Some((name, target?.port)));
        ports.collect::<Vec<_>>()
    };
    let (a, with_agents) = (a(), a().with_konnectivity());
    let own = (A.to_owned(), 6443);
    let agents = ("konnectivity.a-bcdfghjk.yoke.test".to_owned(), 8132);
    assert_eq!(
        ports(vec![slice(&a), config(&with_agents)]),
        [own.clone(), agents.clone()]
    );
    assert_eq!(
        ports(vec![slice(&a), config(&with_agents), config(&a)]),
        std::slice::from_ref(&own)
    );
    let thief = b().with_extra_names(&[&agents.0]);
    assert_eq!(
        ports(vec![config(&thief), config(&a)]),
        [own, (B.to_owned(), 6443)],
        "nobody else can have the name"
    );
}

#[test]
fn equal_age_is_settled_by_namespace() {
    let shared = ["api.example.org"];
    let (a, b) = (
        a().with_extra_names(&shared),
        b().with_extra_names(&shared).created_at(1000),
    );
    let (routes, ..) = apply([config(&b), config(&a)]);
    assert_eq!(routes["api.example.org"].0, a.namespace());
}

#[test]
fn every_problem_is_reported_once() {
    let shared = ["api.example.org", "*.example.org"];
    let (a, b) = (a().with_extra_names(&shared), b().with_extra_names(&shared));
    let events = [
        config(&a),
        config(&b),
        config(&a),
        config(&b),
        slice(&b),
        broken(&a),
        broken(&a),
    ];
    let (_, reports, mut table) = apply(events);
    let name = |fixture: &ClusterFixture| Report {
        object: ObjectKey::of(&fixture.config_map().metadata),
        problem: Problem::Name("*.example.org".into()),
    };
    let taken = Report {
        object: ObjectKey::of(&b.config_map().metadata),
        problem: Problem::NameTaken {
            name: "api.example.org".into(),
            by: a.namespace(),
        },
    };
    assert_eq!(reports[..3], [name(&a), taken, name(&b)]);
    assert!(matches!(&reports[3].problem, Problem::Config(text) if text.starts_with("reading clientCa: ")));
    assert_eq!(reports.len(), 4, "{reports:?}");
    assert_eq!((table.route_count(), table.problem_count()), (1, 2));
    table.apply(config_gone(&a));
    table.apply(config_gone(&b));
    assert_eq!((table.route_count(), table.problem_count()), (0, 0));
}

#[test]
fn unchanged_targets_are_not_reported() {
    let (a, b) = (a(), b());
    let (_, _, mut table) = apply([config(&a), slice(&a), config(&b), slice(&b)]);
    table.apply(config(&a));
    table.apply(slice(&a));
    assert!(table.take_changes().is_empty(), "the same objects again");
    table.apply(slice(&b.at(&["10.0.0.9"], 6443)));
    assert_eq!(table.take_changes().into_keys().collect::<Vec<_>>(), [B]);
}

#[test]
fn synced_when_both_kinds_were_listed() {
    let mut table = table();
    assert!(!table.is_synced());
    table.apply(Event::Config(Watched::Listed(BTreeSet::new())));
    assert!(!table.is_synced());
    table.apply(Event::Slice(Watched::Listed(BTreeSet::new())));
    assert!(!table.is_synced());
    table.apply(Event::Certificate(Watched::Listed(BTreeSet::new())));
    assert!(table.is_synced());
}

/// An unusable certificate counts as missing; Envoy continues with its previous one.
#[test]
fn the_certificate_is_what_the_secret_holds_now() {
    let (chain, key) = ingress_pems();
    let (other_chain, other_key) = ingress_pems();
    let applied =
        |chain: &str, key: &str| Event::Certificate(Watched::Applied(Box::new(certificate_secret(chain, key))));
    let mut table = table();
    for (rule, event, expected, problems) in [
        ("issued", applied(&chain, &key), Some(&key), 0),
        ("renewed", applied(&other_chain, &other_key), Some(&other_key), 0),
        ("no pair", applied(&chain, &other_key), None, 1),
        ("mended", applied(&chain, &key), Some(&key), 0),
        (
            "gone at a list",
            Event::Certificate(Watched::Listed(BTreeSet::new())),
            None,
            0,
        ),
    ] {
        let reports = table.apply(event);
        assert_eq!(table.certificate().map(|found| &found.key), expected, "{rule}");
        assert_eq!((reports.len(), table.problem_count()), (problems, problems), "{rule}");
    }
    assert!(table.take_changes().is_empty(), "no name is concerned");
}

/// The table is independent of its history: it equals the one that the remaining objects give in
/// any order.
#[test]
fn the_table_is_independent_of_history() {
    let ids = ["bbbbbbbb22", "cccccccc22", "dddddddd22", "ffffffff22"];
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut table = table();
        let mut routes = Routes::new();
        let mut left: BTreeMap<(usize, bool), Event> = BTreeMap::new();
        for _ in 0..60 {
            let index = random.random_range(0..ids.len());
            let names: Vec<&str> = ["x.example.org", "y.example.org", "z.example.org"]
                .into_iter()
                .filter(|_| random.random_bool(0.5))
                .collect();
            let addresses: Vec<&str> = ["10.0.0.1", "10.0.0.2"]
                .into_iter()
                .filter(|_| random.random_bool(0.6))
                .collect();
            let fixture = cluster(&format!("c{index}"), ids[index])
                .with_extra_names(&names)
                .at(&addresses, 6443)
                .created_at(random.random_range(0..3));
            let (kind, event) = match random.random_range(0..10) {
                0..3 => (true, Some(config(&fixture))),
                3..6 => (false, Some(slice(&fixture))),
                6..7 => (true, Some(broken(&fixture))),
                7..9 => (true, None),
                _ => (false, None),
            };
            match event {
                Some(event) => {
                    table.apply(event.clone());
                    left.insert((index, kind), event);
                }
                None => {
                    table.apply(if kind {
                        config_gone(&fixture)
                    } else {
                        slice_gone(&fixture)
                    });
                    left.remove(&(index, kind));
                }
            }
            if random.random_bool(0.3) {
                follow(&mut routes, &mut table);
            }
        }
        follow(&mut routes, &mut table);
        let mut events: Vec<Event> = left.into_values().collect();
        events.shuffle(&mut random);
        let (fresh, _, other) = apply(events);
        assert_eq!(routes, fresh, "seed {seed}");
        assert_eq!(table.problem_count(), other.problem_count(), "seed {seed}");
    }
}
