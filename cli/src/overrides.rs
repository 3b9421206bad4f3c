//! Applies the connection options of the command line to the kubeconfig. Pure.
//!
//! The rules are kubectl's (`DirectClientConfig` in client-go's
//! `tools/clientcmd/client_config.go`): an override replaces the field of the chosen cluster or
//! user, and the fields that would contradict it.

use std::path::Path;

use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};

use crate::Error;
use crate::arguments::HostOptions;

/// Name of the entries that exist only because of the command line.
const ENTRY_NAME: &str = "kubectl-yoke";

/// Returns whether the command line has the host's address, so that no kubeconfig is needed.
pub(crate) fn has_server(options: &HostOptions) -> bool {
    options.server.is_some()
}

/// Returns whether the command line names an entry of a kubeconfig, so that a kubeconfig is
/// required.
pub(crate) fn names_entry(options: &HostOptions) -> bool {
    options.context.is_some() || options.cluster.is_some() || options.user.is_some()
}

/// Returns the kubeconfig with the requested context as the current one and with the overrides.
pub(crate) fn apply_overrides(mut kubeconfig: Kubeconfig, options: &HostOptions) -> Result<Kubeconfig, Error> {
    let chosen = options.context.clone().or(kubeconfig.current_context.take());
    let chosen = match chosen.filter(|name| !name.is_empty()) {
        Some(name) => name,
        // kube then reports what is missing.
        None if !has_server(options) => return Ok(kubeconfig),
        None => {
            let context = Context {
                cluster: ENTRY_NAME.to_owned(),
                ..Context::default()
            };
            kubeconfig.contexts.push(NamedContext {
                name: ENTRY_NAME.to_owned(),
                context: Some(context),
                ..NamedContext::default()
            });
            ENTRY_NAME.to_owned()
        }
    };
    kubeconfig.current_context = Some(chosen.clone());
    let Kubeconfig {
        contexts,
        clusters,
        auth_infos,
        ..
    } = &mut kubeconfig;
    let context = contexts
        .iter_mut()
        .find(|entry| entry.name == chosen)
        .and_then(|entry| entry.context.as_mut());
    let Some(context) = context else {
        return Ok(kubeconfig);
    };
    if let Some(name) = &options.cluster {
        context.cluster.clone_from(name);
    }
    if changes_cluster(options) {
        change_cluster(cluster_entry(clusters, &context.cluster), options);
    }
    if let Some(name) = &options.user {
        if !auth_infos.iter().any(|entry| entry.name == *name) {
            return Err(Error::UnknownUser(name.clone()));
        }
        context.user = Some(name.clone());
    }
    if changes_user(options) {
        let name = context.user.get_or_insert_with(|| ENTRY_NAME.to_owned());
        change_user(user_entry(auth_infos, name), options);
    }
    Ok(kubeconfig)
}

/// Returns the cluster of this name; adds an empty one if there is none.
fn cluster_entry<'a>(clusters: &'a mut Vec<NamedCluster>, name: &str) -> &'a mut Cluster {
    let known = clusters.iter().position(|entry| entry.name == name);
    let index = known.unwrap_or_else(|| {
        clusters.push(NamedCluster {
            name: name.to_owned(),
            ..NamedCluster::default()
        });
        clusters.len() - 1
    });
    clusters[index].cluster.get_or_insert_default()
}

/// Returns the user of this name; adds an empty one if there is none.
fn user_entry<'a>(users: &'a mut Vec<NamedAuthInfo>, name: &str) -> &'a mut AuthInfo {
    let known = users.iter().position(|entry| entry.name == name);
    let index = known.unwrap_or_else(|| {
        users.push(NamedAuthInfo {
            name: name.to_owned(),
            ..NamedAuthInfo::default()
        });
        users.len() - 1
    });
    users[index].auth_info.get_or_insert_default()
}

/// Replaces the user's credentials with those of the command line.
pub(crate) fn change_user(user: &mut AuthInfo, options: &HostOptions) {
    if let Some(token) = &options.token {
        user.token = Some(token.clone().into());
        user.token_file = None;
        user.exec = None;
        user.auth_provider = None;
        user.username = None;
        user.password = None;
    }
    if let Some(file) = &options.client_certificate {
        user.client_certificate = Some(text(file));
        user.client_certificate_data = None;
    }
    if let Some(file) = &options.client_key {
        user.client_key = Some(text(file));
        user.client_key_data = None;
    }
    if let Some(name) = &options.act_as {
        user.impersonate = Some(name.clone());
        user.impersonate_uid.clone_from(&options.act_as_uid);
        user.impersonate_groups = (!options.act_as_groups.is_empty()).then(|| options.act_as_groups.clone());
        user.impersonate_user_extra = None;
    }
}

fn changes_cluster(options: &HostOptions) -> bool {
    options.server.is_some()
        || options.tls_server_name.is_some()
        || options.certificate_authority.is_some()
        || options.insecure_skip_tls_verify
}

fn change_cluster(cluster: &mut Cluster, options: &HostOptions) {
    if let Some(server) = &options.server {
        cluster.server = Some(server.clone());
        // The configured name belongs to the address that was replaced.
        cluster.tls_server_name = None;
    }
    if let Some(name) = &options.tls_server_name {
        cluster.tls_server_name = Some(name.clone());
    }
    if options.insecure_skip_tls_verify {
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority = None;
        cluster.certificate_authority_data = None;
    }
    if let Some(file) = &options.certificate_authority {
        cluster.insecure_skip_tls_verify = None;
        cluster.certificate_authority = Some(text(file));
        cluster.certificate_authority_data = None;
    }
}

fn changes_user(options: &HostOptions) -> bool {
    options.token.is_some()
        || options.client_certificate.is_some()
        || options.client_key.is_some()
        || options.act_as.is_some()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
