//! `make bench-fleet`: a tenant cluster with as many kinds and objects as fleets of cloud resources
//! need. Measures each store in turn. The store, kube-apiserver and the load share all cores.
//!
//! ```text
//! objects (CRDs, objects) ─┬─► api (kube-apiserver and its client) ──► stores
//!                          │    └──► table                             ▲
//!                          └─► stored (as kube-apiserver stores them) ──┘
//! ```

mod api;
mod objects;
mod stored;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use yoke_bench_harness::usage::own_cpu;
use yoke_bench_harness::{Peak, Times, Usage};

use self::api::{Client, Page, Server};
use self::objects::{Crd, Fleet};
use self::stored::Stored;
use crate::client::Written;
use crate::load::{Until, closed};
use crate::process::Cores;
use crate::stores::{Kind, Running, Store};
use crate::table::{Cell, Form, Table};

/// Concurrency of requests that cause lasting work for the API server.
const FEW: usize = 16;
/// Number of progress reports while objects are created.
const REPORTS: u64 = 20;
/// kube-apiserver delays each creation of an object for this long after its CRD is Established
/// (`serveResource`, k8s.io/apiextensions-apiserver 0.35.4).
const JUST_CREATED: Duration = Duration::from_secs(2);

/// Measures many kinds with many objects, through kube-apiserver. Needs etcd, kine-nats,
/// nats-server, kube-apiserver, setpriv and taskset in PATH.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Stores to measure: etcd, etcd-replicated, kine-nats or kine-nats-replicated.
    #[arg(long, value_name = "LIST", default_value = "etcd,kine-nats", value_delimiter = ',')]
    stores: Vec<Kind>,
    /// Number of CustomResourceDefinitions.
    #[arg(long, value_name = "N", default_value_t = 1372, value_parser = clap::value_parser!(u64).range(1..))]
    crds: u64,
    /// Number of objects of these kinds. A million needs about a quarter of an hour for each store,
    /// 22 GiB of memory and 6 GiB of disk.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    objects: u64,
    /// Number of objects that are created through kube-apiserver. The others are written to the
    /// store first, as kube-apiserver stores them. That takes minutes instead of most of an hour.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    through_api: u64,
    /// Number of namespaces that contain the objects.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    namespaces: u64,
    /// Number of clients that create or write objects.
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: usize,
    /// GOMEMLIMIT of kube-apiserver: a size, or off.
    #[arg(long, value_name = "SIZE", default_value = "18GiB")]
    memory_limit: String,
}

/// Measures each store, and prints a table. If a store fails, the table contains the results so
/// far.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let mut table = Table::default();
    let done = all(args, &mut table).await;
    println!("\n{}", table.print(true));
    done
}

async fn all(args: &Args, table: &mut Table) -> Result<()> {
    for kind in &args.stores {
        let store = Store {
            kind: *kind,
            durable: true,
        };
        through(args, store, &mut |row, cell| table.add(store, row, cell))
            .await
            .with_context(|| format!("measuring {}", store.name()))?;
    }
    Ok(())
}

async fn through(args: &Args, store: Store, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    let cores = Cores::available()?;
    let fleet = Fleet {
        kinds: args.crds,
        objects: args.objects,
        namespaces: args.namespaces,
    };
    let mut store = Running::start(store, &cores, &[]).await?;
    let begun = Instant::now();
    let mut api = Server::start(&store.address(), &cores, &args.memory_limit)?;
    api.ready().await?;
    rows("kube-apiserver on the empty store → ready, s", since(begun));
    kinds(&api.client, fleet, rows).await?;
    namespaces(&api.client, fleet).await?;
    let mut from = fleet.objects.saturating_sub(args.through_api);
    if from > fleet.kinds {
        fill(&mut store, &mut api, (fleet, from), args.clients, rows).await?;
    } else {
        from = 0;
    }
    let most = (Peak::of(vec![api.process.id()]), store.peak());
    let created = from + objects(&mut store, &mut api, (fleet, from), args.clients, rows).await?;
    lists(&store, &api.client, fleet, created, rows).await?;
    tell_most("while they are created and listed", &most, rows);
    rows("disk of the store, MiB", Cell::number(store.disk()?, 0));
    let written = store.written()? / 1024.0 / 1024.0;
    rows("written to the disk by the store, MiB", Cell::number(written, 0));
    api_again(&store, &mut api, fleet, rows).await?;
    store_again(&mut store, &mut api, fleet, rows).await
}

/// Reports the maximum memory of the API server and of the store.
fn tell_most(when: &str, (api, store): &(Peak, Peak), rows: &mut impl FnMut(&str, Cell)) {
    for (whose, most) in [("kube-apiserver", api), ("the store", store)] {
        rows(
            &format!("most memory of {whose} {when}, MiB"),
            Cell::number(most.most(), 0),
        );
    }
}

fn since(begun: Instant) -> Cell {
    Cell::number(begun.elapsed().as_secs_f64(), 1)
}

/// Runs a request for each number below `count`. Fails if one of the requests fails.
async fn each<F: Future<Output = Result<()>> + Send>(
    count: u64,
    request: impl Fn(u64) -> F + Clone + Send + Sync + 'static,
) -> Result<()> {
    let failed = closed(FEW, Until::Count(count), request).await?.failed();
    ensure!(failed == 0, "{failed} of {count} requests failed");
    Ok(())
}

/// Creates the CRDs, and waits until the API server serves them.
async fn kinds(client: &Client, fleet: Fleet, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    let (begun, crds) = (Instant::now(), fleet.kinds);
    let at = client.clone();
    each(crds, move |kind| {
        let client = at.clone();
        async move { client.create(objects::CRDS, objects::crd(kind)).await }
    })
    .await?;
    rows(&format!("CRDs: {crds} created, s"), since(begun));
    let at = client.clone();
    each(crds, move |kind| {
        let client = at.clone();
        async move { client.wait(&objects::crd_path(kind), Crd::is_established).await }
    })
    .await?;
    rows("CRDs: all Established, s", since(begun));
    caches(client, fleet, 0).await?;
    rows("CRDs: all served, with watch caches, s", since(begun));
    tokio::time::sleep(JUST_CREATED).await;
    Ok(())
}

/// Waits until the watch cache of each kind is loaded. There are `objects` objects in total.
async fn caches(client: &Client, fleet: Fleet, objects: u64) -> Result<()> {
    let client = client.clone();
    each(fleet.kinds, move |kind| {
        let client = client.clone();
        let expected = usize::from(kind < objects);
        let is = move |page: &Page| page.items.len() == expected;
        async move { client.wait(&Fleet::cached(kind), is).await }
    })
    .await
}

async fn namespaces(client: &Client, fleet: Fleet) -> Result<()> {
    let client = client.clone();
    each(fleet.namespaces, move |number| {
        let client = client.clone();
        async move { client.create(objects::NAMESPACES, objects::namespace(number)).await }
    })
    .await
}

/// Creates one object of each kind through the API server. Then writes the other objects below
/// `written` to the store while the API server is down.
async fn fill(
    store: &mut Running,
    api: &mut Server,
    (fleet, written): (Fleet, u64),
    clients: usize,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<()> {
    let client = api.client.clone();
    each(fleet.kinds, move |number| {
        let (client, (path, object)) = (client.clone(), fleet.object(number));
        async move { client.create(&path, object).await }
    })
    .await?;
    let client = store.client()?;
    let stored = Arc::new(Stored::read(&client, fleet).await?);
    api.end()?;
    let (count, before, begun) = (written - fleet.kinds, store.used()?.cpu, Instant::now());
    let own = own_cpu()?;
    let times = closed(clients, Until::Count(count), move |number| {
        let (client, stored) = (client.clone(), Arc::clone(&stored));
        async move {
            let (key, value) = stored.object(fleet.kinds + number);
            let answer = client.put(&key, 0, value).await?;
            ensure!(matches!(answer, Written::At(_)), "{key} is there already");
            Ok(())
        }
    })
    .await?;
    let seconds = begun.elapsed().as_secs_f64();
    store.front.check()?;
    ensure!(times.failed() == 0, "{} objects were not written", times.failed());
    let row = format!("{count} objects written as kube-apiserver stores them, {clients} clients");
    let cpu = (store.used()?.cpu - before) / count as f64;
    rows(&row, requests(&times, seconds, cpu, own_cpu()? - own));
    api.begin()?;
    api.ready().await?;
    caches(&api.client, fleet, fleet.objects).await
}

/// The cell for requests that took `seconds` in total. `cpu` is the store's CPU time for each
/// request, and `load` is the total CPU time of the load, both in microseconds.
fn requests(times: &Times, seconds: f64, cpu: f64, load: f64) -> Cell {
    let [median, slowest] = times.quantiles([0.5, 0.99]);
    let rate = times.succeeded() as f64 / seconds;
    Cell {
        form: Form::Requests,
        numbers: vec![rate, median, slowest, cpu, load / 1e6 / seconds],
        problems: times.failed(),
    }
}

/// Creates the objects from number `from` on. Returns how many creations the API server confirmed.
async fn objects(
    store: &mut Running,
    api: &mut Server,
    (fleet, from): (Fleet, u64),
    clients: usize,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<u64> {
    let count = fleet.objects - from;
    let used = |store: &Running, api: &Server| -> Result<_> {
        Ok((
            store.used()?.cpu,
            Usage::of_threads(&[api.process.id()])?.cpu,
            own_cpu()?,
        ))
    };
    let (before, begun, client) = (used(store, api)?, Instant::now(), api.client.clone());
    let times = closed(clients, Until::Count(count), move |number| {
        let client = client.clone();
        async move {
            let (path, object) = fleet.object(from + number);
            client.create(&path, object).await?;
            if (number + 1) % (count / REPORTS).max(1) == 0 {
                let rate = (number + 1) as f64 / begun.elapsed().as_secs_f64();
                eprintln!("  {} of {count} objects, {rate:.0}/s", number + 1);
            }
            Ok(())
        }
    })
    .await?;
    let seconds = begun.elapsed().as_secs_f64();
    store.front.check()?;
    api.process.check()?;
    let (after, answered) = (used(store, api)?, times.succeeded() as f64);
    let row = if from == 0 {
        format!("{count} objects created, {clients} clients")
    } else {
        format!("{count} more objects created, {clients} clients")
    };
    let cpu = (after.0 - before.0) / answered;
    rows(&row, requests(&times, seconds, cpu, after.2 - before.2));
    let cpu = (after.1 - before.1) / answered;
    rows("processor time of kube-apiserver for each, µs", Cell::number(cpu, 0));
    Ok(times.succeeded() as u64)
}

/// Lists all objects, kind by kind.
async fn lists(
    store: &Running,
    client: &Client,
    fleet: Fleet,
    created: u64,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<()> {
    let (begun, mut seen, mut times) = (Instant::now(), 0, Vec::new());
    for kind in 0..fleet.kinds {
        let begun = Instant::now();
        seen += client.list(&Fleet::list(kind)).await?;
        times.push(begun.elapsed());
    }
    let all = since(begun);
    // An object may exist although its creation was not confirmed.
    ensure!(
        (created..=fleet.objects).contains(&seen),
        "{seen} objects are listed, {created} were created"
    );
    let one = Times::from(times).quantile(0.5);
    rows("list of a kind by 500, median of all kinds, ms", Cell::number(one, 1));
    rows("list of all kinds one after the other, s", all);
    let begun = Instant::now();
    let stored = store.client()?.list("/registry/").await?;
    rows("list of all keys by 500 at the store itself, s", since(begun));
    ensure!(stored as u64 >= seen, "{stored} keys are stored of {seen} objects");
    Ok(())
}

/// Restarts the API server, and waits until its caches are loaded.
async fn api_again(store: &Running, api: &mut Server, fleet: Fleet, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    api.end()?;
    api.begin()?;
    let begun = Instant::now();
    let most = (Peak::of(vec![api.process.id()]), store.peak());
    api.ready().await?;
    rows("kube-apiserver started again → ready, s", since(begun));
    caches(&api.client, fleet, fleet.objects).await?;
    rows(
        "kube-apiserver started again → all watch caches loaded, s",
        since(begun),
    );
    tell_most("meanwhile", &most, rows);
    Ok(())
}

/// Restarts the store while the API server runs.
async fn store_again(
    store: &mut Running,
    api: &mut Server,
    fleet: Fleet,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<()> {
    for (number, (what, signal)) in (fleet.objects..).zip([("SIGTERM", Signal::TERM), ("SIGKILL", Signal::KILL)]) {
        let begun = store.again(signal).await?;
        rows(&format!("store started after {what} → answers, s"), since(begun));
        api.writable(fleet.object(number)).await?;
        rows(
            &format!("store started after {what} → an object is created, s"),
            since(begun),
        );
    }
    Ok(())
}
