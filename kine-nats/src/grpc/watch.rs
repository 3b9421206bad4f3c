//! Watch streams: one task a stream. It holds all watches of the stream, and reads their events
//! from the history when the client is ready for them. Nothing is buffered beyond the response that
//! is being sent.

mod events;

use crate::grpc::node::{Node, needs_leader, unavailable_error};
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use crate::watch_hub::WatchCursor;
use bytes::Bytes;
use events::{OpenWatch, split};
use pb::watch_request::RequestUnion;
use pb::watch_server::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Watch id of responses that concern a whole stream, or no watch.
const NO_WATCH: i64 = -1;
/// Attempts to answer a progress request; a client without an answer requests progress again.
const PROGRESS_TRIES: u32 = 64;

type Answers = mpsc::Sender<Result<pb::WatchResponse, Status>>;

#[tonic::async_trait]
impl Watch for Node {
    type WatchStream = ReceiverStream<Result<pb::WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let needs_leader = needs_leader(request.metadata());
        let store = self.store(request.metadata()).await?;
        let (answers, receiver) = mpsc::channel(2);
        let stream = OpenStream {
            store,
            answers,
            notify: Arc::new(Notify::new()),
            watches: BTreeMap::new(),
            closed: BTreeSet::new(),
            next_id: 0,
            needs_leader,
        };
        tokio::spawn(stream.run(request.into_inner(), self.progress_interval));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The client has disconnected, or the stream has ended.
struct Disconnected;

impl<T> From<mpsc::error::SendError<T>> for Disconnected {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

struct OpenStream {
    store: Arc<Store>,
    answers: Answers,
    notify: Arc<Notify>,
    watches: BTreeMap<i64, OpenWatch>,
    /// Watches that the server ended, whose ids the client has not canceled yet.
    closed: BTreeSet<i64>,
    next_id: i64,
    needs_leader: bool,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            self.store.hub.unregister(&watch.registration);
        }
    }
}

impl OpenStream {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>, progress: Duration) {
        let store = Arc::clone(&self.store);
        let notify = Arc::clone(&self.notify);
        let answers = self.answers.clone();
        let mut progress_tick = interval_at(Instant::now() + progress, progress);
        progress_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            let woken = store.hub.woken();
            if let Some(error) = unavailable_error(&store, self.needs_leader) {
                let _ = self.answers.send(Err(error.into())).await;
                return;
            }
            let has_progress = self.watches.values().any(|watch| watch.progress);
            let done = tokio::select! {
                request = requests.message(), if open => match request {
                    Ok(Some(request)) => self.on_request(request).await,
                    // The client may close its half of the stream and continue to receive.
                    Ok(None) => { open = false; Ok(()) }
                    Err(_) => Err(Disconnected),
                },
                () = notify.notified() => self.send_events().await,
                _ = progress_tick.tick(), if has_progress => self.send_progress().await,
                () = woken => Ok(()),
                () = answers.closed() => Err(Disconnected),
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn on_request(&mut self, request: pb::WatchRequest) -> Result<(), Disconnected> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => self.answer_progress().await,
            None => Ok(()),
        }
    }

    /// Why a watch is refused, in etcd's words.
    fn check_create(&self, request: &pb::WatchCreateRequest, start: &Bytes) -> Option<&'static str> {
        let end = &request.range_end;
        if request.start_revision < 0 {
            Some("etcdserver: mvcc: required revision has been compacted")
        } else if !end.is_empty() && end.as_ref() != [0] && end <= start {
            Some("mvcc: watcher range is empty")
        } else if request.watch_id != 0 && self.is_taken(request.watch_id) {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Disconnected> {
        let start = if request.key.is_empty() {
            Bytes::from_static(&[0])
        } else {
            request.key.clone()
        };
        if let Some(reason) = self.check_create(&request, &start) {
            return self.refuse(reason).await;
        }
        let id = match request.watch_id {
            0 => self.free_id(),
            id => id,
        };
        let (watch, visible) = self.open(&request, start);
        let (next, compacted) = (watch.next, watch.compacted);
        // Insert before the first await: if the client disconnects, dropping the stream removes the
        // registration.
        self.watches.insert(id, watch);
        let answer = pb::WatchResponse {
            header: Some(self.store.header(visible)),
            watch_id: id,
            created: true,
            ..Default::default()
        };
        self.answers.send(Ok(answer)).await?;
        if next < compacted {
            if let Some(watch) = self.watches.remove(&id) {
                self.store.hub.unregister(&watch.registration);
            }
            return self.send_compacted(id, compacted).await;
        }
        Ok(())
    }

    /// Registers a watch, and positions it at the revision from which the client requests events. Also returns the
    /// newest visible revision.
    fn open(&self, request: &pb::WatchCreateRequest, start: Bytes) -> (OpenWatch, i64) {
        let end = request.range_end.clone();
        let cursor = Arc::new(WatchCursor::new(Arc::clone(&self.notify)));
        // Register before reading: a commit in between sets the cursor. A commit that is both read
        // and marked is sent once.
        let registration = self.store.hub.register(start.clone(), end.clone(), Arc::clone(&cursor));
        let (visible, compacted) = {
            let state = self.store.read();
            (state.mvcc.visible(), state.mvcc.compacted())
        };
        let next = if request.start_revision == 0 {
            visible + 1
        } else {
            request.start_revision
        };
        let filters: Vec<_> = request.filters().collect();
        let watch = OpenWatch {
            start,
            end,
            cursor,
            registration,
            begin: next,
            compacted,
            next,
            previous: request.prev_kv,
            no_put: filters.contains(&pb::watch_create_request::FilterType::Noput),
            no_delete: filters.contains(&pb::watch_create_request::FilterType::Nodelete),
            progress: request.progress_notify,
            fragment: request.fragment,
            active: false,
        };
        if next <= visible {
            watch.cursor.rewind(next);
        }
        (watch, visible)
    }

    async fn refuse(&mut self, reason: &str) -> Result<(), Disconnected> {
        let answer = pb::WatchResponse {
            header: Some(self.store.header(self.store.revision())),
            watch_id: NO_WATCH,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..Default::default()
        };
        Ok(self.answers.send(Ok(answer)).await?)
    }

    /// Ends a watch whose start revision is compacted. Like etcd, it sends no reason besides the
    /// revision, and keeps the id reserved until the client cancels it too.
    async fn send_compacted(&mut self, id: i64, compacted: i64) -> Result<(), Disconnected> {
        self.closed.insert(id);
        let answer = pb::WatchResponse {
            header: Some(self.store.header(0)),
            watch_id: id,
            canceled: true,
            compact_revision: compacted,
            ..Default::default()
        };
        Ok(self.answers.send(Ok(answer)).await?)
    }

    fn is_taken(&self, id: i64) -> bool {
        self.watches.contains_key(&id) || self.closed.contains(&id)
    }

    fn free_id(&mut self) -> i64 {
        while self.is_taken(self.next_id) {
            self.next_id += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Disconnected> {
        if let Some(watch) = self.watches.remove(&id) {
            self.store.hub.unregister(&watch.registration);
        } else if !self.closed.remove(&id) {
            return Ok(());
        }
        let header = Some(self.store.header(self.store.revision()));
        Ok(self
            .answers
            .send(Ok(pb::WatchResponse {
                header,
                watch_id: id,
                canceled: true,
                ..Default::default()
            }))
            .await?)
    }

    /// Sends each marked watch one page of its pending events. A watch with many events then delays
    /// neither the others nor the client's requests.
    async fn send_events(&mut self) -> Result<(), Disconnected> {
        let ids: Vec<i64> = self
            .watches
            .iter()
            .filter(|(_, watch)| !watch.cursor.is_clear())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.send_page(id).await?;
        }
        Ok(())
    }

    /// Sends a watch its next page, and marks it again if more remains.
    async fn send_page(&mut self, id: i64) -> Result<(), Disconnected> {
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        let from = watch.cursor.take().max(watch.next);
        let (found, remembered, compacted) = {
            let state = self.store.read();
            let visible = state.mvcc.visible();
            (
                watch.find(state.mvcc.changes(from), from, visible),
                from > visible || state.mvcc.remembers(from),
                state.mvcc.compacted(),
            )
        };
        // A watch that is about to receive a change is not ended because that change was compacted
        // a moment ago.
        if !remembered {
            self.store.hub.unregister(&watch.registration);
            self.watches.remove(&id);
            return self.send_compacted(id, compacted).await;
        }
        watch.next = watch.next.max(found.through + 1);
        if found.more {
            watch.cursor.rewind(watch.next);
        }
        if found.events.is_empty() {
            return Ok(());
        }
        watch.active = true;
        let header = self.store.header(found.through);
        self.store.metrics.events.inc_by(found.events.len() as u64);
        send_answer(&self.answers, id, header, found.events, watch.fragment).await
    }

    /// Sends progress notifications to idle watches.
    async fn send_progress(&mut self) -> Result<(), Disconnected> {
        let marked = self.store.hub.marked();
        for (id, watch) in &mut self.watches {
            if !watch.progress || std::mem::take(&mut watch.active) {
                continue;
            }
            if watch.cursor.is_clear() && watch.next <= marked + 1 {
                let header = Some(self.store.header(marked));
                self.answers
                    .send(Ok(pb::WatchResponse {
                        header,
                        watch_id: *id,
                        ..Default::default()
                    }))
                    .await?;
            }
        }
        Ok(())
    }

    /// Sends the progress of the whole stream, after all due events. A watch that starts at a
    /// future revision has no progress.
    async fn answer_progress(&mut self) -> Result<(), Disconnected> {
        for _ in 0..PROGRESS_TRIES {
            self.send_events().await?;
            let marked = self.store.hub.marked();
            if self.watches.values().any(|watch| watch.begin > marked + 1) {
                return Ok(());
            }
            // A watch may have read beyond the marked revision. Reporting a lower revision would
            // make the client receive events twice.
            if self
                .watches
                .values()
                .all(|watch| watch.cursor.is_clear() && watch.next <= marked + 1)
            {
                let header = Some(self.store.header(marked));
                let answer = pb::WatchResponse {
                    header,
                    watch_id: NO_WATCH,
                    ..Default::default()
                };
                return Ok(self.answers.send(Ok(answer)).await?);
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

async fn send_answer(
    answers: &Answers,
    watch_id: i64,
    header: pb::ResponseHeader,
    events: Vec<Bytes>,
    fragment: bool,
) -> Result<(), Disconnected> {
    let mut pieces = if fragment { split(events) } else { vec![events] };
    let last = pieces.pop();
    for events in pieces {
        let answer = pb::WatchResponse {
            header: Some(header),
            watch_id,
            events,
            fragment: true,
            ..Default::default()
        };
        answers.send(Ok(answer)).await?;
    }
    let events = last.unwrap_or_default();
    let answer = pb::WatchResponse {
        header: Some(header),
        watch_id,
        events,
        ..Default::default()
    };
    Ok(answers.send(Ok(answer)).await?)
}

#[cfg(test)]
mod tests;
