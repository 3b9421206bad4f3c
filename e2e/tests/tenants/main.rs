//! What tenants see, each test in Tenants of its own: they run side by side, as tenants do.

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
