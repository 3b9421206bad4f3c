//! NATS servers that accept messages of at most one megabyte, NATS' own default.

use crate::harness::{Kine, Nats, eventually};

const SMALL: &str = "max_payload: 1MB";
const REFUSAL: &str = "accepts messages of at most 1048576 bytes; set its max_payload to at least 2 MiB";

async fn ends(kine: &mut Kine) {
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    assert!(!status.success() && kine.log().contains(REFUSAL), "{}", kine.log());
}

#[tokio::test]
async fn a_server_with_a_small_payload_limit_is_rejected_at_the_start() {
    let nats = Nats::start_with(SMALL.to_owned()).await;
    ends(&mut Kine::spawn(&nats, "small", &[])).await;
}

#[tokio::test]
async fn a_server_with_a_lowered_payload_limit_is_rejected_on_reconnect() {
    let mut nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "less", &[]).await;
    let mut client = kine.client().await;
    client.put("/a", b"1").await.unwrap();
    nats.kill();
    nats.restart().await;
    eventually("a put to be acknowledged again", || {
        let mut client = client.clone();
        async move { client.put("/a", b"2").await.ok() }
    })
    .await;
    assert!(kine.exited().is_none(), "{}", kine.log());

    nats.kill();
    nats.set_config(SMALL);
    nats.restart().await;
    ends(&mut kine).await;
    nats.kill();
    nats.set_config("");
    nats.restart().await;
    kine.restart().await;
    assert_eq!(client.get("/a").await.unwrap().value.as_ref(), b"2");
}
