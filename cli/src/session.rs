//! The connection to the host. Adapter: the one place that makes a client and turns kube's errors into ours.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use tokio::time::Instant;
use yoke_view::input::limit;

use crate::arguments::HostOptions;
use crate::{Error, overrides, trace};

/// How long it may take until a right that was given is known everywhere.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// A client for the host, with the namespace to work in.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    config: Config,
    verbosity: u8,
    request_timeout: Option<Duration>,
}

impl Session {
    /// Reads the kubeconfig; asks the host nothing yet.
    pub(crate) async fn open(options: &HostOptions) -> Result<Self, Error> {
        let mut config = load(options).await?;
        let request_timeout = limit(options.request_timeout);
        // What cannot be reached within the time for a whole request is not waited for any longer.
        config.connect_timeout = request_timeout.or(config.connect_timeout);
        let namespace = options
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self {
            client: connect(config.clone(), options.verbosity)?,
            namespace,
            config,
            verbosity: options.verbosity,
            request_timeout,
        })
    }

    /// The objects of one kind in the namespace, by a client that asks once: what it tells is the answer to that request. The other
    /// one asks again by itself when it hears 429, 503 or 504, whatever was done the first time, and tells the last answer.
    pub(crate) fn once<K>(&self) -> Result<Api<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let mut config = self.config.clone();
        config.default_retry = false;
        Ok(Api::namespaced(connect(config, self.verbosity)?, &self.namespace))
    }

    /// The objects of one kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Where the host is.
    pub(crate) fn url(&self) -> String {
        self.config.cluster_url.to_string()
    }

    /// Waits for one answer, at most as long as one request may take. `doing` says what is being done, for the error.
    pub(crate) async fn ask<T>(&self, doing: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        self.within(doing, answer)
            .await?
            .map_err(|error| self.explain(doing, error))
    }

    /// The same, asked again for a while if it is forbidden: the host's API server may not have heard yet of a right that was given
    /// a moment ago.
    pub(crate) async fn ask_until_allowed<T, F>(&self, doing: &str, answer: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let begun = Instant::now();
        loop {
            match self.ask(doing, answer()).await {
                Err(Error::Refused { status, .. }) if status.code == 403 && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Waits for something at most as long as one request may take.
    pub(crate) async fn within<T>(&self, doing: &str, work: impl Future<Output = T>) -> Result<T, Error> {
        match self.request_timeout {
            None => Ok(work.await),
            Some(limit) => tokio::time::timeout(limit, work)
                .await
                .map_err(|_| Error::RequestTimeout {
                    doing: doing.to_owned(),
                    url: self.url(),
                    limit,
                }),
        }
    }

    /// Turns kube's error into ours.
    pub(crate) fn explain(&self, doing: &str, error: kube::Error) -> Error {
        let doing = doing.to_owned();
        match error {
            kube::Error::Api(status) => Error::Refused { doing, status },
            source => Error::Unreachable {
                doing,
                url: self.url(),
                source: Box::new(source),
            },
        }
    }
}

fn connect(config: Config, verbosity: u8) -> Result<Client, Error> {
    let url = config.cluster_url.to_string();
    let client = if verbosity < trace::VERBOSITY {
        Client::try_from(config)
    } else {
        ClientBuilder::try_from(config).map(|builder| builder.with_layer(&trace::layer(&url)).build())
    };
    client.map_err(Error::Client)
}

async fn load(options: &HostOptions) -> Result<Config, Error> {
    let named = options.kubeconfig.is_some() || overrides::names_entry(options);
    let whole = overrides::is_whole(options);
    let kubeconfig = match &options.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) if named || whole || kubeconfig.current_context.is_some() => kubeconfig,
        Err(error) if named => return Err(Error::Kubeconfig(error)),
        Err(_) if whole => Kubeconfig::default(),
        // In a pod there is none.
        Ok(_) | Err(_) => {
            let mut config = Config::infer().await.map_err(Error::NoKubeconfig)?;
            overrides::change_user(&mut config.auth_info, options);
            return Ok(config);
        }
    };
    let kubeconfig = overrides::apply_overrides(kubeconfig, options)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(Error::Kubeconfig)
}
