//! Hand-written rules first, then a random test with a model of Envoy.

mod random;

use super::interest::WINDOW;
use super::messages::MAX_NAMES;
use super::*;
use crate::base::resources::Base;
use crate::snapshot::entries::entry;
use crate::snapshot::resource::Resource;

fn snapshot(rows: &[(&str, &str, &str)]) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::default();
    for (sni, cluster, endpoints) in rows {
        snapshot.set(&format!("name/{sni}"), Some(entry(sni, &[sni], cluster, endpoints)));
    }
    Arc::new(snapshot)
}

fn ask(kind: ResourceKind) -> Request {
    Request {
        kind,
        nonce: String::new(),
        error: None,
        subscribe: vec![],
        unsubscribe: vec![],
        client_versions: BTreeMap::new(),
    }
}

fn subscribe(kind: ResourceKind, names: &[&str]) -> Request {
    Request {
        subscribe: names.iter().map(ToString::to_string).collect(),
        ..ask(kind)
    }
}

fn unsubscribe(kind: ResourceKind, names: &[&str]) -> Request {
    Request {
        unsubscribe: names.iter().map(ToString::to_string).collect(),
        ..ask(kind)
    }
}

fn accept(response: &Response) -> Request {
    Request {
        nonce: response.nonce.clone(),
        ..ask(response.kind)
    }
}

fn refuse(response: &Response) -> Request {
    Request {
        error: Some("no".into()),
        ..accept(response)
    }
}

fn holding(request: Request, client_versions: &[(&str, &str)]) -> Request {
    let pair = |(name, version): &(&str, &str)| ((*name).to_owned(), (*version).to_owned());
    Request {
        client_versions: client_versions.iter().map(pair).collect(),
        ..request
    }
}

fn stream(rows: &[(&str, &str, &str)], requests: impl IntoIterator<Item = Request>) -> Stream {
    let mut stream = Stream::new(snapshot(rows));
    for request in requests {
        assert!(stream.on_request(request).unwrap().is_none());
    }
    stream
}

/// All due responses, as `C+name=version` and `E-name`, one text for each response.
fn drain(stream: &mut Stream) -> Vec<String> {
    drain_responses(stream).iter().map(to_text).collect()
}

fn drain_responses(stream: &mut Stream) -> Vec<Response> {
    let responses = std::iter::from_fn(|| stream.next_response()).collect();
    assert!(stream.next_response().is_none(), "nothing waits for another event");
    responses
}

fn to_text(response: &Response) -> String {
    let kind = match response.kind {
        ResourceKind::Cluster => "C",
        ResourceKind::Endpoints => "E",
        ResourceKind::Listener => "L",
        ResourceKind::Routes => "R",
        ResourceKind::Secret => "S",
    };
    let short = |name: &str| name.trim_start_matches("name/").to_owned();
    let sent = response.resources.iter();
    let sent = sent.map(|(name, resource)| format!("+{}={}", short(name), resource.version));
    let removed = response.removed.iter().map(|name| format!("-{}", short(name)));
    format!("{kind}{}", sent.chain(removed).collect::<String>())
}

#[test]
fn a_stream_without_requests_gets_no_response() {
    assert!(drain(&mut stream(&[("a", "1", "1")], [])).is_empty());
}

#[test]
fn wildcards_get_all_one_cluster_a_response() {
    let rows = [("a", "1", "1"), ("b", "1", "1")];
    for (rule, request) in [
        ("no name", ask(ResourceKind::Cluster)),
        ("star", subscribe(ResourceKind::Cluster, &["*"])),
    ] {
        let mut stream = stream(&rows, [request]);
        assert_eq!(drain(&mut stream), ["C+a=1", "C+b=1"], "{rule}");
        stream.on_snapshot(snapshot(&[("b", "2", "1"), ("c", "1", "1")]));
        assert_eq!(drain(&mut stream), ["C-a", "C+b=2", "C+c=1"], "{rule}");
    }
}

fn with_certificate(rows: &[(&str, &str, &str)], version: &str) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::clone(&snapshot(rows));
    let body = version.as_bytes().into();
    let version = version.into();
    assert!(snapshot.set_certificate(Some(Resource { version, body })));
    Arc::new(snapshot)
}

/// A listener waits for the certificate, so it comes before what may be thousands of clusters.
#[test]
fn the_certificate_goes_first_and_is_renewed() {
    let rows = [("a", "1", "1")];
    let mut stream = Stream::new(with_certificate(&rows, "1"));
    stream.on_request(ask(ResourceKind::Cluster)).unwrap();
    stream
        .on_request(subscribe(ResourceKind::Secret, &["ingress"]))
        .unwrap();
    assert_eq!(drain(&mut stream), ["S+ingress=1", "C+a=1"]);
    stream.on_snapshot(with_certificate(&rows, "1"));
    assert!(drain(&mut stream).is_empty(), "the same again");
    stream.on_snapshot(with_certificate(&rows, "2"));
    let renewed = drain_responses(&mut stream);
    assert_eq!(renewed.iter().map(to_text).collect::<Vec<_>>(), ["S+ingress=2"]);
    let refusal = stream.on_request(refuse(&renewed[0])).unwrap().unwrap();
    assert!(refusal.route.is_none());
    assert!(drain(&mut stream).is_empty(), "not sent again");
    stream.on_snapshot(with_certificate(&rows, "3"));
    assert_eq!(drain(&mut stream), ["S+ingress=3"]);
}

#[test]
fn secrets_that_are_not_served_are_removed() {
    let mut stream = Stream::new(snapshot(&[("a", "1", "1")]));
    stream
        .on_request(subscribe(ResourceKind::Secret, &["ingress", "name/a"]))
        .unwrap();
    assert_eq!(drain(&mut stream), ["S-ingress-a"], "a cluster's name is no Secret's");
    stream.on_snapshot(with_certificate(&[], "1"));
    assert_eq!(drain(&mut stream), ["S+ingress=1"]);
    let client_versions = holding(subscribe(ResourceKind::Secret, &["ingress"]), &[("ingress", "1")]);
    let mut again = Stream::new(with_certificate(&[], "1"));
    again.on_request(client_versions).unwrap();
    assert!(
        drain(&mut again).is_empty(),
        "after a restart of either side nothing is sent that is there"
    );
}

#[test]
fn names_of_one_cluster_share_a_response() {
    let mut served = Snapshot::default();
    for sni in ["a", "x", "y"] {
        served.set(&format!("name/{sni}"), Some(entry("a", &["a", "x", "y"], "1", "1")));
    }
    served.set("name/b", Some(entry("b", &["b", "y"], "1", "1")));
    let mut stream = Stream::new(Arc::new(served));
    stream.on_request(ask(ResourceKind::Cluster)).unwrap();
    assert_eq!(drain(&mut stream), ["C+a=1+x=1+y=1", "C+b=1"]);
}

#[test]
fn an_empty_host_is_answered_once() {
    let mut stream = stream(&[], [ask(ResourceKind::Cluster)]);
    assert_eq!(drain(&mut stream), ["C"]);
    stream.on_request(ask(ResourceKind::Cluster)).unwrap();
    assert!(drain(&mut stream).is_empty());
}

#[test]
fn endpoints_have_no_wildcard_without_a_name() {
    assert!(drain(&mut stream(&[("a", "1", "1")], [ask(ResourceKind::Endpoints)])).is_empty());
}

#[test]
fn subscribed_names_are_answered() {
    let rows = [("a", "1", "1"), ("b", "1", "1")];
    let mut stream = stream(&rows, [subscribe(ResourceKind::Endpoints, &["name/a", "name/none"])]);
    assert_eq!(drain(&mut stream), ["E+a=1", "E-none"]);
    stream
        .on_request(subscribe(ResourceKind::Endpoints, &["name/a"]))
        .unwrap();
    assert_eq!(drain(&mut stream), ["E+a=1"], "who subscribes again holds nothing");
    stream.on_snapshot(snapshot(&[("a", "1", "2"), ("b", "1", "2"), ("none", "1", "1")]));
    assert_eq!(drain(&mut stream), ["E+a=2", "E+none=1"], "b is nobody's");
    stream
        .on_request(unsubscribe(ResourceKind::Endpoints, &["name/a"]))
        .unwrap();
    stream.on_snapshot(snapshot(&[("a", "1", "3")]));
    assert_eq!(drain(&mut stream), ["E-none"]);
}

#[test]
fn wildcard_and_names_go_together() {
    let rows = [("a", "1", "1"), ("b", "1", "1")];
    let mut stream = stream(&rows, [subscribe(ResourceKind::Cluster, &["*", "name/a"])]);
    assert_eq!(drain(&mut stream), ["C+a=1", "C+b=1"]);
    stream
        .on_request(unsubscribe(ResourceKind::Cluster, &["name/a"]))
        .unwrap();
    assert_eq!(drain(&mut stream), ["C+a=1"], "still subscribed to, and told so");
    stream
        .on_request(subscribe(ResourceKind::Cluster, &["name/a"]))
        .unwrap();
    stream.on_request(unsubscribe(ResourceKind::Cluster, &["*"])).unwrap();
    assert_eq!(drain(&mut stream), ["C+a=1"]);
    stream.on_snapshot(snapshot(&[("a", "2", "1"), ("b", "2", "1")]));
    assert_eq!(drain(&mut stream), ["C+a=2"]);
}

#[test]
fn a_reconnecting_client_gets_the_difference() {
    let rows = [("a", "1", "1"), ("b", "2", "1"), ("d", "1", "1")];
    let client_versions = [("name/a", "1"), ("name/b", "1"), ("name/c", "1")];
    let mut stream = stream(&rows, [holding(ask(ResourceKind::Cluster), &client_versions)]);
    assert_eq!(drain(&mut stream), ["C+b=2", "C-c", "C+d=1"]);
    let names = subscribe(ResourceKind::Endpoints, &["name/a", "name/b", "name/c"]);
    stream.on_request(holding(names, &client_versions)).unwrap();
    // The Cluster of b was sent on this stream, so Envoy waits for its endpoints, which did not
    // change.
    assert_eq!(drain(&mut stream), ["E+b=1", "E-c"]);
}

/// A client that reconnects and is up to date subscribes to Clusters last, and its endpoints would
/// come first.
#[test]
fn changed_endpoints_are_sent_at_once() {
    let requests = [
        holding(ask(ResourceKind::Cluster), &[("name/a", "1")]),
        holding(subscribe(ResourceKind::Endpoints, &["name/a"]), &[("name/a", "1")]),
    ];
    let mut stream = stream(&[("a", "1", "1")], requests);
    assert_eq!(drain(&mut stream), ["C"]);
    stream.on_snapshot(snapshot(&[("a", "1", "2")]));
    assert_eq!(drain(&mut stream), ["E+a=2"]);
}

#[test]
fn endpoints_that_were_lost_with_the_connection_are_sent() {
    let names = subscribe(ResourceKind::Endpoints, &["name/a"]);
    let requests = [
        holding(ask(ResourceKind::Cluster), &[("name/a", "2")]),
        holding(names, &[("name/a", "1/1")]),
    ];
    let mut stream = stream(&[("a", "2", "2/1")], requests);
    assert_eq!(drain(&mut stream), ["C", "E+a=2/1"]);
}

#[test]
fn endpoints_follow_a_changed_cluster() {
    let rows = [("a", "1", "1"), ("b", "1", "1")];
    let mut stream = stream(
        &rows,
        [
            ask(ResourceKind::Cluster),
            subscribe(ResourceKind::Endpoints, &["name/a", "name/b"]),
        ],
    );
    drain(&mut stream);
    stream.on_snapshot(snapshot(&[("a", "2", "1"), ("b", "1", "1")]));
    assert_eq!(drain(&mut stream), ["C+a=2", "E+a=1"]);
}

#[test]
fn a_refused_resource_waits_for_another_content() {
    let mut stream = stream(&[("a", "1", "1")], [ask(ResourceKind::Cluster)]);
    let first = stream.next_response().unwrap();
    stream.on_request(accept(&first)).unwrap();
    stream.on_snapshot(snapshot(&[("a", "bad", "1")]));
    let second = stream.next_response().unwrap();
    let refusal = stream.on_request(refuse(&second)).unwrap().unwrap();
    assert_eq!(refusal.route.unwrap().namespace, "a");
    assert_eq!((refusal.kind, refusal.reason.as_str()), (ResourceKind::Cluster, "no"));
    assert!(drain(&mut stream).is_empty());
    stream.on_snapshot(snapshot(&[("a", "bad", "1"), ("b", "1", "1")]));
    let again = drain_responses(&mut stream);
    assert_eq!(
        again.iter().map(to_text).collect::<Vec<_>>(),
        ["C+a=bad", "C+b=1"],
        "its cluster changed"
    );
    assert!(stream.on_request(refuse(&again[0])).unwrap().is_some());
    assert!(stream.on_request(accept(&again[1])).unwrap().is_none());
    assert!(drain(&mut stream).is_empty());
    stream.on_snapshot(snapshot(&[("a", "1", "1"), ("b", "1", "1")]));
    assert_eq!(
        drain(&mut stream),
        ["C+a=1"],
        "the good content again, which Envoy will find unchanged"
    );
    assert!(
        stream.on_request(refuse(&second)).unwrap().is_none(),
        "an answer counts once"
    );
}

#[test]
fn the_removal_of_a_refused_resource_is_sent() {
    let mut stream = stream(&[("a", "bad", "1")], [ask(ResourceKind::Cluster)]);
    let first = stream.next_response().unwrap();
    assert!(stream.on_request(refuse(&first)).unwrap().is_some());
    stream.on_snapshot(snapshot(&[]));
    assert_eq!(drain(&mut stream), ["C-a"]);
}

#[test]
fn a_refusal_of_an_outdated_version_changes_nothing() {
    let mut stream = stream(&[("a", "bad", "1")], [ask(ResourceKind::Cluster)]);
    let first = stream.next_response().unwrap();
    stream.on_snapshot(snapshot(&[("a", "2", "1")]));
    assert_eq!(drain(&mut stream), ["C+a=2"]);
    assert!(stream.on_request(refuse(&first)).unwrap().is_some());
    assert!(drain(&mut stream).is_empty());
}

#[test]
fn a_slow_client_bounds_the_responses_in_flight() {
    let names: Vec<String> = (0..1000).map(|number| format!("n{number:04}")).collect();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), "1", "1")).collect();
    let mut stream = stream(&rows, [ask(ResourceKind::Cluster)]);
    let mut responses = drain_responses(&mut stream);
    assert_eq!(responses.len(), WINDOW);
    assert_eq!(stream.in_flight(), WINDOW);
    let mut total = 0;
    while !responses.is_empty() {
        total += responses.len();
        for response in std::mem::take(&mut responses) {
            stream.on_request(accept(&response)).unwrap();
            responses.extend(stream.next_response());
        }
    }
    assert_eq!((total, stream.in_flight()), (1000, 0));
}

#[test]
fn a_flood_of_names_ends_the_stream() {
    let mut stream = Stream::new(snapshot(&[]));
    let names = (0..=MAX_NAMES).map(|number| number.to_string()).collect();
    let request = Request {
        subscribe: names,
        ..ask(ResourceKind::Endpoints)
    };
    assert!(matches!(stream.on_request(request), Err(ProtocolError::TooManyNames)));
}

/// A snapshot of one cluster with base resources.
fn with_base(resources: Option<&[(ResourceKind, &str, &str)]>) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::clone(&snapshot(&[("a", "1", "1")]));
    snapshot.set_base(resources.map(|resources| {
        let mut base = Base::default();
        for (kind, name, version) in resources {
            let resource = Resource {
                version: (*version).into(),
                body: version.as_bytes().into(),
            };
            assert!(base.add(*kind, name, resource));
        }
        Arc::new(base)
    }));
    Arc::new(snapshot)
}

#[test]
fn base_resources_follow_the_clusters() {
    let base = [
        (ResourceKind::Listener, "web", "1"),
        (ResourceKind::Routes, "web", "1"),
        (ResourceKind::Cluster, "web", "1"),
    ];
    let mut stream = Stream::new(with_base(Some(&base)));
    let requests = [
        ask(ResourceKind::Cluster),
        ask(ResourceKind::Listener),
        subscribe(ResourceKind::Routes, &["web", "none"]),
    ];
    for request in requests {
        stream.on_request(request).unwrap();
    }
    let expected = ["C+a=1", "C+web=1", "L+web=1", "R+web=1"];
    assert_eq!(drain(&mut stream), expected);

    let newer = [(ResourceKind::Routes, "web", "2"), (ResourceKind::Cluster, "web", "1")];
    stream.on_snapshot(with_base(Some(&newer)));
    assert_eq!(drain(&mut stream), ["L-web", "R+web=2"]);
    stream.on_snapshot(with_base(Some(&[])));
    assert_eq!(drain(&mut stream), ["C-web"], "nobody waits for routes for ever");
    stream.on_snapshot(with_base(Some(&[(ResourceKind::Routes, "web", "2")])));
    assert_eq!(drain(&mut stream), ["R+web=2"]);
}

#[test]
fn base_resources_stay_while_the_base_is_unknown() {
    let mut stream = Stream::new(with_base(None));
    let requests = [
        holding(
            ask(ResourceKind::Cluster),
            &[("name/gone", "1"), ("web", "1"), ("old", "1")],
        ),
        holding(ask(ResourceKind::Listener), &[("web", "1")]),
    ];
    for request in requests {
        stream.on_request(request).unwrap();
    }
    assert_eq!(drain(&mut stream), ["C+a=1", "C-gone", "L"]);
    stream.on_snapshot(with_base(Some(&[(ResourceKind::Cluster, "web", "2")])));
    assert_eq!(drain(&mut stream), ["C-old", "C+web=2", "L-web"]);
}

#[test]
fn a_refusal_names_the_base_resource() {
    let bad = [(ResourceKind::Listener, "web", "bad")];
    let mut stream = Stream::new(with_base(Some(&bad)));
    stream.on_request(ask(ResourceKind::Listener)).unwrap();
    let response = stream.next_response().unwrap();
    let refusal = stream.on_request(refuse(&response)).unwrap().unwrap();
    assert!(refusal.route.is_none());
    let named: Vec<_> = refusal
        .resources
        .iter()
        .map(|(name, version)| (&**name, &**version))
        .collect();
    assert_eq!(named, [("web", "bad")]);
    assert!(drain(&mut stream).is_empty());
    stream.on_snapshot(with_base(Some(&[(ResourceKind::Listener, "web", "1")])));
    assert_eq!(drain(&mut stream), ["L+web=1"], "the last good one");
}

#[test]
fn a_refused_base_resource_is_retried_with_the_next_change() {
    let bad = [(ResourceKind::Listener, "web", "bad")];
    let mut stream = Stream::new(with_base(Some(&bad)));
    stream.on_request(ask(ResourceKind::Listener)).unwrap();
    let response = stream.next_response().unwrap();
    stream.on_request(refuse(&response)).unwrap();
    stream.on_snapshot(with_base(None));
    assert!(drain(&mut stream).is_empty());
    let newer = [
        (ResourceKind::Listener, "more", "1"),
        (ResourceKind::Listener, "web", "bad"),
    ];
    stream.on_snapshot(with_base(Some(&newer)));
    assert_eq!(drain(&mut stream), ["L+more=1", "L+web=bad"]);
}

#[test]
fn removed_listeners_are_sent_first() {
    let mut stream = Stream::new(with_base(Some(&[(ResourceKind::Listener, "web", "1")])));
    stream.on_request(ask(ResourceKind::Listener)).unwrap();
    assert_eq!(drain(&mut stream), ["L+web=1"]);
    stream.on_snapshot(with_base(Some(&[(ResourceKind::Listener, "again", "1")])));
    assert_eq!(drain(&mut stream), ["L-web", "L+again=1"]);
}
