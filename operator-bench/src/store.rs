//! The host's etcd, written to without kube-apiserver.

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tonic::transport::{Channel, Endpoint};
use yoke_kine_nats::proto::etcdserverpb as pb;
use yoke_kine_nats::proto::etcdserverpb::kv_client::KvClient;

use crate::stored::Stored;

/// Objects of one Cluster that are written at the same time.
const AT_ONCE: usize = 8;

/// One connection.
#[derive(Clone)]
pub(crate) struct Store(KvClient<Channel>);

impl Store {
    /// Connects at the first request.
    pub(crate) fn new(url: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect_lazy();
        Ok(Self(KvClient::new(channel)))
    }

    /// Puts objects where kube-apiserver looks for them. Each has a revision of its own, by which watches tell them apart.
    pub(crate) async fn put(&self, objects: Vec<Stored>) -> Result<()> {
        let puts = objects.into_iter().map(|object| {
            let mut client = self.0.clone();
            async move {
                let request = pb::PutRequest {
                    key: object.key.into_bytes().into(),
                    value: object.value.to_string().into_bytes().into(),
                    ..pb::PutRequest::default()
                };
                client.put(request).await.map(|_| ()).context("writing to etcd")
            }
        });
        stream::iter(puts)
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }
}
