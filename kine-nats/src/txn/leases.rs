//! Lease requests.

use crate::error::RpcError;
use crate::lease::{LONGEST, Leases};
use crate::proto::etcdserverpb as pb;
use crate::txn::{Evaluation, Step};

impl Step<'_, '_> {
    pub(super) fn grant(&mut self, id: i64, ttl: i64) -> Result<pb::LeaseGrantResponse, RpcError> {
        // The order of checks is etcd's.
        self.check_space()?;
        let Evaluation {
            state, operations, now, ..
        } = &mut *self.evaluation;
        if ttl > LONGEST {
            return Err(RpcError::LeaseTtlTooLarge);
        }
        if state.leases.get(id).is_some() {
            return Err(RpcError::LeaseExists);
        }
        let ttl = Leases::granted_ttl(ttl);
        state.leases.grant(id, ttl, *now);
        operations.grant(id, ttl);
        Ok(pb::LeaseGrantResponse {
            header: self.header(),
            id,
            ttl,
            error: String::new(),
        })
    }

    pub(super) fn revoke(&mut self, id: i64) -> Result<pb::LeaseRevokeResponse, RpcError> {
        let lease = self.evaluation.state.leases.get(id).ok_or(RpcError::LeaseNotFound)?;
        let revision = if lease.keys.is_empty() {
            0
        } else {
            self.write_revision()
        };
        self.evaluation.state.revoke(id);
        self.evaluation.operations.revoke(id, revision);
        Ok(pb::LeaseRevokeResponse { header: self.header() })
    }

    pub(super) fn keep_alive(&mut self, id: i64) -> pb::LeaseKeepAliveResponse {
        let now = self.evaluation.now;
        let ttl = self.evaluation.state.leases.renew(id, now).unwrap_or(0);
        pb::LeaseKeepAliveResponse {
            header: self.header(),
            id,
            ttl,
        }
    }

    pub(super) fn time_to_live(&self, id: i64, keys: bool) -> pb::LeaseTimeToLiveResponse {
        let header = self.header();
        let Some(lease) = self.evaluation.state.leases.get(id) else {
            return pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..Default::default()
            };
        };
        let left = lease.expires.saturating_sub(self.evaluation.now).as_secs();
        let keys = if keys {
            lease.keys.iter().cloned().collect()
        } else {
            Vec::new()
        };
        pb::LeaseTimeToLiveResponse {
            header,
            id,
            ttl: left.cast_signed(),
            granted_ttl: lease.ttl,
            keys,
        }
    }

    /// Lists leases, the first to expire first.
    pub(super) fn leases(&self) -> pb::LeaseLeasesResponse {
        let mut leases: Vec<_> = self.evaluation.state.leases.iter().collect();
        leases.sort_by_key(|(_, lease)| lease.expires);
        pb::LeaseLeasesResponse {
            header: self.header(),
            leases: leases.into_iter().map(|(id, _)| pb::LeaseStatus { id }).collect(),
        }
    }
}
