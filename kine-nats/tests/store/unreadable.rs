//! A NATS server that sends data that no client can read, like one with corrupt files.

use crate::damage::{files, flip};
use crate::harness::{Kine, Nats, Servers, eventually, repair};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// The data to garble.
#[derive(Default)]
struct Damage {
    /// Stream and sequence of a message of a batched read.
    place: Mutex<(String, u64)>,
    /// How often from here on.
    times: AtomicU64,
}

/// A proxy in front of a server that garbles its data.
struct Garbler {
    port: u16,
    damage: Arc<Damage>,
}

impl Damage {
    fn concerns(&self, body: &[u8]) -> bool {
        let (stream, sequence) = self.place.lock().unwrap().clone();
        let marks = [
            format!("Nats-Stream: {stream}\r\n"),
            format!("Nats-Sequence: {sequence}\r\n"),
        ];
        let holds = |mark: &String| body.windows(mark.len()).any(|found| found == mark.as_bytes());
        marks.iter().all(holds)
    }
}

impl Servers for Garbler {
    fn urls(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Garbler {
    async fn start(nats: &Nats) -> Self {
        let (listener, server) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), nats.port());
        let port = listener.local_addr().unwrap().port();
        let damage = Arc::<Damage>::default();
        let known = Arc::clone(&damage);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let ((mut asks, hears), (answers, mut takes)) = (near.into_split(), far.into_split());
                let damage = Arc::clone(&known);
                tokio::spawn(async move {
                    tokio::select! {
                        _ = copy(&mut asks, &mut takes) => {}
                        _ = pass_on(answers, hears, &damage) => {}
                    }
                });
            }
        });
        Self { port, damage }
    }

    fn garble(&self, stream: &str, sequence: u64, times: u64) {
        *self.damage.place.lock().unwrap() = (stream.to_owned(), sequence);
        self.damage.times.store(times, Ordering::SeqCst);
    }
}

/// Passes a server's frames on.
async fn pass_on(answers: OwnedReadHalf, mut hears: OwnedWriteHalf, damage: &Damage) -> std::io::Result<()> {
    let mut answers = BufReader::new(answers);
    loop {
        let mut frame = Vec::new();
        if answers.read_until(b'\n', &mut frame).await? == 0 {
            return Ok(());
        }
        let head = String::from_utf8_lossy(&frame).into_owned();
        let mut words = head.split_ascii_whitespace();
        if let (Some("MSG" | "HMSG"), Some(length)) = (words.next(), words.next_back()) {
            let mut body = vec![0; length.parse::<usize>().unwrap() + 2];
            answers.read_exact(&mut body).await?;
            if damage.concerns(&body) && take(&damage.times) {
                frame[0] = b'?';
            }
            frame.extend(body);
        }
        hears.write_all(&frame).await?;
    }
}

fn take(times: &AtomicU64) -> bool {
    times
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_record_is_named_and_temporary_failures_are_retried() {
    let nats = Nats::start().await;
    let garbler = Garbler::start(&nats).await;
    let mut kine = Kine::start(&garbler, "garbled", &[]).await;
    let mut client = kine.client().await;
    for number in 0..20 {
        client.put(&format!("/k/{number:02}"), b"v").await.unwrap();
    }
    kine.terminate().await;

    garbler.garble("KINE_garbled", 10, u64::MAX);
    kine.respawn();
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    let log = kine.log();
    assert!(
        !status.success()
            && log.contains("connections in a row failed at sequence 10")
            && log.contains("`kine-nats repair`"),
        "{log}"
    );
    let refused = repair(&garbler, "garbled", &[]).unwrap_err();
    assert!(
        refused.contains("failed at sequence 10") && refused.contains("run again with --accept-loss"),
        "{refused}"
    );

    garbler.garble("KINE_garbled", 10, 3);
    kine.restart().await;
    assert_eq!(client.range("/k/", "/k0", 0).await.unwrap().count, 20);
    assert_eq!(garbler.damage.times.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_snapshot_counts_as_damaged() {
    let nats = Nats::start().await;
    let garbler = Garbler::start(&nats).await;
    let mut kine = Kine::start(&garbler, "chunk", &["--snapshot-bytes=20000"]).await;
    let mut client = kine.client().await;
    for number in 0..200 {
        client
            .put(&format!("/k/{:02}", number % 60), &[b'v'; 400])
            .await
            .unwrap();
    }
    eventually("two stored snapshots", || async {
        (kine.metric("yoke_kine_snapshots_total").await >= 2.0).then_some(())
    })
    .await;
    kine.terminate().await;
    let direct = async_nats::connect(nats.url()).await.unwrap();
    let newest = direct
        .request(
            "$JS.API.STREAM.MSG.GET.KINE_SNAP_chunk",
            r#"{"last_by_subj":"kine.chunk.snap.m"}"#.into(),
        )
        .await
        .unwrap();
    let newest: serde_json::Value = serde_json::from_slice(&newest.payload).unwrap();
    let newest = data_encoding::BASE64.decode(newest["message"]["data"].as_str().unwrap().as_bytes());
    // A hash follows it.
    let manifest = serde_json::Deserializer::from_slice(&newest.unwrap())
        .into_iter::<serde_json::Value>()
        .next();
    let chunk = manifest.unwrap().unwrap()["first"].as_u64().unwrap();
    garbler.garble("KINE_SNAP_chunk", chunk, u64::MAX);
    kine.restart().await;
    assert!(kine.log().contains("A snapshot is corrupt"), "{}", kine.log());
    assert_eq!(client.range("/k/", "/k0", 0).await.unwrap().count, 60);
}

#[tokio::test]
async fn a_store_continues_without_a_record_that_a_flipped_bit_made_unreadable() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "bits", &[]).await;
    let mut client = kine.client().await;
    for number in 0..20 {
        client.put(&format!("/k/{number:02}"), b"v").await.unwrap();
    }
    kine.terminate().await;
    nats.kill();
    let log = files(&nats, "/KINE_bits/").pop().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    let find = |what: &[u8], below: usize| bytes[..below].windows(what.len()).rposition(|found| found == what);
    // Either header may be the first.
    let header = find(b"Nats-Expected-Last-Sequence: 12\r\n", bytes.len()).unwrap();
    let at = find(b"NATS/1.0\r\n", header).unwrap();
    // A byte of the length before the record, which no checksum covers.
    println!("{}", flip(&log, at - 4, 4));
    nats.restart().await;
    kine.respawn();
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    assert!(
        !status.success() && kine.log().contains("connections in a row failed at sequence 13"),
        "{}",
        kine.log()
    );
    let said = repair(&nats, "bits", &["--accept-loss"]).unwrap();
    assert!(said.contains("Repaired the store"), "{said}");
    kine.restart().await;
    let count = client.range("/k/", "/k0", 0).await.unwrap().count;
    assert!((1..20).contains(&count), "{count} keys");
    client.put("/k/new", b"v").await.unwrap();
}
