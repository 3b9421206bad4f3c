//! The order of the steps in a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Api;
use kube::api::PostParams;
use yoke_api::{Cluster, Tenant};
use yoke_bench_harness::audit::{Audit, Counts};
use yoke_bench_harness::clusters::reconcile_rate;
use yoke_bench_harness::usage::proportional_memory;
use yoke_bench_harness::{Peak, Usage};
use yoke_operator::testing::nats::Nats;
use yoke_operator::testing::nats_config;
use yoke_test_support::nats::Server;

use crate::fleet::{Fleet, MOST};
use crate::host::Host;
use crate::operator::{Operator, PATIENCE, build_config};
use crate::table::{Rest, Start, print_rests, print_starts, print_targets};
use crate::tenants::Tenants;

/// Number of Clusters generated concurrently.
const AT_ONCE: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);

/// Measures the operator with thousands of Clusters. Needs yoke-operator, nats-server,
/// kube-apiserver, etcd, ip and unshare in PATH.
#[derive(Debug, clap::Parser)]
#[command(max_term_width = 110)]
pub(crate) struct Args {
    /// Total number of Clusters at the end of the run.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    pub(crate) clusters: u64,
    /// Number of awake Clusters among them.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) awake: usize,
    /// Duration of the measurement at rest.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    rest: u64,
    /// Number of times the operator is killed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    kills: usize,
}

/// All running parts.
struct Stage {
    host: Host,
    operator: Operator,
    fleet: Arc<Fleet>,
    nats: Nats,
    tenants: Tenants,
    rest: Duration,
    clusters: usize,
}

/// Measures everything, and prints the tables.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let count = usize::try_from(args.clusters)?;
    ensure!(args.awake <= count, "more Clusters awake than there are");
    let dir = tempfile::Builder::new().prefix("operator-bench-").tempdir()?;
    let server = Server::start_with_room("10TB").await;
    let (config, text) = build_config(&nats_config(server.port(), server.secret_dir()))?;
    let nats_ca = std::fs::read_to_string(config.nats.secret_dir.join("ca.crt"))?;
    let nats = Nats::connect(&config.nats).await?;
    let fleet = Arc::new(Fleet::new(config, nats_ca, count, args.awake)?);
    let host = Host::start(dir.path()).await?;
    host.keep_root(fleet.authority.root_data()).await?;
    let mut stage = Stage {
        operator: Operator::new(dir.path(), &host.kubeconfig, &text)?,
        host,
        fleet,
        nats,
        tenants: Tenants::serve().await?,
        rest: Duration::from_secs(args.rest),
        clusters: 0,
    };
    let (mut rests, mut starts) = (Vec::new(), Vec::new());
    stage.begin().await?;
    rests.push(stage.measure().await?);
    for clusters in [count / 10, count] {
        stage.operator.kill();
        stage.add(clusters).await?;
        let what = format!("first with {clusters} Clusters");
        starts.push(stage.start(what).await?);
        rests.push(stage.measure().await?);
    }
    for _ in 0..args.kills {
        stage.operator.kill();
        starts.push(stage.start(format!("after kill -9 with {count}")).await?);
        rests.push(stage.measure().await?);
    }
    print_rests(&rests);
    print_starts(&starts);
    // Without a kill, the last start is the first one with this number of Clusters, not a restart.
    print_targets(&rests, starts.last().filter(|_| args.kills > 0));
    Ok(())
}

impl Stage {
    /// Creates the Tenants, and lets the operator create their namespaces.
    async fn begin(&mut self) -> Result<()> {
        let api = Api::<Tenant>::all(self.host.client.clone());
        for tenant in self.fleet.tenants() {
            api.create(&PostParams::default(), tenant).await?;
        }
        self.operator.start();
        let began = Instant::now();
        loop {
            let all = api.list(&Default::default()).await?;
            let is_ready = |tenant: &Tenant| {
                let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
                conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            };
            if all.items.iter().all(is_ready) {
                return Ok(());
            }
            ensure!(began.elapsed() < LIMIT, "Tenants are not Ready within {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Adds settled Clusters until there are `clusters`. The operator does not run meanwhile.
    async fn add(&mut self, clusters: usize) -> Result<()> {
        let began = Instant::now();
        let added = (self.clusters..clusters).map(|number| {
            let (fleet, nats) = (Arc::clone(&self.fleet), self.nats.clone());
            let (store, tenants) = (self.host.store.clone(), self.tenants.clone());
            // The work uses much CPU time, so each Cluster gets its own task.
            let task = tokio::spawn(async move {
                let member = fleet.settle(&nats, number).await?;
                if let Some((name, leaf)) = &member.serving {
                    tenants.add(name.clone(), leaf)?;
                }
                store.put(member.objects).await
            });
            async move { task.await? }
        });
        let added = stream::iter(added).buffer_unordered(AT_ONCE);
        added.try_collect::<Vec<()>>().await.context("settling Clusters")?;
        println!(
            "{} Clusters settled in {:.0} s",
            clusters - self.clusters,
            began.elapsed().as_secs_f64()
        );
        self.clusters = clusters;
        Ok(())
    }

    /// Starts the operator, and waits until it is settled and all Clusters are in the expected
    /// phase.
    async fn start(&mut self, what: String) -> Result<Start> {
        let audit = Audit::begin(&self.host.audit);
        let began = Instant::now();
        let id = self.operator.start();
        let peak = Peak::of(vec![id]);
        let awake = self.fleet.count_awake(self.clusters);
        let rate = reconcile_rate(awake, self.clusters - awake);
        let settled = loop {
            let settled = self.operator.settle(self.clusters, rate).await?;
            match self.check(awake).await {
                Ok(()) => break settled,
                Err(error) if began.elapsed() > PATIENCE => return Err(error),
                Err(error) => println!("not yet: {error}"),
            }
        };
        let requests = count(&audit)?;
        let start = Start {
            what,
            settled: settled - began,
            cpu: Usage::of_process(id)?.cpu,
            peak: peak.most(),
            requests,
        };
        print_starts(std::slice::from_ref(&start));
        Ok(start)
    }

    /// Checks that `awake` Clusters run and the others sleep.
    async fn check(&self, awake: usize) -> Result<()> {
        let all = Api::<Cluster>::all(self.host.client.clone())
            .list(&Default::default())
            .await?;
        let phases = all.items.iter().map(|cluster| {
            let phase = cluster.status.as_ref().and_then(|status| status.phase);
            phase.map_or_else(|| "none".to_owned(), |phase| format!("{phase:?}"))
        });
        let mut counts = BTreeMap::<String, usize>::new();
        phases.for_each(|phase| *counts.entry(phase).or_default() += 1);
        let mut wanted = BTreeMap::from([
            ("Asleep".to_owned(), self.clusters - awake),
            ("Running".to_owned(), awake),
        ]);
        wanted.retain(|_, count| *count > 0);
        ensure!(counts == wanted, "{counts:?}, and not {wanted:?}");
        Ok(())
    }

    /// Measures resource usage and requests at rest.
    async fn measure(&mut self) -> Result<Rest> {
        let (operator, api) = (self.operator.id()?, self.host.server.api_id);
        let audit = Audit::begin(&self.host.audit);
        let read = || anyhow::Ok((Usage::of_process(operator)?, Usage::of_process(api)?));
        let before = read()?;
        let began = Instant::now();
        tokio::time::sleep(self.rest).await;
        let after = read()?;
        let rest = Rest {
            clusters: self.clusters,
            awake: self.fleet.count_awake(self.clusters),
            length: began.elapsed(),
            used: (before.0, after.0),
            proportional_memory: proportional_memory(operator)?,
            api: (before.1, after.1),
            requests: count(&audit)?,
        };
        print_rests(std::slice::from_ref(&rest));
        Ok(rest)
    }
}

/// Counts the requests. The audit log is never rotated, so it is complete.
fn count(audit: &Audit) -> Result<Counts> {
    audit.count()?.context("the host's audit log is another file")
}
