//! Resource usage of the process, under the names that all Prometheus clients use. Values are read
//! when the metrics are read.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// This process.
#[derive(Debug)]
pub(super) struct Process {
    /// Seconds since 1970.
    started: f64,
}

impl Process {
    /// Records the current time as the start of the process.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            started: since.unwrap_or_default().as_secs_f64(),
        }
    }
}

/// A value that cannot be read is left out.
impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        let counter = ConstCounter::new(seconds);
        let help = "Processor time, user and system";
        let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, counter.metric_type())?;
        counter.encode(metric)?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let files = std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                bytes(&status, "VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                bytes(&status, "VmSize:"),
            ),
            ("process_open_fds", "Open files", files.map(|files| files as f64)),
            (
                "process_max_fds",
                "Limit of open files",
                getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
            ),
            (
                "process_start_time_seconds",
                "Start time in seconds since 1970",
                Some(self.started),
            ),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

/// Parses a size in `/proc/self/status`.
fn bytes(status: &str, field: &str) -> Option<f64> {
    let size = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: f64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    #[test]
    fn a_size_is_converted_to_bytes() {
        let status = "Name:\tkine-nats\nVmSize:\t  102400 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(2_097_152.0));
        assert_eq!(bytes(status, "VmSize:"), Some(104_857_600.0));
        for other in ["", "VmRSS:\tmany kB", "VmRSS: 2048"] {
            assert_eq!(bytes(other, "VmRSS:"), None, "{other}");
        }
    }

    #[test]
    fn every_process_metric_is_exported() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process::new()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for (name, least) in [
            ("process_cpu_seconds_total", 0.0),
            ("process_resident_memory_bytes", 100_000.0),
            ("process_virtual_memory_bytes", 100_000.0),
            ("process_open_fds", 3.0),
            ("process_max_fds", 3.0),
            ("process_start_time_seconds", 1.7e9),
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let value: f64 = line.trim().parse().unwrap();
            assert!(value > least, "{name}: {value}");
        }
    }
}
