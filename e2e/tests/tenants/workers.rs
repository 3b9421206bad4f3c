//! Workers of a tenant's cluster: they join with a command from the SSH server, run the tenant's
//! Pods, and may be lost.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use yoke_api::join_token::JoinLine;
use yoke_e2e::readme::{commands, root, type_in};
use yoke_e2e::ssh::{Key, ssh};
use yoke_e2e::worker::{ECHO, try_to_join};
use yoke_e2e::workload::POD_LIMIT;
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, eventually, run, wait_for, wait_until};

/// Timeout of `make worker`: packs the programs, joins, and waits until the Node is Ready.
const MAKE_LIMIT: Duration = Duration::from_secs(300);
/// Maximum number of requests until each Pod of a Service, chosen at random, has answered.
const ROUNDS: usize = 40;
/// kube-controller-manager declares a worker as lost after 50 s.
const LOST_LIMIT: Duration = Duration::from_secs(180);
const API: &str = "https://10.96.0.1/api/v1/namespaces";

/// Runs `make worker` as a user would.
async fn make_worker(stack: &Stack) -> Result<Worker> {
    let mut make = Command::new("make");
    for variable in ["CARGO", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(variable);
    }
    make.args(["--no-print-directory", "worker"]).current_dir(root());
    Worker::from_output(stack, &run(make, MAKE_LIMIT).await?.ok()?)
}

/// A Deployment with one Pod on each of two healthy workers, and its Service. It follows
/// Kubernetes' tutorial, plus what a rolling update needs to fail no request.
fn build_web(workers: [&Worker; 2]) -> [Value; 2] {
    let labels = json!({"app": "web"});
    let on_these = json!([{"matchExpressions": [{
        "key": "kubernetes.io/hostname", "operator": "In", "values": workers.map(|worker| &worker.name),
    }]}]);
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{
                        "name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent",
                        "ports": [{"containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                    }],
                    "affinity": {"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": on_these},
                    }},
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "nodeTaintsPolicy": "Honor",
                        "labelSelector": {"matchLabels": labels}, "matchLabelKeys": ["pod-template-hash"],
                    }],
                    "tolerations": (["not-ready", "unreachable"]).map(|taint| json!({
                        "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 5,
                    })),
                },
            },
        },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    [deployment, service]
}

/// Names of the Deployment's Pods, and their workers.
async fn list_web(inside: Workload<'_>) -> Result<BTreeSet<(String, String)>> {
    let find = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}";
    let running = "--field-selector=status.phase=Running";
    let found = inside
        .kubectl(&["get", "pods", "-l", "app=web", running, "-o", find])
        .await?;
    let pairs = found.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.map(|(pod, node)| (pod.to_owned(), node.to_owned())).collect())
}

/// Sends requests from a Pod until every Pod of a Service has answered.
async fn reach_all(inside: Workload<'_>, from: &str, url: &str, expected: &BTreeSet<String>) -> Result<()> {
    let mut heard = BTreeSet::new();
    for _ in 0..ROUNDS {
        let answer = inside.ask_from(from, url).await?.ok();
        let answer = answer.with_context(|| format!("{url} from {from}, after {heard:?}"))?;
        heard.insert(answer.trim().to_owned());
        if heard == *expected {
            return Ok(());
        }
    }
    anyhow::bail!("{url} answered {from} as {heard:?}, expected {expected:?}")
}

#[tokio::test]
async fn two_workers_are_one_cluster() -> Result<()> {
    let stack = Stack::connect().await?;
    let kubeconfig = stack.dir.join("demo.kubeconfig");
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    // Users of the stack may have added workers.
    let list_nodes = ["get", "nodes", "-o", "name"];
    let before = inside.kubectl(&list_nodes).await?;
    let one = make_worker(&stack).await?;
    let took = SystemTime::now().duration_since(one.downloaded_at()?)?;
    println!("a worker was Ready {took:.1?} after its program was there");
    if let Err(error) = type_in(&root(), &[], &commands("console worker")?).await {
        return Err(error.context(inside.recent_logs().await).context(one.recent_logs()));
    }
    let two = make_worker(&stack).await?;
    let nodes = inside.kubectl(&list_nodes).await?.lines().count();
    for addon in ["coredns", "kube-proxy", "konnectivity-agent"] {
        inside.wait_addon(addon, nodes).await?;
    }
    list_over_ssh(&stack, [&one, &two]).await?;
    inside.apply(&build_web([&one, &two])).await?;
    inside
        .kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"])
        .await?;
    let web = list_web(inside).await?;
    let nodes: BTreeSet<_> = web.iter().map(|(_, node)| node).collect();
    ensure!(nodes == BTreeSet::from([&one.name, &two.name]), "{web:?}");
    for (asks, worker) in [("asks-one", &one), ("asks-two", &two)] {
        inside.run_pod(asks, &[], Some(&worker.name)).await?;
        inside.wait_phase(asks, "Running").await?;
    }

    // Calls each kubelet, through any agent.
    for (pod, _) in &web {
        let heard = inside.ask_forwarded(pod).await?;
        ensure!(heard.trim() == pod, "port-forward: {heard}");
        // The terminal echoes the typed keys, turns enter into a line feed, and shows a line feed
        // as two characters.
        let exec = ["exec", "-it", pod, "--", "/echo", "type"];
        let shown = inside.on_terminal(&exec, "type: ", "a b").await?;
        ensure!(shown == "type: a b\r\ntyped \"a b\\n\"\r\n", "exec -it: {shown:?}");
    }
    let address = inside
        .kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])
        .await?;
    let pods: BTreeSet<_> = web.iter().map(|(pod, _)| pod.clone()).collect();
    for asks in ["asks-one", "asks-two"] {
        for name in [&address, "web", "web.default.svc.cluster.local"] {
            reach_all(inside, asks, &format!("http://{name}/"), &pods).await?;
        }
    }

    read_own_namespace(inside).await?;
    roll_out_without_failure(inside, &one, &web).await?;
    kill_worker(inside, &one, &two).await?;

    let used = std::fs::read_to_string(one.folder().join("line")).context("reading a worker's line")?;
    expect_join_refused(&stack, &stack.dir.join("ssh/demo"), "demo", "a used token", &used).await?;

    delete_objects(inside).await?;
    for worker in [one, two] {
        worker.remove().await?;
    }
    let after = inside.kubectl(&list_nodes).await?;
    ensure!(after == before, "the nodes are {after}, but were {before}");
    Ok(())
}

/// Lists nodes over SSH. The SSH server calls the cluster's API through the ingress with the
/// Tenant's kubeconfig.
async fn list_over_ssh(stack: &Stack, workers: [&Worker; 2]) -> Result<()> {
    let said = ssh(stack, &stack.dir.join("ssh/demo"), "nodes demo --json")
        .await?
        .ok()?;
    let said: Value = serde_json::from_str(&said).context(said)?;
    let nodes: Vec<_> = said["nodes"].as_array().into_iter().flatten().collect();
    for worker in workers {
        let node = nodes.iter().find(|node| node["name"] == worker.name);
        ensure!(
            node.is_some_and(|node| node["status"] == "Ready"),
            "{}: {said}",
            worker.name
        );
    }
    Ok(())
}

/// A Pod's default service account has the permissions of its roles, at the API address that every
/// Pod has.
async fn read_own_namespace(inside: Workload<'_>) -> Result<()> {
    let view = [
        "create",
        "rolebinding",
        "sees",
        "--clusterrole=view",
        "--serviceaccount=default:default",
    ];
    inside.kubectl(&view).await?;
    let own = format!("{API}/default/pods/asks-two");
    let seen = wait_for("a Pod to read its namespace", POD_LIMIT, async || {
        inside.ask_from("asks-two", &own).await?.ok().map(Some)
    })
    .await?;
    let seen: Value = serde_json::from_str(&seen).context(seen)?;
    ensure!(seen["metadata"]["name"] == "asks-two", "{seen}");
    let refusal = inside
        .ask_from("asks-two", &format!("{API}/kube-system/pods"))
        .await?
        .refused()?;
    ensure!(refusal.contains("403 Forbidden"), "{refusal}");
    Ok(())
}

/// Replaces the Pods of the Service while a client sends requests continuously.
async fn roll_out_without_failure(
    inside: Workload<'_>,
    on: &Worker,
    before: &BTreeSet<(String, String)>,
) -> Result<()> {
    inside
        .run_pod("polls", &["poll", "http://web/"], Some(&on.name))
        .await?;
    inside.wait_phase("polls", "Running").await?;
    let answers = async || inside.kubectl(&["logs", "polls"]).await;
    let are_many = |answers: &String| answers.lines().count() > 10;
    eventually("answers of the Service", POD_LIMIT, answers, are_many).await?;
    inside.kubectl(&["rollout", "restart", "deployment/web"]).await?;
    inside
        .kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])
        .await?;
    // Terminating Pods still answer for a while.
    let list = async || list_web(inside).await;
    let are_gone = |pods: &BTreeSet<_>| pods.is_disjoint(before);
    eventually("the previous Pods to be gone", POD_LIMIT, list, are_gone).await?;
    let after: BTreeSet<_> = list_web(inside).await?.into_iter().map(|(pod, _)| pod).collect();
    let is_complete = |answers: &String| after.iter().all(|pod| answers.lines().any(|line| line == pod));
    eventually("each new Pod to answer", POD_LIMIT, answers, is_complete).await?;
    let answers = answers().await?;
    let failures: Vec<_> = answers.lines().filter(|line| !line.starts_with("web-")).collect();
    ensure!(failures.is_empty(), "requests failed: {failures:?}");
    inside.kubectl(&["delete", "pod", "polls", "--now"]).await.map(drop)
}

/// Kills a worker. The Deployment's Pods soon run on the other worker.
async fn kill_worker(inside: Workload<'_>, lost: &Worker, left: &Worker) -> Result<()> {
    let before = list_web(inside).await?;
    ensure!(before.iter().any(|(_, node)| *node == lost.name), "{before:?}");
    lost.kill().await?;
    let on_left = format!("--field-selector=spec.nodeName={}", left.name);
    let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    wait_until("the Pods to be elsewhere", LOST_LIMIT, async || {
        let found = ["get", "pods", "-l", "app=web", &on_left, "-o", ready];
        let ready = inside.kubectl(&found).await?;
        ensure!(
            ready.split(' ').filter(|ready| *ready == "True").count() == before.len(),
            "{ready}"
        );
        Ok(true)
    })
    .await
}

async fn delete_objects(inside: Workload<'_>) -> Result<()> {
    let objects = [
        "deployment/web",
        "service/web",
        "rolebinding/sees",
        "pod/asks-one",
        "pod/asks-two",
    ];
    for what in [&objects[..], &["pods", "-l", "app=web"]] {
        let delete = ["delete", "--force", "--grace-period=0"].iter().chain(what);
        inside.kubectl(&delete.copied().collect::<Vec<_>>()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_token_admits_no_worker_elsewhere_or_later() -> Result<()> {
    let stack = Stack::connect().await?;
    let (key, demo) = (Key::generate().await?, stack.dir.join("ssh/demo"));
    let tenant = TenantFixture::create_with(&stack, "tokens", key.to_spec()).await?;
    tenant.ready_cluster("a").await?;
    let join = async |key: &Path, cluster: &str| -> Result<[String; 3]> {
        let said = ssh(&stack, key, &format!("join {cluster} --json")).await?.ok()?;
        let said: Value = serde_json::from_str(&said)?;
        let text = |field: &str| {
            said[field]
                .as_str()
                .map(str::to_owned)
                .with_context(|| field.to_owned())
        };
        Ok([text("name")?, text("token")?, text("line")?])
    };
    let [name, token, line] = join(&key.path, "a").await?;
    // A token of another Tenant.
    let [foreign_name, foreign, _] = join(&demo, "demo").await?;
    let forged = JoinLine {
        token: JoinLine::parse(&foreign)?.token,
        ..JoinLine::parse(&token)?
    };
    let forged = line.replace(&token, &forged.encode()?);
    expect_join_refused(&stack, &key.path, "a", "the token of another Tenant's cluster", &forged).await?;
    for (key, name) in [(&key.path, name), (&demo, foreign_name)] {
        ssh(&stack, key, &format!("revoke {name}")).await?.ok()?;
    }
    expect_join_refused(&stack, &key.path, "a", "a token that was revoked", &line).await?;
    tenant.remove().await
}

/// Expects that the API refuses the join command's token, which tells the worker nothing more.
async fn expect_join_refused(stack: &Stack, key: &Path, cluster: &str, rule: &str, line: &str) -> Result<()> {
    let refusal = try_to_join(stack, key, cluster, Some(line)).await?;
    ensure!(refusal.code == Some(1), "{rule}: {refusal:?}");
    let refusal = refusal.refused()?;
    ensure!(refusal.contains("rejected this machine"), "{rule}: {refusal}");
    Ok(())
}
