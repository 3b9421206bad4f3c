//! Compresses thousands of texts that are nearly the same. The first text of each sort is the
//! dictionary ("example") for all others. Examples live as long as the process.

use std::sync::{Arc, PoisonError, RwLock};

/// Maximum number of sorts. Further sorts use the first example.
const MOST: usize = 64;

/// The examples, by their sorts.
#[derive(Debug, Default)]
pub(crate) struct DeltaBase(RwLock<Vec<Example>>);

/// A sort, and the text that is its example.
type Example = (Box<str>, Arc<[u8]>);

impl DeltaBase {
    /// Compresses a text. Returns the number of its example and the compressed bytes.
    pub(crate) fn pack(&self, sort: &str, text: &[u8]) -> (u8, Vec<u8>) {
        let (number, example) = self.find(sort).unwrap_or_else(|| self.add(sort, text));
        (number, lz4_flex::block::compress_prepend_size_with_dict(text, &example))
    }

    /// Decompresses a text.
    pub(crate) fn unpack(&self, number: u8, packed: &[u8]) -> Option<Vec<u8>> {
        let example = {
            let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&all.get(usize::from(number))?.1)
        };
        lz4_flex::block::decompress_size_prepended_with_dict(packed, &example).ok()
    }

    fn find(&self, sort: &str) -> Option<(u8, Arc<[u8]>)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, _)| **known == *sort);
        let at = at.or((all.len() == MOST).then_some(0))?;
        Some((u8::try_from(at).ok()?, Arc::clone(&all[at].1)))
    }

    /// Only the `CompactWriter` calls this, so the same sort is not added twice.
    fn add(&self, sort: &str, text: &[u8]) -> (u8, Arc<[u8]>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let example: Arc<[u8]> = text.into();
        all.push((sort.into(), Arc::clone(&example)));
        (
            u8::try_from(all.len() - 1).expect("there are at most 64 examples"),
            example,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_texts_are_compressed_and_restored() {
        let examples = DeltaBase::default();
        let text = |name: &str| {
            format!(
                "{name} has what all of them have: {}",
                "the same words, again and again; ".repeat(9)
            )
        };
        for sort in 0..100 {
            for name in ["a", "b"] {
                let text = text(&format!("{name}{sort}"));
                let (number, packed) = examples.pack(&sort.to_string(), text.as_bytes());
                assert_eq!(usize::from(number), if sort < MOST { sort } else { 0 });
                assert!(packed.len() < 40, "{}", packed.len());
                assert_eq!(examples.unpack(number, &packed), Some(text.into_bytes()));
            }
        }
        assert_eq!(examples.unpack(200, b"x"), None);
    }
}
