//! Messages between processes, as protocol buffers.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::proto::etcdserverpb as pb;
use crate::store::peers::PeerAnswer;
use bytes::Bytes;
use prost::{Message, Oneof};

/// A message that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("decode a message of another process")]
pub(crate) struct UndecodableMessage(#[source] Option<prost::DecodeError>);

/// A broadcast to all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broadcast {
    /// The log holds records up to this sequence.
    Stored(u64),
    /// A process announces itself.
    Announcement(Announcement),
    /// The writer resigns, and this process is to be the next writer.
    Successor(u64),
}

/// A process, as it announces itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Announcement {
    #[prost(fixed64, tag = "1")]
    pub(crate) member: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) client_urls: Vec<String>,
    /// The process is stopping.
    #[prost(bool, tag = "4")]
    pub(crate) leaving: bool,
    /// The process is the writer, and puts wait until there is room in the log.
    #[prost(bool, tag = "5")]
    pub(crate) full: bool,
}

#[derive(Clone, PartialEq, Message)]
struct BroadcastMessage {
    #[prost(oneof = "BroadcastKind", tags = "1, 2, 3")]
    kind: Option<BroadcastKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum BroadcastKind {
    #[prost(uint64, tag = "1")]
    Stored(u64),
    #[prost(message, tag = "2")]
    Announcement(Announcement),
    #[prost(fixed64, tag = "3")]
    Successor(u64),
}

#[derive(Clone, PartialEq, Message)]
struct RequestMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(oneof = "RequestKind", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    kind: Option<RequestKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum RequestKind {
    #[prost(message, tag = "2")]
    Put(pb::PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(pb::DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(pb::TxnRequest),
    #[prost(int64, tag = "5")]
    Compact(i64),
    #[prost(message, tag = "6")]
    Grant(pb::LeaseGrantRequest),
    #[prost(int64, tag = "7")]
    Revoke(i64),
    #[prost(int64, tag = "8")]
    KeepAlive(i64),
    #[prost(message, tag = "9")]
    TimeToLive(pb::LeaseTimeToLiveRequest),
    #[prost(bool, tag = "10")]
    Leases(bool),
    #[prost(bool, tag = "11")]
    Barrier(bool),
}

#[derive(Clone, PartialEq, Message)]
struct AnswerMessage {
    #[prost(oneof = "AnswerKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13")]
    kind: Option<AnswerKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum AnswerKind {
    #[prost(bool, tag = "1")]
    NotStarted(bool),
    /// etcd's error text.
    #[prost(string, tag = "2")]
    Refused(String),
    #[prost(message, tag = "3")]
    Put(pb::PutResponse),
    #[prost(message, tag = "4")]
    DeleteRange(pb::DeleteRangeResponse),
    #[prost(message, tag = "5")]
    Txn(pb::TxnResponse),
    #[prost(message, tag = "6")]
    Compact(pb::CompactionResponse),
    #[prost(message, tag = "7")]
    Grant(pb::LeaseGrantResponse),
    #[prost(message, tag = "8")]
    Revoke(pb::LeaseRevokeResponse),
    #[prost(message, tag = "9")]
    KeepAlive(pb::LeaseKeepAliveResponse),
    #[prost(message, tag = "10")]
    TimeToLive(pb::LeaseTimeToLiveResponse),
    #[prost(message, tag = "11")]
    Leases(pb::LeaseLeasesResponse),
    #[prost(message, tag = "13")]
    Barrier(Barrier),
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Barrier {
    #[prost(int64, tag = "1")]
    revision: i64,
    #[prost(int64, tag = "2")]
    compacted: i64,
}

pub(crate) fn encode_broadcast(broadcast: &Broadcast) -> Bytes {
    let kind = match broadcast {
        Broadcast::Stored(sequence) => BroadcastKind::Stored(*sequence),
        Broadcast::Announcement(announcement) => BroadcastKind::Announcement(announcement.clone()),
        Broadcast::Successor(member) => BroadcastKind::Successor(*member),
    };
    BroadcastMessage { kind: Some(kind) }.encode_to_vec().into()
}

pub(crate) fn decode_broadcast(bytes: &Bytes) -> Result<Broadcast, UndecodableMessage> {
    match decode::<BroadcastMessage>(bytes)?.kind {
        Some(BroadcastKind::Stored(sequence)) => Ok(Broadcast::Stored(sequence)),
        Some(BroadcastKind::Announcement(announcement)) => Ok(Broadcast::Announcement(announcement)),
        Some(BroadcastKind::Successor(member)) => Ok(Broadcast::Successor(member)),
        None => Err(UndecodableMessage(None)),
    }
}

pub(crate) fn encode_request(epoch: u64, command: &Command) -> Bytes {
    let kind = match command {
        Command::Put(request) => RequestKind::Put(request.clone()),
        Command::DeleteRange(request) => RequestKind::DeleteRange(request.clone()),
        Command::Txn(request) => RequestKind::Txn(request.clone()),
        Command::Compact(revision) => RequestKind::Compact(*revision),
        Command::Grant { id, ttl } => RequestKind::Grant(pb::LeaseGrantRequest { id: *id, ttl: *ttl }),
        Command::Revoke(id) => RequestKind::Revoke(*id),
        Command::KeepAlive(id) => RequestKind::KeepAlive(*id),
        Command::TimeToLive { id, keys } => {
            RequestKind::TimeToLive(pb::LeaseTimeToLiveRequest { id: *id, keys: *keys })
        }
        Command::Leases => RequestKind::Leases(true),
        Command::Barrier => RequestKind::Barrier(true),
    };
    let kind = Some(kind);
    RequestMessage { epoch, kind }.encode_to_vec().into()
}

/// Decodes a request. Returns it with the epoch of the writer that it is meant for.
pub(crate) fn decode_request(bytes: &Bytes) -> Result<(u64, Command), UndecodableMessage> {
    let RequestMessage { epoch, kind } = decode(bytes)?;
    let command = match kind.ok_or(UndecodableMessage(None))? {
        RequestKind::Put(request) => Command::Put(request),
        RequestKind::DeleteRange(request) => Command::DeleteRange(request),
        RequestKind::Txn(request) => Command::Txn(request),
        RequestKind::Compact(revision) => Command::Compact(revision),
        RequestKind::Grant(pb::LeaseGrantRequest { id, ttl }) => Command::Grant { id, ttl },
        RequestKind::Revoke(id) => Command::Revoke(id),
        RequestKind::KeepAlive(id) => Command::KeepAlive(id),
        RequestKind::TimeToLive(pb::LeaseTimeToLiveRequest { id, keys }) => Command::TimeToLive { id, keys },
        RequestKind::Leases(_) => Command::Leases,
        RequestKind::Barrier(_) => Command::Barrier,
    };
    Ok((epoch, command))
}

pub(crate) fn encode_answer(outcome: PeerAnswer) -> Bytes {
    let kind = match outcome {
        PeerAnswer::NotStarted => AnswerKind::NotStarted(true),
        PeerAnswer::Done(Err(error)) => AnswerKind::Refused(error.to_string()),
        PeerAnswer::Done(Ok(answer)) => match answer {
            Answer::Put(answer) => AnswerKind::Put(answer),
            Answer::DeleteRange(answer) => AnswerKind::DeleteRange(answer),
            Answer::Txn(answer) => AnswerKind::Txn(answer),
            Answer::Compact(answer) => AnswerKind::Compact(answer),
            Answer::Grant(answer) => AnswerKind::Grant(answer),
            Answer::Revoke(answer) => AnswerKind::Revoke(answer),
            Answer::KeepAlive(answer) => AnswerKind::KeepAlive(answer),
            Answer::TimeToLive(answer) => AnswerKind::TimeToLive(answer),
            Answer::Leases(answer) => AnswerKind::Leases(answer),
            Answer::Barrier { revision, compacted } => AnswerKind::Barrier(Barrier { revision, compacted }),
        },
    };
    let kind = Some(kind);
    AnswerMessage { kind }.encode_to_vec().into()
}

pub(crate) fn decode_answer(bytes: &Bytes) -> Result<PeerAnswer, UndecodableMessage> {
    let answer = match decode::<AnswerMessage>(bytes)?.kind.ok_or(UndecodableMessage(None))? {
        AnswerKind::NotStarted(_) => return Ok(PeerAnswer::NotStarted),
        AnswerKind::Refused(text) => {
            let error = RpcError::from_text(&text).ok_or(UndecodableMessage(None))?;
            return Ok(PeerAnswer::Done(Err(error)));
        }
        AnswerKind::Put(answer) => Answer::Put(answer),
        AnswerKind::DeleteRange(answer) => Answer::DeleteRange(answer),
        AnswerKind::Txn(answer) => Answer::Txn(answer),
        AnswerKind::Compact(answer) => Answer::Compact(answer),
        AnswerKind::Grant(answer) => Answer::Grant(answer),
        AnswerKind::Revoke(answer) => Answer::Revoke(answer),
        AnswerKind::KeepAlive(answer) => Answer::KeepAlive(answer),
        AnswerKind::TimeToLive(answer) => Answer::TimeToLive(answer),
        AnswerKind::Leases(answer) => Answer::Leases(answer),
        AnswerKind::Barrier(Barrier { revision, compacted }) => Answer::Barrier { revision, compacted },
    };
    Ok(PeerAnswer::Done(Ok(answer)))
}

fn decode<M: Message + Default>(bytes: &Bytes) -> Result<M, UndecodableMessage> {
    M::decode(bytes.clone()).map_err(|error| UndecodableMessage(Some(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_decodes_to_itself() {
        let put = pb::PutRequest {
            key: "/a".into(),
            value: vec![0, 255].into(),
            lease: 7,
            prev_kv: true,
            ..Default::default()
        };
        let commands = [
            Command::Put(put),
            Command::Compact(i64::MAX),
            Command::Grant { id: -1, ttl: 60 },
            Command::Revoke(3),
            Command::KeepAlive(4),
            Command::TimeToLive { id: 5, keys: true },
            Command::Leases,
            Command::Barrier,
        ];
        for command in commands {
            let (epoch, arrived) = decode_request(&encode_request(9, &command)).unwrap();
            assert_eq!((epoch, format!("{arrived:?}")), (9, format!("{command:?}")));
        }
    }

    #[test]
    fn an_answer_decodes_to_itself() {
        let answer = pb::PutResponse {
            header: Some(pb::ResponseHeader {
                revision: 12,
                ..Default::default()
            }),
            prev_kv: Some("encoded".into()),
        };
        let outcome = [
            PeerAnswer::Done(Ok(Answer::Put(answer))),
            PeerAnswer::Done(Ok(Answer::Barrier {
                revision: 7,
                compacted: -1,
            })),
            PeerAnswer::Done(Err(RpcError::NoSpace)),
            PeerAnswer::Done(Err(RpcError::LeaderFailed)),
            PeerAnswer::NotStarted,
        ];
        for outcome in outcome {
            let debug = format!("{outcome:?}");
            assert_eq!(format!("{:?}", decode_answer(&encode_answer(outcome)).unwrap()), debug);
        }
    }

    #[test]
    fn a_broadcast_decodes_to_itself() {
        let announcement = Announcement {
            member: u64::MAX,
            name: "a".into(),
            client_urls: vec!["http://a:1".into()],
            leaving: true,
            full: true,
        };
        for broadcast in [
            Broadcast::Stored(0),
            Broadcast::Stored(u64::MAX),
            Broadcast::Announcement(announcement),
            Broadcast::Successor(7),
        ] {
            assert_eq!(decode_broadcast(&encode_broadcast(&broadcast)).unwrap(), broadcast);
        }
    }

    #[test]
    fn an_unknown_message_is_an_error() {
        for bytes in [&b""[..], b"\xff", b"\x92\x06\x00"].map(Bytes::from_static) {
            assert!(decode_request(&bytes).is_err(), "{bytes:?}");
            assert!(decode_broadcast(&bytes).is_err(), "{bytes:?}");
            assert!(decode_answer(&bytes).is_err(), "{bytes:?}");
        }
        let other = AnswerMessage {
            kind: Some(AnswerKind::Refused("of a later version".into())),
        };
        assert!(decode_answer(&other.encode_to_vec().into()).is_err());
    }
}
