//! Closed loops: each worker sends its next request when the previous one is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use yoke_bench_harness::Times;

/// When a loop ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After this number of requests of all workers.
    Count(u64),
    /// After a time or a number of requests, whichever comes first.
    Time(Duration, u64),
}

/// Runs `workers` loops of `request`. The argument of `request` counts up over all loops.
pub(crate) async fn closed<R, F>(workers: usize, until: Until, request: R) -> Result<Times>
where
    R: Fn(u64) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let (limit, count) = match until {
        Until::Count(count) => (None, count),
        Until::Time(time, count) => (Some(Instant::now() + time), count),
    };
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let (next, request) = (Arc::clone(&next), request.clone());
        tasks.spawn(async move {
            let mut times = Times::default();
            while limit.is_none_or(|limit| Instant::now() < limit) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                let begun = Instant::now();
                match request(number).await {
                    Ok(()) => times.add(begun.elapsed()),
                    Err(error) => {
                        if times.failed() == 0 {
                            eprintln!("  request {number}: {error:#}");
                        }
                        times.fail();
                    }
                }
            }
            times
        });
    }
    let mut all = Times::default();
    while let Some(times) = tasks.join_next().await {
        all.append(times?);
    }
    Ok(all)
}
