//! The cost of an idle store.

use crate::harness::{Kine, Nats, Watching, prefix};
use std::time::Duration;

const STREAMS: usize = 150;
const QUIET: Duration = Duration::from_secs(5);

#[tokio::test]
async fn quiet_watches_cause_no_work() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "idle", &[]).await;
    let mut watches = Vec::new();
    for number in 0..STREAMS {
        // Like kube-apiserver, which has a connection for each resource.
        let mut client = kine.client().await;
        let watch = prefix(&format!("/r/{number}/"), 0);
        let mut watching = Watching::open_led(&mut client, watch).await.unwrap();
        assert!(watching.next().await.unwrap().created);
        watches.push(watching);
    }
    let before = (kine.wakeups(), kine.processor_time());
    tokio::time::sleep(QUIET).await;
    let woken = kine.wakeups() - before.0;
    println!("{woken} times in {QUIET:?}, {:?}", kine.processor_time() - before.1);
    // A heartbeat each second, with its side effects. One wake-up per second and watch would be
    // 750.
    assert!(woken < 400, "{woken} times");
}
