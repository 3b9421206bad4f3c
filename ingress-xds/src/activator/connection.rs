//! HTTP/1.1 and HTTP/2 on one client connection, which is closed after its first answers.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::caller::{Caller, Stage};

/// Maximum size of a request's header in bytes: the limit for requests of Pods (`headerKiB` of the
/// chart).
const HEADER_BYTES: usize = 32 * 1024;
const HEADER_LIST_BYTES: u32 = 32 * 1024;
/// Concurrent streams of an HTTP/2 connection: the requests that a client sends at once.
const STREAMS: u32 = 8;
/// HTTP/2 flow control windows in bytes: unread data of one stream, and of one connection.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Delay between an answer and the message that closes its connection. A hyper client that reads
/// the close before the answer reports the request as failed.
const CLOSE_DELAY: Duration = Duration::from_millis(100);
/// Bytes that are read after the answer. A client that is still sending would otherwise read a
/// reset in place of the answer.
const DRAIN_BYTES: u64 = 4 * 1024 * 1024;

/// Serves the requests of a connection until it is answered and closed.
pub(super) async fn serve_connection(stream: TlsStream<TcpStream>, caller: Arc<Caller>, header_timeout: Duration) {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn({
        let caller = Arc::clone(&caller);
        move |request| {
            let caller = Arc::clone(&caller);
            async move { Ok::<_, Infallible>(caller.answer(request).await) }
        }
    });
    let stream = TokioIo::new(stream);
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        let answered = async {
            caller.reached(Stage::Answered).await;
            sleep(CLOSE_DELAY).await;
        };
        tokio::select! {
            // An error means that the client has gone.
            _ = connection.as_mut() => return,
            () = answered => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(HEADER_BYTES)
            .max_header_size(HEADER_BYTES)
            .keep_alive(false)
            .serve_connection(stream, service);
        if let Ok(parts) = connection.without_shutdown().await {
            drain_and_close(parts.io.into_inner()).await;
        }
    }
}

/// Closes a connection in a way that lets the client read its answer.
async fn drain_and_close(mut stream: TlsStream<TcpStream>) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (tcp, _) = stream.into_inner();
    // An error means that the client has gone. The time limit of the connection bounds this copy.
    let _ = tokio::io::copy(&mut tcp.take(DRAIN_BYTES), &mut tokio::io::sink()).await;
}
