//! Counts the connections of the etcd API. A store that must exit after its clients waits for the
//! count to reach zero.

use futures::{Stream, StreamExt as _};
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tonic::transport::server::Connected;

/// The number of connections on all listeners.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clients(Arc<watch::Sender<usize>>);

impl Clients {
    /// Counts each connection until it is dropped.
    pub(crate) fn count<C>(
        self,
        incoming: impl Stream<Item = Result<C>>,
    ) -> impl Stream<Item = Result<CountedConnection<C>>> {
        incoming.map(move |connection| {
            let connection = connection?;
            self.0.send_modify(|count| *count += 1);
            Ok(CountedConnection {
                connection,
                clients: self.clone(),
            })
        })
    }

    /// Waits until no client is connected.
    pub(crate) async fn all_disconnected(&self) {
        // `self` holds the sender, so this wait cannot fail.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct CountedConnection<C> {
    connection: C,
    clients: Clients,
}

impl<C> Drop for CountedConnection<C> {
    fn drop(&mut self) {
        self.clients.0.send_modify(|count| *count -= 1);
    }
}

impl<C: Connected> Connected for CountedConnection<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for CountedConnection<C> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for CountedConnection<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}
