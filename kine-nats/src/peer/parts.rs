//! Splits an answer that exceeds one message into parts. A flag behind each part marks the last
//! one. The number of the part is in a header, which processes of earlier versions neither send nor
//! read.

use crate::store::peers::PeerError;
use async_nats::HeaderMap;
use bytes::Bytes;

/// Bytes of an answer in one message; every server accepts twice as many.
const PART: usize = 1 << 20;
/// Flags behind a part.
const MORE: u8 = 0;
const LAST: u8 = 1;
/// Header with the number of a part, from 0.
const HEADER: &str = "Yoke-Part";

/// Splits an answer into messages. An answer that fits into one message has no header.
pub(super) fn split(answer: &[u8]) -> impl Iterator<Item = (Option<HeaderMap>, Bytes)> {
    let count = answer.len().div_ceil(PART);
    answer.chunks(PART).enumerate().map(move |(number, part)| {
        let header = (count > 1).then(|| {
            let mut header = HeaderMap::new();
            header.insert(HEADER, number.to_string());
            header
        });
        let flag = if number + 1 < count { MORE } else { LAST };
        (header, [part, &[flag]].concat().into())
    })
}

/// The received parts of an answer.
#[derive(Debug, Default)]
pub(super) struct AnswerParts {
    bytes: Vec<u8>,
    /// Number of received parts.
    taken: usize,
}

impl AnswerParts {
    /// Adds a part. Returns the complete answer after the last part, or an error if a part is
    /// missing.
    pub(super) fn take(&mut self, header: Option<&HeaderMap>, payload: &[u8]) -> Option<Result<Bytes, PeerError>> {
        let (flag, part) = payload.split_last()?;
        let number = header.and_then(|header| header.get(HEADER));
        if number.is_some_and(|number| number.as_str() != self.taken.to_string()) {
            return Some(Err(PeerError::Unknown));
        }
        self.taken += 1;
        self.bytes.extend_from_slice(part);
        (*flag == LAST).then(|| Ok(std::mem::take(&mut self.bytes).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of receiving some of the messages of an answer, in this order.
    fn join(answer: &[u8], order: &[usize]) -> Option<Result<Bytes, PeerError>> {
        let messages: Vec<_> = split(answer).collect();
        let mut parts = AnswerParts::default();
        let mut taken = order.iter().map(|at| {
            let (header, payload) = &messages[*at];
            parts.take(header.as_ref(), payload)
        });
        taken.find_map(|done| done)
    }

    #[test]
    fn complete_parts_form_one_answer() {
        let answer: Vec<u8> = (0..5 * PART / 2).map(|byte| byte as u8).collect();
        let complete = Some(Ok(answer.clone().into()));
        for (name, order, expected) in [
            ("all", &[0, 1, 2][..], &complete),
            ("no end", &[0, 1], &None),
            ("the last one alone", &[2], &Some(Err(PeerError::Unknown))),
            ("not the first", &[1, 2], &Some(Err(PeerError::Unknown))),
            ("a gap", &[0, 2], &Some(Err(PeerError::Unknown))),
            ("one twice", &[0, 0, 1, 2], &Some(Err(PeerError::Unknown))),
        ] {
            assert!(join(&answer, order) == *expected, "{name}");
        }
    }

    #[test]
    fn a_short_answer_is_one_message() {
        let messages: Vec<_> = split(b"a").collect();
        assert_eq!(messages, [(None, Bytes::from_static(b"a\x01"))]);
        assert_eq!(join(b"a", &[0]), Some(Ok(Bytes::from_static(b"a"))));
        assert_eq!(split(&[7; PART]).count(), 1);
    }

    #[test]
    fn an_answer_of_an_earlier_version_is_accepted() {
        let mut parts = AnswerParts::default();
        assert_eq!(parts.take(None, b"a\x00"), None);
        assert_eq!(parts.take(None, b"b\x01"), Some(Ok(Bytes::from_static(b"ab"))));
        assert_eq!(AnswerParts::default().take(None, b""), None);
    }
}
