//! Reads the runs of ephemeral workers, and what their tables record, from nftables.

use std::collections::BTreeSet;

use super::link::Run;
use super::table;
use crate::process::stdin_program::call;

/// Lists the runs that have a table on this machine.
pub(super) async fn list_runs() -> Vec<Run> {
    let tables = call("nft", &["-j", "list", "tables"], "").await.unwrap_or_default();
    table::parse_runs(&tables)
}

/// Lists the devices on which this run, or an earlier one, has enabled forwarding, as its table
/// records.
pub(super) async fn list_opened(run: &Run) -> BTreeSet<String> {
    let set = call("nft", &["-j", "list", "set", "inet", &run.table(), table::OPENED], "").await;
    table::parse_opened(&set.unwrap_or_default())
}
