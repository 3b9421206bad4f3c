//! `join`: makes a JoinToken and prints the line by which a worker joins.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{ObjectMeta, PostParams};
use yoke_api::JoinToken;
use yoke_api::join_token::{JoinLine, JoinTokenSpec, secret_name};

use crate::arguments::JoinOptions;
use crate::session::Session;
use crate::{Error, FIELD_MANAGER, output, wait};

/// Makes a JoinToken, waits until it is ready, and prints the line. Whoever has the line may join: it is told once, here.
pub(crate) async fn join(session: &Session, options: &JoinOptions) -> Result<(), Error> {
    let token = build_token(options);
    let parameters = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let api = session.api::<JoinToken>();
    let doing = format!("making a JoinToken for Cluster {}", options.name);
    let name = session.ask(&doing, api.create(&parameters, &token)).await?.name_any();
    wait::wait_until_joinable(session, &name, options.timeout).await?;
    let secret = secret_name(&name);
    let doing = format!("getting Secret {secret}");
    let found = session.ask(&doing, session.api::<Secret>().get(&secret)).await?;
    let line = JoinLine::from_secret(&found).and_then(|line| line.command().ok());
    let line = line.ok_or(Error::JoinSecretWrong(secret))?;
    output::say(&format!(
        "revoke it: kubectl delete jointoken {name} -n {}",
        session.namespace
    ));
    output::put(&format!("{line}\n"))
}

fn build_token(options: &JoinOptions) -> JoinToken {
    let spec = JoinTokenSpec {
        cluster_name: options.name.clone(),
        max_uses: options.uses,
        ttl: options.ttl.clone(),
    };
    let mut token = JoinToken::new("", spec);
    token.metadata = ObjectMeta {
        generate_name: Some(format!("{}-", options.name)),
        ..ObjectMeta::default()
    };
    token
}
