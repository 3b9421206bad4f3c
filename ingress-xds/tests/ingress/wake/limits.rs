//! The rate of wakes is limited.

use http::StatusCode;
use yoke_api::ingress::Callers;
use yoke_runtime::budget::Rate;

use super::{Night, on_connect, told};
use crate::support::client::{BOTH, get};

const NONE: Rate = Rate {
    per_second: 0,
    burst: 0,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_over_its_wake_rate_gets_retry_after() {
    let night = Night::at(on_connect(Callers::Authenticated), |site| site.wakes.tenant = NONE).await;
    for http in BOTH {
        let answer = night.ask(&night.admin(), http, None).await;
        assert_eq!(told(&answer), (StatusCode::TOO_MANY_REQUESTS, Some("1")), "{http:?}");
        let mut pod = night.stage.client(http).await;
        let answer = pod.ask(get(Some(&night.stage.bearer(0)))).await.unwrap();
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("1")), "{http:?}");
    }
    let outcomes = "yoke_ingress_xds_wakes_total{outcome=\"tenant_rate\"}";
    assert_eq!(night.stage.xds().metric(outcomes), 4);
    assert!(!night.stage.xds().has_woken().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_over_its_wake_rate_blocks_no_other() {
    let night = Night::at(on_connect(Callers::Authenticated), |site| site.wakes.source = NONE).await;
    for http in BOTH {
        let mut pod = night.stage.client(http).await;
        let answer = pod.ask(get(Some(&night.stage.bearer(0)))).await.unwrap();
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("1")), "{http:?}");
    }
    let outcomes = "yoke_ingress_xds_wakes_total{outcome=\"source_rate\"}";
    assert_eq!(night.stage.xds().metric(outcomes), 2);
    assert!(!night.stage.xds().has_woken().await);
    // The source address of a passed-through connection is unknown.
    let admin = night.admin();
    let (_, wake) = tokio::join!(night.ask(&admin, BOTH[0], None), night.stage.xds().wake());
    assert_eq!(wake.cluster, "a");
}
