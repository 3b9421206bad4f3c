//! Two operators, of which one acts: the other takes over from one that fell silent.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use yoke_e2e::victim::signal;
use yoke_e2e::{Expected, Stack, TenantFixture, network, wait_for};

const NAMESPACE: &str = "yoke-system";
const OPERATOR: &str = "yoke-operator";
const LIMIT: Duration = Duration::from_secs(60);
/// What a Lease says is 10 s, and it is looked at each second.
const TAKEN_OVER: Duration = Duration::from_secs(15);
const ENDS: Expected = Expected {
    says: "this operator ends",
    because: "it was stopped until the other one acted",
};

async fn scale(stack: &Stack, replicas: u32) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "-n", NAMESPACE, "deployment", OPERATOR, &replicas];
    stack.host_kubectl(&scale).await?.ok()?;
    let rollout = [
        "rollout",
        "status",
        "-n",
        NAMESPACE,
        "deployment",
        OPERATOR,
        "--timeout=60s",
    ];
    stack.host_kubectl(&rollout).await?.ok().map(drop)
}

/// The pod that acts.
async fn acting(stack: &Stack) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(stack.host.clone(), NAMESPACE);
    let spec = leases.get(OPERATOR).await?.spec.context("a Lease that says nothing")?;
    spec.holder_identity.context("nobody holds the Lease")
}

#[tokio::test]
async fn another_operator_takes_over_from_one_that_fell_silent() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "operators").await?.expecting(&[ENDS]);
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), NAMESPACE);
    scale(&stack, 2).await?;
    let taken = take_over(&stack, &pods, &tenant).await;
    // Whatever came of it: other tests take for granted that there is one.
    scale(&stack, 1).await?;
    println!("the other operator acts after {:?}", taken?);
    wait_for("the operator that is left to act", LIMIT, || async {
        let now = pods.get_opt(&acting(&stack).await?).await?;
        Ok(now.filter(|pod| pod.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    tenant.remove().await
}

/// How long it takes until the other one acts.
async fn take_over(stack: &Stack, pods: &Api<Pod>, tenant: &TenantFixture) -> Result<Duration> {
    let first = acting(stack).await?;
    let pid = network::container_pid(stack, &pods.get(&first).await?, "operator").await?;
    signal(pid, "STOP").await?;
    let stopped = Instant::now();
    let next = wait_for("the other operator to act", LIMIT, || async {
        let now = acting(stack).await?;
        Ok((now != first).then_some(now))
    })
    .await;
    let after = stopped.elapsed();
    signal(pid, "CONT").await?;
    let next = next?;
    ensure!(after <= TAKEN_OVER, "it took {after:?}");
    // The first one would go on with what it was at: it ends as soon as it hears of the other.
    wait_for("the first operator's process to end", LIMIT, || async {
        let now = network::container_pid(stack, &pods.get(&first).await?, "operator").await;
        Ok(now.is_ok_and(|now| now != pid).then_some(()))
    })
    .await?;
    tenant.ready_cluster("a").await?;
    ensure!(acting(stack).await? == next, "the first one took over again");
    Ok(after)
}
