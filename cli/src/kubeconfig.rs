//! `kubeconfig`: prints a Cluster's kubeconfig or merges it into the user's own.

use k8s_openapi::api::core::v1::Secret;
use yoke_api::Cluster;
use yoke_api::names::KUBECONFIG_KEY;

use crate::arguments::KubeconfigOptions;
use crate::session::Session;
use crate::{Error, kubeconfig_file, output, wait};

/// Prints a Cluster's kubeconfig, or merges it.
pub(crate) async fn kubeconfig(session: &Session, options: &KubeconfigOptions) -> Result<(), Error> {
    let name = &options.name;
    if options.waiting.wait {
        wait::wait_until_ready(session, name, options.waiting.timeout).await?;
    }
    let text = fetch(session, name, options.waiting.wait).await?;
    if !options.merge {
        return output::put(&text);
    }
    let context = options
        .context_name
        .clone()
        .unwrap_or_else(|| format!("{}/{name}", session.namespace));
    let path = kubeconfig_file::find()?;
    let merged = kubeconfig_file::add(&path, &text, &context).await?;
    output::print_message(&format!("added context {context} to {}", path.display()));
    if let Some(before) = merged.previous_context.filter(|before| *before != context) {
        output::print_message(&format!(
            "it is now the current context; to go back: kubectl config use-context {before}"
        ));
    }
    output::print_message("next: kubectl get namespaces");
    Ok(())
}

/// Fetches the kubeconfig to which the Cluster's status refers. With `is_new`, the permission to
/// read it may not be effective yet.
pub(crate) async fn fetch(session: &Session, name: &str, is_new: bool) -> Result<String, Error> {
    let clusters = session.api::<Cluster>();
    let doing = format!("getting Cluster {name}");
    let cluster = session.request(&doing, || clusters.get(name)).await?;
    let secret = cluster
        .status
        .and_then(|status| status.kubeconfig_ref)
        .map(|secret| secret.name);
    let secret = secret.ok_or_else(|| Error::NoClusterKubeconfig {
        name: name.to_owned(),
        namespace: session.namespace.clone(),
    })?;
    let doing = format!("getting Secret {secret}");
    let api = session.api::<Secret>();
    let found = match is_new {
        true => session.request_until_allowed(&doing, || api.get(&secret)).await?,
        false => session.request(&doing, || api.get(&secret)).await?,
    };
    let value = found
        .data
        .and_then(|mut data| data.remove(KUBECONFIG_KEY))
        .and_then(|value| String::from_utf8(value.0).ok());
    value.ok_or(Error::KubeconfigInvalid(secret))
}
