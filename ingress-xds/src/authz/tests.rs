use std::time::Duration;

use yoke_runtime::budget::CAPACITY;

use super::*;
use crate::model::route::Sleep;
use crate::snapshot::entries::entry;
use crate::test_util::fixtures::{since, waking};

const LIMITS: GateLimits = GateLimits {
    source: Rate {
        per_second: 10,
        burst: 20,
    },
    source_connections: 1000,
    name: Rate {
        per_second: 100,
        burst: 50,
    },
    requests: Rate {
        per_second: 10,
        burst: 5,
    },
    refusal_delay: REFUSAL_DELAY,
    sleeping: Rate {
        per_second: 1,
        burst: 3,
    },
};

fn served() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.set("name/a.yoke.test", Some(entry("a", &["a.yoke.test"], "1", "1")));
    let mut asleep = entry("b", &["b.yoke.test"], "1", "1");
    asleep.reachable = false;
    snapshot.set("name/b.yoke.test", Some(asleep));
    snapshot
}

fn ip(text: &str) -> Option<SocketAddr> {
    Some(SocketAddr::new(text.parse().unwrap(), 40000))
}

fn refusal(verdict: &Verdict) -> Option<ConnectionRefusal> {
    match verdict {
        Verdict::Allow => None,
        Verdict::Refuse(refusal) => Some(*refusal),
    }
}

#[test]
fn only_a_known_name_passes() {
    let now = Instant::now();
    let snapshot = served();
    for (rule, snapshot, name, expected) in [
        ("known", Some(&snapshot), "a.yoke.test", None),
        (
            "no endpoints",
            Some(&snapshot),
            "b.yoke.test",
            Some(ConnectionRefusal::NoEndpoints),
        ),
        (
            "unknown",
            Some(&snapshot),
            "c.yoke.test",
            Some(ConnectionRefusal::Unknown),
        ),
        (
            "two labels deep",
            Some(&snapshot),
            "x.a.yoke.test",
            Some(ConnectionRefusal::Unknown),
        ),
        (
            "upper case is Envoy's to fold",
            Some(&snapshot),
            "A.yoke.test",
            Some(ConnectionRefusal::Unknown),
        ),
        (
            "an internal cluster",
            Some(&snapshot),
            "xds",
            Some(ConnectionRefusal::Unknown),
        ),
        (
            "a resource's name",
            Some(&snapshot),
            "name/a.yoke.test",
            Some(ConnectionRefusal::Unknown),
        ),
        ("no name", Some(&snapshot), "", Some(ConnectionRefusal::NoName)),
        ("not synced", None, "a.yoke.test", Some(ConnectionRefusal::NotSynced)),
    ] {
        let mut gate = Gate::new(LIMITS, now);
        let verdict = gate.check(now, snapshot, name, ip("192.0.2.1"));
        assert_eq!(refusal(&verdict), expected, "{rule}");
    }
}

#[test]
fn a_source_has_a_budget_that_fills_again() {
    let start = Instant::now();
    let snapshot = served();
    let mut gate = Gate::new(LIMITS, start);
    let mut count = |now: Instant, source: &str, name: &str| {
        let verdicts = (0..100).map(|_| gate.check(now, Some(&snapshot), name, ip(source)));
        verdicts
            .filter(|v| refusal(v) != Some(ConnectionRefusal::SourceRate))
            .count()
    };
    assert_eq!(
        count(start, "192.0.2.1", "c.yoke.test"),
        20,
        "unknown names spend it too"
    );
    assert_eq!(count(start, "192.0.2.2", "c.yoke.test"), 20, "each source has its own");
    assert_eq!(count(start + Duration::from_millis(500), "192.0.2.1", "c.yoke.test"), 5);
    assert_eq!(count(start + Duration::from_secs(60), "192.0.2.1", "c.yoke.test"), 20);
}

#[test]
fn names_and_tokens_share_a_sources_budget() {
    let now = Instant::now();
    let snapshot = served();
    let mut gate = Gate::new(LIMITS, now);
    let source = ip("192.0.2.1");
    for _ in 0..10 {
        assert_eq!(refusal(&gate.check_source(now, source)), None);
        assert_eq!(refusal(&gate.check(now, Some(&snapshot), "a.yoke.test", source)), None);
    }
    let terminated = gate.check_source(now, source);
    assert_eq!(refusal(&terminated), Some(ConnectionRefusal::SourceRate));
    let named = gate.check(now, Some(&snapshot), "a.yoke.test", source);
    assert_eq!(refusal(&named), Some(ConnectionRefusal::SourceRate));
    assert_eq!(refusal(&gate.check_source(now, ip("192.0.2.2"))), None, "another's");
}

#[test]
fn connections_to_sleeping_clusters_are_limited_per_source() {
    let now = Instant::now();
    let mut snapshot = served();
    let mut asleep = entry("c", &["c.yoke.test"], "1", "1");
    let mut route = asleep.route.as_ref().clone();
    route.asleep = Some(Sleep {
        state: waking(since(), None),
        client_ca: String::new(),
    });
    asleep.route = Arc::new(route);
    snapshot.set("name/c.yoke.test", Some(asleep));
    let mut gate = Gate::new(LIMITS, now);
    let mut knock = |name: &str, source: &str| refusal(&gate.check(now, Some(&snapshot), name, ip(source)));
    for _ in 0..3 {
        assert_eq!(knock("c.yoke.test", "192.0.2.1"), None);
    }
    assert_eq!(knock("c.yoke.test", "192.0.2.1"), Some(ConnectionRefusal::SourceRate));
    assert_eq!(knock("c.yoke.test", "192.0.2.2"), None, "another's");
    assert_eq!(knock("a.yoke.test", "192.0.2.1"), None, "one that is awake");
}

#[test]
fn a_source_has_a_connection_limit() {
    let now = Instant::now();
    let snapshot = served();
    let limits = GateLimits {
        source_connections: 4,
        ..LIMITS
    };
    let mut gate = Gate::new(limits, now);
    let source = ip("192.0.2.1");
    for _ in 0..5 {
        gate.check(now, Some(&snapshot), "c.yoke.test", source);
    }
    assert_eq!(gate.open_connections().total(), 0, "who is refused holds nothing");
    for _ in 0..2 {
        assert_eq!(refusal(&gate.check_source(now, source)), None);
        assert_eq!(refusal(&gate.check(now, Some(&snapshot), "a.yoke.test", source)), None);
    }
    let full = Some(ConnectionRefusal::SourceConnections);
    assert_eq!(refusal(&gate.check_source(now, source)), full);
    assert_eq!(refusal(&gate.check(now, Some(&snapshot), "a.yoke.test", source)), full);
    assert_eq!(refusal(&gate.check_source(now, ip("192.0.2.2"))), None, "another's");
    assert_eq!(refusal(&gate.check_source(now, None)), None, "nobody's is not counted");
    gate.open_connections().remove(source.unwrap());
    assert_eq!(refusal(&gate.check_source(now, source)), None);
}

#[test]
fn addresses_of_one_site_share_a_budget() {
    let now = Instant::now();
    let snapshot = served();
    for (rule, one, other, shared) in [
        ("one /64", "2001:db8::1", "2001:db8::ffff", true),
        ("two /64", "2001:db8::1", "2001:db8:0:1::1", false),
        ("mapped", "192.0.2.1", "::ffff:192.0.2.1", true),
    ] {
        let mut gate = Gate::new(LIMITS, now);
        for _ in 0..LIMITS.source.burst {
            gate.check(now, Some(&snapshot), "c", ip(one));
        }
        let verdict = gate.check(now, Some(&snapshot), "c", ip(other));
        assert_eq!(
            refusal(&verdict) == Some(ConnectionRefusal::SourceRate),
            shared,
            "{rule}"
        );
    }
}

#[test]
fn a_name_has_a_budget() {
    let now = Instant::now();
    let snapshot = served();
    let mut gate = Gate::new(LIMITS, now);
    let mut allowed = 0;
    for source in 0..10 {
        for _ in 0..10 {
            let verdict = gate.check(now, Some(&snapshot), "a.yoke.test", ip(&format!("192.0.2.{source}")));
            allowed += usize::from(refusal(&verdict).is_none());
        }
    }
    assert_eq!(allowed, 50);
}

#[test]
fn random_sources_do_not_grow_the_state() {
    let start = Instant::now();
    let snapshot = served();
    let mut gate = Gate::new(LIMITS, start);
    for number in 0..200_000_u32 {
        let source = Some(SocketAddr::from((number.to_be_bytes(), 40000)));
        gate.check(start, Some(&snapshot), &format!("{number}.yoke.test"), source);
    }
    assert!(gate.sources.kept() <= CAPACITY);
    assert_eq!(gate.names.kept(), 0, "unknown names are not kept");
    // A cleanup removes budgets that were unused since the previous one, so two are needed.
    for seconds in [10, 20] {
        gate.check(
            start + Duration::from_secs(seconds),
            Some(&snapshot),
            "c",
            ip("192.0.2.1"),
        );
    }
    assert_eq!(gate.sources.kept(), 1);
}

#[test]
fn only_allowed_sources_pass() {
    let now = Instant::now();
    let mut snapshot = Snapshot::default();
    let mut restricted = entry("a", &["a.yoke.test"], "1", "1");
    let mut route = crate::model::route::Route::clone(&restricted.route);
    let range = |text: &str| text.parse().unwrap();
    route.sources = Some(vec![range("192.0.2.0/24"), range("2001:db8::/32")]);
    restricted.route = Arc::new(route);
    snapshot.set("name/a.yoke.test", Some(restricted));
    for (source, allowed) in [
        (ip("192.0.2.255"), true),
        (ip("192.0.3.0"), false),
        (ip("::ffff:192.0.2.1"), true),
        (ip("2001:db8:ffff::1"), true),
        (ip("2001:db9::1"), false),
        (None, false),
    ] {
        let verdict = Gate::new(LIMITS, now).check(now, Some(&snapshot), "a.yoke.test", source);
        let expected = (!allowed).then_some(ConnectionRefusal::SourceNotAllowed);
        assert_eq!(refusal(&verdict), expected, "{source:?}");
    }
}

#[test]
fn each_cluster_has_its_own_request_budget() {
    let now = Instant::now();
    let mut gate = Gate::new(LIMITS, now);
    let [a, b] = ["bcdfghjk24", "zzzzzzzz24"].map(|id| id.parse().unwrap());
    let taken = (0..20).filter(|_| gate.charge_request(now, &a).is_ok()).count();
    assert_eq!(taken, 5);
    assert_eq!(gate.charge_request(now, &a), Err(RequestRefusal::Rate));
    assert!(gate.charge_request(now, &b).is_ok(), "another has its own");
    assert!(
        gate.charge_request(now + Duration::from_millis(100), &a).is_ok(),
        "in time"
    );
}
