//! How long nothing is written after the process that writes was killed, while another one follows it.

use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use rustix::process::Signal;

use crate::load::Times;
use crate::process::Cores;
use crate::stores::{Running, Store};
use crate::table::Cell;

const VALUE: Bytes = Bytes::from_static(b"value");
const FOLLOW: &[&str] = &["--follow"];

/// Kills the writer so many times. What was killed follows the other one from its next start on.
pub(crate) async fn run(store: Store, times: usize, cores: &Cores, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    let first = Running::start(store, cores, FOLLOW).await?;
    let second = first.beside(cores, FOLLOW).await?;
    let mut processes = [first, second];
    let mut gaps = Vec::new();
    for number in 0..times {
        let [writer, follower] = &mut processes;
        let client = follower.client()?;
        let write = async |name: &str| client.put(&format!("/registry/{name}/{number}"), 0, VALUE).await;
        // That it is answered shows that the follower has found the writer.
        write("before").await?;
        writer.front.end(Signal::KILL)?;
        let killed = Instant::now();
        // A write that the killed process was to do may end in an error, and may be done all the same.
        while write("after").await.is_err() {
            follower.front.check()?;
        }
        gaps.push(killed.elapsed());
        writer.front.begin()?;
        writer.ready().await?;
        processes.swap(0, 1);
    }
    let mut gaps = Times::new(gaps);
    for (what, share) in [("median", 0.5), ("longest", 1.0)] {
        let seconds = gaps.quantile(share) / 1000.0;
        rows(
            &format!("takeover after SIGKILL, {what} of {times}, s"),
            Cell::number(seconds, 2),
        );
    }
    Ok(())
}
