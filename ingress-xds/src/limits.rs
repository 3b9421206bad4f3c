//! Limits on concurrent work: slots for each cluster and Tenant, and open connections for each
//! source address.

pub mod concurrency;
pub mod open_connections;
