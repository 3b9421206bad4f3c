//! The table of attacks. The attacker can reach the ingress, with or without a Pod of one cluster,
//! and attacks another cluster or the ingress itself. One real Envoy and two clusters take all rows
//! in turn, and are unchanged afterwards. There are 226 rows: 59 of tokens, 43 of bytes, 60 of
//! frames, 46 of hellos, and 18 of certificates that a tenant requests from its own CA.
//!
//! Attacks that an ordinary client library can send are in `terminated::attacks`; these are the
//! ones that no library sends.

mod frames;
mod hellos;
mod requests;
mod tokens;
mod wire;

use futures::{StreamExt as _, stream};

use crate::support::client::{BOTH, Client, Http, get};
use crate::terminated::{Stage, assert_alive, watch};

/// Total number of rows, so that none is lost unnoticed.
const ROWS: usize = 226;
/// Number of concurrent rows; some take a second until Envoy closes the connection.
const AT_ONCE: usize = 16;

/// Runs independent rows concurrently, and returns their failures.
async fn at_once(rows: impl Iterator<Item = impl Future<Output = Option<String>>>) -> Vec<String> {
    let rows = stream::iter(rows).buffer_unordered(AT_ONCE);
    rows.filter_map(async |wrong| wrong).collect().await
}

/// Both clusters answer their own clients, on both ways, and no request has reached another server
/// meanwhile.
async fn assert_unharmed(rule: &str, stage: &Stage) {
    for (index, own) in ["a", "b"].into_iter().enumerate() {
        let bearer = stage.bearer(index);
        for http in BOTH {
            let answer = stage.client(http).await.ask(get(Some(&bearer))).await.unwrap();
            assert_eq!(answer.body["cluster"], own, "after {rule}: {answer:?}");
        }
        let name = stage.clusters[index].public_name();
        let config = stage.root.client(None);
        let client = Client::connect(stage.envoy.ingress, &name, &config, Http::Two).await;
        let answer = client.unwrap().ask(get(None)).await.unwrap();
        assert_eq!(answer.body["cluster"], own, "after {rule}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attacks_reach_no_other_cluster() {
    let stage = Stage::with(&[], |_| {}).await;
    let bearer = stage.bearer(1);
    let mut client = stage.client(Http::Two).await;
    let mut neighbour = watch(&mut client, &bearer).await;
    let mut failed = Vec::new();
    let tokens = tokens::run(&stage).await;
    assert_unharmed("tokens", &stage).await;
    let wire = wire::run(&stage, &mut failed).await;
    assert_unharmed("bytes", &stage).await;
    let frames = frames::run(&stage, &mut failed).await;
    assert_unharmed("frames", &stage).await;
    let hellos = hellos::run(&stage, &mut failed).await;
    assert_unharmed("hellos", &stage).await;
    let requests = requests::run(&stage, &mut failed).await;
    assert_unharmed("certificates that were asked for", &stage).await;
    let rows = [tokens, wire, frames, hellos, requests];
    assert_eq!(rows.iter().sum::<usize>(), ROWS, "{rows:?}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_alive("a neighbour did not notice", &mut neighbour).await;
    let refused = "yoke_ingress_xds_refused_responses_total{type=\"cluster\"}";
    assert_eq!(stage.xds().metric(refused), 0);
}
