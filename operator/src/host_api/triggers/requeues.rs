//! Objects to requeue after a change. Pure.

use std::collections::BTreeSet;

use yoke_api::{JoinToken, names};

use crate::model::cluster_summary::ClusterSummary;
use crate::model::join_token_term;

/// Objects to requeue after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requeues {
    pub(super) tenant: bool,
    pub(super) cluster: Option<String>,
    pub(super) join_token: Option<String>,
    /// JoinTokens of the Tenant that wait until the Tenant may read their Secrets.
    pub(super) readers: bool,
    /// JoinTokens that wait for the API of this Cluster.
    pub(super) join_tokens_of: Option<String>,
    pub(super) others: OtherClusters,
    /// Clusters of any Tenant that request one of these host names, or a name under one of them.
    pub(super) names: BTreeSet<String>,
}

/// The Tenant's Clusters to requeue, apart from the changed Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OtherClusters {
    #[default]
    None,
    /// Refused Clusters: there may be room for one now.
    Refused,
    All,
}

impl Requeues {
    /// Returns whether a JoinToken of the Tenant waits for this change.
    pub(super) fn concern_waiting(&self, token: &JoinToken) -> bool {
        self.readers && join_token_term::awaits_role(token)
            || self.join_tokens_of.as_ref() == Some(&token.spec.cluster_name) && join_token_term::awaits_api(token)
    }

    /// Returns whether to requeue a Cluster other than the changed one.
    pub(super) fn concern(&self, tenant: &str, cluster: &ClusterSummary) -> bool {
        let as_other = match self.others {
            OtherClusters::None => false,
            OtherClusters::Refused => cluster.is_refused,
            OtherClusters::All => true,
        };
        let mut requested = cluster.extra_sans.iter();
        as_other && *cluster.namespace == *tenant
            || requested.any(|wanted| self.names.iter().any(|name| names::is_within(wanted, name)))
    }
}
