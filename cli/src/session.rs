//! The connection to the host. Adapter: the one place that makes a client and turns kube's errors into ours.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};

use crate::Error;
use crate::arguments::HostOptions;
use crate::duration::limit;

/// A client for the host, with the namespace to work in.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    url: String,
    request_timeout: Option<Duration>,
}

impl Session {
    /// Reads the kubeconfig; asks the host nothing yet.
    pub(crate) async fn open(options: &HostOptions) -> Result<Self, Error> {
        let mut config = load(options).await?;
        if let Some(user) = &options.act_as {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups =
                (!options.act_as_groups.is_empty()).then(|| options.act_as_groups.clone());
        }
        let url = config.cluster_url.to_string();
        let namespace = options
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(Error::Client)?;
        Ok(Self {
            client,
            namespace,
            url,
            request_timeout: limit(options.request_timeout),
        })
    }

    /// The objects of one kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits for one answer, at most as long as one request may take. `doing` says what is being done, for the error.
    pub(crate) async fn ask<T>(&self, doing: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        let answer = match self.request_timeout {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, answer)
                .await
                .map_err(|_| Error::RequestTimeout {
                    doing: doing.to_owned(),
                    limit,
                })?,
        };
        answer.map_err(|error| self.explain(doing, error))
    }

    /// Turns kube's error into ours.
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
    let choice = KubeConfigOptions {
        context: options.context.clone(),
        cluster: options.cluster.clone(),
        user: None,
    };
    if let Some(path) = &options.kubeconfig {
        let kubeconfig = Kubeconfig::read_from(path).map_err(Error::Kubeconfig)?;
        return Config::from_custom_kubeconfig(kubeconfig, &choice)
            .await
            .map_err(Error::Kubeconfig);
    }
    if choice.context.is_some() || choice.cluster.is_some() {
        return Config::from_kubeconfig(&choice).await.map_err(Error::Kubeconfig);
    }
    Config::infer().await.map_err(Error::NoKubeconfig)
}
