//! Named network namespaces: lists them and runs commands in them.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::command::Command;

/// Folder where `ip netns` keeps the names of namespaces.
const NAMESPACES: &str = "/run/netns";

/// A command for `program` inside a namespace. It does not use `ip netns exec`, which remounts /sys
/// and hides the cgroup v1 hierarchy.
pub(crate) fn enter(namespace: &str, program: &str) -> Command {
    Command::new("nsenter")
        .arg(format!("--net={}", Path::new(NAMESPACES).join(namespace).display()))
        .arg("--")
        .arg(program)
}

/// Names of all named network namespaces.
pub(crate) fn list_namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Runs `ip`.
pub(crate) async fn ip(args: &[&str]) -> Result<()> {
    Command::new("ip").args(args).run().await.map_err(Into::into)
}
