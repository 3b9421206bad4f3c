//! Writes wake requests to the status of Clusters. An adapter, and the only writer of Clusters in
//! this crate: it applies one field with its own field manager.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use yoke_api::sleep::ActivityStatus;
use yoke_api::{Cluster, GROUP, Lenient, VERSION};

use super::WakeRequest;
use crate::metrics::Metrics;
use crate::model::observation::to_chain;

/// Field manager that owns the written field.
pub const FIELD_MANAGER: &str = "yoke-ingress-xds";
/// Concurrent writes: one that hangs delays few others.
const AT_ONCE: usize = 16;
/// Timeout of one write: less than the process still runs after the activator has ended.
const LIMIT: Duration = Duration::from_secs(4);

/// Server-side apply of one field of a Cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WakePatch {
    api_version: String,
    kind: &'static str,
    metadata: WakeMetadata,
    status: WakeStatus,
}

#[derive(Debug, Serialize)]
struct WakeMetadata {
    name: String,
    /// The API server rejects the patch for another Cluster of this name.
    uid: String,
}

#[derive(Debug, Serialize)]
struct WakeStatus {
    activity: ActivityStatus,
}

/// Writes until all senders are dropped. Failures are logged: a client that still needs the cluster
/// repeats its request.
pub async fn write_wakes(client: Client, requests: mpsc::Receiver<WakeRequest>, metrics: Metrics) {
    let requests = ReceiverStream::new(requests);
    let writing = requests.for_each_concurrent(AT_ONCE, |wake| {
        let (client, metrics) = (client.clone(), metrics.clone());
        async move {
            let (namespace, cluster) = (wake.tenant.clone(), wake.cluster.clone());
            let written = tokio::time::timeout(LIMIT, write(client, wake)).await;
            let problem = match written {
                Ok(Err(error)) if !is_done(&error) => Some(to_chain(&error)),
                Ok(_) => None,
                Err(_) => Some(format!("no answer from the API server within {LIMIT:?}")),
            };
            metrics.count_wake_write(problem.is_none());
            match problem {
                None => tracing::info!(namespace, cluster, "wake request written to the Cluster"),
                Some(error) => tracing::warn!(
                    namespace,
                    cluster,
                    error,
                    "writing the wake request of a Cluster failed"
                ),
            }
        }
    });
    writing.await;
}

async fn write(client: Client, wake: WakeRequest) -> Result<(), kube::Error> {
    let api = Api::<Lenient<Cluster>>::namespaced(client, &wake.tenant);
    let cluster = wake.cluster.clone();
    // No other component writes this field, so `force` takes it back from a field manager that got
    // it by mistake.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let written = api
        .patch_status(&cluster, &params, &Patch::Apply(build_patch(wake)))
        .await;
    written.map(|_| ())
}

/// Whether nothing is left to do: the Cluster is deleted, is another object, or another replica has
/// woken it later than this.
fn is_done(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409 | 422))
}

fn build_patch(wake: WakeRequest) -> WakePatch {
    WakePatch {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "Cluster",
        metadata: WakeMetadata {
            name: wake.cluster,
            uid: wake.uid,
        },
        status: WakeStatus {
            activity: ActivityStatus {
                wake_requested_time: Some(wake.time),
                ..ActivityStatus::default()
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn one_field_of_one_object_is_written() {
        let patch = build_patch(WakeRequest {
            tenant: "t".into(),
            cluster: "a".into(),
            uid: "u-1".into(),
            time: Time("2026-01-01T00:00:00Z".parse().unwrap()),
        });
        let expected = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a", "uid": "u-1"},
            "status": {"activity": {"wakeRequestedTime": "2026-01-01T00:00:00Z"}}});
        assert_eq!(serde_json::to_value(patch).unwrap(), expected);
    }

    #[test]
    fn some_errors_mean_that_nothing_is_left_to_do() {
        for (rule, code, expected) in [
            ("gone", 404, true),
            ("another of its name", 409, true),
            ("woken later than that", 422, true),
            ("no right to", 403, false),
            ("too many requests", 429, false),
            ("broken", 500, false),
        ] {
            let status = Status::failure("no", "No").with_code(code);
            assert_eq!(is_done(&kube::Error::Api(status.boxed())), expected, "{rule}");
        }
    }
}
