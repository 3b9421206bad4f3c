//! Processes that compete for one log. Records and acks are late, out of order or lost; processes
//! are suspended, stopped and killed; and snapshots truncate the log. In every order of events, by
//! seed:
//! - acknowledged writes are stored, at the revision that the client got;
//! - the log can be followed to its end;
//! - two leases are never valid at the same time, and a read shows all that was acknowledged before
//!   it;
//! - a replaced writer exits, or follows;
//! - watches show the same on every process, only stored changes, and no change twice.
//!
//! In five of eight seeds processes that do not write serve as followers, and clients use them,
//! too. In every third seed reads are strict, and clocks stand still so that no lease ever expires.
//!
//! `SEED=n` runs one seed.

use super::*;
use crate::command::Command;
use crate::fuzz::chosen;
use crate::log::LogInfo;
use crate::peer::{message, serve};
use crate::process::role_loop::{CycleEnd, CycleError, run_cycle};
use crate::store::peers::{Member, PeerAnswer, PeerError, Peers};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::time::sleep;

const SEEDS: u64 = 200;
/// How long the processes of a seed compete.
const SPAN: Duration = Duration::from_secs(40);

struct World {
    memory: Memory,
    calm: AtomicBool,
    /// Records after which a snapshot is due.
    records: u64,
    stores: Mutex<Vec<Arc<Store>>>,
    acknowledged: Mutex<BTreeMap<String, i64>>,
    /// Whether processes that do not write serve as followers.
    follows: bool,
    /// Whether reads are strict and clocks stand still.
    strict: bool,
    mailboxes: Mutex<BTreeMap<u64, mpsc::Sender<Letter>>>,
    /// Everything that any process ever showed, by revision.
    shown: Mutex<BTreeMap<i64, Bytes>>,
    replaced: AtomicU64,
    forwarded: AtomicU64,
    moved: AtomicU64,
    proved: AtomicU64,
    seeds: Mutex<StdRng>,
}

impl World {
    fn random(&self) -> StdRng {
        StdRng::seed_from_u64(self.seeds.lock().unwrap().next_u64())
    }

    fn newest(&self) -> i64 {
        self.acknowledged.lock().unwrap().values().copied().max().unwrap_or(1)
    }
}

/// A bad connection to the log.
#[derive(Debug)]
struct Slow {
    log: MemoryLog,
    world: Arc<World>,
    random: Mutex<StdRng>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl Slow {
    fn open(world: &Arc<World>) -> (Arc<Self>, mpsc::Receiver<Ack>) {
        let (log, mut acks) = world.memory.open();
        let (sender, receiver) = mpsc::channel(1024);
        let slow = Arc::new(Self {
            log,
            world: Arc::clone(world),
            random: Mutex::new(world.random()),
        });
        let line = Arc::clone(&slow);
        tokio::spawn(async move {
            while let Some(ack) = acks.recv().await {
                let (sender, delay) = (sender.clone(), line.delay());
                if line.happens(3) {
                    continue;
                }
                tokio::spawn(async move {
                    sleep(delay).await;
                    let _ = sender.send(ack).await;
                });
            }
        });
        (slow, receiver)
    }

    fn happens(&self, percent: u32) -> bool {
        !self.world.calm.load(Ordering::Relaxed) && self.random.lock().unwrap().random_range(0..100) < percent
    }

    fn delay(&self) -> Duration {
        let mut random = self.random.lock().unwrap();
        let range = match random.random_range(0..100) {
            _ if self.world.calm.load(Ordering::Relaxed) => 0..2,
            0..75 => 0..5,
            75..97 => 5..80,
            _ => 300..3500,
        };
        Duration::from_millis(random.random_range(range))
    }

    async fn check_server(&self) -> Result<(), LogError> {
        sleep(self.delay().min(Duration::from_millis(500))).await;
        if self.happens(4) {
            Err(LogError::Timeout)
        } else {
            Ok(())
        }
    }
}

/// Delivers a record in flight even if its process is gone.
#[derive(Debug)]
struct Line(Arc<Slow>);

impl Log for Line {
    async fn publish(&self, token: u64, record: Bytes, expected: u64) -> Result<(), LogError> {
        if self.0.happens(1) {
            return Err(LogError::Disconnected);
        }
        let (slow, delay, lost) = (Arc::clone(&self.0), self.0.delay(), self.0.happens(3));
        tokio::spawn(async move {
            sleep(delay).await;
            if !lost {
                let _ = slow.log.publish(token, record, expected).await;
            }
        });
        Ok(())
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        self.0.check_server().await?;
        self.0.log.read(from).await
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        self.0.check_server().await?;
        self.0.log.get(sequence).await
    }

    async fn info(&self) -> Result<LogInfo, LogError> {
        self.0.check_server().await?;
        let info = self.0.log.info().await;
        sleep(self.0.delay().min(Duration::from_millis(500))).await;
        info
    }

    async fn purge(&self, below: u64) -> Result<(), LogError> {
        self.0.check_server().await?;
        self.0.log.purge(below).await
    }

    fn is_connected(&self) -> bool {
        true
    }

    async fn reconnect(&self) {}
}

/// A process among its peers, over a bad connection.
#[derive(Debug)]
struct Far {
    member: u64,
    world: Arc<World>,
    random: Mutex<StdRng>,
}

/// A request of another process, and the channel for its answer.
struct Letter {
    request: Bytes,
    reply: oneshot::Sender<Bytes>,
}

impl Peers for Far {
    fn member(&self) -> u64 {
        self.member
    }

    fn request<'a>(
        &'a self,
        member: u64,
        epoch: u64,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<PeerAnswer, PeerError>> {
        let request = message::encode_request(epoch, command);
        let (delays, lost) = {
            let mut random = self.random.lock().unwrap();
            let calm = self.world.calm.load(Ordering::Relaxed);
            let mut delay = || match random.random_range(0..100) {
                _ if calm => Duration::from_millis(1),
                0..90 => Duration::from_millis(random.random_range(0..5)),
                _ => Duration::from_millis(random.random_range(5..3000)),
            };
            let delays = (delay(), delay());
            (delays, [(); 2].map(|()| !calm && random.random_bool(0.03)))
        };
        let mailbox = self.world.mailboxes.lock().unwrap().get(&member).cloned();
        Box::pin(async move {
            sleep(delays.0).await;
            let (reply, answer) = oneshot::channel();
            if !lost[0] {
                let letter = Letter { request, reply };
                let sent = mailbox.and_then(|mailbox| mailbox.try_send(letter).ok());
                sent.ok_or(PeerError::NotDelivered)?;
            }
            let Ok(answer) = answer.await else {
                return std::future::pending().await;
            };
            sleep(delays.1).await;
            if lost[1] {
                std::future::pending().await
            } else {
                message::decode_answer(&answer).map_err(|_| PeerError::Unknown)
            }
        })
    }

    /// The announcement is lost.
    fn name_successor(&self, _: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn members(&self) -> Vec<Member> {
        Vec::new()
    }
}

/// One process.
async fn process(world: Arc<World>, number: u64, stop: watch::Receiver<bool>) {
    let (mailbox, mut letters) = mpsc::channel(64);
    let peers: Option<Arc<dyn Peers>> = world.follows.then(|| {
        let (world, random) = (Arc::clone(&world), Mutex::new(world.random()));
        world.mailboxes.lock().unwrap().insert(number << 16, mailbox);
        Arc::new(Far {
            member: number << 16,
            world,
            random,
        }) as _
    });
    let config = ProcessConfig {
        incarnation: 1,
        snapshot_config: always(SnapshotThresholds {
            records: world.records,
            ..NEVER
        }),
        peers,
        strict_reads: world.strict,
        ..config(number << 16)
    };
    let (stores, mut store) = watch::channel(None);
    let living = async {
        for life in 0.. {
            let (slow, acks) = Slow::open(&world);
            let log = Arc::new(Line(slow));
            let snapshots = Snapshots::new(world.memory.messages(), "snap".into(), Arc::clone(&log));
            let snapshots = match world.follows {
                true => snapshots.with_spare(world.memory.spare(), "spare".into()),
                false => snapshots,
            };
            match run_cycle(log, acks, snapshots, &config, life, &stores, stop.clone()).await {
                Ok(CycleEnd::Replaced) => world.replaced.fetch_add(1, Ordering::Relaxed),
                Ok(CycleEnd::Stopped) => return,
                Err(CycleError::Write(WriterError::Fenced { .. } | WriterError::Overtaken { .. }))
                    if !world.follows =>
                {
                    return;
                }
                Err(error) => panic!("{error:?}"),
            };
        }
    };
    let answering = async {
        let store: Arc<Store> = store.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        world.stores.lock().unwrap().push(Arc::clone(&store));
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(Letter { request, reply }) = letters.recv() => {
                    let store = &store;
                    answers.push(async move { (serve(store, &request).await, reply) });
                }
                Some((answer, reply)) = answers.next() => drop(reply.send(answer)),
                else => std::future::pending::<()>().await,
            }
        }
    };
    tokio::select! {
        () = living => {}
        () = answering => {}
    }
}

/// Runs a future with interruptions, like a process that is stopped and continued.
async fn sleeping<F: Future>(future: F, mut random: StdRng, world: Arc<World>) -> F::Output {
    tokio::pin!(future);
    loop {
        let awake = Duration::from_millis(random.random_range(500..9000));
        tokio::select! {
            biased;
            () = sleep(awake) => {}
            result = &mut future => return result,
        }
        if !world.calm.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.random_range(50..4500))).await;
        }
    }
}

/// A slot in which one process runs after another.
async fn place(world: Arc<World>, number: u64, mut random: StdRng) {
    for life in 0.. {
        let (stop, stopped) = watch::channel(false);
        let process = process(Arc::clone(&world), number * 1000 + life + 1, stopped);
        let mut process = tokio::spawn(sleeping(process, world.random(), Arc::clone(&world)));
        let long = Duration::from_millis(random.random_range(500..20_000));
        if let Ok(ended) = tokio::time::timeout(long, &mut process).await {
            ended.unwrap();
        } else if random.random_bool(0.5) && !world.calm.load(Ordering::Relaxed) {
            process.abort();
        } else {
            let _ = stop.send(true);
            let ended = tokio::time::timeout(Duration::from_secs(60), process).await;
            ended.expect("a stopped process ends").unwrap();
        }
        if world.calm.load(Ordering::Relaxed) {
            return;
        }
        sleep(Duration::from_millis(random.random_range(0..500))).await;
    }
}

/// Writes its own keys, and reads.
async fn client(world: Arc<World>, number: u64, mut random: StdRng) {
    for count in 0.. {
        sleep(Duration::from_millis(random.random_range(0..60))).await;
        if world.calm.load(Ordering::Relaxed) {
            return;
        }
        let stores = world.stores.lock().unwrap().clone();
        let Some(last) = stores.len().checked_sub(1) else {
            continue;
        };
        // Mostly the newest process; sometimes one that may have been replaced, or follows.
        let store = &stores[last - random.random_range(0..=last.min(2)) * usize::from(random.random_bool(0.3))];
        let forwards = !store.is_writer();
        if world.follows && random.random_bool(0.02) {
            // The process may not be the writer, and the target may be gone.
            let target = stores[random.random_range(0..=last)].member();
            let moved = store.move_leader(target).await.is_ok() && target != store.member();
            world.moved.fetch_add(u64::from(moved), Ordering::Relaxed);
        } else if random.random_bool(0.3) {
            let before = world.newest();
            if let Ok(revision) = store.read_latest(|state| state.mvcc.visible()).await {
                assert!(revision >= before, "read {revision} when {before} was acknowledged");
                world.proved.fetch_add(world.strict.into(), Ordering::Relaxed);
            }
        } else {
            let key = format!("{number}-{count}");
            if let Ok(revision) = write(store, &key).await {
                world.acknowledged.lock().unwrap().insert(key, revision);
                world.forwarded.fetch_add(u64::from(forwards), Ordering::Relaxed);
            }
        }
    }
}

/// Reads what processes show, as their watches do: all must show the same, without gaps.
async fn watch_changes(world: Arc<World>) {
    let mut seen: BTreeMap<usize, i64> = BTreeMap::new();
    loop {
        sleep(Duration::from_millis(20)).await;
        let stores = world.stores.lock().unwrap().clone();
        let mut shown = world.shown.lock().unwrap();
        for (at, store) in stores.iter().enumerate() {
            let state = store.read();
            let next = seen.entry(at).or_insert(2);
            for change in state.mvcc.changes(*next) {
                if change.revision > state.mvcc.visible() {
                    break;
                }
                assert_eq!(change.revision, *next, "store {at}");
                let first = shown.entry(change.revision).or_insert_with(|| change.kv.clone());
                assert_eq!(*first, change.kv, "revision {} of store {at}", change.revision);
                *next += 1;
            }
            assert!(state.mvcc.visible() < *next, "store {at}");
        }
    }
}

/// Virtual machines that were stopped with their clocks: every earlier writer finds its lease
/// valid.
async fn stop_clocks(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(7)).await;
        for store in &*world.stores.lock().unwrap() {
            store.extend_lease(clock::now() + SPAN);
        }
    }
}

/// Checks that no two leases are valid at a time.
async fn watch_leases(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(7)).await;
        let stores = world.stores.lock().unwrap();
        let epochs: Vec<u64> = stores
            .iter()
            .filter(|store| store.has_valid_lease())
            .map(|store| store.epoch())
            .collect();
        assert!(epochs.len() < 2, "the writers of {epochs:?} hold the lease");
    }
}

async fn simulate(seed: u64) -> Tally {
    let memory = Memory::new();
    // In every fourth seed only a log that is nearly full, or full, is truncated.
    let small = seed.is_multiple_of(4);
    if small {
        memory.set_limit(12_000);
    }
    let world = Arc::new(World {
        memory,
        calm: AtomicBool::new(false),
        records: if small { u64::MAX } else { 8 },
        stores: Mutex::default(),
        acknowledged: Mutex::default(),
        follows: seed % 8 < 5,
        strict: seed.is_multiple_of(3),
        mailboxes: Mutex::default(),
        shown: Mutex::default(),
        replaced: AtomicU64::new(0),
        forwarded: AtomicU64::new(0),
        moved: AtomicU64::new(0),
        proved: AtomicU64::new(0),
        seeds: Mutex::new(StdRng::seed_from_u64(seed)),
    });
    let mut tasks = JoinSet::new();
    for number in 0..2 + seed % 2 {
        tasks.spawn(place(Arc::clone(&world), number + 1, world.random()));
    }
    for number in 0..5 {
        tasks.spawn(client(Arc::clone(&world), number, world.random()));
    }
    let watches = [
        match world.strict {
            true => tokio::spawn(stop_clocks(Arc::clone(&world))),
            false => tokio::spawn(watch_leases(Arc::clone(&world))),
        },
        tokio::spawn(watch_changes(Arc::clone(&world))),
    ];
    sleep(SPAN).await;
    world.calm.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    for watch in watches {
        assert!(!watch.is_finished(), "{:?}", watch.await);
        watch.abort();
    }
    let (log, snapshots) = (world.memory.open().0, snapshots(&world.memory));
    let replica = Replica::load(&log, &snapshots).await.unwrap();
    let acknowledged = world.acknowledged.lock().unwrap();
    for (key, revision) in &*acknowledged {
        let found = replica.state.mvcc.latest(key.as_bytes()).map(|item| item.modified);
        assert_eq!(found, Some(*revision), "{key}");
    }
    for change in replica.state.mvcc.changes(0) {
        let item = replica.state.mvcc.latest(change.key()).unwrap();
        assert_eq!(item.version, 1, "{:?} is stored once", change.key());
        let shown = world.shown.lock().unwrap().get(&change.revision).cloned();
        assert!(shown.is_none_or(|kv| kv == change.kv), "{}", change.revision);
    }
    Tally {
        writes: acknowledged.len(),
        shortened: usize::from(world.memory.first() > 1),
        replaced: world.replaced.load(Ordering::Relaxed),
        forwarded: world.forwarded.load(Ordering::Relaxed),
        moved: world.moved.load(Ordering::Relaxed),
        proved: world.proved.load(Ordering::Relaxed),
    }
}

/// Statistics of the runs.
#[derive(Debug, Default)]
struct Tally {
    writes: usize,
    /// Logs that were truncated.
    shortened: usize,
    /// Writers that became followers.
    replaced: u64,
    /// Writes that were acknowledged through a follower.
    forwarded: u64,
    /// Writers that let another process write on request.
    moved: u64,
    /// Strict reads that were answered.
    proved: u64,
}

#[test]
fn acknowledged_writes_are_never_lost() {
    let mut all = Tally::default();
    on_each_seed(SEEDS, async |seed| {
        let tally = simulate(seed).await;
        all.writes += tally.writes;
        all.shortened += tally.shortened;
        all.replaced += tally.replaced;
        all.forwarded += tally.forwarded;
        all.moved += tally.moved;
        all.proved += tally.proved;
    });
    println!("{all:?}");
    let confirmed = all.writes.min(all.forwarded as usize).min(all.proved as usize);
    let enough = confirmed > 1000 && all.shortened > 100 && all.replaced > 100 && all.moved > 5;
    assert!(chosen().is_some() || enough, "{all:?}");
}
