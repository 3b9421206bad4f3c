//! The responses of etcd and kine-nats when their space is used up.

use crate::etcd::Etcd;
use crate::harness::{Client, Kine, Nats, eventually};
use std::time::Duration;
use tonic::{Code, Status};
use yoke_kine_nats::proto::etcdserverpb as pb;

type Told = Result<i64, (Code, String)>;

fn told(answer: Result<i64, Status>) -> Told {
    answer.map_err(|status| (status.code(), status.message().to_owned()))
}

async fn grant(client: &mut Client, id: i64, ttl: i64) -> Told {
    let request = pb::LeaseGrantRequest { id, ttl };
    let answer = client.lease.lease_grant(request).await;
    told(answer.map(|answer| answer.into_inner().ttl))
}

async fn put(client: &mut Client, key: &str, lease: i64) -> Told {
    let request = pb::PutRequest {
        key: key.to_owned().into(),
        lease,
        ..Default::default()
    };
    told(client.kv.put(request).await.map(|_| 0))
}

/// Uses up the space.
async fn fill(client: &mut Client) {
    let large = vec![7; 100_000];
    let mut number = 0;
    let refused = loop {
        number += 1;
        assert!(number < 100, "the quota holds");
        if let Err(status) = client.put(&format!("/r/{number}"), &large).await {
            break status;
        }
        // etcd learns the size of its file at its next commit, at most 100 ms later.
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
}

/// Uses up the space, then sends requests.
async fn ask(client: &mut Client) -> Vec<(&'static str, Told)> {
    grant(client, 7, 600).await.unwrap();
    fill(client).await;
    let renewals = tokio_stream::iter([pb::LeaseKeepAliveRequest { id: 7 }]);
    let mut renewed = client.lease.lease_keep_alive(renewals).await.unwrap().into_inner();
    let renewed = renewed.message().await.map(|answer| answer.unwrap().ttl);
    let left = pb::LeaseTimeToLiveRequest { id: 7, keys: false };
    let left = client.lease.lease_time_to_live(left).await;
    let mut answers = vec![
        ("a lease", grant(client, 8, 600).await),
        ("a lease that is there", grant(client, 7, 600).await),
        ("a lease that is too long", grant(client, 9, i64::MAX).await),
        ("a put", put(client, "/r/a", 0).await),
        ("a put with a lease that is not there", put(client, "/r/a", 99).await),
        ("a renewal", told(renewed)),
        (
            "a lease's term",
            told(left.map(|answer| answer.into_inner().granted_ttl)),
        ),
    ];
    for id in [7, 99] {
        let revoked = client.lease.lease_revoke(pb::LeaseRevokeRequest { id }).await;
        answers.push(("an end", told(revoked.map(|_| id))));
    }
    answers
}

#[tokio::test]
async fn leases_are_granted_like_in_etcd_and_only_with_space() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]).await;
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "space", &["--quota=1000000"]).await;
    let ours = ask(&mut kine.client().await).await;
    assert_eq!(ours, ask(&mut etcd.client()).await);
    let refused = Err((
        Code::ResourceExhausted,
        "etcdserver: mvcc: database space exceeded".to_owned(),
    ));
    assert_eq!(ours[0], ("a lease", refused));
}

async fn status(client: &mut Client) -> pb::StatusResponse {
    let status = client.maintenance.status(pb::StatusRequest {}).await;
    status.unwrap().into_inner()
}

/// The alarms, as kind and whether they belong to the queried member, and the errors in its status.
async fn alarms(client: &mut Client) -> (Vec<(i32, bool)>, Vec<String>) {
    let listed = client.maintenance.alarm(pb::AlarmRequest::default()).await;
    let status = status(client).await;
    let member = status.header.unwrap().member_id;
    let kind = |alarm: &pb::AlarmMember| (alarm.alarm, alarm.member_id == member);
    let listed = listed.unwrap().into_inner().alarms.iter().map(kind).collect();
    let own = |error: &String| error.replace(&member.to_string(), "OWN");
    (listed, status.errors.iter().map(own).collect())
}

/// Follows etcd's manual for a lack of space, and records the responses.
async fn make_room(client: &mut Client) -> Vec<(&'static str, Told)> {
    fill(client).await;
    let nospace = (pb::AlarmType::Nospace as i32, true);
    let raised = (vec![nospace], vec!["memberID:OWN alarm:NOSPACE ".to_owned()]);
    assert_eq!(alarms(client).await, raised);
    let delete = pb::DeleteRangeRequest {
        key: "/r/".into(),
        range_end: "/r0".into(),
        ..Default::default()
    };
    let mut answers = vec![("a read", told(client.range("/r/1", "", 0).await.map(|read| read.count)))];
    let deleted = client.kv.delete_range(delete).await;
    answers.push((
        "deletes",
        told(deleted.map(|deleted| i64::from(deleted.get_ref().deleted > 5))),
    ));
    assert_eq!(alarms(client).await, raised);
    answers.push(("a put, when all is deleted", put(client, "/a", 0).await));
    let compaction = pb::CompactionRequest {
        revision: client.revision().await,
        physical: true,
    };
    let compacted = client.kv.compact(compaction).await;
    answers.push(("a compaction", told(compacted.map(|_| 0))));
    let defragmented = client.maintenance.defragment(pb::DefragmentRequest {}).await;
    answers.push(("a defragmentation", told(defragmented.map(|_| 0))));
    let disarm = pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Deactivate.into(),
        alarm: nospace.0,
        member_id: status(client).await.header.unwrap().member_id,
    };
    eventually("the alarm to be removed", || {
        let mut client = client.clone();
        async move {
            client.maintenance.alarm(disarm).await.unwrap();
            (alarms(&mut client).await == (vec![], vec![])).then_some(())
        }
    })
    .await;
    answers.push(("a put, when there is room", put(client, "/a", 0).await));
    answers
}

#[tokio::test]
async fn a_full_store_recovers_like_etcd() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]).await;
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "room", &["--quota=1000000"]).await;
    let ours = make_room(&mut kine.client().await).await;
    assert_eq!(ours, make_room(&mut etcd.client()).await);
    let refused = (
        Code::ResourceExhausted,
        "etcdserver: mvcc: database space exceeded".to_owned(),
    );
    assert_eq!(ours[2], ("a put, when all is deleted", Err(refused)));
    assert_eq!(ours[5], ("a put, when there is room", Ok(0)));
}
