//! Two operators with one leader: the standby takes over from a leader that does not answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use yoke_e2e::victim::signal;
use yoke_e2e::{Expected, Stack, TenantFixture, network, operators, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const STOPPED: [Expected; 2] = {
    const fn expected(says: &'static str) -> Expected {
        let because = "it was stopped until the other one was the leader, and its requests timed out";
        Expected { says, because }
    }
    [
        expected("exiting: another operator is the leader"),
        expected("reconcile failed"),
    ]
};

#[tokio::test]
async fn standby_operator_takes_over_from_a_stopped_leader() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "operators").await?.expecting(&STOPPED);
    operators::change(&stack, &json!({"spec": {"replicas": 2}})).await?;
    let taken = take_over(&stack, &tenant).await;
    // Restore one replica whatever the result, because other tests rely on it.
    operators::change(&stack, &json!({"spec": {"replicas": 1}})).await?;
    println!("the standby is the leader after {:?}", taken?);
    wait_for("the remaining operator to be the leader", LIMIT, || async {
        let now = operators::acting(&stack).await?;
        Ok(now.metadata.deletion_timestamp.is_none().then_some(()))
    })
    .await?;
    tenant.remove().await
}

/// Returns the time until the standby is the leader.
async fn take_over(stack: &Stack, tenant: &TenantFixture) -> Result<Duration> {
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), operators::NAMESPACE);
    let first = operators::acting(stack).await?;
    let pid = network::container_pid(stack, &first, "operator").await?;
    signal(pid, "STOP").await?;
    let stopped = Instant::now();
    let next = wait_for("the standby to be the leader", LIMIT, || async {
        let now = operators::acting(stack).await?.name_any();
        Ok((now != first.name_any()).then_some(now))
    })
    .await;
    let after = stopped.elapsed();
    signal(pid, "CONT").await?;
    let next = next?;
    // The stopped process would continue its work. It exits as soon as it sees the new leader.
    wait_for("the first operator's process to exit", LIMIT, || async {
        let first = pods.get(&first.name_any()).await?;
        let now = network::container_pid(stack, &first, "operator").await;
        Ok(now.is_ok_and(|now| now != pid).then_some(()))
    })
    .await?;
    tenant.ready_cluster("a").await?;
    let now = operators::acting(stack).await?.name_any();
    ensure!(now == next, "the first operator is the leader again");
    Ok(after)
}
