//! Watches that stay open during all phases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::body::Body;
use futures::StreamExt as _;
use http::StatusCode;
use tokio::task::JoinSet;

use crate::door::{Connection, Door, INSIDE};
use crate::fleet::Fleet;
use crate::tenants::WATCH;

/// Timeout after which a silent watch counts as cut. Events arrive twice a second.
const SILENCE: Duration = Duration::from_secs(10);

/// Watches, each on its own connection. Closed when this is dropped.
pub(crate) struct Watches {
    cut: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Watches {
    /// Opens a watch on each of the first `count` clusters, alternately by the public name and as a
    /// pod.
    pub(crate) async fn open(door: &Door, fleet: &Fleet, count: usize) -> Result<Self> {
        let mut watches = Self {
            cut: Arc::default(),
            tasks: JoinSet::new(),
        };
        for index in 0..count {
            let bearer = (index % 2 == 1).then(|| fleet.bearer(index));
            let name = match bearer {
                None => fleet.cluster(index).public_name(),
                Some(_) => INSIDE.to_owned(),
            };
            let mut connection = door.connect(&name).await?;
            let response = connection.send(WATCH, bearer.as_deref()).await?;
            ensure!(response.status() == StatusCode::OK, "a watch: {}", response.status());
            let cut = Arc::clone(&watches.cut);
            watches.tasks.spawn(async move {
                follow(connection, Body::new(response.into_body())).await;
                cut.fetch_add(1, Ordering::Relaxed);
            });
        }
        Ok(watches)
    }

    /// Number of watches that were opened.
    pub(crate) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Number of watches that were cut so far.
    pub(crate) async fn cut(&self) -> usize {
        tokio::time::sleep(SILENCE).await;
        self.cut.load(Ordering::Relaxed)
    }
}

/// Reads events until the watch is cut.
async fn follow(_connection: Connection, body: Body) {
    let mut events = body.into_data_stream();
    while let Ok(Some(Ok(_))) = tokio::time::timeout(SILENCE, events.next()).await {}
}
