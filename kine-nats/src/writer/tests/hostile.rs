//! Hostile bytes from other processes and from the log: they are rejected, or handled like any
//! other request. The log can be read afterwards.

use super::*;
use crate::fuzz::{fuzz_runs, mutate, seeded};
use crate::peer::{message, serve};
use crate::store::peers::PeerAnswer;
use rand::RngExt;
use rand::rngs::StdRng;

fn commands() -> Vec<Command> {
    let put = pb::PutRequest {
        key: "k".into(),
        value: "value".into(),
        lease: 7,
        ..Default::default()
    };
    let range = pb::DeleteRangeRequest {
        key: "a".into(),
        range_end: "z".into(),
        prev_kv: true,
    };
    let operation = |request| pb::RequestOp { request: Some(request) };
    use pb::request_op::Request;
    let compare = pb::Compare {
        key: "k".into(),
        target_union: Some(pb::compare::TargetUnion::Version(1)),
        ..Default::default()
    };
    let inner = pb::TxnRequest {
        compare: vec![compare.clone()],
        success: vec![operation(Request::RequestPut(put.clone()))],
        failure: vec![operation(Request::RequestDeleteRange(range.clone()))],
    };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![
            operation(Request::RequestTxn(inner.clone())),
            operation(Request::RequestRange(pb::RangeRequest {
                key: "a".into(),
                limit: 3,
                revision: 2,
                ..Default::default()
            })),
        ],
        failure: vec![operation(Request::RequestTxn(inner))],
    };
    vec![
        Command::Put(put),
        Command::DeleteRange(range),
        Command::Txn(txn),
        Command::Compact(2),
        Command::Grant { id: 9, ttl: 60 },
        Command::Revoke(9),
        Command::KeepAlive(7),
        Command::TimeToLive { id: 7, keys: true },
        Command::Leases,
        Command::Barrier,
    ]
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_of_other_processes_do_no_harm() {
    let mut random = seeded();
    let (memory, running) = started(&["a", "k"]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 600 }).await.unwrap();
    let requests: Vec<Bytes> = commands()
        .iter()
        .map(|command| message::encode_request(running.store.epoch(), command))
        .collect();
    let mut done = 0;
    for _ in 0..fuzz_runs(4000) {
        let mut bad = requests[random.random_range(0..requests.len())].to_vec();
        mutate(&mut bad, &mut random);
        let answer = serve(&running.store, &bad.into()).await;
        let answer = message::decode_answer(&answer).expect("an answer that is understood");
        done += u64::from(matches!(answer, PeerAnswer::Done(Ok(_))));
    }
    assert!(done > 100, "{done} were done all the same");
    for key in [&b""[..], b"\0"] {
        let put = pb::PutRequest {
            key: key.to_vec().into(),
            ..Default::default()
        };
        let request = message::encode_request(running.store.epoch(), &Command::Put(put));
        let answer = message::decode_answer(&serve(&running.store, &request).await).unwrap();
        let refused = matches!(answer, PeerAnswer::Done(Err(RpcError::EmptyKey)));
        assert_eq!(refused, key.is_empty(), "{answer:?}");
    }
    let store = Arc::clone(&running.store);
    running.stop().await;
    let replica = Replica::load(&memory.open().0, &snapshots(&memory)).await.unwrap();
    let dump = |state: &crate::state::State| {
        let mut items = Vec::new();
        state.mvcc.visit(&[0], &[0], state.mvcc.visible(), |item| {
            items.push(item.kv.clone());
            true
        });
        (
            items,
            state.mvcc.visible(),
            state.mvcc.compacted(),
            state.leases.terms(),
        )
    };
    assert_eq!(dump(&replica.state), dump(&store.read()));
}

#[test]
fn invalid_messages_of_other_processes_do_not_panic() {
    let mut random = seeded();
    let answers = [
        PeerAnswer::NotStarted,
        PeerAnswer::Done(Err(RpcError::NoSpace)),
        PeerAnswer::Done(Ok(Answer::Barrier {
            revision: 5,
            compacted: 3,
        })),
        PeerAnswer::Done(Ok(Answer::Put(pb::PutResponse {
            header: Some(pb::ResponseHeader::default()),
            prev_kv: Some("encoded".into()),
        }))),
    ];
    let here = message::Announcement {
        member: 7,
        name: "one".into(),
        client_urls: vec!["http://a:1".into()],
        leaving: false,
        full: true,
    };
    let broadcasts = [
        message::Broadcast::Stored(9),
        message::Broadcast::Announcement(here),
        message::Broadcast::Successor(7),
    ];
    let all = answers.map(message::encode_answer).into_iter();
    let all = all.chain(broadcasts.iter().map(message::encode_broadcast));
    let requests = commands()
        .into_iter()
        .map(|command| message::encode_request(3, &command));
    let all: Vec<Bytes> = all.chain(requests).collect();
    let mut understood = [0; 3];
    for _ in 0..fuzz_runs(50_000) {
        let mut bad = all[random.random_range(0..all.len())].to_vec();
        if random.random_range(0..4) == 0 {
            random.fill(&mut bad[..]);
        } else {
            mutate(&mut bad, &mut random);
        }
        let bad = Bytes::from(bad);
        // Each message is also decoded as the other kinds. A decoded message stays the same when it
        // is encoded and decoded again.
        if let Ok(broadcast) = message::decode_broadcast(&bad) {
            assert_eq!(
                message::decode_broadcast(&message::encode_broadcast(&broadcast)).unwrap(),
                broadcast
            );
            understood[0] += 1;
        }
        if let Ok((epoch, command)) = message::decode_request(&bad) {
            let (again, same) = message::decode_request(&message::encode_request(epoch, &command)).unwrap();
            assert_eq!((again, format!("{same:?}")), (epoch, format!("{command:?}")));
            understood[1] += 1;
        }
        if let Ok(answer) = message::decode_answer(&bad) {
            let expected = format!("{answer:?}");
            assert_eq!(
                format!("{:?}", message::decode_answer(&message::encode_answer(answer)).unwrap()),
                expected
            );
            understood[2] += 1;
        }
    }
    assert!(understood.iter().all(|count| *count > 1000), "{understood:?}");
}

/// Replaces a number in a text by an extreme one.
fn change_number(text: &mut Vec<u8>, random: &mut StdRng) {
    const NUMBERS: [&str; 7] = [
        "0",
        "-1",
        "4294967295",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "1e300",
    ];
    let is_number = |at: &usize| text[*at].is_ascii_digit() && !text[at.saturating_sub(1)].is_ascii_digit();
    let starts: Vec<usize> = (0..text.len()).filter(is_number).collect();
    if let Some(start) = starts.get(random.random_range(0..starts.len().max(1))) {
        let digits = text[*start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = NUMBERS[random.random_range(0..NUMBERS.len())];
        text.splice(*start..start + digits, number.bytes());
    }
}

/// Manifests and low watermarks with a valid hash are trusted. Their content must not crash a
/// process that reads them.
#[tokio::test(start_paused = true)]
async fn a_snapshot_with_unusual_numbers_does_not_panic() {
    let mut random = seeded();
    let (memory, _) = damage::written().await;
    let messages = memory.messages();
    let notes: Vec<_> = messages
        .all()
        .into_iter()
        .filter(|(_, message)| message.starts_with(b"{"))
        .collect();
    assert!(notes.len() > 2, "manifests and a floor: {notes:?}");
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..fuzz_runs(1000) {
        let (sequence, good) = &notes[random.random_range(0..notes.len())];
        let mut bad = good[..good.len() - 8].to_vec();
        if random.random_range(0..3) == 0 {
            mutate(&mut bad, &mut random);
        } else {
            change_number(&mut bad, &mut random);
        }
        codec::seal(&mut bad);
        messages.replace(*sequence, bad.into());
        match Replica::load(&memory.open().0, &snapshots(&memory)).await {
            Ok(Replica { state, .. }) => {
                state.mvcc.count(&[0], &[0], state.mvcc.visible());
                opened += 1;
            }
            Err(_) => refused += 1,
        }
        messages.replace(*sequence, good.clone());
    }
    assert!(opened > 100 && refused > 10, "{opened} opened, {refused} refused");
}

/// Records that fit into the chain, with operations that no writer would send.
#[tokio::test(start_paused = true)]
async fn a_record_with_unusual_operations_does_not_panic() {
    const HEADER: usize = 64;
    let mut random = seeded();
    let (memory, running) = started(&["a", "b"]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 600 }).await.unwrap();
    for command in commands() {
        // Some are rejected.
        let _ = running.store.submit(command).await;
    }
    running.writer.abort();
    let records = memory.records();
    let mut done = 0;
    for _ in 0..fuzz_runs(4000) {
        let at = random.random_range(1..records.len());
        let good = &records[at];
        let mut body = good[HEADER..good.len() - 8].to_vec();
        mutate(&mut body, &mut random);
        let count = codec::decode(good).unwrap().operations.len() as u32;
        let mut bad = [
            &good[..HEADER - 8],
            &count.to_le_bytes(),
            &(body.len() as u32).to_le_bytes(),
            &body,
        ]
        .concat();
        codec::seal(&mut bad);
        let memory = Memory::new();
        records[..at].iter().for_each(|record| memory.push(record.clone()));
        memory.push(bad.into());
        if let Ok(Replica { state, .. }) = Replica::load(&memory.open().0, &snapshots(&memory)).await {
            let head = state.mvcc.visible();
            let mut items = 0;
            state.mvcc.visit(&[0], &[0], head, |_| {
                items += 1;
                true
            });
            assert_eq!(state.mvcc.count(&[0], &[0], head), items);
            done += 1;
        }
    }
    assert!(done > 100, "{done} could be done");
}
