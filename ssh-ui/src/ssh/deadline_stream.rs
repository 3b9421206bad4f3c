//! A stream with a deadline, independent of its protocol. Without it, a client that stalls the key
//! exchange would keep its slot for as long as it likes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose reads and writes fail once `end` has resolved.
pub struct DeadlineStream<S> {
    stream: S,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    over: bool,
}

impl<S> DeadlineStream<S> {
    /// Wraps a stream.
    pub fn new(stream: S, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            stream,
            end: Box::pin(end),
            over: false,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.over = self.over || self.end.as_mut().poll(context).is_ready();
        match self.over {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn silent_peer_reaches_the_deadline() {
        let (near, mut far) = tokio::io::duplex(64);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let mut stream = DeadlineStream::new(near, async {
            let _ = ended.await;
        });
        far.write_all(b"a").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'a');
        let reading = tokio::spawn(async move {
            let read = stream.read_u8().await;
            (
                read.map_err(|error| error.kind()),
                stream.write_all(b"b").await.is_err(),
            )
        });
        end.send(()).unwrap();
        assert_eq!(reading.await.unwrap(), (Err(io::ErrorKind::TimedOut), true));
    }
}
