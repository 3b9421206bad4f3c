//! The values of a store that the metrics show.

use crate::metrics::StoreValues;
use crate::store::Store;

impl Store {
    /// Reads the values for the metrics.
    pub(crate) fn metric_values(&self) -> StoreValues {
        let (watches, slow_watches) = self.hub.watches();
        let is_leader = self.is_writer();
        let has_leader = if is_leader {
            self.has_valid_lease()
        } else {
            self.has_leader()
        };
        let sequence = self.sequence();
        let state = self.read();
        let revision = state.mvcc.visible();
        StoreValues {
            revision,
            compacted: state.mvcc.compacted(),
            bytes: state.bytes(),
            quota: self.quota.bytes(),
            entries: state.mvcc.keys(),
            keys: state.mvcc.count(&[0], &[0], revision),
            history: state.mvcc.history_len(),
            watches,
            slow_watches,
            has_leader,
            is_leader,
            stored: sequence.max(self.announced()),
            applied: sequence,
            full: self.is_full(),
            member: self.member(),
        }
    }
}
