//! Messages between processes, as protocol buffers.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::proto::etcdserverpb as pb;
use crate::store::peers::Told;
use bytes::Bytes;
use prost::{Message, Oneof};

/// A message that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("decode what another process says")]
pub(crate) struct NotUnderstood(#[source] Option<prost::DecodeError>);

/// A broadcast to all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// The log holds records up to this sequence.
    Stored(u64),
    /// A process announces itself.
    Here(Here),
    /// The writer resigns, and this process is to be the next writer.
    Successor(u64),
}

/// A process, as it announces itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Here {
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
struct ToAll {
    #[prost(oneof = "ToAllKind", tags = "1, 2, 3")]
    kind: Option<ToAllKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum ToAllKind {
    #[prost(uint64, tag = "1")]
    Stored(u64),
    #[prost(message, tag = "2")]
    Here(Here),
    #[prost(fixed64, tag = "3")]
    Successor(u64),
}

#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(oneof = "Asked", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    asked: Option<Asked>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Asked {
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
struct Tell {
    #[prost(oneof = "Telling", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13")]
    telling: Option<Telling>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Telling {
    #[prost(bool, tag = "1")]
    NotBegun(bool),
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

pub(crate) fn encode_said(said: &Said) -> Bytes {
    let kind = match said {
        Said::Stored(sequence) => ToAllKind::Stored(*sequence),
        Said::Here(here) => ToAllKind::Here(here.clone()),
        Said::Successor(member) => ToAllKind::Successor(*member),
    };
    ToAll { kind: Some(kind) }.encode_to_vec().into()
}

pub(crate) fn decode_said(bytes: &Bytes) -> Result<Said, NotUnderstood> {
    match decode::<ToAll>(bytes)?.kind {
        Some(ToAllKind::Stored(sequence)) => Ok(Said::Stored(sequence)),
        Some(ToAllKind::Here(here)) => Ok(Said::Here(here)),
        Some(ToAllKind::Successor(member)) => Ok(Said::Successor(member)),
        None => Err(NotUnderstood(None)),
    }
}

pub(crate) fn encode_ask(epoch: u64, command: &Command) -> Bytes {
    let asked = match command {
        Command::Put(request) => Asked::Put(request.clone()),
        Command::DeleteRange(request) => Asked::DeleteRange(request.clone()),
        Command::Txn(request) => Asked::Txn(request.clone()),
        Command::Compact(revision) => Asked::Compact(*revision),
        Command::Grant { id, ttl } => Asked::Grant(pb::LeaseGrantRequest { id: *id, ttl: *ttl }),
        Command::Revoke(id) => Asked::Revoke(*id),
        Command::KeepAlive(id) => Asked::KeepAlive(*id),
        Command::TimeToLive { id, keys } => Asked::TimeToLive(pb::LeaseTimeToLiveRequest { id: *id, keys: *keys }),
        Command::Leases => Asked::Leases(true),
        Command::Barrier => Asked::Barrier(true),
    };
    let asked = Some(asked);
    Ask { epoch, asked }.encode_to_vec().into()
}

/// Decodes a request. Returns it with the epoch of the writer that it is meant for.
pub(crate) fn decode_ask(bytes: &Bytes) -> Result<(u64, Command), NotUnderstood> {
    let Ask { epoch, asked } = decode(bytes)?;
    let command = match asked.ok_or(NotUnderstood(None))? {
        Asked::Put(request) => Command::Put(request),
        Asked::DeleteRange(request) => Command::DeleteRange(request),
        Asked::Txn(request) => Command::Txn(request),
        Asked::Compact(revision) => Command::Compact(revision),
        Asked::Grant(pb::LeaseGrantRequest { id, ttl }) => Command::Grant { id, ttl },
        Asked::Revoke(id) => Command::Revoke(id),
        Asked::KeepAlive(id) => Command::KeepAlive(id),
        Asked::TimeToLive(pb::LeaseTimeToLiveRequest { id, keys }) => Command::TimeToLive { id, keys },
        Asked::Leases(_) => Command::Leases,
        Asked::Barrier(_) => Command::Barrier,
    };
    Ok((epoch, command))
}

pub(crate) fn encode_told(told: Told) -> Bytes {
    let telling = match told {
        Told::NotBegun => Telling::NotBegun(true),
        Told::Done(Err(error)) => Telling::Refused(error.to_string()),
        Told::Done(Ok(answer)) => match answer {
            Answer::Put(answer) => Telling::Put(answer),
            Answer::DeleteRange(answer) => Telling::DeleteRange(answer),
            Answer::Txn(answer) => Telling::Txn(answer),
            Answer::Compact(answer) => Telling::Compact(answer),
            Answer::Grant(answer) => Telling::Grant(answer),
            Answer::Revoke(answer) => Telling::Revoke(answer),
            Answer::KeepAlive(answer) => Telling::KeepAlive(answer),
            Answer::TimeToLive(answer) => Telling::TimeToLive(answer),
            Answer::Leases(answer) => Telling::Leases(answer),
            Answer::Barrier { revision, compacted } => Telling::Barrier(Barrier { revision, compacted }),
        },
    };
    let telling = Some(telling);
    Tell { telling }.encode_to_vec().into()
}

pub(crate) fn decode_told(bytes: &Bytes) -> Result<Told, NotUnderstood> {
    let answer = match decode::<Tell>(bytes)?.telling.ok_or(NotUnderstood(None))? {
        Telling::NotBegun(_) => return Ok(Told::NotBegun),
        Telling::Refused(text) => {
            let error = RpcError::from_text(&text).ok_or(NotUnderstood(None))?;
            return Ok(Told::Done(Err(error)));
        }
        Telling::Put(answer) => Answer::Put(answer),
        Telling::DeleteRange(answer) => Answer::DeleteRange(answer),
        Telling::Txn(answer) => Answer::Txn(answer),
        Telling::Compact(answer) => Answer::Compact(answer),
        Telling::Grant(answer) => Answer::Grant(answer),
        Telling::Revoke(answer) => Answer::Revoke(answer),
        Telling::KeepAlive(answer) => Answer::KeepAlive(answer),
        Telling::TimeToLive(answer) => Answer::TimeToLive(answer),
        Telling::Leases(answer) => Answer::Leases(answer),
        Telling::Barrier(Barrier { revision, compacted }) => Answer::Barrier { revision, compacted },
    };
    Ok(Told::Done(Ok(answer)))
}

fn decode<M: Message + Default>(bytes: &Bytes) -> Result<M, NotUnderstood> {
    M::decode(bytes.clone()).map_err(|error| NotUnderstood(Some(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_arrives() {
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
            let (epoch, arrived) = decode_ask(&encode_ask(9, &command)).unwrap();
            assert_eq!((epoch, format!("{arrived:?}")), (9, format!("{command:?}")));
        }
    }

    #[test]
    fn what_is_told_arrives() {
        let answer = pb::PutResponse {
            header: Some(pb::ResponseHeader {
                revision: 12,
                ..Default::default()
            }),
            prev_kv: Some("encoded".into()),
        };
        let told = [
            Told::Done(Ok(Answer::Put(answer))),
            Told::Done(Ok(Answer::Barrier {
                revision: 7,
                compacted: -1,
            })),
            Told::Done(Err(RpcError::NoSpace)),
            Told::Done(Err(RpcError::LeaderFailed)),
            Told::NotBegun,
        ];
        for told in told {
            let said = format!("{told:?}");
            assert_eq!(format!("{:?}", decode_told(&encode_told(told)).unwrap()), said);
        }
    }

    #[test]
    fn what_is_said_to_all_arrives() {
        let here = Here {
            member: u64::MAX,
            name: "a".into(),
            client_urls: vec!["http://a:1".into()],
            leaving: true,
            full: true,
        };
        for said in [
            Said::Stored(0),
            Said::Stored(u64::MAX),
            Said::Here(here),
            Said::Successor(7),
        ] {
            assert_eq!(decode_said(&encode_said(&said)).unwrap(), said);
        }
    }

    #[test]
    fn what_is_not_known_is_an_error_and_no_answer() {
        for bytes in [&b""[..], b"\xff", b"\x92\x06\x00"].map(Bytes::from_static) {
            assert!(decode_ask(&bytes).is_err(), "{bytes:?}");
            assert!(decode_said(&bytes).is_err(), "{bytes:?}");
            assert!(decode_told(&bytes).is_err(), "{bytes:?}");
        }
        let other = Tell {
            telling: Some(Telling::Refused("of a later version".into())),
        };
        assert!(decode_told(&other.encode_to_vec().into()).is_err());
    }
}
