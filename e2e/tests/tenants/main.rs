//! Yoke as seen by tenants. Each test has its own Tenants, so the tests run in parallel.

mod api;
mod cli;
mod examples;
mod fence;
mod in_cluster;
mod install;
mod isolation;
mod konnectivity;
mod lifecycle;
mod neighbours;
mod pki;
mod readme;
mod refusals;
mod requests;
mod rights;
mod ssh;
mod tenant_api;
mod transient;
mod wake;
mod workers;
