//! The connection to NATS, and the names of the streams and subjects of a store.

use anyhow::{Context, bail};
use async_nats::{Client, ConnectOptions, Event};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Smallest usable payload limit: a record holds a request of 1.5 MiB and the others of its batch.
const MIN_PAYLOAD: usize = 2 << 20;

/// Connection to NATS, and the streams of one store.
#[derive(Debug, Clone, clap::Args)]
pub struct NatsArgs {
    /// NATS servers: nats://host:port, or tls://host:port to require encryption. May be repeated,
    /// or given as a comma-separated list.
    #[arg(
        long,
        value_name = "URL",
        required = true,
        env = "KINE_NATS_NATS",
        value_delimiter = ','
    )]
    pub nats: Vec<String>,
    /// File with the JWT and the seed of the NATS user.
    #[arg(long, value_name = "FILE", env = "KINE_NATS_CREDS")]
    pub creds: Option<PathBuf>,
    /// File with the CA certificates that NATS servers are verified against, instead of the
    /// system's.
    #[arg(long, value_name = "FILE", env = "KINE_NATS_CA")]
    pub nats_ca: Option<PathBuf>,
    /// Stream that holds the log: KINE_<id>. Its snapshots are in KINE_SNAP_<id>.
    #[arg(long, value_name = "NAME", env = "KINE_NATS_STREAM")]
    pub stream: StreamName,
    /// Store every other snapshot in a second stream, KINE_SPARE_<id>. With one NATS server, a
    /// single corrupt file then never affects both snapshots. Set it on all processes of a stream
    /// and on the repair command, or on none.
    #[arg(long, env = "KINE_NATS_SPARE")]
    pub spare: bool,
}

/// Name of the stream that holds the log, `KINE_<id>`. The names of all other streams and subjects
/// derive from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamName {
    id: String,
}

impl StreamName {
    /// Name of the log's stream.
    pub fn log(&self) -> String {
        format!("KINE_{}", self.id)
    }

    /// The only subject of the log.
    pub fn log_subject(&self) -> String {
        format!("kine.{}.log", self.id)
    }

    /// Name of the stream for snapshots.
    pub fn snapshots(&self) -> String {
        format!("KINE_SNAP_{}", self.id)
    }

    /// Prefix of the subjects in the stream for snapshots.
    pub fn snapshot_subject(&self) -> String {
        format!("kine.{}.snap", self.id)
    }

    /// Name of the stream for every other snapshot.
    pub fn spare(&self) -> String {
        format!("KINE_SPARE_{}", self.id)
    }

    /// Prefix of the subjects in the stream for every other snapshot.
    pub fn spare_subject(&self) -> String {
        format!("kine.{}.spare", self.id)
    }

    /// Prefix of the subjects on which the processes of the store talk to each other.
    pub fn peers_subject(&self) -> String {
        format!("kine.{}.rpc", self.id)
    }

    /// Prefix of the inboxes for replies.
    pub fn inbox(&self) -> String {
        format!("_INBOX_{}", self.id)
    }
}

impl FromStr for StreamName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.strip_prefix("KINE_").unwrap_or_default();
        let valid =
            !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if valid {
            Ok(Self { id: id.to_owned() })
        } else {
            Err("use KINE_<id>, with an id of at most 64 letters, digits and dashes".into())
        }
    }
}

/// Reconnect delay. It is short at first, so that a restarted server is found at once, and long
/// later, so that failures do not fill the logs.
fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0..100 => Duration::from_millis((attempts as u64 * 20).min(300)),
        _ => Duration::from_secs(2),
    }
}

/// Connects, and waits without a timeout for the first response. The returned `Notify` signals each
/// new connection.
pub(crate) async fn connect(args: &NatsArgs) -> anyhow::Result<(Client, Arc<Notify>)> {
    let connected = Arc::new(Notify::new());
    let notify = Arc::clone(&connected);
    let mut options = ConnectOptions::new()
        .name("kine-nats")
        .custom_inbox_prefix(args.stream.inbox())
        .retry_on_initial_connect()
        .ping_interval(Duration::from_secs(5))
        .connection_timeout(Duration::from_secs(3))
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            let notify = Arc::clone(&notify);
            async move {
                match event {
                    Event::Connected => {
                        tracing::info!("Connected to NATS");
                        notify.notify_one();
                    }
                    Event::Disconnected => tracing::warn!("Disconnected from NATS"),
                    other => tracing::debug!(event = %other, "NATS"),
                }
            }
        });
    if let Some(ca) = &args.nats_ca {
        options = options.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some(creds) = &args.creds {
        options = options
            .credentials_file(creds)
            .await
            .with_context(|| format!("read {}", creds.display()))?;
    }
    let client = options.connect(args.nats.clone()).await.context("connect to NATS")?;
    while client.try_server_info().is_none() || client.server_info().max_payload == 0 {
        sleep(Duration::from_millis(2)).await;
    }
    check(&client)?;
    Ok((client, connected))
}

/// Returns an error when a server of a later connection does not fit the requirements.
pub(crate) async fn until_unfit(client: &Client, connected: &Notify) -> anyhow::Error {
    loop {
        connected.notified().await;
        // A flush completes only after the server has sent its info.
        let _ = client.flush().await;
        if let Err(error) = check(client) {
            return error;
        }
    }
}

fn check(client: &Client) -> anyhow::Result<()> {
    let payload = client.server_info().max_payload;
    if payload < MIN_PAYLOAD {
        bail!("the NATS server accepts messages of at most {payload} bytes; set its max_payload to at least 2 MiB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_names_are_parsed() {
        let name: StreamName = "KINE_ab12-c".parse().unwrap();
        assert_eq!(
            (name.log(), name.snapshots()),
            ("KINE_ab12-c".into(), "KINE_SNAP_ab12-c".into())
        );
        assert_eq!(
            (name.log_subject(), name.snapshot_subject()),
            ("kine.ab12-c.log".into(), "kine.ab12-c.snap".into())
        );
        for bad in ["KINE_", "kine_a", "KINE_a.b", "KINE_a>", "KINE_a b"] {
            assert!(bad.parse::<StreamName>().is_err(), "{bad}");
        }
    }
}
