use super::*;

const GRACE: Duration = Duration::from_secs(5);

async fn never() {
    std::future::pending::<()>().await;
}

/// A stop signal that completes once, immediately.
fn once() -> impl AsyncFnMut() {
    let mut calls = 0;
    async move || {
        calls += 1;
        if calls > 1 {
            never().await;
        }
    }
}

async fn good(drain: Drain) -> Result<(), TaskError> {
    drain.started().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn stop_drains_and_joins() {
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn("one", good(supervisor.drain()));
    supervisor.spawn("two", good(supervisor.drain()));
    assert!(supervisor.run_until(once()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dead_task_ends_the_process_and_drains_the_others() {
    let (told, heard) = tokio::sync::oneshot::channel();
    let mut supervisor = Supervisor::new(GRACE);
    let drain = supervisor.drain();
    supervisor.spawn("listener", async { Ok::<_, TaskError>(()) });
    supervisor.spawn("other", async move {
        drain.started().await;
        told.send(()).unwrap();
        Ok::<_, TaskError>(())
    });
    let result = supervisor.run_until(async || never().await).await;
    assert!(matches!(result, Err(SuperviseError::Ended { task: "listener" })));
    heard.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_task_is_named_with_its_error() {
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn("store", async { Err(anyhow::anyhow!("fenced")) });
    match supervisor.run_until(async || never().await).await {
        Err(SuperviseError::Failed { task: "store", source }) => assert_eq!(source.to_string(), "fenced"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn panic_is_named() {
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn::<_, TaskError>("store", async { panic!("own invariant") });
    let result = supervisor.run_until(async || never().await).await;
    assert!(matches!(result, Err(SuperviseError::Panicked { task: "store", .. })));
}

#[tokio::test(start_paused = true)]
async fn background_task_that_ends_is_dead_too() {
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn_background("endpoint", async { Ok::<_, TaskError>(()) });
    supervisor.spawn("other", good(supervisor.drain()));
    let result = supervisor.run_until(async || never().await).await;
    assert!(matches!(result, Err(SuperviseError::Ended { task: "endpoint" })));
}

#[tokio::test(start_paused = true)]
async fn background_task_is_cut_off_last() {
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn_background("endpoint", async {
        never().await;
        Ok::<_, TaskError>(())
    });
    supervisor.spawn("other", good(supervisor.drain()));
    assert!(supervisor.run_until(once()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn grace_period_has_an_end() {
    let started = tokio::time::Instant::now();
    let mut supervisor = Supervisor::new(GRACE);
    for name in ["slow", "deaf"] {
        supervisor.spawn(name, async {
            never().await;
            Ok::<_, TaskError>(())
        });
    }
    let result = supervisor.run_until(once()).await;
    assert!(matches!(result, Err(SuperviseError::Unfinished { tasks, .. }) if tasks == ["deaf", "slow"]));
    assert_eq!(started.elapsed(), GRACE);
}

#[tokio::test(start_paused = true)]
async fn second_stop_cuts_the_grace_period() {
    let started = tokio::time::Instant::now();
    let mut supervisor = Supervisor::new(GRACE);
    supervisor.spawn("deaf", async {
        never().await;
        Ok::<_, TaskError>(())
    });
    let result = supervisor.run_until(async || ()).await;
    assert!(matches!(result, Err(SuperviseError::Unfinished { .. })));
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn failure_while_draining_is_an_error() {
    let mut supervisor = Supervisor::new(GRACE);
    let drain = supervisor.drain();
    supervisor.spawn("writer", async move {
        drain.started().await;
        Err(anyhow::anyhow!("resign was not stored"))
    });
    let result = supervisor.run_until(once()).await;
    assert!(matches!(result, Err(SuperviseError::Failed { task: "writer", .. })));
}
