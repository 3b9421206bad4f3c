//! Two serving kine-nats on one stream. Each forwards to the other what it may not do alone, and
//! the remaining one continues when the other is stopped, killed or suspended.

use crate::faults::{Load, check, serves};
use crate::harness::{Client, Kine, Nats, Servers, WAIT, Watching, etcdctl, events, eventually, json, prefix};
use crate::semantics::hears_what_is_compacted;
use bytes::Bytes;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Code;
use yoke_kine_nats::proto::etcdserverpb as pb;

const FOLLOW: [&str; 1] = ["--follow"];
/// Faster than any process that waits for the 2 s lease of a writer.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// The writer and a follower.
async fn two(nats: &impl Servers, stream: &str) -> (Kine, Kine) {
    let first = Kine::start(nats, stream, &FOLLOW).await;
    let second = Kine::start(nats, stream, &FOLLOW).await;
    assert_eq!(first.metric("etcd_server_is_leader").await, 1.0);
    assert_eq!(second.metric("etcd_server_is_leader").await, 0.0);
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_like_the_writer() {
    let nats = Nats::start().await;
    let (writer, follower) = two(&nats, "both").await;
    let run = |arguments: &[&str]| etcdctl(&follower.url(), arguments).unwrap();
    assert_eq!(run(&["put", "/a", "1"]).trim(), "OK");
    let lease = run(&["lease", "grant", "60"]);
    let lease = lease.split(' ').nth(1).unwrap();
    assert_eq!(run(&["put", "/b", "2", "--lease", lease]).trim(), "OK");
    assert!(run(&["lease", "keep-alive", "--once", lease]).contains("keepalived with TTL(60)"));
    assert!(run(&["lease", "timetolive", lease, "--keys"]).contains("/b"));

    // A write that one acknowledged can be read from the other at once, on every attempt.
    let (mut one, mut other) = (writer.client().await, follower.client().await);
    for number in 0..200 {
        let value = format!("{number}");
        let written = one.put("/c", value.as_bytes()).await.unwrap();
        let read = other.get("/c").await.unwrap();
        assert_eq!((read.mod_revision, read.value.as_ref()), (written, value.as_bytes()));
        let written = other.put("/d", value.as_bytes()).await.unwrap();
        assert_eq!(one.get("/d").await.unwrap().mod_revision, written);
    }
    let revision = other.revision().await;
    let old = other.range("/c", "", revision - 300).await.unwrap();
    assert_eq!(old.kvs, one.range("/c", "", revision - 300).await.unwrap().kvs);

    // Errors come from the writer.
    let error = other.range("/c", "", revision + 1000).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    assert_eq!(other.create("/c", b"").await.unwrap(), None);
    other.compact(revision - 10).await.unwrap();
    let error = other.compact(revision - 10).await.unwrap_err();
    assert_eq!(
        error.message(),
        "etcdserver: mvcc: required revision has been compacted"
    );
    let error = one.range("/c", "", revision - 11).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    // A compaction has no revision. A client that knows of it gets it from a follower, too.
    for _ in 0..20 {
        let revision = other.put("/e", b"").await.unwrap();
        other.compact(revision).await.unwrap();
        let error = other.range("/e", "", revision - 1).await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange);
    }
    assert!(follower.metric("yoke_kine_forwarded_total").await > 200.0);
    assert_eq!(writer.metric("yoke_kine_forwarded_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_current_watch_of_a_follower_survives_a_compaction() {
    let nats = Nats::start().await;
    let (writer, follower) = two(&nats, "compacted").await;
    hears_what_is_compacted(&writer, &follower).await;
}

#[tokio::test]
async fn a_large_answer_arrives_in_parts() {
    let nats = Nats::start().await;
    let (_writer, follower) = two(&nats, "parts").await;
    let mut client = follower.client().await;
    let value: Vec<u8> = (0..1_200_000u32).map(|byte| byte as u8).collect();
    for number in 0..9 {
        client.put(&format!("/p/{number}"), &value).await.unwrap();
    }
    let request = pb::DeleteRangeRequest {
        key: "/p/".into(),
        range_end: "/p0".into(),
        prev_kv: true,
    };
    let answer = client.kv.delete_range(request).await.unwrap().into_inner();
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (9, 9));
    for (number, kv) in answer.prev_kvs.iter().map(crate::harness::decode).enumerate() {
        assert_eq!(kv.key.as_ref(), format!("/p/{number}").as_bytes());
        assert!(kv.value == value, "value {number}");
    }
}

#[tokio::test]
async fn the_writer_and_the_follower_agree_on_members_and_leader() {
    let nats = Nats::start().await;
    let (writer, mut follower) = two(&nats, "members").await;
    let members = || json(&etcdctl(&writer.url(), &["member", "list", "-w", "json"]).unwrap())["members"].clone();
    let list = eventually("both members", || async {
        Some(members()).filter(|list| list.as_array().unwrap().len() == 2)
    });
    let list = list.await;
    let status =
        |kine: &Kine| json(&etcdctl(&kine.url(), &["endpoint", "status", "-w", "json"]).unwrap())[0]["Status"].clone();
    let (one, other) = (status(&writer), status(&follower));
    assert_eq!(one["leader"], one["header"]["member_id"]);
    assert_eq!(other["leader"], one["leader"]);
    assert_ne!(other["header"]["member_id"], other["leader"]);
    assert_eq!(other["header"]["cluster_id"], one["header"]["cluster_id"]);
    assert_eq!(other["raftTerm"], one["raftTerm"]);
    for (kine, status) in [(&writer, &one), (&follower, &other)] {
        let member = list
            .as_array()
            .unwrap()
            .iter()
            .find(|member| member["ID"] == status["header"]["member_id"]);
        let urls = member.unwrap()["clientURLs"].as_array().unwrap().clone();
        assert!(urls.contains(&kine.url().into()), "{list}");
    }
    let both = format!("{},{}", writer.url(), follower.url());
    let health = json(&etcdctl(&both, &["endpoint", "health", "-w", "json"]).unwrap());
    assert_eq!(
        (&health[0]["health"], &health[1]["health"]),
        (&true.into(), &true.into()),
        "{health}"
    );
    follower.terminate().await;
    let begun = Instant::now();
    eventually("the member that exited to be removed", || async {
        (members().as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    // A silent member is listed for five seconds.
    assert!(begun.elapsed() < Duration::from_secs(3), "who leaves says so");
}

/// Receives every revision of a prefix once, over responses that may come from several processes.
async fn hear(watching: &mut Watching, next: &mut i64, until: i64) {
    while *next <= until {
        for event in events(&watching.next().await.unwrap()) {
            assert_eq!(event.kv.unwrap().mod_revision, *next);
            *next += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_writer_hands_over_without_interrupting_watches() {
    let nats = Nats::start().await;
    let (mut writer, follower) = two(&nats, "handover").await;
    let (old, mut new) = (writer.client().await, follower.client().await);
    let mut watching = Watching::open(&mut new, prefix("/", 2)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let load = [Load::named(&old, "old", 4), Load::named(&new, "new", 4)];
    join_all(load.iter().map(|load| load.goes_on(100))).await;
    let mut shortest = hand_over(&mut writer, &follower).await;
    let mut acknowledged = BTreeMap::new();
    for load in load {
        acknowledged.extend(load.stop().await);
    }
    check(&mut writer.client().await, &acknowledged).await;
    let head = new.revision().await;
    let mut next = 2;
    hear(&mut watching, &mut next, head).await;
    check(&mut new, &acknowledged).await;
    // Each process in turn, and more than once: a node may be busy.
    let (mut leads, mut follows) = (follower, writer);
    for _ in 0..10 {
        shortest = shortest.min(hand_over(&mut leads, &follows).await);
        if shortest < AT_ONCE {
            return;
        }
        std::mem::swap(&mut leads, &mut follows);
    }
    panic!("no follower takes over at once: {shortest:?}");
}

/// Stops the writer and restarts it as a follower. Returns the time until a write was acknowledged.
async fn hand_over(writer: &mut Kine, follower: &Kine) -> Duration {
    let begun = Instant::now();
    writer.signal("TERM");
    eventually("the follower to become the writer", || async {
        (follower.metric("etcd_server_is_leader").await == 1.0).then_some(())
    })
    .await;
    serves(&follower.client().await).await;
    let took = begun.elapsed();
    println!("from SIGTERM until the follower has acknowledged a write {took:?}");
    let status = eventually("the old writer to exit", || std::future::ready(writer.exited())).await;
    assert!(status.success(), "{}", writer.log());
    writer.restart().await;
    assert_eq!(writer.metric("etcd_server_is_leader").await, 0.0);
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_from_a_killed_writer_loses_and_repeats_nothing() {
    let nats = Nats::start().await;
    let (mut writer, follower) = two(&nats, "kill9").await;
    let (old, mut new) = (writer.client().await, follower.client().await);
    let mut watching = Watching::open(&mut new, prefix("/", 2)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let load = [Load::named(&old, "old", 4), Load::named(&new, "new", 4)];
    join_all(load.iter().map(|load| load.goes_on(100))).await;
    let begun = Instant::now();
    writer.kill();
    let (mut probe, mut refused_count) = (new.clone(), 0);
    let acknowledged = yoke_test_support::eventually_some("a write through the follower", WAIT, async || {
        match probe.put("/probe", b"").await {
            Ok(_) => Some(()),
            Err(error) => {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
                refused_count += 1;
                None
            }
        }
    });
    if let Err(error) = acknowledged.await {
        panic!("{error}: {}", follower.log());
    }
    let gap = begun.elapsed();
    println!("kill -9 of the writer: a write through the other one is acknowledged after {gap:?}");
    let [_, load_of_new] = &load;
    load_of_new.goes_on(20).await;
    let mut acknowledged = BTreeMap::new();
    for load in load {
        acknowledged.extend(load.stop().await);
    }
    // Some of the rejected attempts may have been executed, but none twice.
    let probes = new.get("/probe").await.unwrap().version;
    assert!(probes >= 1 && probes as usize <= refused_count + 1, "{probes}");
    let head = new.revision().await;
    let mut next = 2;
    hear(&mut watching, &mut next, head).await;
    check(&mut new, &acknowledged).await;
    assert!(follower.metric("etcd_server_leader_changes_seen_total").await >= 2.0);
    // The killed process restarts and follows.
    writer.restart().await;
    assert_eq!(writer.metric("etcd_server_is_leader").await, 0.0);
    check(&mut writer.client().await, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_writer_answers_nothing_stale_and_follows() {
    the_one_that_slept_follows(&Nats::start().await).await;
}

/// A writer is suspended until a follower has taken over, and gets requests meanwhile.
pub(crate) async fn the_one_that_slept_follows(nats: &impl Servers) {
    let (mut writer, follower) = two(nats, "sleep").await;
    let (mut old, mut new) = (writer.client().await, follower.client().await);
    old.put("/a", b"1").await.unwrap();
    let mut watching = Watching::open(&mut old, prefix("/", 2)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    writer.signal("STOP");
    let begun = Instant::now();
    eventually("the follower to become the writer", || {
        let mut new = new.clone();
        async move { new.put("/a", b"2").await.ok() }
    })
    .await;
    println!(
        "SIGSTOP of the writer: a write through the other one is acknowledged after {:?}",
        begun.elapsed()
    );
    for number in 0..50 {
        new.put(&format!("/b/{number}"), b"").await.unwrap();
    }
    // The process answers these requests when it resumes, and only with what is true then.
    let (head, before) = (new.revision().await, writer.unread());
    let read = tokio::spawn({
        let mut old = old.clone();
        async move { old.range("/", "0", 0).await }
    });
    let asked = arrives(&writer, before).await;
    let write = tokio::spawn({
        let mut old = old.clone();
        async move { old.create("/once", b"").await }
    });
    arrives(&writer, asked).await;
    writer.signal("CONT");
    match read.await.unwrap() {
        // `/once` may exist by then.
        Ok(answer) => {
            assert!(
                answer.header.unwrap().revision >= head && answer.count >= 51,
                "{}",
                answer.count
            );
        }
        Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error}"),
    }
    let written = write.await.unwrap();
    eventually("the replaced writer to follow", || {
        let said = "Another process replaced this one as the writer; following it";
        std::future::ready(writer.log().contains(said).then_some(()))
    })
    .await;
    assert!(writer.exited().is_none(), "{}", writer.log());
    let once = new.get("/once").await;
    match written {
        Ok(revision) => assert_eq!(once.map(|kv| kv.mod_revision), revision),
        // The request was executed at most once.
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(once.is_none_or(|kv| kv.version == 1));
        }
    }
    // The watches of the process received everything, and receive the events that follow.
    let head = old.put("/c", b"").await.unwrap();
    let mut next = 2;
    hear(&mut watching, &mut next, head).await;
    assert_eq!(old.get("/a").await.unwrap().value.as_ref(), b"2");
    assert_eq!(writer.metric("etcd_server_is_leader").await, 0.0);
    assert_eq!(writer.metric("etcd_server_has_leader").await, 1.0);
    assert_eq!(contents(&mut old).await, contents(&mut new).await);
}

/// Waits until a suspended process has more to read; returns how much.
async fn arrives(kine: &Kine, before: u64) -> u64 {
    eventually("a request to arrive at the suspended process", || {
        std::future::ready(Some(kine.unread()).filter(|unread| *unread > before))
    })
    .await
}

/// The revision of a process, and the keys that it has read itself.
async fn contents(client: &mut Client) -> (i64, Vec<Bytes>) {
    // Up to the acknowledged revision.
    let revision = client.revision().await;
    let request = pb::RangeRequest {
        key: [0].to_vec().into(),
        range_end: [0].to_vec().into(),
        serializable: true,
        ..Default::default()
    };
    let answer = client.kv.range(request).await.unwrap().into_inner();
    assert!(answer.count >= 52, "{}", answer.count);
    (revision, answer.kvs)
}

#[tokio::test]
async fn a_single_follower_reports_no_leader() {
    let mut nats = Nats::start().await;
    let mut first = Kine::start(&nats, "alone", &["--follow", "--incarnation=7"]).await;
    let mut low = Kine::spawn(&nats, "alone", &["--follow", "--incarnation=6"]);
    let status = eventually("kine-nats to exit", || std::future::ready(low.exited())).await;
    assert!(
        !status.success() && low.log().contains("incarnation 7 owns it"),
        "{}",
        low.log()
    );
    let follower = Kine::start(&nats, "alone", &["--follow", "--incarnation=7"]).await;
    let mut client = follower.client().await;
    client.put("/a", b"1").await.unwrap();
    // The answer to a write is the writer's; after a read the follower has the write, too.
    assert!(client.get("/a").await.is_some());
    first.kill();
    nats.kill();
    if let Ok(stream) = client.watch.watch(crate::harness::led(tokio_stream::pending())).await {
        let ended = tokio::time::timeout(crate::harness::WAIT, stream.into_inner().message()).await;
        assert_eq!(ended.unwrap().unwrap_err().message(), "etcdserver: no leader");
    }
    eventually("the follower to have no leader", || async {
        (follower.metric("etcd_server_has_leader").await == 0.0).then_some(())
    })
    .await;
    // A serializable read may be stale, but it is answered.
    let request = |serializable| pb::RangeRequest {
        key: "/a".into(),
        serializable,
        ..Default::default()
    };
    assert_eq!(client.kv.range(request(true)).await.unwrap().into_inner().count, 1);
    let error = client.kv.range(request(false)).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Unavailable, "etcdserver: request timed out")
    );
    nats.restart().await;
    serves(&client).await;
    assert_eq!(client.get("/a").await.unwrap().value.as_ref(), b"1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_request_under_load() {
    let nats = Nats::start().await;
    let (first, second) = two(&nats, "move").await;
    let third = Kine::start(&nats, "move", &FOLLOW).await;
    let clients = [first.client().await, second.client().await, third.client().await];
    let status =
        |kine: &Kine| json(&etcdctl(&kine.url(), &["endpoint", "status", "-w", "json"]).unwrap())[0]["Status"].clone();
    let member = |kine: &Kine| status(kine)["header"]["member_id"].as_u64().unwrap();
    let all = [first.url(), second.url(), third.url()].join(",");
    let move_to = |member: u64| etcdctl(&all, &["move-leader", &format!("{member:x}")]);
    for kine in [&first, &second, &third] {
        eventually("three members in each list", || async {
            let list = json(&etcdctl(&kine.url(), &["member", "list", "-w", "json"]).unwrap());
            (list["members"].as_array().unwrap().len() == 3).then_some(())
        })
        .await;
    }
    let names = ["a", "b", "c"];
    let load = clients
        .iter()
        .zip(names)
        .map(|(client, name)| Load::named(client, name, 2));
    let load: Vec<_> = load.collect();
    // Followers contact the writer before they answer; this does not delay its resignation.
    let mut reads = JoinSet::new();
    for client in clients.iter().cycle().take(12) {
        let mut client = client.clone();
        reads.spawn(async move {
            loop {
                let _ = client.range("/load/a0-000000", "", 0).await;
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    join_all(load.iter().map(|load| load.goes_on(10))).await;
    for target in [&third, &second, &third, &first] {
        let begun = Instant::now();
        let said = move_to(member(target)).unwrap();
        println!("moved in {:?}", begun.elapsed());
        assert!(said.starts_with("Leadership transferred from"), "{said}");
        // A process may see the new writer in the log before the writer itself does.
        eventually("the target to lead", || async {
            (target.metric("etcd_server_is_leader").await == 1.0).then_some(())
        })
        .await;
        assert_eq!(status(target)["leader"], member(target));
        serves(&clients[0]).await;
    }
    reads.shutdown().await;
    let mut acknowledged = BTreeMap::new();
    for load in load {
        acknowledged.extend(load.stop().await);
    }
    for mut client in clients.clone() {
        check(&mut client, &acknowledged).await;
    }
    let term = || status(&first)["raftTerm"].as_u64().unwrap();
    eventually("as many terms as transfers and ended leases", || async {
        let replaced = |kine: &Kine| kine.log().matches("Another process replaced this one").count();
        let lapses: usize = [&first, &second, &third].map(replaced).iter().sum();
        (term() == 5 + lapses as u64).then_some(())
    })
    .await;

    let before = term();
    move_to(member(&first)).unwrap();
    assert_eq!(term(), before, "it leads already");
    let error = move_to(0xfade).unwrap_err();
    assert!(error.contains("etcdserver: bad leader transferee"), "{error}");
    let request = pb::MoveLeaderRequest {
        target_id: member(&third),
    };
    let error = second
        .client()
        .await
        .maintenance
        .move_leader(request)
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::FailedPrecondition, "etcdserver: not leader")
    );
}

#[tokio::test]
async fn a_follower_reports_the_alarm_of_a_full_log() {
    let nats = Nats::start().await;
    // No snapshot that would free space can be stored, and the quota is not used up.
    let direct = async_nats::connect(nats.url()).await.unwrap();
    let stream = serde_json::json!({
        "name": "KINE_SNAP_full", "subjects": ["kine.full.snap.>"], "max_bytes": 1000, "discard": "new", "allow_direct": true,
    });
    let made = direct.request("$JS.API.STREAM.CREATE.KINE_SNAP_full", stream.to_string().into());
    made.await.unwrap();
    let small = ["--follow", "--max-bytes=300000", "--quota=10000000"];
    let writer = Kine::start(&nats, "full", &small).await;
    let follower = Kine::start(&nats, "full", &small).await;
    let alarms = |kine: &Kine| etcdctl(&kine.url(), &["alarm", "list"]).unwrap();
    assert_eq!((alarms(&writer), alarms(&follower)), (String::new(), String::new()));
    let mut client = follower.client().await;
    let value = vec![7; 20_000];
    let mut number = 0;
    let error = loop {
        match client.put(&format!("/{number}"), &value).await {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 1000, "the log is never full");
    };
    assert_eq!(error.message(), "etcdserver: mvcc: database space exceeded");
    eventually("the same alarm from both", || async {
        let (one, other) = (alarms(&writer), alarms(&follower));
        (one.contains("alarm:NOSPACE") && one == other).then_some(())
    })
    .await;
}
