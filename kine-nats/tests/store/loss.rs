//! nats-servers that restart with less than they acknowledged while the writer is alive, which
//! stores the rest again.

use crate::damage::files;
use crate::faults::{Load, check, serves};
use crate::harness::{Kine, Nats, Servers, decode, eventually};
use crate::repair::accept_loss;
use futures::future::join_all;
use serde_json::Value;

/// All servers of a stream: data that one of them loses is gone.
pub(crate) trait Disks: Servers {
    fn all(&mut self) -> &mut [Nats];

    fn kill_all(&mut self) {
        self.all().iter_mut().for_each(Nats::kill);
    }

    async fn restart_all(&mut self) {
        join_all(self.all().iter_mut().map(Nats::restart)).await;
    }

    /// Calls the stream API, as soon as it is available.
    async fn ask(&mut self, subject: &str, payload: &str) -> Value {
        let client = async_nats::connect(self.all()[0].url()).await.unwrap();
        eventually("the stream API to accept the request", || async {
            let answer = client.request(format!("$JS.API.STREAM.{subject}"), payload.to_owned().into());
            let answer: Value = serde_json::from_slice(&answer.await.ok()?.payload).unwrap();
            let refused = answer.get("error");
            refused.iter().for_each(|error| println!("{subject}: {error}"));
            refused.is_none().then_some(answer)
        })
        .await
    }
}

impl Disks for Nats {
    fn all(&mut self) -> &mut [Nats] {
        std::slice::from_mut(self)
    }
}

/// Truncates the stream of a writer under load.
async fn shorten<D: Disks>(nats: &mut D, stream: &str, shorten: impl AsyncFnOnce(&mut D, &Load)) {
    let mut kine = Kine::start(nats, stream, &[]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 4);
    load.goes_on(200).await;
    shorten(nats, &load).await;
    nats.restart_all().await;
    eventually("a log line about records that are stored again", || async {
        kine.log()
            .contains("Stored the lost records in the log again")
            .then_some(())
    })
    .await;
    serves(&client).await;
    let acknowledged = load.stop().await;
    check(&mut client, &acknowledged).await;
    assert!(kine.exited().is_none());

    // Records that were stored again can be read from the log, even from a server that restarts
    // another time.
    kine.terminate().await;
    kine.restart().await;
    check(&mut client, &acknowledged).await;
    kine.kill();
    nats.kill_all();
    nats.restart_all().await;
    kine.restart().await;
    check(&mut client, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_writer_restores_a_truncated_file() {
    shorten(&mut Nats::start().await, "short", async |nats, _| {
        nats.kill();
        let newest = files(nats, "/KINE_short/").pop().unwrap();
        let file = std::fs::File::options().write(true).open(&newest).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length * 2 / 3).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_missing_from_a_file_copy_are_restored() {
    an_earlier_copy_comes_back(&mut Nats::start().await).await;
}

pub(crate) async fn an_earlier_copy_comes_back(nats: &mut impl Disks) {
    shorten(nats, "early", async |nats, load| {
        nats.kill_all();
        let copies: Vec<_> = nats.all().iter().map(Nats::copy).collect();
        nats.restart_all().await;
        load.goes_on(100).await;
        nats.kill_all();
        for (server, copy) in nats.all().iter().zip(&copies) {
            server.take_files(copy);
        }
    })
    .await;
}

/// Restarts the servers with empty disks, and creates the streams again after a kine-nats has
/// noticed that its own are missing.
async fn lose_disks(nats: &mut impl Disks, kine: &Kine) {
    let list = nats.ask("LIST", "").await;
    let streams = list["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 2, "{list}");
    nats.kill_all();
    for server in nats.all() {
        std::fs::remove_dir_all(server.store()).unwrap();
    }
    nats.restart_all().await;
    eventually("a log line about the missing stream", || async {
        kine.log().contains("10059: stream not found").then_some(())
    })
    .await;
    for stream in streams {
        let config = &stream["config"];
        let name = config["name"].as_str().unwrap();
        nats.ask(&format!("CREATE.{name}"), &config.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_lost_disk_are_restored() {
    disks_are_lost(&mut Nats::start().await).await;
}

pub(crate) async fn disks_are_lost(nats: &mut impl Disks) {
    let mut kine = Kine::start(nats, "disk", &[]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 4);
    load.goes_on(200).await;
    lose_disks(nats, &kine).await;
    serves(&client).await;
    let acknowledged = load.stop().await;
    check(&mut client, &acknowledged).await;
    kine.kill();
    kine.restart().await;
    check(&mut client, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrestorable_records_are_saved_in_a_snapshot() {
    more_is_lost_than_is_remembered(&mut Nats::start().await).await;
}

/// The writer reports the loss and exits, and a repair continues from its snapshot.
pub(crate) async fn more_is_lost_than_is_remembered(nats: &mut impl Disks) {
    let mut kine = Kine::start(nats, "memory", &[]).await;
    let mut client = kine.client().await;
    let mut newest = 0;
    for number in 0..150 {
        let key = format!("/r/{}", number % 50);
        newest = client.put(&key, &[b'v'; 60_000]).await.unwrap();
    }
    lose_disks(nats, &kine).await;
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    let log = kine.log();
    assert!(!status.success(), "{log}");
    let revision = format!("were acknowledged, with revision {newest}");
    assert!(
        log.contains("the log has lost records: it ends at sequence 0,") && log.contains(&revision),
        "{log}"
    );

    accept_loss(nats, &mut kine, "memory", &["--bump=1000"]).await;
    let answer = client.range("/r/", "/r0", 0).await.unwrap();
    assert_eq!(answer.count, 50);
    let newest_kept = answer.kvs.iter().map(|pair| decode(pair).mod_revision).max().unwrap();
    assert_eq!(newest_kept, newest, "all that was acknowledged");
    let revision = answer.header.unwrap().revision;
    assert!(revision >= newest + 1000, "{revision}");
    assert_eq!(client.put("/r/new", b"").await.unwrap(), revision + 1);
}
