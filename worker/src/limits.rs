//! Limits for CPU and memory of a worker. Pure.
//!
//! ```text
//!  --cpus, --memory ─▶ Limits ─┬─ limits of the control groups (host/cgroups.rs)
//!                    capacity ─┴─ what the kubelet reserves, so that the Node's allocatable resources fit the limits (config.rs)
//! ```
//!
//! The kubelet knows the machine but no limits of groups above its own. The capacity of its Node is
//! therefore the machine's. The scheduler goes by what is allocatable of that.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
/// Memory for containerd and the kubelet. The limit of all Pods is lower by this amount, so that
/// the kernel kills Pods first.
const PROGRAMS: u64 = 256 * MIB;
/// Smallest memory limit. Less leaves nothing for Pods: the kubelet also preserves 100 MiB of free
/// memory.
const MEMORY_MIN: u64 = 512 * MIB;
/// Smallest CPU limit in millicores, with which the worker's own programs still keep up.
const CPUS_MIN: u32 = 250;
const CPUS_MAX: u32 = 1 << 20;
const UNITS: &[(&str, u64)] = &[
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// Limits of a worker. A resource without a limit is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Millicores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<u32>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
}

/// Capacity of a machine: millicores, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
}

impl Limits {
    /// Reports whether there are no limits, as for workers from before limits existed.
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether the limits leave enough for a worker.
    pub(crate) fn are_usable(&self) -> bool {
        self.cpus.is_none_or(|cpus| (CPUS_MIN..=CPUS_MAX).contains(&cpus))
            && self.memory.is_none_or(|memory| memory >= MEMORY_MIN)
    }

    /// Describes the first limit that exceeds the machine's capacity.
    pub(crate) fn find_excess(&self, has: Capacity) -> Option<String> {
        if let Some(cpus) = self.cpus.filter(|cpus| *cpus > has.cpus) {
            let (cpus, has) = (f64::from(cpus) / 1000.0, f64::from(has.cpus) / 1000.0);
            return Some(format!("--cpus {cpus} exceeds the {has} CPUs of this machine"));
        }
        let memory = self.memory.filter(|memory| *memory > has.memory)?;
        let (memory, has) = (memory / MIB, has.memory / MIB);
        Some(format!("--memory {memory} MiB exceeds the {has} MiB of this machine"))
    }

    /// Memory limit of all Pods together, in bytes.
    pub(crate) fn pods_memory(&self) -> Option<u64> {
        Some(self.memory?.saturating_sub(PROGRAMS))
    }

    /// Computes the kubelet's `systemReserved`, for everything outside the worker, and
    /// `kubeReserved`, for the worker's own programs.
    pub(crate) fn to_reserved(self, has: Capacity) -> (Reserved, Reserved) {
        let rest = |has: u64, limit: u64| has.saturating_sub(limit);
        let cpus = self.cpus.map(|cpus| format!("{}m", rest(has.cpus.into(), cpus.into())));
        let memory = self.memory.map(|memory| rest(has.memory, memory).to_string());
        let others = [("cpu", cpus), ("memory", memory)];
        let own = self.memory.map(|_| ("memory", PROGRAMS.to_string()));
        let named = others.into_iter().filter_map(|(name, value)| Some((name, value?)));
        (named.collect(), own.into_iter().collect())
    }
}

/// Quantities by resource name.
pub(crate) type Reserved = std::collections::BTreeMap<&'static str, String>;

/// Parses a number of CPUs such as `2` or `1.5`, into millicores.
pub(crate) fn parse_cpus(text: &str) -> Result<u32, String> {
    let parse = || {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.len() <= 7 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 3 {
            return None;
        }
        let part: u32 = format!("{part:0<3}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part)
    };
    let limits = |cpus| Limits { cpus, memory: None };
    parse()
        .filter(|cpus| limits(Some(*cpus)).are_usable())
        .ok_or_else(|| "expected a number of CPUs such as 2 or 1.5, at least 0.25".to_owned())
}

/// Parses a Kubernetes quantity of memory such as `2Gi` or `2000M`, into bytes.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    let parse = || {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[number.len()..];
        let unit = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, unit)) => *unit,
            None if unit.is_empty() => 1,
            None => return None,
        };
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit)
    };
    let limits = |memory| Limits { cpus: None, memory };
    parse()
        .filter(|memory| limits(Some(*memory)).are_usable())
        .ok_or_else(|| "expected a size such as 2Gi or 2000M, at least 512Mi".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const HAS: Capacity = Capacity {
        cpus: 4000,
        memory: 8 * GIB,
    };

    #[test]
    fn quantities_are_parsed() {
        for (text, cpus) in [
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            ("0.25", Some(250)),
            ("0.125", None),
            ("0", None),
            ("", None),
            (".5", None),
            ("1.", None),
            ("1.2345", None),
            ("-1", None),
            ("1e3", None),
            ("99999999", None),
        ] {
            assert_eq!(parse_cpus(text).ok(), cpus, "{text:?}");
        }
        for (text, memory) in [
            ("2Gi", Some(2 * GIB)),
            ("2000M", Some(2_000_000_000)),
            ("536870912", Some(GIB / 2)),
            ("511Mi", None),
            ("2g", None),
            ("2000m", None),
            ("Gi", None),
            ("+2Gi", None),
            ("99999999999Ti", None),
            ("2 Gi", None),
        ] {
            assert_eq!(parse_memory(text).ok(), memory, "{text:?}");
        }
    }

    #[test]
    fn the_kubelet_reserves_the_rest() {
        let none = Limits::default();
        assert_eq!(none.to_reserved(HAS), Default::default());
        let limits = Limits {
            cpus: Some(1500),
            memory: Some(2 * GIB),
        };
        let (others, own) = limits.to_reserved(HAS);
        assert_eq!(others["cpu"], "2500m");
        assert_eq!(others["memory"], (6 * GIB).to_string());
        assert_eq!(own, [("memory", (256 * MIB).to_string())].into());
        assert_eq!(limits.pods_memory(), Some(2 * GIB - 256 * MIB));
    }

    #[test]
    fn limits_must_not_exceed_the_machine() {
        for (rule, cpus, memory, part) in [
            ("all", Some(4000), Some(8 * GIB), None),
            ("nothing", None, None, None),
            ("processors", Some(4500), None, Some("--cpus 4.5 exceeds the 4 CPUs")),
            (
                "memory",
                Some(1000),
                Some(9 * GIB),
                Some("--memory 9216 MiB exceeds the 8192 MiB"),
            ),
        ] {
            let excess = Limits { cpus, memory }.find_excess(HAS);
            assert_eq!(excess.is_some(), part.is_some(), "{rule}: {excess:?}");
            assert!(excess.unwrap_or_default().contains(part.unwrap_or_default()), "{rule}");
        }
    }
}
