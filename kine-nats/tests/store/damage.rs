//! Bits on the disk of the only nats-server that are not what they were: what is served afterwards was written, in order.

use crate::fuzz::fuzz_runs;
use crate::harness::{Kine, Nats, WAIT, decode};
use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Keys and values by the revisions that they were written at.
type Written = BTreeMap<i64, (String, Vec<u8>)>;

/// How a store came back.
#[derive(Debug)]
enum Outcome {
    /// All of it.
    Whole,
    /// It is not served, and why.
    Refused(String),
    /// The server had dropped the end of the log, which nobody else knew.
    Shorter,
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

/// Flips a bit somewhere in the messages of either stream.
fn damage(nats: &Nats, random: &mut StdRng) -> String {
    let mut files = Vec::new();
    blocks(&nats.store(), &mut files);
    files.sort();
    files.retain(|file| file.metadata().unwrap().len() > 0);
    let file = &files[random.random_range(0..files.len())];
    let mut bytes = std::fs::read(file).unwrap();
    let at = random.random_range(0..bytes.len());
    bytes[at] ^= 1 << random.random_range(0..8);
    std::fs::write(file, &bytes).unwrap();
    format!("byte {at} of {} in {}", bytes.len(), file.display())
}

async fn outcome(mut nats: Nats, stream: &str, written: &Written) -> Outcome {
    nats.restart().await;
    let mut kine = Kine::spawn_on(&nats, stream, &[]);
    let begun = Instant::now();
    while !kine.is_ready().await {
        if let Some(status) = kine.exited() {
            assert!(!status.success(), "{}", kine.log());
            let log = kine.log();
            return Outcome::Refused(log.lines().last().unwrap_or_default().to_owned());
        }
        assert!(begun.elapsed() < WAIT, "neither served nor refused: {}", kine.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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
    match written.last_key_value() {
        Some((last, _)) if *last == revision => Outcome::Whole,
        _ => Outcome::Shorter,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_on_the_disk_is_served() {
    const AT_A_TIME: usize = 4;
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "damage", &["--snapshot-bytes=20000"]).await;
    let mut client = kine.client().await;
    let mut written = Written::new();
    for number in 0..200 {
        let (key, value) = (format!("/k/{:02}", number % 60), vec![number as u8; 400]);
        let revision = client.put(&key, &value).await.unwrap();
        written.insert(revision, (key, value));
    }
    kine.terminate();
    nats.kill();
    let runs = (0..fuzz_runs(12)).map(|_| {
        let copy = nats.copy();
        (damage(&copy, &mut random), copy)
    });
    let runs = futures::stream::iter(runs).map(|(what, copy)| {
        let written = &written;
        async move { (outcome(copy, "damage", written).await, what) }
    });
    let outcomes: Vec<_> = runs.buffer_unordered(AT_A_TIME).collect().await;
    // A server that finds a damaged message when it starts may drop all behind it, and both snapshots with it.
    for (outcome, what) in &outcomes {
        println!("{outcome:?}: {what}");
        if let Outcome::Refused(why) = outcome {
            assert!(why.contains("keep the store: "), "{what}: {why}");
        }
    }
}
