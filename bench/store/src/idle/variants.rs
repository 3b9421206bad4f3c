//! The measured variants of a control plane:
//!
//! - as the operator builds it
//! - with Kubernetes' defaults
//! - without one of the operator's settings each
//! - with one setting that the operator does not use, because its gain is small and it has
//!   drawbacks

use std::str::FromStr;

use super::template::{Case, Command};
use crate::stores::Kind;

/// A variant of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant(&'static Row);

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    label: &'static str,
    case: Case,
    store: Kind,
    /// Settings of the operator that this variant removes.
    without: &'static [&'static str],
    /// An additional argument: the component and the argument.
    with: Option<(&'static str, &'static str)>,
    /// Timer slack of kube-apiserver in ms, in place of the operator's value.
    slack: Option<&'static str>,
    /// `GOGC` of kube-apiserver, in place of the operator's value.
    collector: Option<&'static str>,
    /// Period of liveness probes in s, in place of the operator's value.
    liveness: Option<u64>,
    /// Whether the variant is also measured while it is in use.
    used: bool,
}

/// The operator's settings whose only purpose is to make an idle control plane cheaper. Settings
/// with another purpose, such as authentication of requests, are the same in all variants.
const SETTINGS: &[&str] = &[
    LAUNCH,
    "--leader-elect=",
    "--endpoint-reconciler-type=",
    "--watch-cache-sizes=",
    "GOGC",
    "GOMAXPROCS",
];
/// The program that starts the components with a longer timer slack, which is one of its arguments.
pub(super) const LAUNCH: &str = "/run/launch/yoke-launch";
/// Option of `LAUNCH` that makes a component wait until its store is the writer, and the number of
/// arguments from this option on. The arguments also make the component wait for the API server,
/// which the benchmark does itself.
const WRITER: &str = "--writer";
const CONDITIONS: usize = 8;

/// Argument that disables the controllers which a cluster without workers does not need.
const FEW: &str = "--controllers=*,-persistentvolume-attach-detach-controller,-persistentvolume-binder-controller,\
    -persistentvolume-expander-controller,-horizontal-pod-autoscaler-controller,-taint-eviction-controller,-ttl-controller,\
    -ttl-after-finished-controller,-selinux-warning-controller,-ephemeral-volume-controller,-resourceclaim-controller";

const PLAIN: Row = Row {
    name: "",
    label: "",
    case: Case::Plain,
    store: Kind::KineNats(1),
    without: &[],
    with: None,
    slack: None,
    collector: None,
    liveness: None,
    used: false,
};

const ROWS: &[Row] = &[
    Row {
        name: "stock-etcd",
        label: "Kubernetes' defaults, etcd",
        store: Kind::Etcd(1),
        without: SETTINGS,
        ..PLAIN
    },
    Row {
        name: "stock-go-kine",
        label: "Kubernetes' defaults, Go kine",
        store: Kind::GoKine,
        without: SETTINGS,
        ..PLAIN
    },
    Row {
        name: "stock",
        label: "Kubernetes' defaults, kine-nats",
        without: SETTINGS,
        ..PLAIN
    },
    Row {
        name: "yoke",
        label: "**as the operator builds it**",
        used: true,
        ..PLAIN
    },
    Row {
        name: "sharp",
        label: "the same without `yoke-launch`",
        without: &[LAUNCH],
        ..PLAIN
    },
    Row {
        name: "elected",
        label: "… `--leader-elect=false`",
        without: &["--leader-elect="],
        ..PLAIN
    },
    Row {
        name: "reconciled",
        label: "… `--endpoint-reconciler-type=none`",
        without: &["--endpoint-reconciler-type="],
        ..PLAIN
    },
    Row {
        name: "collected",
        label: "… `GOGC=30`, and 40 for kube-apiserver",
        without: &["GOGC"],
        ..PLAIN
    },
    Row {
        name: "nameless",
        label: "the same with `--feature-gates=APIServerIdentity=false`",
        with: Some(("kube-apiserver", "--feature-gates=APIServerIdentity=false")),
        ..PLAIN
    },
    Row {
        name: "uncounted",
        label: "… `--etcd-count-metric-poll-period=0`",
        with: Some(("kube-apiserver", "--etcd-count-metric-poll-period=0")),
        ..PLAIN
    },
    Row {
        name: "uncached",
        label: "… `--watch-cache=false`",
        with: Some(("kube-apiserver", "--watch-cache=false")),
        ..PLAIN
    },
    Row {
        name: "patient",
        label: "… `--min-request-timeout=3600`, so that watches last an hour and more",
        with: Some(("kube-apiserver", "--min-request-timeout=3600")),
        ..PLAIN
    },
    Row {
        name: "few",
        label: "… `--controllers` without volumes, autoscaling, taints and expiry",
        with: Some(("kube-controller-manager", FEW)),
        ..PLAIN
    },
    Row {
        name: "prompt",
        label: "the same with a timer slack of 5 ms for kube-apiserver",
        slack: Some("5"),
        ..PLAIN
    },
    Row {
        name: "late",
        label: "the same with a timer slack of 20 ms for kube-apiserver",
        slack: Some("20"),
        ..PLAIN
    },
    Row {
        name: "cached",
        label: "… a copy of each kind beside the store",
        without: &["--watch-cache-sizes="],
        ..PLAIN
    },
    Row {
        name: "tight",
        label: "the same with `GOGC=30` for kube-apiserver",
        collector: Some("30"),
        ..PLAIN
    },
    Row {
        name: "watched",
        label: "the same with liveness probes every 10 s",
        liveness: Some(10),
        ..PLAIN
    },
    Row {
        name: "audited",
        label: "as the operator builds it, with `sleep.afterInactivity`",
        case: Case::Audited,
        used: true,
        ..PLAIN
    },
];

impl Variant {
    /// All variants.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(Self)
    }

    /// Name that selects the variant on the command line.
    pub(super) fn name(self) -> &'static str {
        self.0.name
    }

    /// First column of its row.
    pub(super) fn label(self) -> &'static str {
        self.0.label
    }

    /// The Cluster from whose golden files the variant is built.
    pub(super) fn case(self) -> Case {
        self.0.case
    }

    /// The kind of its store.
    pub(super) fn store(self) -> Kind {
        self.0.store
    }

    /// Period of the liveness probes in s, if it differs from the operator's.
    pub(super) fn liveness(self) -> Option<u64> {
        self.0.liveness
    }

    /// Whether the variant is also measured while it is in use.
    pub(super) fn is_used_too(self) -> bool {
        self.0.used
    }

    /// Changes the command of a component: removes and adds the settings of this variant.
    pub(super) fn change(self, component: &str, mut command: Command) -> Command {
        let stays = |text: &str| !self.0.without.iter().any(|without| text.starts_with(without));
        // Only kine-nats reports whether it is the writer.
        let is_asked = matches!(self.store(), Kind::KineNats(_)) && !self.0.without.contains(&LAUNCH);
        if !is_asked && command.arguments.get(1).is_some_and(|argument| argument == WRITER) {
            command.arguments.drain(1..=CONDITIONS);
        }
        if self.0.without.contains(&LAUNCH) && command.arguments.first().is_some_and(|program| program == LAUNCH) {
            command.arguments.drain(..2);
        }
        if let Some(slack) = self.0.slack.filter(|_| component == "kube-apiserver") {
            command.arguments[1] = slack.to_owned();
        }
        command.environment.retain(|(name, _)| stays(name));
        if let Some(collector) = self.0.collector.filter(|_| component == "kube-apiserver") {
            let variables = command.environment.iter_mut();
            variables
                .filter(|(name, _)| name == "GOGC")
                .for_each(|(_, value)| collector.clone_into(value));
        }
        command.arguments.retain(|argument| stays(argument));
        let with = self.0.with.filter(|(of, _)| *of == component);
        command.arguments.extend(with.map(|(_, argument)| argument.to_owned()));
        command
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::all().find(|variant| variant.name() == name);
        found.ok_or_else(|| {
            format!(
                "not one of {}",
                Self::all().map(Self::name).collect::<Vec<_>>().join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::Template;
    use super::*;

    /// If the operator removed or renamed a setting, the row without it would measure nothing.
    #[test]
    fn every_setting_that_is_taken_back_is_one_of_the_operator() {
        let containers = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
        for variant in Variant::all() {
            let template = Template::read(variant.case()).unwrap();
            for without in variant.0.without {
                let has = |name: &&str| {
                    let command = template.command(name).unwrap();
                    let names = command.environment.iter().map(|(name, _)| name);
                    names.chain(&command.arguments).any(|text| text.starts_with(without))
                };
                assert!(containers.iter().any(has), "{without}");
            }
        }
    }

    #[test]
    fn what_starts_a_component_is_taken_back_as_a_whole() {
        for variant in Variant::all() {
            let template = Template::read(variant.case()).unwrap();
            for name in ["kube-controller-manager", "kube-scheduler"] {
                let arguments = variant.change(name, template.command(name).unwrap()).arguments;
                let launches = !variant.0.without.contains(&LAUNCH);
                let waits = launches && matches!(variant.store(), Kind::KineNats(_));
                let own = if waits { CONDITIONS + 2 } else { 2 };
                assert_eq!(arguments[if launches { own } else { 0 }], name, "{arguments:?}");
            }
        }
    }
}
