//! Traffic counters of each cluster. Pure.
//!
//! ```text
//!  Envoy: a connection or request ended ─▶ server ─▶ Record ─▶ Series, in the snapshot's Entry ─▶ TrafficCollector ─▶ /metrics
//! ```
//!
//! A cluster's [`series::Series`] are part of its snapshot entry, so they appear and disappear with
//! it, and counting and collecting need no lock. [`SeriesRegistry`], owned by the builder of
//! snapshots, preserves them across changes of a cluster, and limits their number.

mod collector;
mod registry;
pub mod series;

pub use collector::TrafficCollector;
pub use registry::SeriesRegistry;

#[cfg(test)]
mod tests;
