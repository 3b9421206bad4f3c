//! Reads capabilities and signal dispositions of this process from `/proc/self/status`.

use std::fs;

const STATUS: &str = "/proc/self/status";
/// Bit of `CAP_SYS_RESOURCE`, as in `linux/capability.h`.
const SYS_RESOURCE: u32 = 24;

/// Returns the effective capabilities of this process as a bit mask.
pub(crate) fn read_capabilities() -> u64 {
    parse_capabilities(&fs::read_to_string(STATUS).unwrap_or_default())
}

/// Reports whether this process may lower OOM scores (`CAP_SYS_RESOURCE`).
pub(crate) fn has_sys_resource() -> bool {
    read_capabilities() >> SYS_RESOURCE & 1 == 1
}

/// Reports whether this process was started to survive the closing of its terminal (`nohup`).
pub(crate) fn ignores_hangup() -> bool {
    let status = fs::read_to_string(STATUS).unwrap_or_default();
    parse_bits(&status, "SigIgn:") & 1 == 1
}

fn parse_capabilities(status: &str) -> u64 {
    parse_bits(status, "CapEff:")
}

fn parse_bits(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001fffeffffff\n";
        let effective = parse_capabilities(status);
        for (bit, expected) in [(12, 1), (21, 1), (SYS_RESOURCE, 0)] {
            assert_eq!(effective >> bit & 1, expected, "{bit}");
        }
        assert_eq!(parse_capabilities("nonsense"), 0);
    }
}
