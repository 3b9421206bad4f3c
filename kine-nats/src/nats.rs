//! The connection to NATS.

use crate::args::NatsArgs;
use anyhow::{Context, bail};
use async_nats::{Client, ConnectOptions, Event};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Smallest usable payload limit: a record holds a request of 1.5 MiB and the others of its batch.
const MIN_PAYLOAD: usize = 2 << 20;

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
    let made = Arc::new(Notify::new());
    let say = Arc::clone(&made);
    let mut options = ConnectOptions::new()
        .name("kine-nats")
        .custom_inbox_prefix(args.stream.inbox())
        .retry_on_initial_connect()
        .ping_interval(Duration::from_secs(5))
        .connection_timeout(Duration::from_secs(3))
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            let say = Arc::clone(&say);
            async move {
                match event {
                    Event::Connected => {
                        tracing::info!("Connected to NATS");
                        say.notify_one();
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
    Ok((client, made))
}

/// Returns an error when a server of a later connection does not fit the requirements.
pub(crate) async fn until_unfit(client: &Client, made: &Notify) -> anyhow::Error {
    loop {
        made.notified().await;
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
        bail!("the NATS server takes messages of {payload} bytes; set its max_payload to at least 2 MiB");
    }
    Ok(())
}
