//! The endpoints of `default/kubernetes` in a cluster are restored after a change, with a real API.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::Host;
use crate::readiness::{ready, run_pod};

/// The ingress's address and port in the tests' configuration.
const INGRESS: (&str, i32) = ("100.64.0.2", 443);

/// Timeout of a watch event.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns addresses and ports of `default/kubernetes`, from its EndpointSlice and its Endpoints.
async fn read_addresses(client: &Client) -> (Value, Value) {
    let slice = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    let endpoints = Api::<Endpoints>::namespaced(client.clone(), "default");
    let slice = json!(slice.get_opt("kubernetes").await.unwrap());
    let endpoints = json!(endpoints.get_opt("kubernetes").await.unwrap());
    let ports = |ports: &Value| {
        let pair = |port: &Value| json!([port["name"], port["port"]]);
        ports.as_array().into_iter().flatten().map(pair).collect::<Value>()
    };
    let (ends, subset) = (&slice["endpoints"], &endpoints["subsets"][0]);
    (
        json!([slice["addressType"], ends[0]["addresses"], ports(&slice["ports"])]),
        json!([subset["addresses"][0]["ip"], ports(&subset["ports"])]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_api_addresses_are_restored() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let (_process, client) = host.start_tenant_api("a").await;
    run_pod(&host, "a").await;
    host.reconcile_until_ready("a").await;
    let (address, port) = INGRESS;
    let expected = (
        json!(["IPv4", [address], [["https", port]]]),
        json!([address, [["https", port]]]),
    );
    assert_eq!(read_addresses(&client).await, expected);

    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    let endpoints = Api::<Endpoints>::namespaced(client.clone(), "default");
    for change in ["an EndpointSlice of another family", "edited Endpoints"] {
        if change == "edited Endpoints" {
            let patch = json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]});
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            endpoints.patch("kubernetes", &params, &patch).await.unwrap();
        } else {
            slices.delete("kubernetes", &Default::default()).await.unwrap();
            let slice = json!({"metadata": {"name": "kubernetes"}, "addressType": "IPv6",
                "endpoints": [{"addresses": ["2001:db8::1"]}]});
            let slice = serde_json::from_value(slice).unwrap();
            slices.create(&PostParams::default(), &slice).await.unwrap();
        }
        assert_ne!(read_addresses(&client).await, expected, "{change}");
        let requeued = tokio::time::timeout(LIMIT, host.requeued.next()).await;
        let requeued = requeued.unwrap_or_else(|_| panic!("{change}: the Cluster is not requeued"));
        assert_eq!(requeued.unwrap().name, "a", "{change}");
        host.reconcile("a").await.unwrap();
        assert_eq!(read_addresses(&client).await, expected, "{change}");
        assert_eq!(ready(&host).await, "True/AsExpected", "{change}");
    }
}
