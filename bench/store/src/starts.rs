//! How long a store takes to answer again after SIGTERM and after SIGKILL.

use anyhow::Result;
use rustix::process::Signal;

use crate::load::{Until, closed};
use crate::phases::Keys;
use crate::stores::Running;
use crate::table::Cell;

/// Fills a store with `count` keys and starts it twice: once after SIGTERM, once after SIGKILL.
pub(crate) async fn run(store: &mut Running, count: u64, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    let keys = Keys::new(store, count)?;
    let fill = keys.clone();
    let times = closed(64, Until::Count(count), move |number| {
        let keys = fill.clone();
        async move { keys.put(number).await }
    })
    .await?;
    anyhow::ensure!(
        times.failed() == 0,
        "{} of {count} keys were not created",
        times.failed()
    );
    rows(
        &format!("memory with {count} keys, MiB"),
        Cell::number(store.used()?.memory, 0),
    );
    for (what, signal) in [
        ("start after SIGTERM", Signal::TERM),
        ("start after SIGKILL", Signal::KILL),
    ] {
        let begun = store.again(signal).await?;
        let seconds = begun.elapsed().as_secs_f64();
        rows(&format!("{what}, {count} keys, s"), Cell::number(seconds, 2));
    }
    Ok(())
}
