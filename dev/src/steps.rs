//! Steps of `make up`, and the display of steps.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// Texts that are shown for a step.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Title: the action, in the imperative.
    pub title: &'static str,
    /// Advice for the user if the step fails.
    pub advice: &'static str,
}

/// A step of `make up`. A step that is done already does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "kebab-case")]
pub enum Step {
    /// Checks of the computer.
    Prerequisites,
    /// Debian packages.
    Packages,
    /// Binaries of Go modules, and Envoy.
    Binaries,
    /// This workspace's binaries.
    Workspace,
    /// Network namespaces of the nodes.
    Network,
    /// Keys, certificates and NATS claims.
    Credentials,
    /// Supervisors.
    Supervisor,
    /// nats-server.
    Nats,
    /// Datastore of the host API.
    HostStore,
    /// Control plane of the host.
    HostApi,
    /// containerd.
    Containerd,
    /// Images of third-party binaries.
    Images,
    /// kubelet, kube-proxy and the NetworkPolicy firewall.
    Node,
    /// Cluster DNS.
    Dns,
    /// cert-manager.
    CertManager,
    /// Yoke's chart.
    Yoke,
    /// Demo tenant and cluster.
    Demo,
}

/// All steps. Each one needs the steps before it.
pub const ORDER: [Step; 17] = [
    Step::Prerequisites,
    Step::Packages,
    Step::Binaries,
    Step::Workspace,
    Step::Network,
    Step::Credentials,
    Step::Supervisor,
    Step::Nats,
    Step::HostStore,
    Step::HostApi,
    Step::Containerd,
    Step::Images,
    Step::Node,
    Step::Dns,
    Step::CertManager,
    Step::Yoke,
    Step::Demo,
];

impl Step {
    /// The texts that are shown for the step.
    pub fn label(self) -> Label {
        Label {
            title: self.title(),
            advice: self.advice(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Prerequisites => "check prerequisites",
            Self::Packages => "install Debian packages",
            Self::Binaries => "build the Go binaries, download Envoy",
            Self::Workspace => "build Yoke's binaries",
            Self::Network => "create the nodes' network",
            Self::Credentials => "create keys and certificates",
            Self::Supervisor => "start the supervisor",
            Self::Nats => "start NATS",
            Self::HostStore => "start the host's datastore",
            Self::HostApi => "start the host's control plane",
            Self::Containerd => "start containerd",
            Self::Images => "load the images",
            Self::Node => "start the node",
            Self::Dns => "start cluster DNS",
            Self::CertManager => "start cert-manager",
            Self::Yoke => "install Yoke's chart",
            Self::Demo => "create the demo cluster",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Prerequisites => "fix the problem above, then run `make up` again",
            Self::Packages => "check that Debian's mirror is reachable (`apt-get update`), then run `make up` again",
            Self::Binaries => {
                "check that the Go module proxy (`go env GOPROXY`) and PyPI are reachable and the disk has 10 GB free, \
                 then run `make up` again: finished builds are cached"
            }
            Self::Workspace => "fix the compiler errors, then run `make up` again",
            Self::Network => "`make down` removes remains of an earlier network; then run `make up` again",
            Self::Credentials => "`make down` removes the old ones; then run `make up` again",
            Self::Dns | Self::CertManager | Self::Yoke | Self::Demo => {
                "look at the pods: KUBECONFIG=.dev/host.kubeconfig .dev/bin/kubectl get pods -A, and `make status`"
            }
            _ => "`make status` shows what is down; logs are in .dev/log; `make down && make up` creates a new stack",
        }
    }
}

/// Steps up to and including `last`, without the steps in `skip`.
pub fn plan(last: Step, skip: &[Step]) -> Vec<Step> {
    ORDER
        .into_iter()
        .filter(|step| *step <= last && !skip.contains(step))
        .collect()
}

/// Shows steps: a spinner on a terminal, plain lines elsewhere.
#[derive(Debug)]
pub struct Reporter {
    started: Instant,
    terminal: bool,
    total: usize,
    done: usize,
}

/// Shows the part that a running step works on.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: Option<ProgressBar>,
    title: &'static str,
}

impl Progress {
    /// Shows one part of the step.
    pub fn at(&self, part: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {part}", self.title)),
            None => print_line(&format!("           {part}")),
        }
    }
}

impl Reporter {
    /// Reporter for `total` steps that start now.
    pub fn new(total: usize) -> Self {
        Self {
            started: Instant::now(),
            terminal: io::stdout().is_terminal(),
            total,
            done: 0,
        }
    }

    /// Shows that a step starts.
    pub fn start(&mut self, step: Label) -> Progress {
        self.done += 1;
        if !self.terminal {
            print_line(&format!(
                "[{:>2}/{}] {:>5} {}",
                self.done,
                self.total,
                self.elapsed(),
                step.title
            ));
            return Progress {
                bar: None,
                title: step.title,
            };
        }
        let style = ProgressStyle::with_template("{spinner:.cyan} {prefix} {elapsed:>4} {msg}");
        let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(format!("[{:>2}/{}]", self.done, self.total));
        bar.set_message(step.title);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress {
            bar: Some(bar),
            title: step.title,
        }
    }

    /// Shows that a step succeeded, and what it did.
    pub fn finish(&self, step: Label, progress: Progress, took: Duration, note: &str) {
        let took = to_seconds(took);
        match progress.bar {
            Some(bar) => {
                bar.finish_and_clear();
                let title = step.title;
                print_line(&format!(
                    "✓ [{:>2}/{}] {took:>6} {title}{}",
                    self.done,
                    self.total,
                    with_comma(note)
                ));
            }
            None => print_line(&format!("           done in {took}{}", with_comma(note))),
        }
    }

    /// Shows that a step failed: which one, why, and what to try.
    pub fn fail(&self, step: Label, progress: Progress, error: &Error) {
        if let Some(bar) = progress.bar {
            bar.finish_and_clear();
        }
        print_error(&describe_failure(
            step,
            &format!("{} of {}", self.done, self.total),
            &self.elapsed(),
            error,
        ));
    }

    /// Time since the first step started.
    pub fn elapsed(&self) -> String {
        to_seconds(self.started.elapsed())
    }
}

/// Prints a line. A closed pipe (`make up | head`) is ignored.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints an error to standard error.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Runs one step and shows its progress.
pub async fn show<F>(reporter: &mut Reporter, step: Label, work: impl FnOnce(Progress) -> F) -> Result<()>
where
    F: Future<Output = Result<String>>,
{
    let progress = reporter.start(step);
    let started = Instant::now();
    match work(progress.clone()).await {
        Ok(note) => {
            reporter.finish(step, progress, started.elapsed(), &note);
            Ok(())
        }
        Err(error) => {
            reporter.fail(step, progress, &error);
            Err(error)
        }
    }
}

/// Text of a failure: which step, why, and what to try.
fn describe_failure(step: Label, place: &str, elapsed: &str, error: &Error) -> String {
    format!(
        "✗ step {place} failed after {elapsed}: {}\n{}\n  try: {}",
        step.title,
        describe(error),
        step.advice
    )
}

/// The error and its causes, one per line.
fn describe(error: &Error) -> String {
    error
        .chain()
        .map(|part| format!("  {part}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn to_seconds(duration: Duration) -> String {
    format!("{:.1}s", duration.as_secs_f64())
}

fn with_comma(note: &str) -> String {
    if note.is_empty() {
        String::new()
    } else {
        format!(", {note}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_order_of_declaration() {
        assert!(ORDER.is_sorted());
        assert!(ORDER.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_plan_ends_with_the_step_that_is_asked_for() {
        let steps = plan(Step::Network, &[]);
        assert_eq!(steps.last(), Some(&Step::Network));
        assert_eq!(steps.len(), 5);
        assert_eq!(plan(Step::Demo, &[]), ORDER);
        assert_eq!(plan(Step::Packages, &[Step::Prerequisites]), [Step::Packages]);
    }

    #[test]
    fn a_failure_says_which_step_its_causes_and_what_to_try() {
        let error = anyhow::anyhow!("inner\n  | last line").context("outer");
        let text = describe_failure(Step::Nats.label(), "8 of 17", "3.1s", &error);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            format!("✗ step 8 of 17 failed after 3.1s: {}", Step::Nats.title())
        );
        assert_eq!(lines[1..4], ["  outer", "  inner", "  | last line"]);
        assert_eq!(lines[4], format!("  try: {}", Step::Nats.advice()));
    }
}
