//! Watch streams: one task a stream, which holds all its watches and reads their events from the history when the client
//! takes them. Nothing is buffered beyond the answer that is being sent.

use super::{Node, find_refusal, needs_leader};
use crate::hub::{Mark, Registration};
use crate::mvcc::{Change, contains, encode_event};
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use bytes::Bytes;
use pb::watch_request::RequestUnion;
use pb::watch_server::Watch;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// An answer takes no more events from this size on; a revision is never split by it.
const ANSWER: usize = 1 << 20;
/// Changes that are looked at while the store is locked.
const PAGE: usize = 4096;
/// Name of answers that concern a whole stream, or no watch.
const NO_WATCH: i64 = -1;
/// A client that gets no answer to its progress request asks again.
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
        let stream = Stream {
            store,
            answers,
            notify: Arc::new(Notify::new()),
            watches: BTreeMap::new(),
            ended: BTreeSet::new(),
            next_id: 0,
            needs_leader,
        };
        tokio::spawn(stream.run(request.into_inner(), self.progress_interval));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The client or the stream is gone.
struct Gone;

impl<T> From<mpsc::error::SendError<T>> for Gone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

struct OpenWatch {
    start: Bytes,
    end: Bytes,
    mark: Arc<Mark>,
    registration: Registration,
    /// First revision that it asked for.
    begin: i64,
    /// Compact revision when it began: what was there before a change of that revision could not be read any more.
    compacted: i64,
    /// First revision that was not sent.
    next: i64,
    previous: bool,
    no_put: bool,
    no_delete: bool,
    progress: bool,
    fragment: bool,
    /// Something was sent since the last progress tick.
    active: bool,
}

struct Stream {
    store: Arc<Store>,
    answers: Answers,
    notify: Arc<Notify>,
    watches: BTreeMap<i64, OpenWatch>,
    /// Watches that ended by themselves, whose numbers the client has not given back.
    ended: BTreeSet<i64>,
    next_id: i64,
    needs_leader: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            self.store.hub.unregister(&watch.registration);
        }
    }
}

/// What one look at the history found for a watch.
struct Found {
    events: Vec<Bytes>,
    /// Everything up to here was looked at.
    through: i64,
    /// There is more to look at.
    more: bool,
}

impl Stream {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>, progress: Duration) {
        let store = Arc::clone(&self.store);
        let notify = Arc::clone(&self.notify);
        let answers = self.answers.clone();
        let mut progress_tick = interval_at(Instant::now() + progress, progress);
        progress_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            let woken = store.hub.woken();
            if let Some(refusal) = find_refusal(&store, self.needs_leader) {
                let _ = self.answers.send(Err(refusal.into())).await;
                return;
            }
            let has_progress = self.watches.values().any(|watch| watch.progress);
            let done = tokio::select! {
                request = requests.message(), if open => match request {
                    Ok(Some(request)) => self.on_request(request).await,
                    // The client may close its half and go on listening.
                    Ok(None) => { open = false; Ok(()) }
                    Err(_) => Err(Gone),
                },
                () = notify.notified() => self.send_events().await,
                _ = progress_tick.tick(), if has_progress => self.send_progress().await,
                () = woken => Ok(()),
                () = answers.closed() => Err(Gone),
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn on_request(&mut self, request: pb::WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => self.answer_progress().await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Gone> {
        let start = if request.key.is_empty() {
            Bytes::from_static(&[0])
        } else {
            request.key.clone()
        };
        let end = request.range_end.clone();
        let refused = if request.start_revision < 0 {
            Some("etcdserver: mvcc: required revision has been compacted")
        } else if !end.is_empty() && end.as_ref() != [0] && end <= start {
            Some("mvcc: watcher range is empty")
        } else if request.watch_id != 0 && self.is_taken(request.watch_id) {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        };
        if let Some(reason) = refused {
            return self.refuse(reason).await;
        }
        let id = match request.watch_id {
            0 => self.free_id(),
            id => id,
        };
        let mark = Arc::new(Mark::new(Arc::clone(&self.notify)));
        // Registered first, read afterwards: what is committed in between is marked, and what is marked twice is read once.
        let registration = self.store.hub.register(start.clone(), end.clone(), Arc::clone(&mark));
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
            mark,
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
            watch.mark.rewind(next);
        }
        // Held by the stream before anything is awaited: a client that goes takes its registration with it.
        self.watches.insert(id, watch);
        let header = Some(self.store.header(visible));
        self.answers
            .send(Ok(pb::WatchResponse {
                header,
                watch_id: id,
                created: true,
                ..Default::default()
            }))
            .await?;
        if next < compacted {
            if let Some(watch) = self.watches.remove(&id) {
                self.store.hub.unregister(&watch.registration);
            }
            return self.send_compacted(id, compacted).await;
        }
        Ok(())
    }

    async fn refuse(&mut self, reason: &str) -> Result<(), Gone> {
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

    /// Ends a watch that asks for what is gone. As etcd does, it gives no reason besides the revision, and remembers the
    /// watch until the client cancels it too.
    async fn send_compacted(&mut self, id: i64, compacted: i64) -> Result<(), Gone> {
        self.ended.insert(id);
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
        self.watches.contains_key(&id) || self.ended.contains(&id)
    }

    fn free_id(&mut self) -> i64 {
        while self.is_taken(self.next_id) {
            self.next_id += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Gone> {
        if let Some(watch) = self.watches.remove(&id) {
            self.store.hub.unregister(&watch.registration);
        } else if !self.ended.remove(&id) {
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

    /// Sends every marked watch a page of what it has to hear: one with much to hear keeps neither the others nor the
    /// client's requests waiting.
    async fn send_events(&mut self) -> Result<(), Gone> {
        let ids: Vec<i64> = self
            .watches
            .iter()
            .filter(|(_, watch)| !watch.mark.is_clear())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.send_page(id).await?;
        }
        Ok(())
    }

    /// Sends a watch the next page, and marks it again if there is more.
    async fn send_page(&mut self, id: i64) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        let from = watch.mark.take().max(watch.next);
        let (found, remembered, compacted) = {
            let state = self.store.read();
            let visible = state.mvcc.visible();
            (
                watch.find(state.mvcc.changes(from), from, visible),
                from > visible || state.mvcc.remembers(from),
                state.mvcc.compacted(),
            )
        };
        // A watch that is about to hear of a change is not ended because that was compacted a moment ago.
        if !remembered {
            self.store.hub.unregister(&watch.registration);
            self.watches.remove(&id);
            return self.send_compacted(id, compacted).await;
        }
        watch.next = watch.next.max(found.through + 1);
        if found.more {
            watch.mark.rewind(watch.next);
        }
        if found.events.is_empty() {
            return Ok(());
        }
        watch.active = true;
        let header = self.store.header(found.through);
        self.store.metrics.events.inc_by(found.events.len() as u64);
        send_answer(&self.answers, id, header, found.events, watch.fragment).await
    }

    /// Says how far the quiet watches are.
    async fn send_progress(&mut self) -> Result<(), Gone> {
        let marked = self.store.hub.marked();
        for (id, watch) in &mut self.watches {
            if !watch.progress || std::mem::take(&mut watch.active) {
                continue;
            }
            if watch.mark.is_clear() && watch.next <= marked + 1 {
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

    /// Says how far the whole stream is, after sending what is due. A watch that begins in the future has no progress.
    async fn answer_progress(&mut self) -> Result<(), Gone> {
        for _ in 0..PROGRESS_TRIES {
            self.send_events().await?;
            let marked = self.store.hub.marked();
            if self.watches.values().any(|watch| watch.begin > marked + 1) {
                return Ok(());
            }
            // A watch may have read further than the marks go; a lower revision would make the client hear it twice.
            if self
                .watches
                .values()
                .all(|watch| watch.mark.is_clear() && watch.next <= marked + 1)
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

impl OpenWatch {
    /// Looks through a page of changes. Only whole revisions are answered.
    fn find<'a>(&self, changes: impl Iterator<Item = &'a Change>, from: i64, visible: i64) -> Found {
        let mut found = Found {
            events: Vec::new(),
            through: from - 1,
            more: false,
        };
        let (mut size, mut looked, mut revision) = (0, 0, from - 1);
        let mut puts: HashMap<&[u8], &Change> = HashMap::new();
        for change in changes {
            if change.revision > visible {
                break;
            }
            if change.revision > revision {
                if looked >= PAGE || size >= ANSWER {
                    found.through = revision;
                    found.more = true;
                    return found;
                }
                revision = change.revision;
                puts.clear();
            }
            looked += 1;
            // What was there before the revision, also for a key that it wrote and removed again.
            let put = puts.get(change.key());
            let previous = put.map_or(&change.previous, |put| &put.previous);
            if self.previous && !change.delete {
                puts.entry(change.key()).or_insert(change);
            }
            if self.wants(change) {
                let previous = previous
                    .as_deref()
                    .filter(|_| self.previous && change.revision > self.compacted);
                let event = encode_event(change.delete, &change.kv, previous);
                size += event.len();
                found.events.push(event);
            }
        }
        found.through = visible.max(from - 1);
        found
    }

    fn wants(&self, change: &Change) -> bool {
        let filtered = if change.delete { self.no_delete } else { self.no_put };
        !filtered && contains(&self.start, &self.end, change.key())
    }
}

async fn send_answer(
    answers: &Answers,
    watch_id: i64,
    header: pb::ResponseHeader,
    events: Vec<Bytes>,
    fragment: bool,
) -> Result<(), Gone> {
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

/// Cuts events in pieces of about the size of an answer.
fn split(events: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut size) = (vec![Vec::new()], 0);
    for event in events {
        if size > 0 && size + event.len() > ANSWER {
            pieces.push(Vec::new());
            size = 0;
        }
        size += event.len();
        if let Some(piece) = pieces.last_mut() {
            piece.push(event);
        }
    }
    pieces
}

#[cfg(test)]
mod tests;
