//! `delete cluster` and `delete tenant`.

use std::io::{BufRead as _, IsTerminal as _};

use kube::api::DeleteParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use yoke_api::cluster::DeletionPolicy;
use yoke_api::{Cluster, Tenant};

use crate::arguments::{DeleteOptions, NameFormat};
use crate::session::Session;
use crate::{Error, output, wait};

/// Deletes a Cluster, after confirmation.
pub(crate) async fn delete_cluster(session: &Session, options: &DeleteOptions) -> Result<(), Error> {
    let api: Api<Cluster> = session.api();
    let what = format!("Cluster {} in namespace {}", options.name, session.namespace);
    let cluster = session
        .request(&format!("getting Cluster {}", options.name), || api.get(&options.name))
        .await?;
    let loss = match cluster.spec.deletion_policy {
        DeletionPolicy::Delete => "Everything in it will be lost.",
        DeletionPolicy::Retain => "Its stored state is retained.",
    };
    confirm(&what, loss, options)?;
    delete(session, api, &what, options).await
}

/// Deletes a Tenant, after confirmation.
pub(crate) async fn delete_tenant(session: &Session, options: &DeleteOptions) -> Result<(), Error> {
    let what = format!("Tenant {}", options.name);
    confirm(&what, "The host deletes its namespace after its last Cluster.", options)?;
    delete(session, Api::<Tenant>::all(session.client.clone()), &what, options).await
}

async fn delete<K>(session: &Session, api: Api<K>, what: &str, options: &DeleteOptions) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static,
{
    let doing = format!("deleting {what}");
    session
        .request_once(&doing, api.delete(&options.name, &DeleteParams::default()))
        .await?;
    if options.waiting.wait {
        wait::wait_until_gone(session, api, &options.name, what, options.waiting.timeout).await?;
    }
    let name = format!("{}.{}/{}", K::kind(&()).to_lowercase(), K::group(&()), options.name);
    let how = match (options.output, options.waiting.wait) {
        (Some(NameFormat::Name), _) => "",
        (None, true) => " deleted",
        (None, false) => " is being deleted",
    };
    output::put(&format!("{name}{how}\n"))
}

/// Requires the user to type the name, because deleted data cannot be restored.
fn confirm(what: &str, loss: &str, options: &DeleteOptions) -> Result<(), Error> {
    if options.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Error::NotConfirmed(what.to_owned()));
    }
    output::print_message(&format!("{what} will be deleted. {loss}\nType its name to continue:"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(Error::Input)?;
    if answer.trim() == options.name {
        Ok(())
    } else {
        Err(Error::Declined)
    }
}
