//! The quota of a store. It follows from the size limit of the log, which may change while the
//! store runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the log that stay free; a quarter of the limit if that is less.
pub(crate) const RESERVE: u64 = 64 << 20;
/// Default quota: bytes of keys and history.
pub(crate) const DEFAULT_QUOTA: u64 = 512 << 20;

/// Bytes of keys and history above which puts are rejected.
#[derive(Debug)]
pub(crate) struct Quota {
    configured: Option<u64>,
    bytes: AtomicU64,
}

impl Quota {
    /// Uses the configured quota, or derives one from the log's limit.
    pub(crate) fn new(configured: Option<u64>, limit: Option<u64>) -> Self {
        let bytes = AtomicU64::new(configured.unwrap_or_else(|| derive(limit)));
        Self { configured, bytes }
    }

    /// Applies the current limit of the log.
    pub(crate) fn follow(&self, limit: Option<u64>) {
        if self.configured.is_some() {
            return;
        }
        let bytes = derive(limit);
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if before != bytes {
            tracing::info!(
                before,
                bytes,
                "The size limit of the log changed, and with it the quota"
            );
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn derive(limit: Option<u64>) -> u64 {
    match limit {
        Some(limit) => limit.saturating_sub(RESERVE).max(limit / 2) / 2,
        None => DEFAULT_QUOTA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_quota_follows_the_limit_of_the_log_unless_configured() {
        for (limit, quota) in [
            (Some(576 * MIB), 256 * MIB),
            (Some(96 * MIB), 24 * MIB),
            (None, 512 * MIB),
        ] {
            assert_eq!(Quota::new(None, limit).bytes(), quota, "{limit:?}");
            let later = Quota::new(None, Some(MIB));
            later.follow(limit);
            assert_eq!(later.bytes(), quota, "{limit:?}");
            let configured = Quota::new(Some(7), limit);
            configured.follow(Some(MIB));
            assert_eq!(configured.bytes(), 7);
        }
    }
}
