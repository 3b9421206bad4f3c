//! The watch streams of all servers, read side by side.
//!
//! How events are split into responses depends on when a server reads them. Each watch's events are
//! therefore compared as one list, and the revision of a response must only be no lower than its
//! events. A stream that receives everything shows how many events must arrive.

use super::plain::Answer;
use super::requests::{Place, STREAMS};
use crate::harness::{Client, WAIT, events};
use pb::watch_request::RequestUnion;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use yoke_kine_nats::proto::{etcdserverpb as pb, mvccpb};

/// etcd answers no progress request while a watch lags behind; the request is then repeated.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// One stream of one server, and what it has received.
struct Side {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: mpsc::Receiver<pb::WatchResponse>,
    /// Events by watch.
    events: BTreeMap<i64, Vec<mvccpb::Event>>,
    /// The last response continues.
    fragment: bool,
    /// Responses to requests.
    told: Vec<pb::WatchResponse>,
    progress: Vec<i64>,
}

/// An open watch.
struct Open {
    asked: pb::WatchCreateRequest,
    begin: i64,
    /// Number of events that were compared.
    compared: usize,
}

/// The same stream of all servers, etcd's first.
struct Row {
    sides: Vec<Side>,
    open: BTreeMap<i64, Open>,
}

/// All streams, and all events so far.
pub(super) struct Watches {
    rows: Vec<Row>,
    all: Row,
    history: Vec<mvccpb::Event>,
}

fn revision_of(event: &mvccpb::Event) -> i64 {
    event.kv.as_ref().unwrap().mod_revision
}

impl Side {
    fn open(client: &Client) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let (sender, answers) = mpsc::channel(16);
        let mut client = client.watch.clone();
        // etcd opens a stream with its first response.
        tokio::spawn(async move {
            let Ok(answers) = client.watch(ReceiverStream::new(receiver)).await else {
                return;
            };
            let mut answers = answers.into_inner();
            while let Ok(Some(answer)) = answers.message().await {
                let _ = sender.send(answer).await;
            }
        });
        Self {
            requests,
            answers,
            events: BTreeMap::new(),
            fragment: false,
            told: Vec::new(),
            progress: Vec::new(),
        }
    }

    async fn send(&self, request: RequestUnion) {
        let request_union = Some(request);
        self.requests.send(pb::WatchRequest { request_union }).await.unwrap();
    }

    /// Reads one response; returns `false` on a timeout.
    async fn read(&mut self, limit: Duration) -> bool {
        let Ok(answer) = timeout(limit, self.answers.recv()).await else {
            return false;
        };
        self.take(answer.expect("the stream goes on"));
        true
    }

    async fn read_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(
                self.read(WAIT).await,
                "{what}: nothing more is heard; told: {:?}",
                self.told
            );
        }
    }

    fn take(&mut self, mut answer: pb::WatchResponse) {
        let (revision, events) = (answer.revision(), events(&answer));
        let Some((first, last)) = events.first().zip(events.last()) else {
            if answer.created || answer.canceled {
                self.told.push(answer.plain());
            } else {
                self.progress.push(revision);
            }
            return;
        };
        assert!(
            !answer.created && !answer.canceled && revision_of(last) <= revision,
            "{answer:?}"
        );
        let heard = self.events.entry(answer.watch_id).or_default();
        if let Some(before) = heard.last().filter(|_| !self.fragment) {
            assert!(
                revision_of(before) < revision_of(first),
                "split: {before:?}, {answer:?}"
            );
        }
        self.fragment = answer.fragment;
        heard.extend(events);
    }

    fn heard(&self, watch: i64) -> &[mvccpb::Event] {
        self.events.get(&watch).map_or(&[], Vec::as_slice)
    }
}

impl Open {
    fn new(asked: pb::WatchCreateRequest, revision: i64) -> Self {
        let begin = match asked.start_revision {
            0 => revision + 1,
            begin => begin,
        };
        Self {
            asked,
            begin,
            compared: 0,
        }
    }

    fn wants(&self, event: &mvccpb::Event) -> bool {
        let key = &event.kv.as_ref().unwrap().key;
        let start: &[u8] = if self.asked.key.is_empty() {
            &[0]
        } else {
            &self.asked.key
        };
        let within = match self.asked.range_end.as_ref() {
            [] => key.as_ref() == start,
            [0] => key.as_ref() >= start,
            end => key.as_ref() >= start && key.as_ref() < end,
        };
        within && revision_of(event) >= self.begin && !self.asked.filters.contains(&event.r#type)
    }
}

impl Row {
    fn open(etcd: &Client, ours: &[Client]) -> Self {
        Self {
            sides: std::iter::once(etcd).chain(ours).map(Side::open).collect(),
            open: BTreeMap::new(),
        }
    }

    async fn send(&self, request: RequestUnion) {
        for side in &self.sides {
            side.send(request.clone()).await;
        }
    }

    /// The next response to a request, which must be the same everywhere.
    async fn told(&mut self, what: &str) -> pb::WatchResponse {
        for side in &mut self.sides {
            side.read_until(what, |side| !side.told.is_empty()).await;
        }
        let mut told = self.sides.iter_mut().map(|side| side.told.remove(0));
        let etcd = told.next().expect("etcd is one of them");
        for ours in told {
            assert_eq!(etcd, ours, "{what}: etcd's answer, and ours");
        }
        etcd
    }

    fn forget(&mut self, watch: i64) {
        self.open.remove(&watch);
        for side in &mut self.sides {
            side.events.remove(&watch);
        }
    }

    async fn create(&mut self, what: &str, asked: pb::WatchCreateRequest, place: Place) -> Option<i64> {
        self.send(RequestUnion::CreateRequest(asked.clone())).await;
        let created = self.told(what).await;
        if created.canceled {
            return None;
        }
        let watch = created.watch_id;
        let open = Open::new(asked, place.revision);
        if open.begin < place.compacted {
            let ended = self.told(what).await;
            assert!(
                ended.canceled && ended.compact_revision == place.compacted,
                "{what}: {ended:?}"
            );
            // Like etcd's client: until then etcd keeps the id reserved and sends no progress.
            self.cancel(what, watch, true).await;
            return None;
        }
        let begun = open.begin <= place.revision;
        self.open.insert(watch, open);
        if begun {
            // A compaction would end the watch as long as etcd has not read its start.
            self.progress(what, place.revision).await;
        }
        Some(watch)
    }

    async fn cancel(&mut self, what: &str, watch: i64, open: bool) {
        let request = pb::WatchCancelRequest { watch_id: watch };
        self.send(RequestUnion::CancelRequest(request)).await;
        if open {
            self.told(what).await;
        }
        self.forget(watch);
    }

    /// A progress request returns the newest revision. etcd does not answer before every watch has
    /// started, or if there is none.
    async fn progress(&mut self, what: &str, revision: i64) {
        if self.open.is_empty() || self.open.values().any(|open| open.asked.start_revision > revision) {
            return;
        }
        let open: Vec<_> = self.open.values().map(|open| &open.asked).collect();
        for (number, side) in self.sides.iter_mut().enumerate() {
            let begun = tokio::time::Instant::now();
            while !side.progress.contains(&revision) {
                assert!(
                    begun.elapsed() < WAIT,
                    "{what}: server {number} tells no progress of {open:?}"
                );
                let ask = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                side.send(ask).await;
                side.read(ASK_AGAIN).await;
            }
            assert!(
                side.progress.iter().all(|told| *told <= revision),
                "{what}: {:?}",
                side.progress
            );
            side.progress.clear();
        }
    }

    /// Reads and compares the pending events of every watch.
    async fn settle(&mut self, what: &str, history: &[mvccpb::Event]) {
        for (watch, open) in &mut self.open {
            let wanted = history.iter().filter(|event| open.wants(event)).count();
            for side in &mut self.sides {
                side.read_until(what, |side| side.heard(*watch).len() >= wanted).await;
            }
            let etcd = &self.sides[0].heard(*watch)[open.compared..];
            for side in &self.sides[1..] {
                assert_eq!(
                    etcd,
                    &side.heard(*watch)[open.compared..],
                    "{what}: etcd's events of watch {watch} ({:?}), and ours",
                    open.asked
                );
            }
            assert_eq!(
                open.compared + etcd.len(),
                wanted,
                "{what}: watch {watch} hears too much: {etcd:?}"
            );
            open.compared = wanted;
        }
    }
}

impl Watches {
    /// The streams, and one watch of everything from `begin` on.
    pub(super) async fn open(etcd: &Client, ours: &[Client], begin: i64, place: Place) -> Self {
        let mut all = Row::open(etcd, ours);
        let everything = pb::WatchCreateRequest {
            key: [0].to_vec().into(),
            range_end: [0].to_vec().into(),
            start_revision: begin,
            prev_kv: true,
            ..Default::default()
        };
        all.create("the watch of everything", everything, place).await.unwrap();
        Self {
            rows: (0..STREAMS).map(|_| Row::open(etcd, ours)).collect(),
            all,
            history: Vec::new(),
        }
    }

    pub(super) async fn create(&mut self, what: &str, stream: usize, asked: pb::WatchCreateRequest, place: Place) {
        self.rows[stream].create(what, asked, place).await;
    }

    pub(super) async fn cancel(&mut self, what: &str, stream: usize, watch: i64) {
        let open = self.rows[stream].open.contains_key(&watch);
        self.rows[stream].cancel(what, watch, open).await;
    }

    pub(super) async fn progress(&mut self, what: &str, stream: usize, revision: i64) {
        self.rows[stream].progress(what, revision).await;
    }

    /// All events so far.
    pub(super) fn history(&self) -> &[mvccpb::Event] {
        &self.history
    }

    /// Reads and compares all events up to a revision.
    pub(super) async fn settle(&mut self, what: &str, revision: i64) {
        let Row { sides, .. } = &mut self.all;
        for side in sides.iter_mut() {
            let last = |side: &Side| side.heard(0).last().map_or(1, revision_of);
            side.read_until(what, |side| last(side) >= revision).await;
        }
        let new = self.history.len();
        let etcd = sides[0].heard(0);
        for side in &sides[1..] {
            assert_eq!(etcd[new..], side.heard(0)[new..], "{what}: etcd's events, and ours");
        }
        self.history = etcd.to_vec();
        for row in &mut self.rows {
            row.settle(what, &self.history).await;
        }
    }
}
