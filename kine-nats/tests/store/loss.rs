//! A nats-server that comes back with less than it acknowledged while the writer lives, which stores the rest again.

use crate::damage::files;
use crate::faults::{Load, check, serves};
use crate::harness::{Client, Kine, Nats, eventually};
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
