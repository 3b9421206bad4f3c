//! The connection to the host. Adapter: the only place that builds a client and converts kube's
//! errors into ours.

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

/// Field manager of all writes of the plugin.
pub(crate) const FIELD_MANAGER: &str = "kubectl-yoke";
/// How long a new permission may take to be effective in all API servers of the host, and how long
/// an overloaded host is retried.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// A client for the host's API, with the namespace to use.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    url: String,
    request_timeout: Option<Duration>,
}

impl Session {
    /// Reads the kubeconfig; sends no request yet.
    pub(crate) async fn open(options: &HostOptions) -> Result<Self, Error> {
        let mut config = load(options).await?;
        let request_timeout = limit(options.request_timeout);
        // The timeout of a request also limits the connect, which is part of it.
        config.connect_timeout = request_timeout.or(config.connect_timeout);
        // kube would retry 429, 503 and 504 for minutes, without regard to whether the request took
        // effect, and return only the last answer.
        config.default_retry = false;
        let url = config.cluster_url.to_string();
        let namespace = options
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = if options.verbosity < trace::VERBOSITY {
            Client::try_from(config)
        } else {
            ClientBuilder::try_from(config).map(|builder| builder.with_layer(&trace::layer(&url)).build())
        };
        Ok(Self {
            client: client.map_err(Error::Client)?,
            namespace,
            url,
            request_timeout,
        })
    }

    /// Returns the API for one kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the address of the host's API.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Waits for the answer to one request, at most for the request timeout. `doing` describes the
    /// action, for the error.
    pub(crate) async fn request_once<T>(
        &self,
        doing: &str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        self.within(doing, answer)
            .await?
            .map_err(|error| self.explain(doing, error))
    }

    /// Does the same for a read request, and retries for a while if the host is overloaded.
    pub(crate) async fn request<T, F>(&self, doing: &str, answer: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = kube::Result<T>>,
    {
        self.request_while(doing, answer, Error::is_overloaded).await
    }

    /// Does the same, and also retries an answer of 403: the host's API server may not have seen a
    /// permission that was granted a moment ago.
    pub(crate) async fn request_until_allowed<T, F>(&self, doing: &str, answer: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let is_forbidden = |error: &Error| matches!(error, Error::Refused { status, .. } if status.code == 403);
        self.request_while(doing, answer, |error| is_forbidden(error) || error.is_overloaded())
            .await
    }

    async fn request_while<T, F>(
        &self,
        doing: &str,
        answer: impl Fn() -> F,
        may_pass: impl Fn(&Error) -> bool,
    ) -> Result<T, Error>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let begun = Instant::now();
        loop {
            match self.request_once(doing, answer()).await {
                Err(error) if may_pass(&error) && begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Waits for `work`, at most for the request timeout.
    pub(crate) async fn within<T>(&self, doing: &str, work: impl Future<Output = T>) -> Result<T, Error> {
        match self.request_timeout {
            None => Ok(work.await),
            Some(limit) => tokio::time::timeout(limit, work)
                .await
                .map_err(|_| Error::RequestTimeout {
                    doing: doing.to_owned(),
                    url: self.url.clone(),
                    limit,
                }),
        }
    }

    /// Converts kube's error into ours.
    pub(crate) fn explain(&self, doing: &str, error: kube::Error) -> Error {
        let doing = doing.to_owned();
        match error {
            kube::Error::Api(status) => Error::Refused { doing, status },
            source => Error::Unreachable {
                doing,
                url: self.url.clone(),
                source: Box::new(source),
            },
        }
    }
}

async fn load(options: &HostOptions) -> Result<Config, Error> {
    let named = options.kubeconfig.is_some() || overrides::names_entry(options);
    let has_server = overrides::has_server(options);
    let kubeconfig = match &options.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) if named || has_server || kubeconfig.current_context.is_some() => kubeconfig,
        Err(error) if named => return Err(Error::Kubeconfig(error)),
        Err(_) if has_server => Kubeconfig::default(),
        // A pod has no kubeconfig; its service account is used.
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
