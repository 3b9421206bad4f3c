use super::*;

const OWN: &str = "own";

fn key(number: u8) -> Key {
    data_encoding::BASE64.encode(&[number; 32]).parse().unwrap()
}

fn own() -> LocalWorker {
    LocalWorker {
        name: OWN.into(),
        key: key(255),
        range: "10.1.0.0/24".parse().unwrap(),
        reserved: vec!["192.168.7.0/24".parse().unwrap(), "10.99.0.1/32".parse().unwrap()],
    }
}

/// The one that was made at second `number`, with addresses to match.
fn node(number: u8) -> PeerNode {
    PeerNode {
        uid: format!("u{number}"),
        created: Some(Timestamp::from_second(number.into()).unwrap()),
        ranges: vec![format!("10.1.{number}.0/24")],
        address: None,
        key: Some(key(number).to_string()),
        endpoint: Some(format!("192.0.2.{number}:51820")),
    }
}

fn peer(number: u8) -> Peer {
    Peer {
        key: key(number),
        endpoint: format!("192.0.2.{number}:51820").parse().unwrap(),
        range: format!("10.1.{number}.0/24").parse().unwrap(),
    }
}

fn with(number: u8, change: impl FnOnce(&mut PeerNode)) -> PeerNode {
    let mut seen = node(number);
    change(&mut seen);
    seen
}

fn nodes<const N: usize>(nodes: [(&str, PeerNode); N]) -> BTreeMap<String, PeerNode> {
    nodes.map(|(name, seen)| (name.to_owned(), seen)).into()
}

#[test]
fn every_other_worker_is_a_peer() {
    let nodes = nodes([
        (OWN, with(9, |seen| seen.ranges = vec!["10.1.0.0/24".into()])),
        ("b", node(1)),
        ("a", node(2)),
        ("no worker of this kind", with(3, |seen| seen.key = None)),
    ]);
    let expected = Plan {
        peers: vec![peer(1), peer(2)],
        rejected: BTreeMap::new(),
    };
    assert_eq!(plan(&own(), &nodes), expected);
}

#[test]
fn conflicting_nodes_get_no_tunnel() {
    let range = |text: &str| with(2, |seen| seen.ranges = vec![text.to_owned()]);
    let endpoint = |text: &str| with(2, |seen| seen.endpoint = Some(text.to_owned()));
    let older = || "older".to_owned();
    for (rule, seen, fault) in [
        (
            "no key",
            with(2, |seen| seen.key = Some("x".into())),
            PeerRejection::Key,
        ),
        (
            "this worker's key",
            with(2, |seen| seen.key = Some(key(255).to_string())),
            PeerRejection::SharedKey(OWN.into()),
        ),
        (
            "another one's key",
            with(2, |seen| seen.key = Some(key(1).to_string())),
            PeerRejection::SharedKey(older()),
        ),
        ("no range", with(2, |seen| seen.ranges.clear()), PeerRejection::Range),
        ("not a range", range("10.1.2.1/24"), PeerRejection::Range),
        ("all addresses", range("0.0.0.0/0"), PeerRejection::Range),
        ("public addresses", range("8.8.8.0/24"), PeerRejection::Range),
        ("loopback", range("127.0.0.0/24"), PeerRejection::Range),
        ("addresses of another kind", range("fd00::/64"), PeerRejection::Range),
        (
            "more addresses than this worker has",
            range("10.1.2.0/23"),
            PeerRejection::Range,
        ),
        (
            "this worker's range",
            range("10.1.0.128/25"),
            PeerRejection::SharedRange(OWN.into()),
        ),
        (
            "the machine's network",
            range("192.168.7.128/25"),
            PeerRejection::Reserved("192.168.7.0/24".parse().unwrap()),
        ),
        (
            "an address that the machine needs",
            range("10.99.0.0/24"),
            PeerRejection::Reserved("10.99.0.1/32".parse().unwrap()),
        ),
        (
            "another one's range",
            range("10.1.1.0/25"),
            PeerRejection::SharedRange(older()),
        ),
        (
            "another one's endpoint",
            range("172.16.5.0/24"),
            PeerRejection::Covers("near".into()),
        ),
        (
            "no endpoint",
            with(2, |seen| seen.endpoint = None),
            PeerRejection::Endpoint,
        ),
        ("an endpoint by name", endpoint("box:51820"), PeerRejection::Endpoint),
        (
            "an endpoint without a port",
            endpoint("192.0.2.2:0"),
            PeerRejection::Endpoint,
        ),
        (
            "an endpoint on this machine",
            endpoint("127.0.0.1:53"),
            PeerRejection::Endpoint,
        ),
        (
            "the same in other words",
            endpoint("[::ffff:127.0.0.1]:53"),
            PeerRejection::Endpoint,
        ),
        ("an endpoint nowhere", endpoint("0.0.0.0:53"), PeerRejection::Endpoint),
        (
            "an endpoint everywhere",
            endpoint("255.255.255.255:53"),
            PeerRejection::Endpoint,
        ),
        ("an endpoint of many", endpoint("224.0.0.1:53"), PeerRejection::Endpoint),
        (
            "a machine's own services",
            endpoint("169.254.169.254:80"),
            PeerRejection::Endpoint,
        ),
        (
            "an endpoint of one link",
            endpoint("[fe80::1]:51820"),
            PeerRejection::Endpoint,
        ),
        (
            "a tunnel through itself",
            endpoint("10.1.2.7:51820"),
            PeerRejection::Endpoint,
        ),
        (
            "a Pod of this worker",
            endpoint("10.1.0.7:51820"),
            PeerRejection::Inside(OWN.into()),
        ),
        (
            "a Pod of another one",
            endpoint("10.1.1.7:51820"),
            PeerRejection::Inside(older()),
        ),
    ] {
        let nodes = nodes([
            ("older", node(1)),
            (
                "near",
                with(1, |seen| {
                    seen.key = Some(key(7).to_string());
                    seen.ranges = vec!["10.1.7.0/24".into()];
                    seen.endpoint = Some("172.16.5.5:51820".into());
                }),
            ),
            ("a", seen),
            ("newer", node(3)),
        ]);
        let plan = plan(&own(), &nodes);
        assert_eq!(plan.rejected, [("a".to_owned(), fault)].into(), "{rule}");
        let keys: Vec<_> = plan.peers.iter().map(|peer| peer.key).collect();
        assert_eq!(keys, [7, 1, 3].map(key), "{rule}");
    }
}

#[test]
fn the_older_node_is_right() {
    let claim = |number: u8| with(number, |seen| seen.ranges = vec!["10.1.5.0/24".into()]);
    let undated = with(4, |seen| {
        seen.created = None;
        seen.ranges = vec!["10.1.5.0/24".into()];
    });
    for (rule, nodes, kept) in [
        ("by its time", nodes([("a", claim(2)), ("b", claim(1))]), 1),
        (
            "and one without a time is newest",
            nodes([("a", undated), ("b", claim(1))]),
            1,
        ),
        (
            "by its name, if created in the same second",
            nodes([
                ("b", claim(1)),
                (
                    "a",
                    with(1, |seen| {
                        seen.key = Some(key(3).to_string());
                        seen.ranges = vec!["10.1.5.0/24".into()];
                    }),
                ),
            ]),
            3,
        ),
    ] {
        let plan = plan(&own(), &nodes);
        let keys: Vec<_> = plan.peers.iter().map(|peer| peer.key).collect();
        assert_eq!(keys, [key(kept)], "{rule}");
    }
}

#[test]
fn the_number_of_peers_is_bounded() {
    let all = (0..=PEERS_MAX).map(|number| {
        let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
        let mut bytes = [1; 32];
        (bytes[0], bytes[1]) = (high, low);
        let seen = PeerNode {
            created: Some(Timestamp::from_second(number.try_into().unwrap()).unwrap()),
            ranges: vec![format!("10.{}.{low}.0/24", 2 + high)],
            key: Some(data_encoding::BASE64.encode(&bytes)),
            endpoint: Some(format!("192.0.2.1:{}", 1000 + number)),
            ..PeerNode::default()
        };
        (format!("n{number}"), seen)
    });
    let plan = plan(&own(), &all.collect());
    assert_eq!(plan.peers.len(), PEERS_MAX);
    assert_eq!(plan.rejected, [(format!("n{PEERS_MAX}"), PeerRejection::Many)].into());
}

#[test]
fn a_range_of_the_same_kind_is_chosen() {
    let ranges = ["fd00::/64", "10.1.2.0/26"].map(str::to_owned);
    assert_eq!(choose_range(own().range, &ranges), Some("10.1.2.0/26".parse().unwrap()));
}
