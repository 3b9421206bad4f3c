//! Killed processes, restarted servers, two writers, a full stream: no acknowledged write is lost,
//! and no event is sent twice.

use crate::harness::{Client, Kine, Nats, Servers, WAIT, Watching, events, eventually, led, prefix};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use yoke_kine_nats::proto::etcdserverpb as pb;

/// Writers that create keys until stopped, and remember the acknowledged ones.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    tasks: JoinSet<BTreeMap<String, i64>>,
}

impl Load {
    pub(crate) fn start(client: &Client, writers: usize) -> Self {
        Self::named(client, "", writers)
    }

    /// Starts a writer with its own keys.
    pub(crate) fn named(client: &Client, name: &'static str, writers: usize) -> Self {
        let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            let (mut client, stop, count) = (client.clone(), Arc::clone(&stop), Arc::clone(&count));
            tasks.spawn(async move {
                let mut acknowledged = BTreeMap::new();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("/load/{name}{writer}-{number:06}");
                    match client.create(&key, key.as_bytes()).await {
                        Ok(Some(revision)) => {
                            acknowledged.insert(key, revision);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(None) => panic!("{key} was there already"),
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                }
                acknowledged
            });
        }
        Self {
            stop,
            acknowledged: count,
            tasks,
        }
    }

    /// Waits until this many more are acknowledged.
    pub(crate) async fn goes_on(&self, more: usize) {
        let count = || self.acknowledged.load(Ordering::Relaxed);
        let enough = count() + more;
        eventually("more acknowledged writes", || {
            std::future::ready((count() >= enough).then_some(()))
        })
        .await;
    }

    pub(crate) async fn stop(self) -> BTreeMap<String, i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().flatten().collect()
    }
}

/// Waits until a write is acknowledged.
pub(crate) async fn serves(client: &Client) -> Duration {
    let begun = Instant::now();
    eventually("an acknowledged write", || {
        let mut client = client.clone();
        async move { client.put("/probe", b"").await.ok() }
    })
    .await;
    begun.elapsed()
}

/// Checks that every acknowledged key exists with its revision, and that a watch from the start
/// receives every revision once.
pub(crate) async fn check(client: &mut Client, acknowledged: &BTreeMap<String, i64>) {
    let answer = client.range("/load/", "/load0", 0).await.unwrap();
    let head = answer.header.unwrap().revision;
    let found: BTreeMap<String, i64> = answer
        .kvs
        .iter()
        .map(crate::harness::decode)
        .map(|kv| (String::from_utf8(kv.key.to_vec()).unwrap(), kv.mod_revision))
        .collect();
    for (key, revision) in acknowledged {
        assert_eq!(found.get(key), Some(revision), "{key}");
    }
    let mut watching = Watching::open(client, prefix("/", 2)).await.unwrap();
    let mut next = 2;
    while next <= head {
        for event in events(&watching.next().await.unwrap()) {
            assert_eq!(event.kv.unwrap().mod_revision, next, "revisions have no gaps");
            next += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_kine_nats_is_killed() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "killed", &["--snapshot-bytes", "200000"]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 8);
    for _ in 0..3 {
        load.goes_on(500).await;
        kine.kill();
        kine.respawn();
        println!("answers after {:?}", serves(&client).await);
    }
    let acknowledged = load.stop().await;
    println!("{} acknowledged", acknowledged.len());
    check(&mut client, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_nats_server_is_killed() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "nats", &[]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 8);
    for pause in [0, 300, 3000] {
        load.goes_on(500).await;
        nats.kill();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        nats.restart().await;
        println!("answers after {:?}", serves(&client).await);
    }
    let acknowledged = load.stop().await;
    check(&mut client, &acknowledged).await;
    assert!(kine.exited().is_none());
    // The same after a restart, from the log.
    kine.terminate().await;
    kine.restart().await;
    check(&mut kine.client().await, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_leader_streams_fail_without_nats() {
    let mut nats = Nats::start().await;
    let kine = Kine::start(&nats, "away", &[]).await;
    let mut client = kine.client().await;
    client.put("/a", b"1").await.unwrap();
    let mut stream = client
        .watch
        .watch(led(tokio_stream::pending()))
        .await
        .unwrap()
        .into_inner();
    let renewals = client.lease.lease_keep_alive(led(tokio_stream::pending())).await;
    let mut renewals = renewals.unwrap().into_inner();
    let others = client.lease.lease_keep_alive(tokio_stream::pending()).await;
    let mut others = others.unwrap().into_inner();
    nats.kill();
    let begun = Instant::now();
    for ended in [
        tokio::time::timeout(WAIT, stream.message()).await.unwrap().unwrap_err(),
        tokio::time::timeout(WAIT, renewals.message())
            .await
            .unwrap()
            .unwrap_err(),
    ] {
        assert_eq!(
            (ended.code(), ended.message()),
            (tonic::Code::Unavailable, "etcdserver: no leader")
        );
        println!("a stream ends {:?} after NATS went", begun.elapsed());
    }
    // A client that watches again at once, like kube-apiserver, gets no immediate response.
    let begun = Instant::now();
    let mut renewing = client.lease.clone();
    let (watches, renewals) = tokio::join!(
        client.watch.watch(led(tokio_stream::pending())),
        renewing.lease_keep_alive(led(tokio_stream::pending()))
    );
    for refused in [watches.unwrap_err(), renewals.unwrap_err()] {
        assert_eq!(refused.message(), "etcdserver: no leader");
    }
    assert!(begun.elapsed() > Duration::from_secs(6), "{:?}", begun.elapsed());
    let refused = client.range("/a", "", 0).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::Unavailable, "etcdserver: request timed out")
    );
    let unsure = client.put("/a", b"2").await.unwrap_err();
    assert_eq!(
        (unsure.code(), unsure.message()),
        (tonic::Code::Unavailable, "etcdserver: request timed out")
    );
    let request = pb::RangeRequest {
        key: "/a".into(),
        serializable: true,
        ..Default::default()
    };
    assert_eq!(client.kv.range(request).await.unwrap().into_inner().count, 1);
    nats.restart().await;
    eventually("a watch to start", || async {
        client.watch.clone().watch(led(tokio_stream::pending())).await.ok()
    })
    .await;
    serves(&client).await;
    let quiet = tokio::time::timeout(Duration::from_millis(10), others.message()).await;
    assert!(quiet.is_err(), "who needs no leader is not told");
}

#[tokio::test]
async fn a_watch_continues_over_a_restart_without_a_gap() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "resume", &["--snapshot-bytes", "5000"]).await;
    let mut client = kine.client().await;
    let (mut next, mut written) = (2, 1);
    for round in 0..4 {
        let mut watching = Watching::open(&mut client, prefix("/w/", next)).await.unwrap();
        assert!(watching.next().await.unwrap().created);
        for number in 0..50 {
            written = client
                .put("/w/a", format!("{round}-{number}").as_bytes())
                .await
                .unwrap();
            if number == 40 {
                // The next watch, after the restart, receives the events that follow.
                while next < written {
                    for event in events(&watching.next().await.unwrap()) {
                        assert_eq!(event.kv.as_ref().unwrap().mod_revision, next);
                        assert_eq!(event.prev_kv.is_some(), next > 2, "the version before {next}");
                        next += 1;
                    }
                }
            }
        }
        if round % 2 == 0 {
            kine.kill();
        } else {
            kine.terminate().await;
        }
        kine.restart().await;
    }
    assert_eq!(written, 201);
    let mut watching = Watching::open(&mut client, prefix("/w/", next)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    assert_eq!(
        events(&watching.next().await.unwrap())[0]
            .kv
            .as_ref()
            .unwrap()
            .mod_revision,
        next
    );
}

/// A writer is suspended for longer than its lease, and gets requests meanwhile.
pub(crate) async fn the_paused_one_is_fenced(nats: &impl Servers) {
    let mut first = Kine::start(nats, "two", &[]).await;
    let mut second = Kine::spawn(nats, "two", &[]);
    let mut old = first.client().await;
    old.put("/a", b"1").await.unwrap();
    eventually("the second process to be on standby", || {
        std::future::ready(second.log().contains("on standby").then_some(()))
    })
    .await;
    // Longer than a lease.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!second.log().contains("is the writer"), "{}", second.log());
    first.signal("STOP");
    second.ready().await;
    let mut new = second.client().await;
    assert_eq!(new.put("/a", b"2").await.unwrap(), 3);
    // The lease expired during the suspension: the process answers no request from memory.
    let read = tokio::spawn({
        let mut old = old.clone();
        async move { old.range("/a", "", 0).await }
    });
    let write = tokio::spawn(async move { old.put("/a", b"stale").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.signal("CONT");
    assert!(read.await.unwrap().is_err() && write.await.unwrap().is_err());
    let status = eventually("the fenced writer to exit", || std::future::ready(first.exited())).await;
    assert!(!status.success());
    assert!(
        first.log().contains("fenced by the writer of epoch 2"),
        "{}",
        first.log()
    );
    assert_eq!(new.get("/a").await.unwrap().value.as_ref(), b"2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_writer_is_fenced() {
    the_paused_one_is_fenced(&Nats::start().await).await;
}

#[tokio::test]
async fn a_lower_incarnation_never_starts() {
    let nats = Nats::start().await;
    let mut third = Kine::start(&nats, "three", &["--incarnation", "7"]).await;
    third.terminate().await;
    let mut low = Kine::spawn(&nats, "three", &["--incarnation", "6"]);
    let status = eventually("kine-nats to exit", || std::future::ready(low.exited())).await;
    assert!(
        !status.success()
            && low
                .log()
                .contains("incarnation 7 owns it, and this process is incarnation 6"),
        "{}",
        low.log()
    );
}

#[tokio::test]
async fn a_store_restarts_from_snapshots_and_a_shortened_log() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "snap", &["--snapshot-bytes", "100000"]).await;
    let mut client = kine.client().await;
    // A chunk of a process that was killed.
    let direct = async_nats::connect(nats.url()).await.unwrap();
    direct.request("kine.snap.snap.c.1.1-a", "chunk".into()).await.unwrap();
    for number in 0..600 {
        client
            .put(&format!("/s/{:03}", number % 200), &[b'v'; 1000])
            .await
            .unwrap();
        if number % 100 == 99 {
            client.compact(number - 50).await.unwrap();
        }
    }
    let stored = kine.metric("yoke_kine_snapshots_total").await;
    assert!(stored >= 2.0, "{stored} snapshots");
    let asked = r#"{"subjects_filter":"kine.snap.snap.c.>"}"#;
    let info = direct
        .request("$JS.API.STREAM.INFO.KINE_SNAP_snap", asked.into())
        .await
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.payload).unwrap();
    let subjects = info["state"]["subjects"].as_object().unwrap();
    assert!(
        !subjects.is_empty() && !subjects.contains_key("kine.snap.snap.c.1.1-a"),
        "{subjects:?}"
    );
    kine.kill();
    kine.restart().await;
    let answer = client.range("/s/", "/s0", 0).await.unwrap();
    assert_eq!((answer.count, answer.header.unwrap().revision), (200, 601));
    assert_eq!(client.range("/s/", "/s0", 549).await.unwrap().count, 200);
    assert_eq!(
        client.range("/s/", "/s0", 548).await.unwrap_err().code(),
        tonic::Code::OutOfRange
    );
}

#[tokio::test]
async fn a_full_stream_is_freed_and_the_quota_rejects_only_puts() {
    a_full_stream_is_made_room_in(&Nats::start().await).await;
}

/// Fills the log, then the quota, and frees space in both.
pub(crate) async fn a_full_stream_is_made_room_in(nats: &impl Servers) {
    // The log has 4 MB; regular snapshots alone would never free space.
    let small = ["--max-bytes=4000000", "--quota=20000000", "--snapshot-bytes=100000000"];
    let mut kine = Kine::start(nats, "full", &small).await;
    let mut client = kine.client().await;
    for number in 0..100 {
        let put = async || {
            let answer = client.put("/f/a", &vec![number; 100_000]).await;
            answer.inspect_err(|error| {
                assert!(
                    [
                        "etcdserver: request timed out",
                        "etcdserver: mvcc: database space exceeded"
                    ]
                    .contains(&error.message())
                );
            })
        };
        yoke_test_support::eventually("an acknowledged put", WAIT, put, |_| true)
            .await
            .unwrap();
    }
    assert!(kine.log().contains("The log is nearly full"));
    let revision = client.revision().await;
    client.compact(revision).await.unwrap();
    let mut refused = None;
    for number in 0..300 {
        if let Err(error) = client.put(&format!("/f/{number}"), &vec![1; 100_000]).await
            && error.code() == tonic::Code::ResourceExhausted
        {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.unwrap().message(), "etcdserver: mvcc: database space exceeded");
    let alarms = client
        .maintenance
        .alarm(pb::AlarmRequest::default())
        .await
        .unwrap()
        .into_inner()
        .alarms;
    assert_eq!(alarms[0].alarm, pb::AlarmType::Nospace as i32);
    let request = pb::DeleteRangeRequest {
        key: "/f/".into(),
        range_end: "/f0".into(),
        prev_kv: false,
    };
    let revision = client
        .kv
        .delete_range(request)
        .await
        .unwrap()
        .into_inner()
        .header
        .unwrap()
        .revision;
    client.compact(revision).await.unwrap();
    eventually("a put to be acknowledged again", || {
        let mut client = client.clone();
        async move { client.put("/f/again", b"1").await.ok() }
    })
    .await;
    kine.kill();
    kine.restart().await;
    assert_eq!(client.range("/f/", "/f0", 0).await.unwrap().count, 1);
}

#[tokio::test]
async fn a_store_killed_with_a_full_stream_restarts() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "tight", &["--quota=1000000"]).await;
    let mut client = kine.client().await;
    for number in 0..20 {
        client.put(&format!("/t/{number}"), &[b'v'; 10_000]).await.unwrap();
    }
    kine.kill();
    // Nothing fits any more, not even an epoch record.
    let direct = async_nats::connect(nats.url()).await.unwrap();
    let info = direct
        .request("$JS.API.STREAM.INFO.KINE_tight", "".into())
        .await
        .unwrap();
    let mut info: serde_json::Value = serde_json::from_slice(&info.payload).unwrap();
    info["config"]["max_bytes"] = (info["state"]["bytes"].as_i64().unwrap() + 10).into();
    let config = info["config"].to_string();
    let changed = direct
        .request("$JS.API.STREAM.UPDATE.KINE_tight", config.into())
        .await
        .unwrap();
    assert!(
        !String::from_utf8_lossy(&changed.payload).contains("error"),
        "{changed:?}"
    );
    kine.restart().await;
    assert!(kine.log().contains("no writer can start"), "{}", kine.log());
    let put = client.put("/t/again", b"1").await;
    assert_eq!(put.ok(), Some(22), "{}", kine.log());
    assert_eq!(client.range("/t/", "/t0", 0).await.unwrap().count, 21);
}
