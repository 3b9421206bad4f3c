//! The durability class *replicated*: three nats-servers hold each stream, and any one of them may
//! be lost.

use crate::cluster::Cluster;
use crate::faults::{Load, a_full_stream_is_made_room_in, check, serves, the_paused_one_is_fenced};
use crate::followers::the_one_that_slept_follows;
use crate::fuzz::fuzz_runs;
use crate::harness::{Client, Kine};
use crate::loss::{an_earlier_copy_comes_back, disks_are_lost, more_is_lost_than_is_remembered};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;

const FOLLOW: [&str; 1] = ["--follow"];
const STREAMS: [&str; 4] = ["KINE_alone", "KINE_pair", "KINE_SNAP_alone", "KINE_SNAP_pair"];

/// Waits until all serve; returns the delay of each after the one before.
async fn gaps(clients: &[Client]) -> Vec<Duration> {
    let mut gaps = Vec::new();
    for client in clients {
        gaps.push(serves(client).await);
    }
    gaps
}

/// Faults in turn, under load: two kinds, or all with `FUZZ_TIMES`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_servers_and_connections_fail() {
    let all = fuzz_runs(1) > 1;
    let mut cluster = Cluster::start().await;
    // One alone, and two in succession.
    let (alone, one) = tokio::join!(
        Kine::start(&cluster, "alone", &[]),
        Kine::start(&cluster, "pair", &FOLLOW)
    );
    let other = Kine::start(&cluster, "pair", &FOLLOW).await;
    let mut clients = [alone.client().await, one.client().await, other.client().await];
    let load = ["a", "b", "c"].into_iter().zip(&clients);
    let load: Vec<_> = load.map(|(name, client)| Load::named(client, name, 2)).collect();
    join_all(load.iter().map(|load| load.goes_on(20))).await;

    for milliseconds in if all { [0, 1500, 4000].as_slice() } else { &[0] } {
        cluster.set_lines(false);
        tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
        cluster.set_lines(true);
        println!("all connections are cut: answers after {:?}", gaps(&clients).await);
    }
    let mut leader = cluster.leader("KINE_alone").await;
    cluster.servers[leader].kill();
    println!("the leader is killed: answers after {:?}", gaps(&clients).await);
    if all {
        cluster.servers[leader].restart().await;
        cluster.is_whole(&STREAMS).await;
        // The server holds its connections open without answering, until it learns that others
        // lead.
        leader = cluster.leader("KINE_pair").await;
        cluster.servers[leader].signal("STOP");
        println!("the leader sleeps: answers after {:?}", gaps(&clients).await);
        cluster.servers[leader].signal("CONT");
        println!("it is awake: answers after {:?}", gaps(&clients).await);
        cluster.is_whole(&STREAMS).await;
        // One loses its disk, and the next one is killed when the first holds everything again.
        leader = cluster.leader("KINE_alone").await;
        cluster.servers[leader].kill();
        std::fs::remove_dir_all(cluster.servers[leader].store()).unwrap();
        println!("the leader has lost its disk: answers after {:?}", gaps(&clients).await);
        cluster.servers[leader].restart().await;
        cluster.is_whole(&STREAMS).await;
        cluster.servers[(leader + 1) % 3].kill();
        println!("another one is killed: answers after {:?}", gaps(&clients).await);
    }

    let mut acknowledged = BTreeMap::new();
    for load in load {
        acknowledged.extend(load.stop().await);
    }
    println!("{} acknowledged", acknowledged.len());
    let (of_alone, of_pair): (BTreeMap<_, _>, BTreeMap<_, _>) = acknowledged
        .into_iter()
        .partition(|(key, _)| key.starts_with("/load/a"));
    check(&mut clients[0], &of_alone).await;
    for client in &mut clients[1..] {
        check(client, &of_pair).await;
    }
    // Data that two of three servers hold is read without the third.
    drop(other);
    for (mut kine, acknowledged) in [(alone, of_alone), (one, of_pair)] {
        kine.kill();
        kine.restart().await;
        check(&mut kine.client().await, &acknowledged).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_writer_is_fenced_and_a_full_stream_is_freed() {
    let cluster = Cluster::start().await;
    tokio::join!(
        the_paused_one_is_fenced(&cluster),
        a_full_stream_is_made_room_in(&cluster),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_suspended_during_a_takeover_answers_nothing_stale_and_follows() {
    the_one_that_slept_follows(&Cluster::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_lost_by_all_servers_are_restored() {
    an_earlier_copy_comes_back(&mut Cluster::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_all_lost_disks_are_restored() {
    disks_are_lost(&mut Cluster::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrestorable_loss_of_all_servers_is_reported_and_repaired() {
    more_is_lost_than_is_remembered(&mut Cluster::start().await).await;
}
