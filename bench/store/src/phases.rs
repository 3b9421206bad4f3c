//! The phases, in the order in which each store is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use rand::{Rng as _, SeedableRng as _};
use yoke_bench_harness::usage::own_cpu;

use crate::client::{Client, Written};
use crate::load::{Until, closed};
use crate::stores::Running;
use crate::table::{Cell, Form};

/// Number of keys that one list or one watch covers.
pub(crate) const IN_NAMESPACE: u64 = 5_000;
/// Size of a value in bytes.
pub(crate) const VALUE: usize = 1024;
const CONNECTIONS: usize = 4;
const MANY: usize = 32;

/// The keys of a store, and the revision of each.
#[derive(Clone)]
pub(crate) struct Keys {
    at: Arc<Vec<AtomicI64>>,
    clients: Arc<Vec<Client>>,
    noise: Bytes,
    epoch: Instant,
}

impl Keys {
    /// Plans `count` keys. None of them is written yet.
    pub(crate) fn new(store: &Running, count: u64) -> Result<Self> {
        let mut noise = vec![0; VALUE * 16];
        rand::rngs::StdRng::seed_from_u64(1).fill_bytes(&mut noise);
        Ok(Self {
            at: Arc::new((0..count).map(|_| AtomicI64::new(0)).collect()),
            clients: Arc::new((0..CONNECTIONS).map(|_| store.client()).collect::<Result<_>>()?),
            noise: noise.into(),
            epoch: Instant::now(),
        })
    }

    fn count(&self) -> u64 {
        self.at.len() as u64
    }

    fn client(&self, number: u64) -> &Client {
        &self.clients[number as usize % CONNECTIONS]
    }

    /// A value that does not compress. Begins with its creation time and the number of its key.
    fn value(&self, number: u64) -> Bytes {
        let mut value = BytesMut::with_capacity(VALUE);
        value.put_u64(self.epoch.elapsed().as_nanos() as u64);
        value.put_u64(number);
        let begin = (number as usize * 31) % (self.noise.len() - VALUE);
        value.put_slice(&self.noise[begin..begin + VALUE - 16]);
        value.freeze()
    }

    /// Time since a value was created.
    pub(crate) fn age(&self, value: &[u8]) -> Option<Duration> {
        let made = u64::from_be_bytes(value.get(..8)?.try_into().ok()?);
        Some(self.epoch.elapsed().saturating_sub(Duration::from_nanos(made)))
    }

    /// Creates key `number`, or updates it if it is still at its known revision.
    pub(crate) async fn put(&self, number: u64) -> Result<()> {
        let key = number % self.count();
        let at = &self.at[key as usize];
        let written = self
            .client(number)
            .put(&name(key), at.load(Ordering::Relaxed), self.value(number))
            .await?;
        let Written::At(revision) = written else {
            anyhow::bail!("the guard of {} did not hold", name(key));
        };
        at.store(revision, Ordering::Relaxed);
        Ok(())
    }

    async fn put_stale(&self, number: u64) -> Result<()> {
        let key = number % self.count();
        let written = self.client(number).put(&name(key), 1, self.value(number)).await?;
        ensure!(matches!(written, Written::Refused), "a stale write was stored");
        Ok(())
    }

    async fn delete(&self, number: u64) -> Result<()> {
        let at = self.at[number as usize].load(Ordering::Relaxed);
        let written = self.client(number).delete(&name(number), at).await?;
        ensure!(
            matches!(written, Written::At(_)),
            "the guard of {} did not hold",
            name(number)
        );
        Ok(())
    }

    async fn get(&self, number: u64) -> Result<()> {
        // A large odd step visits the keys in a scattered order.
        let key = number.wrapping_mul(7919) % self.count();
        self.client(number).get(&name(key)).await.map(drop)
    }

    async fn count_namespace(&self, number: u64) -> Result<()> {
        let count = self.client(number).count(&namespace(0)).await?;
        ensure!(count == IN_NAMESPACE as i64, "{count} keys");
        Ok(())
    }

    async fn list(&self, number: u64) -> Result<()> {
        let count = self.client(number).list(&namespace(0)).await?;
        ensure!(count == IN_NAMESPACE as usize, "{count} keys");
        Ok(())
    }
}

/// Key prefix of a namespace.
pub(crate) fn namespace(number: u64) -> String {
    format!("/registry/pods/ns-{number:03}/")
}

fn name(key: u64) -> String {
    format!("{}pod-{key:07}", namespace(key / IN_NAMESPACE))
}

/// Runs all phases. Calls `rows` with the result of each.
pub(crate) async fn run(
    store: &mut Running,
    keys: &Keys,
    length: Duration,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<()> {
    let timed = Until::Time(length, u64::MAX);
    let (all, clone) = (Until::Count(keys.count()), || keys.clone());
    let before = store.written()?;
    rows(
        "create, 32 clients",
        measure(store, MANY, all, clone(), |k, n| async move { k.put(n).await }).await?,
    );
    let written = store.written()? - before;
    let stored = keys.count() as f64 * (VALUE + name(0).len()) as f64;
    rows("bytes written per byte created", Cell::number(written / stored, 1));
    rows(
        "update, 1 client",
        measure(store, 1, timed, clone(), |k, n| async move { k.put(n).await }).await?,
    );
    rows(
        "update, 32 clients",
        measure(store, MANY, timed, clone(), |k, n| async move { k.put(n).await }).await?,
    );
    rows(
        "stale update, 32 clients",
        measure(store, MANY, timed, clone(), |k, n| async move { k.put_stale(n).await }).await?,
    );
    rows(
        "get, 1 client",
        measure(store, 1, timed, clone(), |k, n| async move { k.get(n).await }).await?,
    );
    rows(
        "get, 32 clients",
        measure(store, MANY, timed, clone(), |k, n| async move { k.get(n).await }).await?,
    );
    rows(
        "count 5,000, 4 clients",
        measure(
            store,
            4,
            timed,
            clone(),
            |k, n| async move { k.count_namespace(n).await },
        )
        .await?,
    );
    rows(
        "list 5,000 by 500, 2 clients",
        measure(store, 2, timed, clone(), |k, n| async move { k.list(n).await }).await?,
    );
    crate::watches::run(store, keys, length, rows).await?;
    let (cpu, memory) = crate::watches::idle(store).await?;
    rows("150 idle watch streams: CPU, ms/s", Cell::number(cpu, 1));
    rows("memory with them, MiB", Cell::number(memory, 0));
    let deletes = Until::Time(length, keys.count());
    rows(
        "delete, 32 clients",
        measure(store, MANY, deletes, clone(), |k, n| async move { k.delete(n).await }).await?,
    );
    Ok(())
}

async fn measure<F: Future<Output = Result<()>> + Send>(
    store: &mut Running,
    workers: usize,
    until: Until,
    keys: Keys,
    request: impl Fn(Keys, u64) -> F + Clone + Send + Sync + 'static,
) -> Result<Cell> {
    let (before, own, begun) = (store.used()?, own_cpu()?, Instant::now());
    let times = closed(workers, until, move |number| request(keys.clone(), number)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    store.front.check()?;
    let succeeded = times.succeeded() as f64;
    let cpu = (store.used()?.cpu - before.cpu) / succeeded;
    let load = (own_cpu()? - own) / 1e6 / seconds;
    let [median, slowest] = times.quantiles([0.5, 0.99]);
    Ok(Cell {
        form: Form::Requests,
        numbers: vec![succeeded / seconds, median, slowest, cpu, load],
        problems: times.failed(),
    })
}
