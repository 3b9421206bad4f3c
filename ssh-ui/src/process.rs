//! Builds the parts of the process and runs them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use yoke_runtime::host_api::{build_client, configure};
use yoke_runtime::tls::{Reload, TlsConfigs, TlsFiles};
use yoke_runtime::{Endpoint, Metrics as Registry, Readiness, Supervisor};

use crate::api::{Api, reload_certificate};
use crate::arguments::{ApiArguments, Arguments};
use crate::identity::key_registry::KeyRegistry;
use crate::identity::tenants_watch::keep_key_registry;
use crate::identity::token::TokenRules;
use crate::limits::admission::Admission;
use crate::metrics::{Metrics, PROCESS};
use crate::shared::Shared;
use crate::ssh::host_key;
use crate::ssh::server::Server;

/// Timeout of a write: how long a client may take to read one piece of an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(15);

/// Runs the process until a termination signal.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new(GRACE);
    let drain = supervisor.drain();
    let (registry, readiness) = (Registry::new(PROCESS), Readiness::new());
    let metrics = Metrics::new(&registry);
    let listed = readiness.check("tenants");

    let endpoint = Endpoint::bind(arguments.metrics).await?;
    let server = Server::bind(arguments.listen).await?;
    let api = match &arguments.api {
        Some(arguments) => Some(open_api(arguments).await?),
        None => None,
    };
    supervisor.spawn_background("endpoint", endpoint.serve(registry, readiness, drain.clone()));

    let config = configure(arguments.kubeconfig.as_deref()).await?;
    let namespace = config.default_namespace.clone();
    let client = build_client(config).context("creating a client of the host API")?;
    let key = host_key::load(client.clone(), &namespace, &arguments.host_key_secret).await?;

    let (keys, known) = watch::channel(KeyRegistry::default());
    let watching = keep_key_registry(client.clone(), keys, metrics.clone(), listed, drain.clone());
    supervisor.spawn("tenants", watching);
    let shared = Arc::new(Shared {
        host: client,
        keys: known,
        admission: Admission::new(arguments.limits(), Instant::now()).into(),
        contact: arguments.contact,
        worker_binaries: arguments.worker_binaries,
        write_limit: WRITE_LIMIT,
        metrics,
    });
    if let Some((api, rules, reload, tls)) = api {
        supervisor.spawn("api-certificate", reload_certificate(reload, drain.clone()));
        let serving = api.serve(Arc::clone(&shared), rules, tls, arguments.idle, drain.clone());
        supervisor.spawn("api", serving);
    }
    supervisor.spawn("ssh", server.serve(shared, key, arguments.idle, drain));
    Ok(supervisor.run().await?)
}

async fn open_api(arguments: &ApiArguments) -> anyhow::Result<(Api, TokenRules, Reload, TlsConfigs)> {
    let files = TlsFiles {
        certificate: arguments.certificate.clone(),
        key: arguments.key.clone(),
        client_ca: None,
    };
    let (reload, tls) = Reload::load(files).await?;
    let rules = TokenRules {
        host: arguments.host.clone(),
        longest: arguments.token_lifetime,
    };
    Ok((Api::bind(arguments.listen).await?, rules, reload, tls))
}
