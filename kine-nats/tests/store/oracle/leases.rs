//! Leases that expire while no request runs.

use super::requests::KEYS;
use super::{Oracle, everything, start};
use crate::harness::{Client, Nats, Watching, events, eventually};
use bytes::Bytes;
use futures::future::join_all;
use pb::request_op::Request;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::slice;
use yoke_kine_nats::proto::etcdserverpb as pb;

/// All expire at about the same time.
const ENDING: [i64; 4] = [1, 2, 3, 1 << 62];
/// etcd's shortest lease.
const TTL: i64 = 2;
/// Does not expire.
const LASTING: i64 = 99;

/// The effect of an expired lease: the deleted keys with their previous versions, in the order of
/// their events.
type End = Vec<(Bytes, Option<Bytes>)>;

/// Leases with random keys, and without any, expire in etcd and in ours: one revision each, the
/// same keys, and the same responses to later requests with their ids.
pub(super) async fn run_out(seed: u64) {
    println!("SEED={seed}");
    let nats = Nats::start().await;
    let (etcd, kine, follower) = start(&nats).await;
    let clients = vec![kine.client().await, follower.client().await];
    let mut oracle = Oracle::new(etcd.client(), clients).await;
    oracle.what = format!("SEED={seed}, leases run out");

    // Few round trips: no lease may expire before all keys are attached.
    let grants = ENDING.map(|id| (id, TTL)).into_iter().chain([(LASTING, 1000)]);
    let asked = &oracle;
    let granted = grants.map(|(id, ttl)| async move {
        let request = pb::LeaseGrantRequest { id, ttl };
        let all = [&asked.etcd, &asked.ours[0]].map(|client| async move {
            let granted = client.clone().lease.lease_grant(request).await.unwrap().into_inner();
            assert_eq!((granted.id, granted.ttl), (id, ttl));
        });
        join_all(all).await;
    });
    join_all(granted).await;
    let keys = hang(seed);
    let request = pb::TxnRequest {
        success: keys.iter().map(|(key, lease)| put(key, *lease)).collect(),
        ..Default::default()
    };
    let put = oracle
        .write(async |mut client| client.kv.txn(request.clone()).await)
        .await;
    let before = put.unwrap().header.unwrap().revision;

    let mut ends = BTreeMap::<i64, usize>::new();
    for lease in keys.values().filter(|lease| ENDING.contains(lease)) {
        *ends.entry(*lease).or_default() += 1;
    }
    let all = [slice::from_ref(&oracle.etcd), oracle.ours.as_slice()].concat();
    let heard = join_all(all.into_iter().map(|client| hear(client, before, ends.values().sum()))).await;
    for ours in &heard[1..] {
        assert_eq!(&heard[0], ours, "{}: what ended in etcd, and in ours", oracle.what);
    }
    assert_eq!(heard[0].len(), ends.len(), "{}: one revision for each", oracle.what);
    afterwards(&mut oracle, before + i64::try_from(ends.len()).unwrap()).await;
}

/// Attaches some keys to leases. The last one to expire has none.
fn hang(seed: u64) -> BTreeMap<&'static [u8], i64> {
    let mut random = StdRng::seed_from_u64(seed);
    let (first, _) = ENDING.split_at(ENDING.len() - 1);
    let leases = [first, &[LASTING, 0]].concat();
    let leases = KEYS.map(|key| (key, leases[random.random_range(0..leases.len())]));
    leases.into_iter().collect()
}

fn put(key: &'static [u8], lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest {
        key: key.into(),
        value: "1".into(),
        lease,
        ..Default::default()
    };
    pb::RequestOp {
        request: Some(Request::RequestPut(put)),
    }
}

/// Waits until this many keys are deleted. The order of the leases is random; revisions are
/// consecutive.
async fn hear(mut client: Client, after: i64, keys: usize) -> Vec<End> {
    let create = pb::WatchCreateRequest {
        key: [0].to_vec().into(),
        range_end: [0].to_vec().into(),
        start_revision: after + 1,
        prev_kv: true,
        ..Default::default()
    };
    let mut watching = Watching::open(&mut client, create).await.unwrap();
    let mut ends = BTreeMap::<i64, End>::new();
    while ends.values().map(Vec::len).sum::<usize>() < keys {
        for event in events(&watching.next().await.unwrap()) {
            assert_eq!(event.r#type, 1, "{event:?}");
            let (kv, before) = (event.kv.unwrap(), event.prev_kv.unwrap());
            assert!(before.lease != LASTING && before.lease != 0, "{before:?}");
            let end = ends.entry(kv.mod_revision).or_default();
            end.push((kv.key, Some(before.value)));
        }
    }
    assert!(
        ends.keys().copied().eq(after + 1..=after + ends.len() as i64),
        "{ends:?}"
    );
    let mut ends: Vec<_> = ends.into_values().collect();
    ends.sort();
    ends
}

/// Compares the responses to requests with the ids of expired leases.
async fn afterwards(oracle: &mut Oracle, revision: i64) {
    for client in [slice::from_ref(&oracle.etcd), oracle.ours.as_slice()].concat() {
        eventually("the lasting lease to be the only one", || async {
            let listed = client.clone().lease.lease_leases(pb::LeaseLeasesRequest {}).await;
            let left: Vec<_> = listed.unwrap().into_inner().leases;
            (left == [pb::LeaseStatus { id: LASTING }]).then_some(())
        })
        .await;
    }
    let kept = everything(0);
    let left = oracle
        .read(async |mut client| client.kv.range(kept.clone()).await)
        .await;
    assert_eq!(left.unwrap().header.unwrap().revision, revision, "{}", oracle.what);
    for id in ENDING.into_iter().chain([LASTING]) {
        oracle.what = format!("lease {id}, after it has ended");
        oracle.time_to_live(pb::LeaseTimeToLiveRequest { id, keys: true }).await;
        for _ in 0..oracle.ours.len() {
            oracle.keep_alive(pb::LeaseKeepAliveRequest { id }).await;
            if id != LASTING {
                oracle.revoke(id).await;
            }
            let put = pb::PutRequest {
                key: KEYS[0].into(),
                lease: id,
                ..Default::default()
            };
            oracle.write(async |mut client| client.kv.put(put.clone()).await).await;
        }
    }
    oracle.leases().await;
    oracle
        .read(async |mut client| client.kv.range(kept.clone()).await)
        .await;
}
