//! Executes one command with the permissions of a Tenant. The answer is returned as text; progress
//! is sent while it runs.

use jiff::Timestamp;
use yoke_api::cluster::{DesiredState, StorageSpec};
use yoke_api::join_token::node::{check_taints, collect_labels};
use yoke_api::{Cluster, ClusterSpec, JoinTokenSpec};

use crate::Error;
use crate::commands::parse::{ChangeOptions, Command, CreateOptions, JoinOptions, Request};
use crate::commands::report::{
    ClusterReports, PersonReport, build_node_table, build_person, build_report, build_table, to_json,
};
use crate::identity::key_registry::Identity;
use crate::tenant::{CreatedJoinToken, Progress, TenantHost, WaitTarget};

/// Executes a command and returns the text for standard output.
pub async fn execute(
    host: &TenantHost,
    identity: &Identity,
    request: &Request,
    progress: &Progress,
) -> Result<String, Error> {
    let json = request.json;
    match &request.command {
        Command::Clusters { name, wide } => show_clusters(host, name.as_deref(), *wide, json, progress).await,
        Command::Create(options) => create(host, options, json, progress).await,
        Command::Kubeconfig { name } => {
            let text = host.kubeconfig(name).await?;
            if !json {
                return Ok(text);
            }
            let value: serde_json::Value =
                serde_saphyr::from_str(&text).map_err(|_| Error::KubeconfigInvalid(name.clone()))?;
            Ok(to_json(&value)?)
        }
        Command::Nodes { name } => {
            let nodes = host.nodes(name).await?;
            match json {
                true => Ok(to_json(&nodes)?),
                false => Ok(build_node_table(&nodes)),
            }
        }
        Command::Join(options) => join(host, options, json, progress).await,
        Command::Revoke { name } => {
            host.revoke(name).await?;
            match json {
                true => Ok(to_json(&serde_json::json!({"name": name}))?),
                false => Ok(format!("JoinToken {name} is revoked\n")),
            }
        }
        // [`crate::commands::worker_binary`] sends it, because it is not text.
        Command::WorkerBinary { .. } => Err(Error::BinaryNotPrintable),
        Command::Sleep(options) => change(host, options, DesiredState::Asleep, json, progress).await,
        Command::Wake(options) => change(host, options, DesiredState::Running, json, progress).await,
        Command::Delete { change, yes } => delete(host, change, *yes, json, progress).await,
        Command::Whoami if json => Ok(to_json(&PersonReport {
            tenant: &identity.tenant,
            key: &identity.key,
            fingerprint: &identity.fingerprint,
        })?),
        Command::Whoami => Ok(build_person(identity)),
    }
}

async fn show_clusters(
    host: &TenantHost,
    name: Option<&str>,
    wide: bool,
    json: bool,
    progress: &Progress,
) -> Result<String, Error> {
    if let Some(name) = name {
        let cluster = host.get(name).await?;
        return match json {
            true => Ok(to_json(&build_report(&cluster, Timestamp::now()))?),
            false => Ok(build_table(&[cluster], wide, Timestamp::now())),
        };
    }
    let clusters = host.list().await?;
    if json {
        let now = Timestamp::now();
        let clusters = clusters.iter().map(|cluster| build_report(cluster, now)).collect();
        return Ok(to_json(&ClusterReports { clusters })?);
    }
    if clusters.is_empty() {
        let line = "You have no Clusters; create one with: create NAME --wait\n";
        let _ = progress.send(line.to_owned()).await;
        return Ok(String::new());
    }
    Ok(build_table(&clusters, wide, Timestamp::now()))
}

async fn create(host: &TenantHost, options: &CreateOptions, json: bool, progress: &Progress) -> Result<String, Error> {
    let mut cluster = host.create(&build_cluster(options)).await?;
    if options.waiting.wait {
        // The Cluster is not read again: if that failed, the user would retry a create that has
        // succeeded.
        let seen = host.wait(&options.name, WaitTarget::SpecState, options.waiting.timeout, progress);
        cluster = seen.await?.unwrap_or(cluster);
    }
    match json {
        true => Ok(to_json(&build_report(&cluster, Timestamp::now()))?),
        false => Ok(format!("Cluster {} created\n", options.name)),
    }
}

fn build_cluster(options: &CreateOptions) -> Cluster {
    let spec = ClusterSpec {
        version: options.version.map(|version| version.to_string()),
        class: options.class.clone(),
        storage: StorageSpec {
            quota: options.storage.clone(),
        },
        ttl: options.ttl.clone(),
        ..Default::default()
    };
    Cluster::new(&options.name, spec)
}

async fn join(host: &TenantHost, options: &JoinOptions, json: bool, progress: &Progress) -> Result<String, Error> {
    let labels = collect_labels(&options.labels);
    let checked = labels.and_then(|labels| check_taints(&options.taints).map(|()| labels));
    let spec = JoinTokenSpec {
        cluster_name: options.name.clone(),
        max_uses: options.uses,
        ttl: options.ttl.clone(),
        reap_after: options.reap_after.clone(),
        node_labels: checked.map_err(|error| Error::Usage(error.to_string()))?,
        taints: options.taints.clone(),
    };
    let CreatedJoinToken { name, line, expires } = host.join(spec, progress).await?;
    let expires = expires.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let wrong = |_| Error::JoinSecretInvalid(name.clone());
    if json {
        return Ok(to_json(&serde_json::json!({
            "name": name,
            "token": line.encode().map_err(wrong)?,
            "line": line.command().map_err(wrong)?,
            "pipelines": line.pipelines().map_err(wrong)?,
            "digests": line.program.digests,
            "expires": expires,
        }))?);
    }
    for (architecture, pipeline) in line.pipelines().map_err(wrong)? {
        let said = format!("for a machine ({architecture}) without your SSH key, run here:\n{pipeline}\n");
        let _ = progress.send(said).await;
    }
    let text = format!("{}\n", line.command().map_err(wrong)?);
    let until = expires.map(|time| format!(" until {time}")).unwrap_or_default();
    // The client may have disconnected; then it did not read the join command either.
    let _ = progress
        .send(format!("It is valid{until}. To revoke it: revoke {name}\n"))
        .await;
    Ok(text)
}

async fn change(
    host: &TenantHost,
    options: &ChangeOptions,
    state: DesiredState,
    json: bool,
    progress: &Progress,
) -> Result<String, Error> {
    let mut cluster = host.set_state(&options.name, state).await?;
    if options.waiting.wait {
        let seen = host.wait(&options.name, WaitTarget::SpecState, options.waiting.timeout, progress);
        cluster = seen.await?.unwrap_or(cluster);
    }
    let how = match (state, options.waiting.wait) {
        (DesiredState::Asleep, true) => "is asleep",
        (DesiredState::Asleep, false) => "is going to sleep",
        (DesiredState::Running, true) => "is awake",
        (DesiredState::Running, false) => "is waking",
    };
    match json {
        true => Ok(to_json(&build_report(&cluster, Timestamp::now()))?),
        false => Ok(format!("Cluster {} {how}\n", options.name)),
    }
}

async fn delete(
    host: &TenantHost,
    options: &ChangeOptions,
    yes: bool,
    json: bool,
    progress: &Progress,
) -> Result<String, Error> {
    let name = &options.name;
    if !yes {
        return Err(Error::NotConfirmed(name.clone()));
    }
    host.delete(name).await?;
    if options.waiting.wait {
        host.wait(name, WaitTarget::Deleted, options.waiting.timeout, progress)
            .await?;
    }
    match (json, options.waiting.wait) {
        (true, gone) => Ok(to_json(&serde_json::json!({"name": name, "gone": gone}))?),
        (false, true) => Ok(format!("Cluster {name} deleted\n")),
        (false, false) => Ok(format!("Cluster {name} is being deleted\n")),
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tower::service_fn;

    use super::*;
    use crate::commands::parse::parse;

    /// A host that creates a Cluster and serves watches of it, but fails every read of the single
    /// Cluster.
    async fn answer(request: http::Request<Body>) -> Result<Response<Body>, kube::Error> {
        let ready = json!({"type": "Ready", "status": "True", "reason": "AsExpected", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let cluster = |status: Value| json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "c", "namespace": "t"}, "spec": {}, "status": status});
        let list = || json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "ClusterList", "metadata": {"resourceVersion": "1"}, "items": [cluster(json!({"conditions": [ready]}))]});
        let refused =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not now", "code": 500});
        let (status, body) = match *request.method() {
            Method::POST | Method::PATCH => (StatusCode::OK, cluster(json!({}))),
            _ if request.uri().path().ends_with("/clusters/c") => (StatusCode::INTERNAL_SERVER_ERROR, refused),
            _ => (StatusCode::OK, list()),
        };
        let mut response = Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = status;
        Ok(response)
    }

    #[tokio::test]
    async fn awaited_cluster_is_not_read_again() {
        let host = TenantHost::of(&Client::new(service_fn(answer), "t"), "t").unwrap();
        let identity = Identity {
            tenant: "t".into(),
            key: "k".into(),
            fingerprint: "f".into(),
        };
        let (progress, _lines) = mpsc::channel(16);
        for line in ["create c --wait --json", "wake c --wait --json"] {
            let request = parse(line.as_bytes()).unwrap();
            let said = execute(&host, &identity, &request, &progress).await.unwrap();
            let said: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(
                (&said["name"], &said["ready"]),
                (&json!("c"), &json!(true)),
                "{line}: {said}"
            );
        }
    }
}
