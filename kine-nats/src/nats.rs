//! The connection to NATS.

use crate::args::NatsArgs;
use anyhow::{Context, bail};
use async_nats::{Client, ConnectOptions, Event};
use std::time::Duration;
use tokio::time::sleep;

/// A record holds a request of 1.5 MiB and what shares its batch.
const MIN_PAYLOAD: usize = 2 << 20;

/// Quick at first, so that a restarted server is found at once; slow when it lasts, so that refusals do not fill logs.
fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0..100 => Duration::from_millis((attempts as u64 * 20).min(300)),
        _ => Duration::from_secs(2),
    }
}

/// Connects, and waits for the first answer for as long as it takes.
pub(crate) async fn connect(args: &NatsArgs) -> anyhow::Result<Client> {
    let mut options = ConnectOptions::new()
        .name("kine-nats")
        .custom_inbox_prefix(args.stream.inbox())
        .retry_on_initial_connect()
        .ping_interval(Duration::from_secs(5))
        .connection_timeout(Duration::from_secs(3))
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(|event| async move {
            match event {
                Event::Connected => tracing::info!("Connected to NATS"),
                Event::Disconnected => tracing::warn!("Disconnected from NATS"),
                other => tracing::debug!(event = %other, "NATS"),
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
    let payload = client.server_info().max_payload;
    if payload < MIN_PAYLOAD {
        bail!("the NATS server takes messages of {payload} bytes; set its max_payload to at least 2 MiB");
    }
    Ok(client)
}
