//! The low watermark: how far the log was acknowledged, in a message beside the snapshots. A writer
//! raises it every few seconds while it writes, and before it resigns. A log that ends below it has
//! lost records, even if no live process remembers them.
//!
//! A server may drop the end of a log when it starts on a corrupt message. It reports that until
//! its next restart, and nothing in the log shows it. The low watermark records which losses the
//! server reported while the log was known to be complete. Losses beyond that have not been made up
//! for.

use crate::codec;
use crate::log::{Log, ServerLoss};
use crate::snapshot::error::SnapshotError;
use crate::snapshot::messages::Messages;
use crate::snapshot::stream::Snapshots;
use serde::{Deserialize, Serialize};

/// The sequence that a log is known to reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LowWatermark {
    /// Sequence of the newest acknowledged record.
    pub(crate) sequence: u64,
    /// Revision at that sequence.
    pub(crate) revision: i64,
    /// Losses that the server had reported by then.
    pub(crate) lost: ServerLoss,
}

impl LowWatermark {
    fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = serde_json::to_vec(self).map_err(SnapshotError::LowWatermark)?;
        codec::seal(&mut bytes);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (body, _) = codec::unseal(bytes)?;
        serde_json::from_slice(body).map_err(SnapshotError::LowWatermark)
    }
}

impl<M: Messages, L: Log> Snapshots<M, L> {
    fn low_watermark_subject(&self) -> String {
        format!("{}.f", self.main.prefix)
    }

    /// Reads the newest low watermark; zeros if there is none.
    pub(crate) async fn low_watermark(&self) -> Result<LowWatermark, SnapshotError> {
        let Some((sequence, message)) = self.main.stream.last(&self.low_watermark_subject()).await? else {
            return Ok(LowWatermark::default());
        };
        Ok(LowWatermark::decode(&message).unwrap_or_else(|error| {
            tracing::error!(sequence, error = %error, "The low watermark is corrupt; ignoring it");
            LowWatermark::default()
        }))
    }

    /// Stores the newest low watermark again if a purge below a message would drop it.
    pub(super) async fn store_low_watermark_again(&self, below: u64) -> Result<(), SnapshotError> {
        let _alone = self.low_watermark.lock().await;
        match self.main.stream.last(&self.low_watermark_subject()).await? {
            Some((sequence, message)) if sequence < below => {
                self.main.stream.store(self.low_watermark_subject(), message).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Stores a low watermark. Older ones are purged together with snapshots.
    pub(crate) async fn set_low_watermark(&self, low_watermark: &LowWatermark) -> Result<(), SnapshotError> {
        let _alone = self.low_watermark.lock().await;
        self.main
            .stream
            .store(self.low_watermark_subject(), low_watermark.encode()?.into())
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{fuzz_runs, mutate, seeded};
    use crate::log::memory::Memory;
    use rand::RngExt;
    use std::sync::Arc;

    const GOOD: LowWatermark = LowWatermark {
        sequence: 12,
        revision: 34,
        lost: ServerLoss { messages: 5, bytes: 67 },
    };

    #[tokio::test]
    async fn a_mark_raised_during_its_removal_stays() {
        let memory = Memory::new();
        let snapshots = Snapshots::new(memory.messages(), "kine.a.snap".into(), Arc::new(memory.open().0));
        snapshots.set_low_watermark(&GOOD).await.unwrap();
        let higher = LowWatermark { sequence: 13, ..GOOD };
        let (raised, lifted) = tokio::join!(
            snapshots.set_low_watermark(&higher),
            snapshots.store_low_watermark_again(u64::MAX)
        );
        raised.and(lifted).unwrap();
        assert_eq!(snapshots.low_watermark().await.unwrap(), higher);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = GOOD.encode().unwrap();
        assert_eq!(LowWatermark::decode(&good).unwrap(), GOOD);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(LowWatermark::decode(&bad), Err(SnapshotError::Codec(_))),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn hostile_bytes_with_a_valid_hash_do_not_panic() {
        let mut random = seeded();
        let good = GOOD.encode().unwrap();
        let mut read = 0;
        for _ in 0..fuzz_runs(20_000) {
            let mut bad = good[..good.len() - 8].to_vec();
            if random.random_range(0..4) == 0 {
                random.fill(&mut bad[..]);
            } else {
                mutate(&mut bad, &mut random);
            }
            codec::seal(&mut bad);
            if let Ok(low_watermark) = LowWatermark::decode(&bad) {
                assert_eq!(
                    LowWatermark::decode(&low_watermark.encode().unwrap()).unwrap(),
                    low_watermark
                );
                read += 1;
            }
        }
        assert!(read > 100, "{read} could be read");
    }
}
