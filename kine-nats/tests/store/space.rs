//! What etcd and kine-nats answer when their space is used up.

use crate::etcd::Etcd;
use crate::harness::{Client, Kine, Nats};
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

/// Uses all the space up, then asks.
async fn ask(client: &mut Client) -> Vec<(&'static str, Told)> {
    grant(client, 7, 600).await.unwrap();
    let large = vec![7; 100_000];
    let mut number = 0;
    let refused = loop {
        number += 1;
        assert!(number < 100, "the quota holds");
        if let Err(status) = client.put(&format!("/r/{number}"), &large).await {
            break status;
        }
        // etcd learns how large its file is when it next commits, at most 100 ms later.
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
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
async fn leases_are_granted_as_etcd_grants_them_and_not_without_space() {
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
