//! kine-nats as etcd's own command line tool and gRPC health probes see it.

use crate::harness::{Kine, Nats, WAIT, etcdctl, etcdctl_begins, eventually, json};
use serde_json::Value;
use tonic::Code;
use tonic::codegen::tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use yoke_kine_nats::proto::etcdserverpb as pb;

#[tokio::test]
async fn etcdctl_lists_one_healthy_member() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "tools", &["--quota=50000000"]).await;
    let endpoint = kine.url();
    let run = |arguments: &[&str]| etcdctl(&endpoint, arguments).unwrap();
    for form in ["simple", "table", "fields"] {
        let status = run(&["endpoint", "status", "-w", form]);
        assert!(status.contains("3.6.8"), "of an empty store: {status}");
    }
    run(&["put", "/r/a", "1"]);
    run(&["put", "/r/b", "2"]);

    let status = json(&run(&["endpoint", "status", "-w", "json"]));
    let (endpoint, status) = (&status[0]["Endpoint"], &status[0]["Status"]);
    assert_eq!(endpoint, &Value::from(kine.url()));
    let member = &status["header"]["member_id"];
    assert_eq!(status["version"], "3.6.8");
    assert_eq!(status["header"]["revision"], 3);
    assert_eq!(&status["leader"], member);
    assert_eq!(status["raftTerm"], 1);
    assert_eq!(status["raftIndex"], status["raftAppliedIndex"]);
    assert!(status["raftIndex"].as_u64() >= Some(3), "{status}");
    assert!((1..10_000).contains(&status["dbSize"].as_i64().unwrap()), "{status}");
    assert_eq!(status["dbSize"], status["dbSizeInUse"]);
    assert_eq!(status["dbSizeQuota"], 50_000_000);
    assert!(status["errors"].is_null(), "{status}");

    let health = json(&run(&["endpoint", "health", "-w", "json"]));
    assert_eq!(health[0]["health"], true, "{health}");
    let list = json(&run(&["member", "list", "-w", "json"]));
    assert_eq!(list["members"].as_array().unwrap().len(), 1);
    assert_eq!(&list["members"][0]["ID"], member);
    let urls = list["members"][0]["clientURLs"].as_array().unwrap();
    assert!(urls.contains(&Value::from(kine.url())), "{list}");
    assert_eq!(list["members"][0]["peerURLs"].as_array(), Some(urls));
    assert_eq!(run(&["alarm", "list"]), "");
    assert!(run(&["defrag"]).starts_with("Finished defragmenting etcd member"));

    let hash =
        |revision: &str| json(&run(&["endpoint", "hashkv", "--rev", revision, "-w", "json"]))[0]["HashKV"].clone();
    let (now, before) = (hash("0"), hash("2"));
    assert_eq!(now["hash_revision"], 3);
    assert_ne!(now["hash"], before["hash"]);
    run(&["del", "/r/b"]);
    assert_eq!(hash("3")["hash"], now["hash"]);
}

#[tokio::test]
async fn etcdctl_writes_watches_and_compacts() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "commands", &[]).await;
    let endpoint = kine.url();
    let run = |arguments: &[&str]| etcdctl(&endpoint, arguments);
    let create = "mod(\"/t/a\") = \"0\"\n\nput /t/a 1\n\nget /t/a\n\n";
    for answer in ["SUCCESS\n\nOK\n", "FAILURE\n\n/t/a\n1\n"] {
        assert_eq!(etcdctl_begins(&endpoint, &["txn"], create, 100), answer);
    }
    run(&["put", "/t/a", "2"]).unwrap();

    let events = "PUT\n/t/a\n1\nPUT\n/t/a\n2\n";
    let watch = ["watch", "/t/", "--prefix", "--rev", "2"];
    assert_eq!(etcdctl_begins(&endpoint, &watch, "", events.len()), events);

    assert_eq!(run(&["compact", "3"]).unwrap(), "compacted revision 3\n");
    let old = run(&["get", "/t/a", "--rev", "2"]).unwrap_err();
    assert!(old.contains("required revision has been compacted"), "{old}");
    let old = run(&["watch", "/t/a", "--rev", "2"]).unwrap_err();
    assert!(old.contains("watch was canceled"), "{old}");
    assert_eq!(run(&["get", "/t/a", "--rev", "3"]).unwrap(), "/t/a\n2\n");

    let granted = run(&["lease", "grant", "600"]).unwrap();
    let id = granted.split(' ').nth(1).unwrap();
    run(&["put", "/t/leased", "1", "--lease", id]).unwrap();
    assert_eq!(run(&["lease", "list"]).unwrap(), format!("found 1 leases\n{id}\n"));
    assert_eq!(run(&["lease", "revoke", id]).unwrap(), format!("lease {id} revoked\n"));
    assert_eq!(run(&["get", "/t/leased"]).unwrap(), "");
}

#[tokio::test]
async fn etcdctl_gets_errors_for_unsupported_requests() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "refusals", &[]).await;
    for (arguments, why) in [
        (
            &["member", "add", "x", "--peer-urls=http://127.0.0.1:1"][..],
            "joins when it starts",
        ),
        (&["member", "remove", "1"], "joins when it starts"),
        (
            &["member", "update", "1", "--peer-urls=http://127.0.0.1:1"],
            "joins when it starts",
        ),
        (&["member", "promote", "1"], "joins when it starts"),
        (&["downgrade", "validate", "3.5"], "no older etcd version"),
    ] {
        let error = etcdctl(&kine.url(), arguments).unwrap_err();
        assert!(
            error.contains("Unimplemented") && error.contains(why),
            "{arguments:?}: {error}"
        );
    }
}

#[tokio::test]
async fn an_exhausted_quota_is_an_alarm_until_space_is_free() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "alarm", &["--quota=100000"]).await;
    let mut client = kine.client().await;
    let large = vec![7; 60_000];
    client.put("/r/a", &large).await.unwrap();
    client.put("/r/b", &large).await.unwrap();
    let error = client.put("/r/c", b"").await.unwrap_err();
    assert_eq!(error.message(), "etcdserver: mvcc: database space exceeded");

    let run = |arguments: &[&str]| etcdctl(&kine.url(), arguments);
    let status = json(&run(&["endpoint", "status", "-w", "json"]).unwrap());
    let member = status[0]["Status"]["leader"].as_u64().unwrap();
    let alarm = format!("memberID:{member} alarm:NOSPACE ");
    assert_eq!(status[0]["Status"]["errors"][0], alarm);
    assert_eq!(run(&["alarm", "list"]).unwrap().trim_end(), alarm.trim_end());
    let unhealthy = run(&["endpoint", "health"]).unwrap_err();
    assert!(unhealthy.contains("NOSPACE"), "{unhealthy}");
    let ask = |action: pb::alarm_request::AlarmAction, alarm: pb::AlarmType| pb::AlarmRequest {
        action: action.into(),
        member_id: 0,
        alarm: alarm.into(),
    };
    let corrupt = ask(pb::alarm_request::AlarmAction::Get, pb::AlarmType::Corrupt);
    assert_eq!(client.maintenance.alarm(corrupt).await.unwrap().into_inner().alarms, []);
    let raise = ask(pb::alarm_request::AlarmAction::Activate, pb::AlarmType::Corrupt);
    let error = client.maintenance.alarm(raise).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            Code::Unimplemented,
            "kine-nats: alarms follow from the state and cannot be raised"
        )
    );
    assert_eq!(run(&["alarm", "disarm"]).unwrap().trim_end(), alarm.trim_end());

    client.delete("/r/a").await;
    client.delete("/r/b").await;
    let revision = client.revision().await;
    client.compact(revision).await.unwrap();
    eventually("the alarm to end", || async {
        Some(()).filter(|()| run(&["alarm", "list"]).unwrap().is_empty())
    })
    .await;
    client.put("/r/c", b"").await.unwrap();
}

#[tokio::test]
async fn health_follows_the_log() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "health", &[]).await;
    let mut client = HealthClient::new(kine.channel());
    let whole = HealthCheckRequest::default();
    let answer = client.check(whole.clone()).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    let mut watch = client.watch(whole).await.unwrap().into_inner();
    let mut next = async || {
        let answer = tokio::time::timeout(WAIT, watch.next()).await.unwrap();
        answer.map(|answer| answer.unwrap().status())
    };
    assert_eq!(next().await, Some(ServingStatus::Serving));
    nats.kill();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    nats.restart().await;
    assert_eq!(next().await, Some(ServingStatus::Serving));
    println!("with an open health watch it ends in {:?}", kine.terminate().await);
}
