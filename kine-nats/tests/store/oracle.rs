//! Random requests to etcd and to kine-nats: everything that a client is told must be the same, field by field.
//!
//! ```text
//! seed ──► requests ─┬─► etcd ──────┬─► plain ──► equal
//!                    └─► kine-nats ─┘   watches
//! ```
//!
//! `SEED=n` does one run again; `ORACLE_RUNS=n` does more than usual.

mod plain;
mod requests;
mod watches;

use crate::etcd::{Etcd, save};
use crate::fuzz::{chosen, seeds};
use crate::harness::{Client, Kine, Nats};
use crate::range_stream::list;
use plain::{Answer, Told, even_out, streamed, told};
use requests::{Place, Requests, Step};
use tonic::{Response, Status};
use watches::Watches;
use yoke_kine_nats::proto::etcdserverpb as pb;

const RUNS: u64 = 4;
/// Runs that found differences: a range below zero, a limit before a sort, a key written and removed at once.
const KNOWN: [u64; 3] = [11, 14, 46];
const STEPS: usize = 400;
/// Shorter leases could end while they are compared.
const SHORT: i64 = 100;

/// Both servers, and where they are.
struct Oracle {
    clients: [Client; 2],
    place: Place,
    watches: Watches,
    what: String,
}

impl Oracle {
    async fn new(clients: [Client; 2]) -> Self {
        let place = Place {
            revision: 1,
            compacted: 0,
        };
        let watches = Watches::open(&clients, 1, place).await;
        Self {
            clients,
            place,
            watches,
            what: String::new(),
        }
    }

    /// Does a step on both servers and compares all that is told of it.
    async fn step(&mut self, what: String, step: Step) {
        let before = self.place.revision;
        self.what = what;
        match step {
            Step::Range(request) => {
                let both = self
                    .both(async |mut client| client.kv.range(request.clone()).await)
                    .await;
                let [_, ours] = &self.clients;
                let listed = list(&mut ours.clone(), request.clone()).await.map(Response::new);
                assert_eq!(streamed(&request, &both[0]), told(listed), "{}: in parts", self.what);
                self.compare(both);
            }
            Step::Put(request) => {
                self.ask(async |mut client| client.kv.put(request.clone()).await).await;
            }
            Step::DeleteRange(request) => {
                self.ask(async |mut client| client.kv.delete_range(request.clone()).await)
                    .await;
            }
            Step::Txn(request) => {
                self.ask(async |mut client| client.kv.txn(request.clone()).await).await;
            }
            Step::Compact(request) => {
                if self
                    .ask(async |mut client| client.kv.compact(request).await)
                    .await
                    .is_some()
                {
                    self.place.compacted = request.revision;
                }
            }
            Step::Grant(request) => {
                let granted = self
                    .ask(async |mut client| client.lease.lease_grant(request).await)
                    .await;
                if granted.is_some_and(|granted| granted.ttl < SHORT) {
                    self.revoke(request.id).await;
                }
            }
            Step::Revoke(request) => self.revoke(request.id).await,
            Step::KeepAlive(request) => {
                self.ask(async |client| keep_alive(client, request).await).await;
            }
            Step::TimeToLive(request) => self.time_to_live(request).await,
            Step::Leases => self.leases().await,
            Step::Watch(stream, request) => {
                self.watches.create(&self.what, stream, request, self.place).await;
            }
            Step::Cancel(stream, watch) => self.watches.cancel(&self.what, stream, watch).await,
            Step::Progress(stream) => self.watches.progress(&self.what, stream, before).await,
        }
        self.watches.settle(&self.what, self.place.revision).await;
    }

    async fn both<T: Answer>(&self, call: impl AsyncFn(Client) -> Result<Response<T>, Status>) -> [Told<T>; 2] {
        let [etcd, ours] = &self.clients;
        let (etcd, ours) = tokio::join!(call(etcd.clone()), call(ours.clone()));
        [told(etcd), told(ours)]
    }

    /// The answer, if it is no error.
    fn compare<T: Answer>(&mut self, [etcd, ours]: [Told<T>; 2]) -> Option<T> {
        assert_eq!(etcd, ours, "{}: etcd's answer, and ours", self.what);
        let mut answer = etcd.ok()?;
        self.place.revision = self.place.revision.max(answer.revision());
        Some(answer)
    }

    async fn ask<T: Answer>(&mut self, call: impl AsyncFn(Client) -> Result<Response<T>, Status>) -> Option<T> {
        let both = self.both(call).await;
        self.compare(both)
    }

    async fn revoke(&mut self, id: i64) {
        let request = pb::LeaseRevokeRequest { id };
        self.ask(async |mut client| client.lease.lease_revoke(request).await)
            .await;
    }

    async fn time_to_live(&mut self, request: pb::LeaseTimeToLiveRequest) {
        let mut both = self
            .both(async |mut client| client.lease.lease_time_to_live(request).await)
            .await;
        even_out(&mut both);
        self.compare(both);
    }

    async fn leases(&mut self) {
        self.ask(async |mut client| client.lease.lease_leases(pb::LeaseLeasesRequest {}).await)
            .await;
    }

    /// Compares everything that is stored: all revisions that can be read, all leases, and all events.
    async fn compare_all(&mut self, when: &str) {
        let Place { revision, compacted } = self.place;
        for at in compacted.max(1)..=revision {
            self.what = format!("{when}, all keys at revision {at}");
            let request = pb::RangeRequest {
                key: [0].to_vec().into(),
                range_end: [0].to_vec().into(),
                revision: at,
                ..Default::default()
            };
            self.ask(async |mut client| client.kv.range(request.clone()).await)
                .await
                .unwrap();
        }
        self.what = format!("{when}, the leases");
        for id in requests::LEASES {
            self.time_to_live(pb::LeaseTimeToLiveRequest { id, keys: true }).await;
        }
        self.what = format!("{when}, all events");
        let begin = compacted.max(1);
        let mut watches = Watches::open(&self.clients, begin, self.place).await;
        watches.settle(&self.what, revision).await;
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

async fn run(seed: u64) {
    let (nats, etcd) = (Nats::start().await, Etcd::start().await);
    let mut kine = Kine::start(&nats, "oracle", &[]).await;
    let mut oracle = Oracle::new([etcd.client(), kine.client().await]).await;
    let mut requests = Requests::new(seed);
    for number in 0..STEPS {
        let step = requests.next(oracle.place);
        let what = format!("SEED={seed}, step {number}, at {:?}, {step:?}", oracle.place);
        oracle.step(what, step).await;
    }
    oracle.compare_all(&format!("SEED={seed}, at the end")).await;
    let file = save(&kine.url());
    let moved = Etcd::restore(file.path()).await;
    oracle.clients[1] = moved.client();
    oracle.compare_all(&format!("SEED={seed}, after a move to etcd")).await;
    kine.terminate();
    kine.restart().await;
    oracle.clients[1] = kine.client().await;
    oracle.compare_all(&format!("SEED={seed}, after a restart")).await;
}

#[tokio::test]
async fn clients_are_told_what_etcd_tells() {
    let runs = std::env::var("ORACLE_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let known = KNOWN.into_iter().filter(|_| chosen().is_none());
    for seed in known.chain(seeds(runs)) {
        run(seed).await;
    }
}
