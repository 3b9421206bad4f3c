//! HTTP/1.1 as bytes.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How long a test waits for something that should not happen.
const QUIET: Duration = Duration::from_millis(200);

/// Reads until the connection closes, or until it is quiet after a complete answer. The answer may
/// take up to `patience`.
pub async fn read_answer(stream: &mut (impl AsyncRead + Unpin), patience: Duration) -> String {
    let mut bytes = Vec::new();
    loop {
        let limit = if is_whole(&bytes) { QUIET } else { patience };
        let read = tokio::time::timeout(limit, stream.read_buf(&mut bytes)).await;
        if !matches!(read, Ok(Ok(count)) if count > 0) {
            return String::from_utf8_lossy(&bytes).into_owned();
        }
    }
}

fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    if field("transfer-encoding: chunked").is_some() {
        return body.ends_with("0\r\n\r\n");
    }
    let length = field("content-length: ").map_or(Ok(0), str::parse);
    length.is_ok_and(|length: usize| body.len() >= length)
}
