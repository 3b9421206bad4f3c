//! `create cluster` and `create tenant`.

use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use yoke_api::cluster::StorageSpec;
use yoke_api::tenant::{SshKey, SubjectKind, TenantSubject};
use yoke_api::{Cluster, ClusterSpec, Tenant, TenantSpec};

use crate::arguments::{ClusterOptions, CreateClusterOptions, CreateTenantOptions, DryRun, WriteOptions};
use crate::session::{FIELD_MANAGER, Session};
use crate::ssh_key::read_keys;
use crate::{Error, output, wait};

/// Creates a Cluster and, with `--wait`, waits until it is ready.
pub(crate) async fn create_cluster(session: &Session, options: &CreateClusterOptions) -> Result<(), Error> {
    let mut cluster = build_cluster(options);
    cluster.metadata.namespace = Some(session.namespace.clone());
    create(session, session.api(), cluster, &options.write).await?;
    if !options.waiting.wait || options.write.dry_run != DryRun::None {
        return Ok(());
    }
    wait::wait_until_ready(session, &options.name, options.waiting.timeout).await?;
    output::print_message(&format!(
        "next: kubectl yoke kubeconfig {} -n {} --merge",
        options.name, session.namespace
    ));
    Ok(())
}

/// Creates a Tenant and waits until Clusters can be created in its namespace. The operator creates
/// the namespace after the Tenant.
pub(crate) async fn create_tenant(session: &Session, options: &CreateTenantOptions) -> Result<(), Error> {
    let api = Api::all(session.client.clone());
    let keys = read_keys(&options.ssh_keys)?;
    create(session, api, build_tenant(options, keys), &options.write).await?;
    if !options.waiting.wait || options.write.dry_run != DryRun::None {
        return Ok(());
    }
    wait::wait_until_tenant_ready(session, &options.name, options.waiting.timeout).await?;
    output::print_message(&format!(
        "next: kubectl yoke create cluster NAME -n {} --wait",
        options.name
    ));
    Ok(())
}

fn build_cluster(options: &CreateClusterOptions) -> Cluster {
    Cluster::new(&options.name, build_spec(&options.what, options.ttl.clone()))
}

/// Builds the spec of a Cluster from the options.
pub(crate) fn build_spec(options: &ClusterOptions, ttl: Option<String>) -> ClusterSpec {
    ClusterSpec {
        version: options.kubernetes_version.map(|version| version.to_string()),
        class: options.class.clone(),
        storage: StorageSpec {
            quota: options.storage.clone(),
        },
        ttl,
        ..Default::default()
    }
}

fn build_tenant(options: &CreateTenantOptions, ssh_keys: Vec<SshKey>) -> Tenant {
    let users = options.users.iter().map(|name| (SubjectKind::User, name));
    let groups = options.groups.iter().map(|name| (SubjectKind::Group, name));
    let subjects = users
        .chain(groups)
        .map(|(kind, name)| TenantSubject {
            kind,
            name: name.clone(),
        })
        .collect();
    Tenant::new(
        &options.name,
        TenantSpec {
            subjects,
            ssh_keys,
            ..Default::default()
        },
    )
}

async fn create<K>(session: &Session, api: Api<K>, object: K, options: &WriteOptions) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let name = format!(
        "{}.{}/{}",
        K::kind(&()).to_lowercase(),
        K::group(&()),
        object.name_any()
    );
    let (mut object, how) = match options.dry_run {
        DryRun::Client => (object, " (dry run)"),
        mode => {
            let parameters = PostParams {
                dry_run: mode == DryRun::Server,
                field_manager: Some(FIELD_MANAGER.to_owned()),
            };
            let doing = format!("creating {} {}", K::kind(&()), object.name_any());
            let object = session.request_once(&doing, api.create(&parameters, &object)).await?;
            (
                object,
                if mode == DryRun::Server {
                    " (server dry run)"
                } else {
                    ""
                },
            )
        }
    };
    object.meta_mut().managed_fields = None;
    match options.output {
        Some(format) => output::put(&output::show(format, &name, &object)?),
        None => output::put(&format!("{name} created{how}\n")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command, CreateCommand};

    fn parse(line: &str) -> CreateCommand {
        let words = ["kubectl-yoke", "create"].into_iter().chain(line.split(' '));
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Create(command) => command,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_reach_the_spec() {
        let CreateCommand::Cluster(options) = parse("cluster a --version 1.35.4 --class spot --storage 1Gi --ttl 8h")
        else {
            panic!()
        };
        let spec = build_cluster(&options).spec;
        assert_eq!(spec.version.as_deref(), Some("v1.35.4"));
        assert_eq!(spec.class.as_deref(), Some("spot"));
        assert_eq!(spec.storage.quota.0, "1Gi");
        assert_eq!(spec.ttl.as_deref(), Some("8h"));

        let CreateCommand::Tenant(options) = parse("tenant t --group g --user u --user v") else {
            panic!()
        };
        let subjects = build_tenant(&options, Vec::new()).spec.subjects;
        let shown: Vec<_> = subjects
            .iter()
            .map(|subject| (subject.kind, subject.name.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                (SubjectKind::User, "u"),
                (SubjectKind::User, "v"),
                (SubjectKind::Group, "g")
            ]
        );
    }
}
