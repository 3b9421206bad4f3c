//! Calls `nft`.

use crate::process::stdin_program::call;

/// Reports whether a table of family `inet` exists. Tables do not survive a reboot.
pub(crate) async fn has_table(name: &str) -> bool {
    call("nft", &["list", "table", "inet", name], "").await.is_ok()
}

/// Runs an `nft` script.
pub(crate) async fn apply(script: &str) -> Result<(), String> {
    call("nft", &["-f", "-"], script).await.map(drop)
}

/// Deletes a table. A missing table is no error.
pub(crate) async fn delete_table(family: &str, name: &str) -> Result<(), String> {
    match call("nft", &["delete", "table", family, name], "").await {
        Err(why) if !why.contains("No such file or directory") => Err(why),
        _ => Ok(()),
    }
}
