use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;
use tower::{BoxError, service_fn};

use super::*;

#[test]
fn pods_of_daemonsets_are_ignored() {
    let owner =
        |kind: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "u", "controller": true});
    for (rule, metadata, status, expected) in [
        (
            "a Pod without an owner",
            json!({}),
            json!({"phase": "Running"}),
            Step::Evict,
        ),
        ("a Pod that waits", json!({}), json!({"phase": "Pending"}), Step::Evict),
        (
            "a Pod of a ReplicaSet",
            json!({"ownerReferences": [owner("ReplicaSet")]}),
            json!({"phase": "Running"}),
            Step::Evict,
        ),
        (
            "a Pod of a DaemonSet",
            json!({"ownerReferences": [owner("DaemonSet")]}),
            json!({"phase": "Running"}),
            Step::Ignore,
        ),
        (
            "a Pod of the kubelet's own",
            json!({"annotations": {MIRROR: "x"}}),
            json!({"phase": "Running"}),
            Step::Ignore,
        ),
        (
            "a Pod that is done",
            json!({}),
            json!({"phase": "Succeeded"}),
            Step::Ignore,
        ),
        (
            "a Pod that goes",
            json!({"deletionTimestamp": "2026-11-22T21:00:00Z"}),
            json!({"phase": "Running"}),
            Step::Wait,
        ),
        (
            "a Pod that goes, and has ended",
            json!({"deletionTimestamp": "2026-11-22T21:00:00Z"}),
            json!({"phase": "Succeeded"}),
            Step::Wait,
        ),
    ] {
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
        assert_eq!(plan(&pod), expected, "{rule}");
    }
}

type Answer = (u16, Value);

/// An API that answers by a function of method and path, and the requests that it had.
fn api(answer: impl FnMut(&str, &str) -> Answer + Send + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, answer) = (asked.clone(), Arc::new(Mutex::new(answer)));
    let service = service_fn(move |request: Request<Body>| {
        let (seen, answer) = (seen.clone(), answer.clone());
        async move {
            let (method, path) = (request.method().to_string(), request.uri().to_string());
            let body = request.into_body().collect_bytes().await?;
            // The precondition names the UID of the one Node.
            if path.contains("/nodes/") && method != "GET" {
                assert!(
                    String::from_utf8_lossy(&body).contains(r#""uid":"u1""#),
                    "{method} {path}: {body:?}"
                );
            }
            seen.lock().unwrap().push(format!("{method} {path}"));
            let (code, body) = (answer.lock().unwrap())(&method, &path);
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    (Client::new(service, "default"), asked)
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a", "uid": name}, "status": {"phase": "Running"}})
}

fn list(items: &[Value], next: &str) -> Answer {
    (
        200,
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"continue": next}, "items": items}),
    )
}

fn refusal(code: u16) -> Answer {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": "no",
        "reason": match code { 404 => "NotFound", 403 => "Forbidden", _ => "x" }});
    (code, status)
}

fn done() -> Answer {
    (201, json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}))
}

const NODE: Target<'_> = Target {
    name: "box-1",
    uid: "u1",
};
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_drain_goes_on_after_errors_and_through_all_pages() {
    let mut left = vec!["one", "two"];
    let (mut failures, mut kept) = (2, 1);
    let (client, asked) = api(move |method, path| match method {
        "PATCH" | "GET" if failures > 0 => {
            failures -= 1;
            refusal(500)
        }
        "PATCH" => (200, json!({"metadata": {"name": "box-1"}})),
        // A page with a Pod each.
        "GET" if path.contains("continue=next") => {
            list(&left[1..].iter().map(|name| pod(name)).collect::<Vec<_>>(), "")
        }
        "GET" if left.len() > 1 => list(&[pod(left[0])], "next"),
        "GET" => list(&left.iter().map(|name| pod(name)).collect::<Vec<_>>(), ""),
        // A budget keeps the second one for a while.
        "POST" if path.contains("/two/") && kept > 0 => {
            kept -= 1;
            refusal(429)
        }
        "POST" => {
            left.retain(|name| !path.contains(&format!("/{name}/eviction")));
            done()
        }
        _ => refusal(405),
    });
    let begun = Instant::now();
    drain(&client, NODE, LIMIT).await;
    assert!(begun.elapsed() < LIMIT, "it is done");
    let asked = asked.lock().unwrap();
    let evictions: Vec<_> = asked.iter().filter(|request| request.starts_with("POST")).collect();
    let expected = ["one", "two", "two"].map(|name| format!("POST /api/v1/namespaces/a/pods/{name}/eviction?"));
    assert_eq!(evictions, expected.iter().collect::<Vec<_>>(), "{asked:?}");
    assert!(!asked.iter().any(|request| request.starts_with("DELETE")), "{asked:?}");
}

#[tokio::test]
async fn a_drain_ends_with_its_time() {
    let (client, asked) = api(|method, _| match method {
        "PATCH" => (200, json!({"metadata": {"name": "box-1"}})),
        "GET" => list(&[pod("one")], ""),
        _ => refusal(429),
    });
    drain(&client, NODE, 2 * POLL_INTERVAL).await;
    let asked = asked.lock().unwrap();
    let evictions = asked.iter().filter(|request| request.starts_with("POST")).count();
    assert_eq!(evictions, 1, "a rejected eviction is not retried each second");
}

#[tokio::test]
async fn another_machines_node_is_left_alone() {
    let (client, asked) = api(|method, _| match method {
        "GET" => (200, json!({"metadata": {"name": "box-1", "uid": "u2"}})),
        _ => refusal(409),
    });
    drain(&client, NODE, LIMIT).await;
    remove_node(&client, NODE).await;
    let changes: Vec<_> = asked
        .lock()
        .unwrap()
        .iter()
        .filter(|request| !request.starts_with("GET"))
        .cloned()
        .collect();
    assert_eq!(changes, ["PATCH /api/v1/nodes/box-1?", "DELETE /api/v1/nodes/box-1?"]);
}

#[tokio::test]
async fn a_conflict_about_its_own_node_is_tried_again() {
    let mut conflicts = [1, 1];
    let (client, asked) = api(move |method, path| {
        let mut conflict = |at: usize| std::mem::take(&mut conflicts[at]) == 1;
        match method {
            "GET" if path.contains("/nodes/") => (200, json!({"metadata": {"name": "box-1", "uid": "u1"}})),
            "GET" => list(&[], ""),
            "PATCH" if conflict(0) => refusal(409),
            "PATCH" => (200, json!({"metadata": {"name": "box-1"}})),
            "DELETE" if conflict(1) => refusal(409),
            _ => done(),
        }
    });
    drain(&client, NODE, LIMIT).await;
    remove_node(&client, NODE).await;
    let asked = asked.lock().unwrap();
    for (method, expected) in [("PATCH", 2), ("DELETE", 2)] {
        let count = asked.iter().filter(|request| request.starts_with(method)).count();
        assert_eq!(count, expected, "{asked:?}");
    }
}

#[tokio::test]
async fn a_node_is_deleted_by_its_uid_once_the_api_answers() {
    let mut failures = 2;
    let (client, asked) = api(move |_, _| {
        if failures > 0 {
            failures -= 1;
            return refusal(503);
        }
        done()
    });
    remove_node(&client, NODE).await;
    assert_eq!(asked.lock().unwrap().len(), 3);
}
