//! Random requests to etcd and to kine-nats: all responses must be the same, field by field.
//!
//! ```text
//! seed ──► requests ─┬─► etcd ─────────────────────┬─► plain ──► equal
//!          asks      └─► kine-nats and a follower ─┘   watches
//! ```
//!
//! `SEED=n` repeats one run; `ORACLE_RUNS=n` multiplies the runs of each kind.

mod asks;
mod leases;
mod plain;
mod requests;
mod watches;

use crate::etcd::{Etcd, save};
use crate::fuzz::{chosen, seeds};
use crate::harness::{Client, Kine, Nats, eventually};
use crate::range_stream::list;
use asks::Asks;
use futures::future::{join, join_all};
use plain::{Answer, Told, even_out, in_order, streamed, told};
use requests::{Place, Requests, Step};
use std::collections::BTreeMap;
use tonic::{Response, Status};
use watches::Watches;
use yoke_kine_nats::proto::etcdserverpb as pb;

const RUNS: u64 = 4;
/// Seeds that found differences: a range below zero, a limit before a sort, a key written and
/// deleted in one transaction, a compaction at 0 before a move to etcd.
const KNOWN: [u64; 4] = [11, 14, 46, 11_406_480_115_482_965_160];
const STEPS: usize = 400;
/// Steps before and after a follower takes over.
const HALF: usize = 120;
/// Shorter leases could expire while they are compared.
const SHORT: i64 = 100;
const FOLLOW: [&str; 1] = ["--follow"];

/// etcd, the processes that must behave like it, and their addresses.
struct Oracle {
    etcd: Client,
    /// Processes of one store. Each gets the read-only requests; they take turns with the others.
    ours: Vec<Client>,
    turn: usize,
    place: Place,
    watches: Watches,
    /// Our hash of each hashed revision.
    hashes: BTreeMap<i64, u32>,
    /// Leases have restarted in ours, but not in etcd.
    renewed: bool,
    what: String,
}

impl Oracle {
    async fn new(etcd: Client, ours: Vec<Client>) -> Self {
        let place = Place {
            revision: 1,
            compacted: 0,
        };
        let watches = Watches::open(&etcd, &ours, 1, place).await;
        Self {
            etcd,
            ours,
            turn: 0,
            place,
            watches,
            hashes: BTreeMap::new(),
            renewed: false,
            what: String::new(),
        }
    }

    /// Executes a step everywhere and compares all responses.
    async fn step(&mut self, what: String, step: Step) {
        let before = self.place.revision;
        self.what = what;
        match step {
            Step::Range(request) => self.range(request).await,
            Step::Put(request) => {
                self.write(async |mut client| client.kv.put(request.clone()).await)
                    .await;
            }
            Step::DeleteRange(request) => {
                self.write(async |mut client| client.kv.delete_range(request.clone()).await)
                    .await;
            }
            Step::Txn(request) => {
                self.write(async |mut client| client.kv.txn(request.clone()).await)
                    .await;
            }
            Step::Compact(request) => {
                let compacted = self.write(async |mut client| client.kv.compact(request).await);
                if compacted.await.is_some() {
                    self.place.compacted = request.revision;
                }
            }
            Step::Grant(request) => {
                let granted = self
                    .write(async |mut client| client.lease.lease_grant(request).await)
                    .await;
                if granted.is_some_and(|granted| granted.ttl < SHORT) {
                    self.revoke(request.id).await;
                }
            }
            Step::Revoke(request) => self.revoke(request.id).await,
            Step::KeepAlive(request) => self.keep_alive(request).await,
            Step::TimeToLive(request) => self.time_to_live(request).await,
            Step::Leases => self.leases().await,
            Step::Watch(stream, request) => {
                self.catch_up().await;
                self.watches.create(&self.what, stream, request, self.place).await;
            }
            Step::Cancel(stream, watch) => self.watches.cancel(&self.what, stream, watch).await,
            Step::Progress(stream) => self.watches.progress(&self.what, stream, before).await,
        }
        self.watches.settle(&self.what, self.place.revision).await;
    }

    /// Makes a follower read all acknowledged records, as every linearizable request to it does:
    /// other requests may return stale data.
    async fn catch_up(&self) {
        for client in &self.ours {
            client.clone().range("x", "", 0).await.unwrap();
        }
    }

    /// Queries etcd and each of ours. Returns their responses, etcd's first.
    async fn ask<T: Answer>(
        &self,
        call: impl AsyncFn(Client) -> Result<Response<T>, Status>,
    ) -> (Told<T>, Vec<Told<T>>) {
        let ours = join_all(self.ours.iter().map(|client| call(client.clone())));
        let (etcd, ours) = join(call(self.etcd.clone()), ours).await;
        (told(etcd), ours.into_iter().map(told).collect())
    }

    /// The response, unless it is an error.
    fn compare<T: Answer>(&mut self, (etcd, ours): (Told<T>, Vec<Told<T>>)) -> Option<T> {
        for (number, ours) in ours.iter().enumerate() {
            assert_eq!(&etcd, ours, "{}: etcd's answer, and that of our {number}", self.what);
        }
        let mut answer = etcd.ok()?;
        self.place.revision = self.place.revision.max(answer.revision());
        Some(answer)
    }

    /// Sends a read-only request to all.
    async fn read<T: Answer>(&mut self, call: impl AsyncFn(Client) -> Result<Response<T>, Status>) -> Option<T> {
        let all = self.ask(call).await;
        self.compare(all)
    }

    /// Sends a request to etcd and to the one of ours whose turn it is.
    async fn write<T: Answer>(&mut self, call: impl AsyncFn(Client) -> Result<Response<T>, Status>) -> Option<T> {
        self.turn = (self.turn + 1) % self.ours.len();
        let ours = self.ours[self.turn].clone();
        let (etcd, ours) = join(call(self.etcd.clone()), call(ours)).await;
        self.compare((told(etcd), vec![told(ours)]))
    }

    async fn range(&mut self, request: pb::RangeRequest) {
        if request.serializable {
            self.catch_up().await;
        }
        let all = self
            .ask(async |mut client| client.kv.range(request.clone()).await)
            .await;
        for client in &self.ours {
            let listed = list(&mut client.clone(), request.clone()).await.map(Response::new);
            assert_eq!(streamed(&request, &all.0), told(listed), "{}: in parts", self.what);
        }
        self.compare(all);
    }

    async fn revoke(&mut self, id: i64) {
        let request = pb::LeaseRevokeRequest { id };
        self.write(async |mut client| client.lease.lease_revoke(request).await)
            .await;
    }

    async fn keep_alive(&mut self, request: pb::LeaseKeepAliveRequest) {
        self.write(async |client| keep_alive(client, request).await).await;
    }

    async fn time_to_live(&mut self, request: pb::LeaseTimeToLiveRequest) {
        let (mut etcd, mut ours) = self
            .ask(async |mut client| client.lease.lease_time_to_live(request).await)
            .await;
        even_out(&self.what, &mut etcd, &mut ours, self.renewed);
        self.compare((etcd, ours));
    }

    async fn leases(&mut self) {
        let (mut etcd, mut ours) = self
            .ask(async |mut client| client.lease.lease_leases(pb::LeaseLeasesRequest {}).await)
            .await;
        if self.renewed {
            in_order(&mut etcd, &mut ours);
        }
        self.compare((etcd, ours));
    }

    /// Compares all stored data: all readable revisions, all leases, and all events.
    async fn compare_all(&mut self, when: &str) {
        let Place { revision, compacted } = self.place;
        for at in compacted.max(1)..=revision {
            self.what = format!("{when}, all keys at revision {at}");
            let request = everything(at);
            self.read(async |mut client| client.kv.range(request.clone()).await)
                .await
                .unwrap();
        }
        self.what = format!("{when}, the leases");
        for id in requests::LEASES {
            self.time_to_live(pb::LeaseTimeToLiveRequest { id, keys: true }).await;
        }
        self.what = format!("{when}, all events");
        let begin = compacted.max(1);
        let mut watches = Watches::open(&self.etcd, &self.ours, begin, self.place).await;
        watches.settle(&self.what, revision).await;
    }

    /// Executes this many random steps, with queries of tools in between.
    async fn steps(&mut self, seed: u64, count: usize) {
        let (mut requests, mut asks) = (Requests::new(seed), Asks::new(seed));
        for number in 0..count {
            let step = requests.next(self.place);
            if matches!(step, Step::Compact(_)) && keeps_all(seed) {
                continue;
            }
            let what = format!("SEED={seed}, step {number}, at {:?}, {step:?}", self.place);
            self.step(what, step).await;
            if let Some(ask) = asks.next(self.place) {
                let what = format!("SEED={seed}, after step {number}, at {:?}, {ask:?}", self.place);
                self.maintain(what, ask).await;
            }
        }
    }
}

/// Some runs compact nothing: a store that is moved to etcd then has the same hash as in etcd.
fn keeps_all(seed: u64) -> bool {
    seed % 4 == 1
}

fn everything(revision: i64) -> pb::RangeRequest {
    pb::RangeRequest {
        key: [0].to_vec().into(),
        range_end: [0].to_vec().into(),
        revision,
        ..Default::default()
    }
}

async fn keep_alive(
    mut client: Client,
    request: pb::LeaseKeepAliveRequest,
) -> Result<Response<pb::LeaseKeepAliveResponse>, Status> {
    let requests = tokio_stream::iter([request]);
    let mut answers = client.lease.lease_keep_alive(requests).await?.into_inner();
    Ok(Response::new(answers.message().await?.expect("an answer")))
}

/// An etcd and two of ours, the first of them the writer.
async fn start(nats: &Nats) -> (Etcd, Kine, Kine) {
    let etcd = Etcd::start().await;
    let writer = Kine::start(nats, "oracle", &FOLLOW).await;
    let follower = Kine::start(nats, "oracle", &FOLLOW).await;
    (etcd, writer, follower)
}

async fn run(seed: u64) {
    println!("SEED={seed}");
    let nats = Nats::start().await;
    let (etcd, mut kine, mut follower) = start(&nats).await;
    let clients = vec![kine.client().await, follower.client().await];
    let mut oracle = Oracle::new(etcd.client(), clients).await;
    oracle.steps(seed, STEPS).await;
    oracle.compare_all(&format!("SEED={seed}, at the end")).await;
    oracle.hash_again(&format!("SEED={seed}, at the end")).await;

    let file = save(&kine.url());
    let moved = Etcd::restore(file.path()).await;
    (oracle.ours, oracle.renewed) = (vec![moved.client()], true);
    oracle.compare_all(&format!("SEED={seed}, after a move to etcd")).await;
    oracle
        .compare_moved(&format!("SEED={seed}, after a move to etcd"))
        .await;

    follower.terminate().await;
    kine.terminate().await;
    kine.restart().await;
    oracle.ours = vec![kine.client().await];
    oracle.compare_all(&format!("SEED={seed}, after a restart")).await;
    oracle.hash_again(&format!("SEED={seed}, after a restart")).await;
}

/// The writer is killed, its follower takes over, and the killed one follows.
async fn take_over(seed: u64) {
    println!("SEED={seed}");
    let nats = Nats::start().await;
    let (etcd, mut kine, follower) = start(&nats).await;
    let clients = vec![kine.client().await, follower.client().await];
    let mut oracle = Oracle::new(etcd.client(), clients).await;
    for (id, ttl) in [(1, 600), (2, 1000)] {
        let grant = Step::Grant(pb::LeaseGrantRequest { id, ttl });
        oracle.step(format!("SEED={seed}, lease {id}"), grant).await;
    }
    oracle.steps(seed, HALF).await;
    kine.kill();
    eventually("the follower to become the writer", || async {
        (follower.metric("etcd_server_is_leader").await == 1.0).then_some(())
    })
    .await;
    (oracle.ours, oracle.renewed) = (vec![follower.client().await], true);
    oracle.compare_all(&format!("SEED={seed}, after a takeover")).await;
    kine.restart().await;
    oracle.ours.push(kine.client().await);
    oracle.watches = Watches::open(&oracle.etcd, &oracle.ours, oracle.place.compacted.max(1), oracle.place).await;
    oracle.steps(seed.wrapping_add(1), HALF).await;
    oracle.compare_all(&format!("SEED={seed}, at the end")).await;
    oracle.hash_again(&format!("SEED={seed}, at the end")).await;
}

fn runs(usual: u64) -> Vec<u64> {
    let count = std::env::var("ORACLE_RUNS").map_or(usual, |runs| runs.parse().unwrap());
    seeds(count)
}

#[tokio::test]
async fn answers_equal_etcd() {
    let known = KNOWN.into_iter().filter(|_| chosen().is_none());
    for seed in known.chain(runs(RUNS)) {
        run(seed).await;
    }
}

#[tokio::test]
async fn answers_equal_etcd_after_a_takeover() {
    for seed in runs(1) {
        take_over(seed).await;
    }
}

#[tokio::test]
async fn leases_expire_like_in_etcd() {
    for seed in runs(1) {
        leases::run_out(seed).await;
    }
}
