//! Limits the length and the duration of each line in the body of a watch: an unfinished line is
//! held in memory.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use crate::tenant_client::limits::REQUEST_LIMIT;

/// Maximum length of a line in bytes. An object has at most 1.5 MiB, and few take much more as
/// JSON.
const LINE_MAX: usize = 2 << 20;

/// A body with limited lines.
#[derive(Debug)]
pub(crate) struct LimitedLines<B> {
    body: B,
    /// Bytes of the unfinished line.
    unfinished: usize,
    /// Deadline of the unfinished line: a line may take as long as a request.
    due: Option<Pin<Box<Sleep>>>,
}

/// A line exceeded a limit.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("a line of a watch has more than {LINE_MAX} bytes")]
    Long,
    #[error("a line of a watch took more than {REQUEST_LIMIT:?}")]
    Late,
}

impl<B> LimitedLines<B> {
    pub(crate) fn new(body: B) -> Self {
        Self {
            body,
            unfinished: 0,
            due: None,
        }
    }

    fn record(&mut self, data: &[u8]) -> Result<(), LineError> {
        let before = self.unfinished;
        match data.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => {
                self.unfinished = data.len() - last - 1;
                self.due = None;
            }
            None => self.unfinished += data.len(),
        }
        if self.unfinished == 0 {
            self.due = None;
        } else if self.due.is_none() {
            self.due = Some(Box::pin(sleep(REQUEST_LIMIT)));
        }
        // The first of several lines may be the long one.
        let first = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
        match (before + first).max(self.unfinished) {
            ..=LINE_MAX => Ok(()),
            _ => Err(LineError::Long),
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for LimitedLines<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let Some(due) = &mut self.due else {
                return Poll::Pending;
            };
            ready!(due.as_mut().poll(cx));
            return Poll::Ready(Some(Err(LineError::Late.into())));
        };
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            self.record(frame.data_ref().map_or(&[][..], |data| data))?;
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{StreamExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::time::Instant;

    use super::*;

    /// Reads a body whose parts each arrive after this many seconds. Returns the duration and the
    /// result.
    async fn read(parts: &[(u64, Vec<u8>)]) -> (Duration, Result<usize, String>) {
        let start = Instant::now();
        let parts = stream::iter(parts.to_vec()).then(async |(after, bytes)| {
            sleep(Duration::from_secs(after)).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from(bytes)))
        });
        let mut lines = LimitedLines::new(StreamBody::new(Box::pin(parts)));
        let mut read = 0;
        while let Some(frame) = lines.frame().await {
            match frame {
                Ok(frame) => read += frame.data_ref().map_or(0, Bytes::len),
                Err(error) => return (start.elapsed(), Err(error.to_string())),
            }
        }
        (start.elapsed(), Ok(read))
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_limited_in_time_and_length_but_a_pause_is_not() {
        let line = |text: &str| text.as_bytes().to_vec();
        let long = vec![b'a'; LINE_MAX];
        let late = Err("a line of a watch took more than 4s".to_owned());
        let too_long = Err(format!("a line of a watch has more than {LINE_MAX} bytes"));
        for (rule, parts, expected) in [
            (
                "rare lines",
                vec![(1000, line("a\n")), (1000, line("b\n"))],
                (2000, Ok(4)),
            ),
            ("a line in parts", vec![(0, line("a")), (3, line("b\nc\n"))], (3, Ok(5))),
            (
                "a line starts in the frame that ends another",
                vec![(0, line("a")), (3, line("b\nc")), (3, line("\n"))],
                (6, Ok(5)),
            ),
            (
                "a line without an end",
                vec![(0, line("a")), (9, line("\n"))],
                (4, late.clone()),
            ),
            (
                "a line that grows slowly",
                vec![(0, line("a")), (3, line("b")), (3, line("c"))],
                (4, late),
            ),
            (
                "a line of the maximum length",
                vec![(0, long.clone()), (0, line("\n"))],
                (0, Ok(LINE_MAX + 1)),
            ),
            (
                "a longer line",
                vec![(0, long.clone()), (0, line("a"))],
                (0, too_long.clone()),
            ),
            (
                "a longer line with an end",
                vec![(0, long), (0, line("a\n"))],
                (0, too_long),
            ),
        ] {
            let (seconds, result) = expected;
            assert_eq!(read(&parts).await, (Duration::from_secs(seconds), result), "{rule}");
        }
    }
}
