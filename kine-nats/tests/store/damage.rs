//! Flipped bits on the disk of the only nats-server. Afterwards the store serves everything that
//! was written, or nothing until the loss is accepted.

use crate::cluster::Cluster;
use crate::fuzz::{fuzz_runs, seeded};
use crate::harness::{Client, Kine, Nats, WAIT, decode, eventually, repair};
use crate::repair::accept_loss;
use futures::StreamExt;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use yoke_test_support::eventually_some;

/// Keys and values, by the revisions at which they were written.
type Written = BTreeMap<i64, (String, Vec<u8>)>;

/// Snapshots in two streams by turns.
const SPARE: &[&str] = &["--spare", "--snapshot-bytes=20000"];

/// How a store recovered.
#[derive(Debug)]
enum Outcome {
    /// Everything is served.
    Whole,
    /// Nothing is served, for this reason.
    Refused(String),
    /// Nothing is served as long as NATS does not answer.
    Waiting,
    /// NATS does not start.
    Down,
}

fn blocks(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            blocks(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "blk") {
            into.push(path);
        }
    }
}

/// The message files of the streams whose names contain this text.
pub(crate) fn files(nats: &Nats, of: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    blocks(&nats.store(), &mut files);
    files.sort();
    files.retain(|file| file.metadata().unwrap().len() > 0 && file.to_string_lossy().contains(of));
    files
}

/// Flips a bit of a byte.
pub(crate) fn flip(file: &Path, at: usize, bit: u32) -> String {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1 << bit;
    std::fs::write(file, &bytes).unwrap();
    format!("byte {at} of {} in {}", bytes.len(), file.display())
}

/// Flips a random bit in the messages of some streams.
fn damage(nats: &Nats, of: &str, random: &mut StdRng) -> String {
    let files = files(nats, of);
    let file = &files[random.random_range(0..files.len())];
    let length = std::fs::metadata(file).unwrap().len() as usize;
    flip(file, random.random_range(0..length), random.random_range(0..8))
}

async fn outcome(mut nats: Nats, stream: &str, more: &[&str], written: &Written) -> Outcome {
    if !nats.try_restart().await {
        // NATS 2.15.2 panics where it should reject a stream (newFileStoreWithCreatedAndMode
        // unlocks a mutex that is not locked).
        let log = nats.log();
        assert!(log.contains("panic: runtime error"), "{log}");
        return Outcome::Down;
    }
    let mut kine = Kine::spawn_on(&nats, stream, more);
    let decided = eventually_some("kine-nats to be ready or to exit", WAIT, async || {
        match kine.is_ready().await {
            true => Some(None),
            false => kine.exited().map(Some),
        }
    });
    match decided.await {
        Ok(None) => {
            check(&kine, written).await;
            Outcome::Whole
        }
        Ok(Some(status)) => {
            assert!(!status.success(), "{}", kine.log());
            let log = kine.log();
            Outcome::Refused(log.lines().last().unwrap_or_default().to_owned())
        }
        // With a corrupt message header, the server may send a message that no client can read, on
        // every attempt.
        Err(error) => {
            let log = kine.log();
            assert!(log.contains("Waiting for NATS"), "{error}: {log}");
            Outcome::Waiting
        }
    }
}

/// Asserts that exactly the written data is served.
async fn check(kine: &Kine, written: &Written) {
    let revision = check_keys(kine, written).await;
    let last = written.last_key_value().map(|(last, _)| *last);
    assert_eq!(Some(revision), last, "it is shorter: {}", kine.log());
}

/// Asserts that the served keys are those written up to the served revision; returns that revision.
async fn check_keys(kine: &Kine, written: &Written) -> i64 {
    let answer = kine.client().await.range("/", "0", 0).await.unwrap();
    let revision = answer.header.unwrap().revision;
    let mut newest = BTreeMap::new();
    for (at, (key, value)) in written.range(..=revision) {
        newest.insert(key.clone(), (*at, value.clone()));
    }
    let found = answer.kvs.iter().map(decode);
    let found: BTreeMap<_, _> = found
        .map(|kv| {
            (
                String::from_utf8(kv.key.to_vec()).unwrap(),
                (kv.mod_revision, kv.value.to_vec()),
            )
        })
        .collect();
    assert!(
        found == newest,
        "what is served at {revision} was not written so: {}",
        kine.log()
    );
    revision
}

/// Writes enough for some snapshots.
async fn write(kine: &mut Kine) -> Written {
    let mut client = kine.client().await;
    let mut written = Written::new();
    for number in 0..200 {
        let (key, value) = (format!("/k/{:02}", number % 60), vec![number as u8; 400]);
        let revision = client.put(&key, &value).await.unwrap();
        written.insert(revision, (key, value));
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_on_the_disk_is_never_served() {
    const AT_A_TIME: usize = 4;
    let mut random = seeded();
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "damage", &["--snapshot-bytes=20000"]).await;
    let written = write(&mut kine).await;
    kine.terminate().await;
    nats.kill();
    let runs = (0..fuzz_runs(12)).map(|_| {
        let copy = nats.copy();
        (damage(&copy, "/KINE_", &mut random), copy)
    });
    let runs = futures::stream::iter(runs).map(|(what, copy)| {
        let written = &written;
        async move { (outcome(copy, "damage", &[], written).await, what) }
    });
    let outcomes: Vec<_> = runs.buffer_unordered(AT_A_TIME).collect().await;
    // A server that finds a corrupt message at its start may drop everything behind it.
    for (outcome, what) in &outcomes {
        println!("{outcome:?}: {what}");
        if let Outcome::Refused(why) = outcome {
            assert!(why.contains("run the store: "), "{what}: {why}");
        }
    }
}

/// Each stream has a snapshot.
async fn until_both_are_stored(kine: &Kine) {
    eventually("two stored snapshots", || async {
        (kine.metric("yoke_kine_snapshots_total").await >= 2.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_either_stream_of_snapshots_loses_nothing() {
    let mut random = seeded();
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "spare", SPARE).await;
    let written = write(&mut kine).await;
    until_both_are_stored(&kine).await;
    kine.terminate().await;
    nats.kill();
    for stream in ["/KINE_SNAP_", "/KINE_SPARE_"] {
        let (first, other) = (nats.copy(), nats.copy());
        // The server drops everything behind this message: every snapshot of the stream.
        let damaged = [
            (flip(&files(&first, stream)[0], 40, 0), first),
            (damage(&other, stream, &mut random), other),
        ];
        for (what, copy) in damaged {
            let outcome = outcome(copy, "spare", SPARE, &written).await;
            assert!(matches!(outcome, Outcome::Whole), "{what}: {outcome:?}");
        }
    }
}

/// Makes a stopped server drop all snapshots of a stream at its next start: it drops everything
/// behind a corrupt message.
fn drop_snapshots(nats: &Nats, stream: &str) {
    let file = files(nats, stream).remove(0);
    println!("{}", flip(&file, 40, 0));
    // If the index is as new as the file, which it is after a purge, a server does not read the
    // file.
    let _ = std::fs::remove_file(file.with_file_name("index.db"));
}

#[tokio::test]
async fn a_lost_snapshot_is_replaced_before_the_other_one() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "again", SPARE).await;
    let written = write(&mut kine).await;
    until_both_are_stored(&kine).await;
    for stream in ["/KINE_SNAP_", "/KINE_SPARE_"] {
        kine.terminate().await;
        nats.kill();
        drop_snapshots(&nats, stream);
        nats.restart().await;
        kine.restart().await;
        eventually("a stored snapshot", || async {
            (kine.metric("yoke_kine_snapshots_total").await > 0.0).then_some(())
        })
        .await;
        let answer = kine.client().await.range("/", "0", 0).await.unwrap();
        assert_eq!(answer.header.unwrap().revision, *written.last_key_value().unwrap().0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_on_a_leading_server_loses_nothing() {
    let mut random = seeded();
    let mut cluster = Cluster::start().await;
    let mut kine = Kine::start(&cluster, "third", &["--snapshot-bytes=20000"]).await;
    let written = write(&mut kine).await;
    for stream in ["KINE_third", "KINE_SNAP_third"] {
        kine.terminate().await;
        let damaged = (cluster.leader(stream).await + 1) % 3;
        let server = &mut cluster.servers[damaged];
        server.kill();
        println!("{}", damage(server, &format!("/{stream}/"), &mut random));
        server.restart().await;
        cluster.is_whole(&[stream]).await;
        cluster.lead(stream, damaged).await;
        kine.restart().await;
        check(&kine, &written).await;
    }
}

/// Flips a bit of a value in the log.
fn damage_value(nats: &Nats, stream: &str, value: &[u8]) {
    let mut files = Vec::new();
    blocks(&nats.store(), &mut files);
    let stream = format!("/KINE_{stream}/");
    for file in files.iter().filter(|file| file.to_string_lossy().contains(&stream)) {
        let mut bytes = std::fs::read(file).unwrap();
        if let Some(at) = bytes.windows(value.len()).position(|found| found == value) {
            bytes[at] ^= 1;
            return std::fs::write(file, &bytes).unwrap();
        }
    }
    panic!("{:?} is not in the log", String::from_utf8_lossy(value));
}

/// The output of a process that exits.
async fn refusal(kine: &mut Kine) -> String {
    let before = kine.log().len();
    kine.respawn();
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    assert!(!status.success());
    kine.log().split_off(before)
}

async fn lost_bytes(nats: &Nats, stream: &str) -> Option<u64> {
    let direct = async_nats::connect(nats.url()).await.unwrap();
    let subject = format!("$JS.API.STREAM.INFO.KINE_{stream}");
    let info = direct
        .request(subject, r#"{"deleted_details":true}"#.into())
        .await
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.payload).unwrap();
    info["state"]["lost"]["bytes"].as_u64()
}

async fn fill(client: &mut Client) {
    for number in 0..40 {
        let value = format!("value-{number:02}").repeat(20);
        client.put(&format!("/k/{number:02}"), value.as_bytes()).await.unwrap();
    }
}

/// Accepts the loss, and checks the remaining data.
async fn accept(nats: &Nats, kine: &mut Kine, stream: &str, keys: i64) {
    let said = repair(nats, stream, &["--accept-loss", "--bump=5000000"]).unwrap();
    assert!(said.contains("Repaired the store"), "{said}");
    for _ in 0..2 {
        kine.restart().await;
        let answer = kine.client().await.range("/k/", "/k0", 0).await.unwrap();
        assert_eq!(answer.count, keys);
        assert_eq!(answer.header.unwrap().revision, 5_000_001 + keys);
        kine.kill();
    }
}

/// All snapshots of one stream are lost, and the newest write with them. A repair continues with
/// the data of the other stream and the log.
async fn lose_snapshots_and_the_newest_write(stream: &str, lost: &str, without_spare: &str) {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, stream, SPARE).await;
    let written = write(&mut kine).await;
    until_both_are_stored(&kine).await;
    kine.terminate().await;
    // A process that stores no snapshot so soon.
    let mut kine = Kine::start(&nats, stream, &["--spare"]).await;
    kine.client().await.put("/lost", b"the newest write").await.unwrap();
    kine.terminate().await;
    nats.kill();
    drop_snapshots(&nats, lost);
    damage_value(&nats, stream, b"the newest write");
    nats.restart().await;
    assert!(refusal(&mut kine).await.contains("`kine-nats repair`"));
    let refused = repair(&nats, stream, &[]).unwrap_err();
    assert!(refused.contains(without_spare), "{refused}");
    accept_loss(&nats, &mut kine, stream, &["--spare", "--bump=5000000"]).await;
    let last = written.last_key_value().unwrap().0;
    assert_eq!(check_keys(&kine, &written).await, last + 5_000_000);
    kine.terminate().await;
    kine.restart().await;
    check_keys(&kine, &written).await;
}

#[tokio::test]
async fn a_repair_uses_the_spare_snapshot() {
    lose_snapshots_and_the_newest_write("spared", "/KINE_SNAP_", "nothing of it can be read").await;
}

#[tokio::test]
async fn a_repair_works_without_the_spare_snapshot() {
    lose_snapshots_and_the_newest_write("unspared", "/KINE_SPARE_", "run again with --accept-loss").await;
}

#[tokio::test]
async fn a_truncated_log_is_rejected_at_every_start() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "cut", &[]).await;
    fill(&mut kine.client().await).await;
    kine.terminate().await;
    nats.kill();
    damage_value(&nats, "cut", b"value-30value-30");
    nats.restart().await;
    assert_ne!(lost_bytes(&nats, "cut").await, None);
    // The server no longer knows of the loss.
    nats.kill();
    nats.restart().await;
    assert_eq!(lost_bytes(&nats, "cut").await, None);
    let said = refusal(&mut kine).await;
    assert!(
        said.contains("the log has lost the records behind sequence") && said.contains("at revision 41"),
        "{said}"
    );
    accept(&nats, &mut kine, "cut", 30).await;
}

#[tokio::test]
async fn a_loss_in_a_power_failure_is_detected_and_can_be_accepted() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "last", &[]).await;
    fill(&mut kine.client().await).await;
    kine.kill();
    nats.kill();
    damage_value(&nats, "last", b"value-39value-39");
    nats.restart().await;
    let lost = lost_bytes(&nats, "last").await;
    let said = refusal(&mut kine).await;
    let dropped = format!("dropped {} bytes of it", lost.unwrap());
    assert!(said.contains(&dropped) && said.contains("`kine-nats repair`"), "{said}");
    accept(&nats, &mut kine, "last", 39).await;
    assert_eq!(lost_bytes(&nats, "last").await, lost, "it says so still");
}
