//! A client of etcd's gRPC API. Sends the requests that kube-apiserver sends, with the same bytes
//! to every store.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tonic::transport::{Channel, Endpoint};
use yoke_kine_nats::proto::etcdserverpb as pb;
use yoke_kine_nats::proto::etcdserverpb::kv_client::KvClient;
use yoke_kine_nats::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use yoke_kine_nats::proto::etcdserverpb::watch_client::WatchClient;
use yoke_kine_nats::proto::mvccpb::KeyValue;

const PAGE: i64 = 500;
const LARGEST_ANSWER: usize = 64 << 20;

/// One connection to a store.
#[derive(Clone)]
pub(crate) struct Client {
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

/// The result of a guarded write.
pub(crate) enum Written {
    /// Stored at this revision.
    At(i64),
    /// Rejected, because the key was not at the expected revision.
    Refused,
}

impl Client {
    /// Connects at the first request.
    pub(crate) fn new(port: u16) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect_lazy();
        Ok(Self {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
            maintenance: MaintenanceClient::new(channel),
        })
    }

    /// Whether the member at the other end is the leader.
    pub(crate) async fn leads(&self) -> Result<bool> {
        let status = self
            .maintenance
            .clone()
            .status(pb::StatusRequest {})
            .await?
            .into_inner();
        Ok(status.header.is_some_and(|header| header.member_id == status.leader))
    }

    /// Reads a key. Returns the store's revision.
    pub(crate) async fn get(&self, key: &str) -> Result<i64> {
        let request = pb::RangeRequest {
            key: bytes(key),
            limit: 1,
            ..Default::default()
        };
        Ok(revision(self.range(request).await?.header))
    }

    /// Reads the value of a key; `None` if the key does not exist.
    pub(crate) async fn value(&self, key: &str) -> Result<Option<Bytes>> {
        let request = pb::RangeRequest {
            key: bytes(key),
            ..Default::default()
        };
        let answer = self.range(request).await?;
        answer.kvs.first().map(|pair| Ok(decode(pair)?.value)).transpose()
    }

    /// Counts the keys that begin with `prefix`.
    pub(crate) async fn count(&self, prefix: &str) -> Result<i64> {
        let request = pb::RangeRequest {
            key: bytes(prefix),
            range_end: end_of(prefix),
            count_only: true,
            ..Default::default()
        };
        Ok(self.range(request).await?.count)
    }

    /// Reads the keys that begin with `prefix` in pages, all at the revision of the first page.
    /// Returns their number.
    pub(crate) async fn list(&self, prefix: &str) -> Result<usize> {
        let (mut start, mut at, mut seen) = (bytes(prefix), 0, 0);
        loop {
            let request = pb::RangeRequest {
                key: start,
                range_end: end_of(prefix),
                limit: PAGE,
                revision: at,
                ..Default::default()
            };
            let answer = self.range(request).await?;
            if at == 0 {
                at = revision(answer.header);
            }
            seen += answer.kvs.len();
            match answer.kvs.last() {
                Some(last) if answer.more => start = after(last)?,
                _ => return Ok(seen),
            }
        }
    }

    async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse> {
        Ok(self.kv.clone().range(request).await?.into_inner())
    }

    /// Writes a key that is at the revision `expected`; 0 means that the key must not exist.
    pub(crate) async fn put(&self, key: &str, expected: i64, value: Bytes) -> Result<Written> {
        let put = pb::PutRequest {
            key: bytes(key),
            value,
            ..Default::default()
        };
        // Kubernetes does not request the existing key when a create fails.
        self.guarded(key, expected, pb::request_op::Request::RequestPut(put), expected != 0)
            .await
    }

    /// Deletes a key that is at the revision `expected`.
    pub(crate) async fn delete(&self, key: &str, expected: i64) -> Result<Written> {
        let delete = pb::DeleteRangeRequest {
            key: bytes(key),
            ..Default::default()
        };
        self.guarded(key, expected, pb::request_op::Request::RequestDeleteRange(delete), true)
            .await
    }

    async fn guarded(&self, key: &str, expected: i64, then: pb::request_op::Request, read: bool) -> Result<Written> {
        let compare = pb::Compare {
            target: pb::compare::CompareTarget::Mod as i32,
            key: bytes(key),
            target_union: Some(pb::compare::TargetUnion::ModRevision(expected)),
            ..Default::default()
        };
        let get = pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: bytes(key),
            ..Default::default()
        });
        let operation = |request| pb::RequestOp { request: Some(request) };
        let request = pb::TxnRequest {
            compare: vec![compare],
            success: vec![operation(then)],
            failure: if read { vec![operation(get)] } else { vec![] },
        };
        let answer = self.kv.clone().txn(request).await?.into_inner();
        Ok(if answer.succeeded {
            Written::At(revision(answer.header))
        } else {
            Written::Refused
        })
    }

    /// Opens a watch on the keys that begin with `prefix`, from the revision `start` on. Waits
    /// until the watch is open.
    pub(crate) async fn watch(&self, prefix: &str, start: i64) -> Result<Watch> {
        let create = pb::WatchCreateRequest {
            key: bytes(prefix),
            range_end: end_of(prefix),
            start_revision: start,
            prev_kv: true,
            progress_notify: true,
            ..Default::default()
        };
        let request = pb::WatchRequest {
            request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
        };
        let (requests, receiver) = tokio::sync::mpsc::channel(1);
        requests.send(request).await.context("opening a watch")?;
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut answers = self.watch.clone().watch(stream).await?.into_inner();
        let created = answers.message().await?.context("the watch has ended")?;
        anyhow::ensure!(created.created && !created.canceled, "the watch is refused");
        Ok(Watch {
            _requests: requests,
            answers,
        })
    }
}

/// An open watch. Closed when the value is dropped.
pub(crate) struct Watch {
    _requests: tokio::sync::mpsc::Sender<pb::WatchRequest>,
    answers: tonic::Streaming<pb::WatchResponse>,
}

impl Watch {
    /// Waits for the next events, and returns them encoded.
    pub(crate) async fn next(&mut self) -> Result<Vec<Bytes>> {
        let answer = self.answers.message().await?.context("the watch has ended")?;
        anyhow::ensure!(!answer.canceled, "the watch was cancelled: {}", answer.cancel_reason);
        Ok(answer.events)
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// The end of the key range that begins with `prefix`, which must end with a slash.
fn end_of(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// The first key after that of an encoded `mvccpb.KeyValue`.
fn after(pair: &Bytes) -> Result<Bytes> {
    Ok([&decode(pair)?.key[..], &[0]].concat().into())
}

fn decode(pair: &Bytes) -> Result<KeyValue> {
    Ok(prost::Message::decode(pair.clone())?)
}

fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.unwrap_or_default().revision
}
