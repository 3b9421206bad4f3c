//! A nats-server that comes back with less than it acknowledged while the writer lives, which stores the rest again.

use crate::damage::files;
use crate::faults::{Load, check, serves};
use crate::harness::{Client, Kine, Nats, decode, eventually};
use crate::repair::accept_loss;
use serde_json::Value;
use std::time::Duration;
use tokio::time::sleep;

/// Has the writer of a stream find it shorter under load.
async fn shorten(stream: &str, shorten: impl AsyncFnOnce(&mut Nats, &Client)) {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, stream, &[]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 4);
    sleep(Duration::from_millis(500)).await;
    shorten(&mut nats, &client).await;
    nats.restart().await;
    eventually("it is stored again", || async {
        kine.log().contains("They are stored again").then_some(())
    })
    .await;
    serves(&client).await;
    let acknowledged = load.stop().await;
    assert!(acknowledged.len() > 50, "{}: {}", acknowledged.len(), kine.log());
    check(&mut client, &acknowledged).await;
    assert!(kine.exited().is_none());

    // What was stored again is there for whoever reads it from the log, also from a server that is started once more.
    kine.terminate();
    kine.restart().await;
    check(&mut client, &acknowledged).await;
    kine.kill();
    nats.kill();
    nats.restart().await;
    kine.restart().await;
    check(&mut client, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_a_file_under_a_living_writer_is_stored_again() {
    shorten("short", async |nats, _| {
        nats.kill();
        let newest = files(nats, "/KINE_short/").pop().unwrap();
        let file = std::fs::File::options().write(true).open(&newest).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length * 2 / 3).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_copy_of_the_files_lacks_is_stored_again() {
    shorten("early", async |nats, client| {
        nats.kill();
        let copy = nats.copy();
        nats.restart().await;
        serves(client).await;
        sleep(Duration::from_millis(300)).await;
        nats.kill();
        nats.take_files(&copy);
    })
    .await;
}

/// Has a nats-server come back with an empty disk, and makes its streams again after a kine-nats has missed them.
async fn lose_disk(nats: &mut Nats, kine_said: impl AsyncFnOnce()) {
    let ask = async |nats: &Nats, subject: String, payload: String| {
        let direct = async_nats::connect(nats.url()).await.unwrap();
        let answer = direct
            .request(format!("$JS.API.STREAM.{subject}"), payload.into())
            .await;
        let answer: Value = serde_json::from_slice(&answer.unwrap().payload).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        answer
    };
    let list = ask(nats, "LIST".to_owned(), String::new()).await;
    nats.kill();
    std::fs::remove_dir_all(nats.store()).unwrap();
    nats.restart().await;
    kine_said().await;
    for stream in list["streams"].as_array().unwrap() {
        let config = &stream["config"];
        let name = config["name"].as_str().unwrap();
        ask(nats, format!("CREATE.{name}"), config.to_string()).await;
    }
}

/// Waits until a kine-nats says that its stream is not there.
async fn misses(kine: &Kine) {
    eventually("it misses its stream", || async {
        kine.log().contains("10059: stream not found").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_a_lost_disk_is_stored_again() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "disk", &[]).await;
    let mut client = kine.client().await;
    let load = Load::start(&client, 4);
    sleep(Duration::from_millis(500)).await;
    lose_disk(&mut nats, async || misses(&kine).await).await;
    serves(&client).await;
    let acknowledged = load.stop().await;
    assert!(acknowledged.len() > 50, "{}: {}", acknowledged.len(), kine.log());
    check(&mut client, &acknowledged).await;
    kine.kill();
    kine.restart().await;
    check(&mut client, &acknowledged).await;
}

/// The log is longer than what is remembered of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_stored_again_is_saved_from_memory() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "memory", &[]).await;
    let mut client = kine.client().await;
    let mut newest = 0;
    for number in 0..150 {
        let key = format!("/r/{}", number % 50);
        newest = client.put(&key, &[b'v'; 60_000]).await.unwrap();
    }
    lose_disk(&mut nats, async || misses(&kine).await).await;
    let status = eventually("it ends", || std::future::ready(kine.exited())).await;
    let log = kine.log();
    assert!(!status.success(), "{log}");
    assert!(log.contains("the log has lost records"), "{log}");

    accept_loss(&nats, &mut kine, "memory", &["--bump=1000"]).await;
    let answer = client.range("/r/", "/r0", 0).await.unwrap();
    assert_eq!(answer.count, 50);
    let newest_kept = answer.kvs.iter().map(|pair| decode(pair).mod_revision).max().unwrap();
    assert_eq!(newest_kept, newest, "all that was acknowledged");
    assert!(answer.header.unwrap().revision >= newest + 1000);
}
