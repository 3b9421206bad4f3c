//! Writes to the host's etcd directly, without kube-apiserver.

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tonic::transport::{Channel, Endpoint};
use yoke_kine_nats::proto::etcdserverpb as pb;
use yoke_kine_nats::proto::etcdserverpb::kv_client::KvClient;

use crate::stored::Stored;

/// Number of objects of one Cluster that are written concurrently.
const AT_ONCE: usize = 8;

/// A connection to etcd.
#[derive(Clone)]
pub(crate) struct Store(KvClient<Channel>);

impl Store {
    /// Connects at the first request.
    pub(crate) fn new(url: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect_lazy();
        Ok(Self(KvClient::new(channel)))
    }

    /// Writes objects under the keys that kube-apiserver uses. Each write has its own revision,
    /// because watches need distinct revisions.
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
