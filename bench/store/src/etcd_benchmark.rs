//! Runs etcd's own load program, `benchmark`, as an additional load. The output of each of its
//! phases becomes a row.

mod report;

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tokio::process::Command;
use yoke_bench_harness::usage::children_cpu_time;

use self::report::Report;
use crate::stores::Running;
use crate::table::{Cell, Form};

/// The key that the program reads.
const KEY: &str = "/registry/benchmark";
/// Timeout for a phase. A phase that takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(60);
const CLIENTS: &[&str] = &["--clients=32", "--conns=4"];

struct Phase {
    command: &'static [&'static str],
    clients: &'static [&'static str],
    /// The option that sets the number of requests, and the number of requests per second of the
    /// phase's length. The number is the same for every store: about the rate of the slower of etcd
    /// and kine-nats.
    total: (&'static str, f64),
    /// Text that the program prints before each report, and the name and form of its row.
    reports: &'static [(&'static str, &'static str, Form)],
}

const PHASES: &[Phase] = &[
    Phase {
        command: &[
            "put",
            "--key-size=64",
            "--val-size=1024",
            "--key-space-size=10000",
            "--sequential-keys",
        ],
        clients: CLIENTS,
        total: ("--total", 7_000.0),
        reports: &[("", "`benchmark put`", Form::Requests)],
    },
    Phase {
        command: &["range", KEY],
        clients: CLIENTS,
        total: ("--total", 15_000.0),
        reports: &[("", "`benchmark range` of a key", Form::Requests)],
    },
    Phase {
        command: &["txn-put", "--key-size=64", "--val-size=1024", "--key-space-size=10000"],
        clients: CLIENTS,
        total: ("--total", 7_000.0),
        reports: &[("", "`benchmark txn-put`", Form::Requests)],
    },
    Phase {
        command: &[
            "txn-mixed",
            "--key-size=64",
            "--val-size=1024",
            "--key-space-size=10000",
            "--limit=100",
            "--rw-ratio=2",
        ],
        clients: CLIENTS,
        total: ("--total", 800.0),
        reports: &[
            (
                "Total Read Ops:",
                "`benchmark txn-mixed`: ranges of 100",
                Form::Requests,
            ),
            ("Total Write Ops:", "`benchmark txn-mixed`: puts", Form::Requests),
        ],
    },
    Phase {
        command: &[
            "watch-latency",
            "--key-size=64",
            "--val-size=1024",
            "--put-rate=100",
            "--prevkv",
        ],
        clients: &[],
        total: ("--put-total", 200.0),
        reports: &[(
            "Watch events summary:",
            "`benchmark watch-latency`, 100 watches",
            Form::Lag,
        )],
    },
    Phase {
        command: &["lease-keepalive"],
        clients: CLIENTS,
        total: ("--total", 7_000.0),
        reports: &[("", "`benchmark lease-keepalive`", Form::Requests)],
    },
];

/// Runs all phases against an empty store. Calls `rows` with the cell of each row, or with the
/// reason why the store has none.
pub(crate) async fn run(
    store: &mut Running,
    length: Duration,
    rows: &mut impl FnMut(&str, Result<Cell, String>),
) -> Result<()> {
    store.client()?.put(KEY, 0, Bytes::from_static(&[b'v'; 1024])).await?;
    for phase in PHASES {
        let total = (phase.total.1 * length.as_secs_f64()).ceil() as u64;
        let (before, own, begun) = (store.used()?, children_cpu_time()?, Instant::now());
        let said = phase.output(&store.address(), total).await?;
        let busy = (children_cpu_time()? - own).as_secs_f64() / begun.elapsed().as_secs_f64();
        store.front.check()?;
        let cpu = store.used()?.cpu - before.cpu;
        let reports = said.and_then(|text| phase.parse(&text));
        let failed = reports.iter().flatten().map(|report| report.failed).sum::<u64>();
        for (number, (_, row, form)) in phase.reports.iter().enumerate() {
            let cell = |report: &Report| {
                let cpu = cpu / total.saturating_sub(failed) as f64;
                let numbers = match form {
                    Form::Requests => vec![report.rate, report.median, report.slowest, cpu, busy],
                    Form::Lag | Form::Number(_) => vec![report.median, report.slowest, cpu],
                };
                Cell {
                    form: *form,
                    numbers,
                    problems: report.failed,
                }
            };
            rows(
                row,
                reports
                    .as_ref()
                    .map(|reports| cell(&reports[number]))
                    .map_err(Clone::clone),
            );
        }
    }
    Ok(())
}

impl Phase {
    /// Runs the program and returns its output. The inner error is the reason why the phase failed.
    async fn output(&self, address: &str, total: u64) -> Result<Result<String, String>> {
        let mut program = Command::new("benchmark");
        program
            .args(self.command)
            .args(self.clients)
            .arg(format!("{}={total}", self.total.0))
            .args(["--precise", "--endpoints", address])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let Ok(ended) = tokio::time::timeout(LIMIT, program.output()).await else {
            return Ok(Err(format!("not done within {} s", LIMIT.as_secs())));
        };
        let output = ended.context("starting etcd's benchmark")?;
        Ok(if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(report::reason(&String::from_utf8_lossy(&output.stderr)))
        })
    }

    /// Parses a report for each row. The error is the reason why a report is missing.
    fn parse(&self, text: &str) -> Result<Vec<Report>, String> {
        let mut reports = Vec::new();
        for (index, (marker, ..)) in self.reports.iter().enumerate() {
            let (_, text) = text
                .split_once(marker)
                .ok_or_else(|| format!("no {marker:?} in what it printed"))?;
            let next = self.reports.get(index + 1).map(|(marker, ..)| *marker);
            let part = next
                .and_then(|marker| text.split_once(marker))
                .map_or(text, |(part, _)| part);
            reports.push(part.parse()?);
        }
        Ok(reports)
    }
}
