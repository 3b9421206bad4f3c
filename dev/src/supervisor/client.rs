//! Client of the daemon; also starts the daemon.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::{Reply, Request, Service, ServiceStatus};
use crate::command::tail;
use crate::host_cluster::node::Node;
use crate::layout::Layout;

const REPLY_LIMIT: Duration = Duration::from_secs(180);
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(150);
const LOG_LINES: usize = 15;
/// Number of restarts after which a service counts as crash-looping, and waiting for it ends.
const CRASH_LOOP: u32 = 6;

/// Sends one request to the daemon and returns the reply.
pub async fn request(layout: &Layout, message: &Request) -> Result<Reply> {
    let exchange = async {
        let stream = UnixStream::connect(layout.control_socket()).await?;
        let (reader, mut writer) = stream.into_split();
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        writer.write_all(&line).await?;
        let mut answer = String::new();
        BufReader::new(reader).read_line(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(REPLY_LIMIT, exchange)
        .await
        .context("the supervisor does not answer")?
        .context("sending a request to the supervisor")?;
    match serde_json::from_str(&answer).context("parsing the supervisor's reply")? {
        Reply::Refused(reason) => bail!("{reason}"),
        reply => Ok(reply),
    }
}

/// Every service of the daemon, with health checks. `None` if no daemon runs.
pub async fn status(layout: &Layout) -> Option<Vec<ServiceStatus>> {
    request_status(layout, true).await
}

/// Every service of the daemon, without health checks. `None` if no daemon runs.
pub async fn processes(layout: &Layout) -> Option<Vec<ServiceStatus>> {
    request_status(layout, false).await
}

async fn request_status(layout: &Layout, probe: bool) -> Option<Vec<ServiceStatus>> {
    match request(layout, &Request::Status { probe }).await {
        Ok(Reply::Status(services)) => Some(services),
        _ => None,
    }
}

/// Starts the daemon of a node in the node's namespace. With `replace`, a running daemon hands over
/// first.
pub async fn start_daemon(node: &Node, replace: bool) -> Result<()> {
    let layout = &node.layout;
    let running = processes(layout).await.is_some();
    if running && !replace {
        return Ok(());
    }
    if running {
        request(layout, &Request::HandOver)
            .await
            .context("handing over to a new supervisor")?;
    }
    // The daemon must not inherit the pipes of this command, or this command would wait for it.
    let script = r#"exec setsid --fork "$0" supervise --node "$2" >>"$1" 2>&1 </dev/null"#;
    node.enter("sh")
        .args(["-c", script])
        .arg(layout.binary("yoke-dev"))
        .arg(layout.log().join("supervisor.log"))
        .arg(node.number.to_string())
        .dir(layout.root())
        .run()
        .await
        .context("starting the supervisor")?;
    let deadline = Instant::now() + START_LIMIT;
    while processes(layout).await.is_none() {
        if Instant::now() > deadline {
            bail!(
                "the supervisor does not answer\n{}",
                log_tail(&layout.log().join("supervisor.log"))
            );
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Makes the daemon run a service.
pub async fn run_service(layout: &Layout, service: Service) -> Result<()> {
    let name = service.name.clone();
    request(layout, &Request::Keep(Box::new(service)))
        .await
        .with_context(|| format!("starting {name}"))?;
    Ok(())
}

/// Waits until a service is healthy.
pub async fn wait_healthy(layout: &Layout, name: &str, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut first_restarts: Option<u32> = None;
    loop {
        let services = status(layout).await.context("the supervisor does not answer")?;
        let Some(service) = services.into_iter().find(|service| service.name == name) else {
            bail!("the supervisor has no service {name}");
        };
        let Some(problem) = service.problem else { return Ok(()) };
        let restarts = service
            .restarts
            .saturating_sub(*first_restarts.get_or_insert(service.restarts));
        if restarts >= CRASH_LOOP {
            bail!(
                "{name} is crash-looping, with {restarts} restarts: {problem}\n{}",
                log_tail(&service.log)
            );
        }
        if Instant::now() > deadline {
            bail!(
                "{name} is not healthy after {limit:?}: {problem}\n{}",
                log_tail(&service.log)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Last lines of a log, and its path.
pub fn log_tail(log: &Path) -> String {
    let text = std::fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    format!("{}\n  log: {}", tail(&text, LOG_LINES), log.display())
}
