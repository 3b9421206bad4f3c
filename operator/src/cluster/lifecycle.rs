//! The life of a Cluster object: maintenance, revocation, time to live, deletion, and orphans.

pub(crate) mod delete;
pub(crate) mod maintain;
pub mod orphans;
pub(crate) mod revoke;
pub(crate) mod ttl;
