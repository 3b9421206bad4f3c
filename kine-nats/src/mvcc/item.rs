//! One version of a key, held as the encoded `mvccpb.KeyValue` that is stored, read and watched.

use bytes::Bytes;

const KEY: u8 = 0x0a;
const CREATE: u8 = 0x10;
const MODIFIED: u8 = 0x18;
const VERSION: u8 = 0x20;
const VALUE: u8 = 0x2a;
const LEASE: u8 = 0x30;

/// Bytes that are not a `mvccpb.KeyValue` as this program writes it.
#[derive(Debug, thiserror::Error)]
#[error("decode a key value")]
pub(crate) struct InvalidItem;

/// A version of a key. `version` 0 is a delete.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Encoded `mvccpb.KeyValue`.
    pub(crate) kv: Bytes,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

impl Item {
    /// A version that was put.
    pub(crate) fn put(key: &[u8], value: &[u8], created: i64, modified: i64, version: i64, lease: i64) -> Self {
        let kv = encode(key, value, created, modified, version, lease);
        Self {
            kv,
            created,
            modified,
            version,
            lease,
        }
    }

    /// A delete.
    pub(crate) fn tombstone(key: &[u8], modified: i64) -> Self {
        let kv = encode(key, &[], 0, modified, 0, 0);
        Self {
            kv,
            created: 0,
            modified,
            version: 0,
            lease: 0,
        }
    }

    /// Decodes bytes of a record. It copies them, so that one small item does not keep the record
    /// in memory.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, InvalidItem> {
        let fields = Fields::parse(bytes)?;
        Ok(Self {
            kv: Bytes::copy_from_slice(bytes),
            created: fields.created,
            modified: fields.modified,
            version: fields.version,
            lease: fields.lease,
        })
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    pub(crate) fn key(&self) -> &[u8] {
        key_of(&self.kv)
    }

    pub(crate) fn value(&self) -> &[u8] {
        Fields::parse(&self.kv).map(|fields| fields.value).unwrap_or_default()
    }

    /// The item without its value, for reads with `keys_only`.
    pub(crate) fn without_value(&self) -> Bytes {
        encode(self.key(), &[], self.created, self.modified, self.version, self.lease)
    }
}

/// The key in an encoded `mvccpb.KeyValue`; empty if there is none.
pub(crate) fn key_of(kv: &[u8]) -> &[u8] {
    let Some((&KEY, rest)) = kv.split_first() else {
        return &[];
    };
    let mut rest = rest;
    let Some(length) = varint(&mut rest) else { return &[] };
    usize::try_from(length)
        .ok()
        .and_then(|length| rest.get(..length))
        .unwrap_or_default()
}

/// Encodes an event around encoded items.
pub(crate) fn encode_event(delete: bool, kv: &[u8], previous: Option<&[u8]>) -> Bytes {
    let previous_length = previous.map_or(0, |previous| 1 + varint_length(previous.len() as u64) + previous.len());
    let mut out =
        Vec::with_capacity(usize::from(delete) * 2 + 1 + varint_length(kv.len() as u64) + kv.len() + previous_length);
    if delete {
        out.extend_from_slice(&[0x08, 1]);
    }
    put_bytes(&mut out, 0x12, kv);
    if let Some(previous) = previous {
        put_bytes(&mut out, 0x1a, previous);
    }
    Bytes::from(out)
}

struct Fields<'a> {
    key: &'a [u8],
    created: i64,
    modified: i64,
    version: i64,
    value: &'a [u8],
    lease: i64,
}

impl<'a> Fields<'a> {
    fn parse(mut rest: &'a [u8]) -> Result<Self, InvalidItem> {
        let mut fields = Self {
            key: &[],
            created: 0,
            modified: 0,
            version: 0,
            value: &[],
            lease: 0,
        };
        while let Some((&tag, tail)) = rest.split_first() {
            rest = tail;
            let number = varint(&mut rest).ok_or(InvalidItem)?;
            match tag {
                KEY | VALUE => {
                    let length = usize::try_from(number).map_err(|_| InvalidItem)?;
                    if length > rest.len() {
                        return Err(InvalidItem);
                    }
                    let (bytes, tail) = rest.split_at(length);
                    rest = tail;
                    if tag == KEY {
                        fields.key = bytes;
                    } else {
                        fields.value = bytes;
                    }
                }
                CREATE => fields.created = number.cast_signed(),
                MODIFIED => fields.modified = number.cast_signed(),
                VERSION => fields.version = number.cast_signed(),
                LEASE => fields.lease = number.cast_signed(),
                _ => return Err(InvalidItem),
            }
        }
        let sane = !fields.key.is_empty()
            && fields.modified > 0
            && fields.version >= 0
            && (fields.version == 0 || (fields.created > 0 && fields.created <= fields.modified));
        if sane { Ok(fields) } else { Err(InvalidItem) }
    }
}

fn encode(key: &[u8], value: &[u8], created: i64, modified: i64, version: i64, lease: i64) -> Bytes {
    let numbers = [(CREATE, created), (MODIFIED, modified), (VERSION, version)];
    let number_length = |number: i64| {
        if number == 0 {
            0
        } else {
            1 + varint_length(number.cast_unsigned())
        }
    };
    let bytes_length = |bytes: &[u8]| {
        if bytes.is_empty() {
            0
        } else {
            1 + varint_length(bytes.len() as u64) + bytes.len()
        }
    };
    let length = bytes_length(key)
        + numbers.iter().map(|(_, number)| number_length(*number)).sum::<usize>()
        + bytes_length(value)
        + number_length(lease);
    let mut out = Vec::with_capacity(length);
    put_bytes(&mut out, KEY, key);
    for (tag, number) in numbers {
        put_number(&mut out, tag, number);
    }
    if !value.is_empty() {
        put_bytes(&mut out, VALUE, value);
    }
    put_number(&mut out, LEASE, lease);
    Bytes::from(out)
}

fn put_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: i64) {
    if number != 0 {
        out.push(tag);
        put_varint(out, number.cast_unsigned());
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn varint_length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::mvccpb::{Event, KeyValue};
    use prost::Message;

    #[test]
    fn an_encoded_item_is_valid_for_prost() {
        for (value, lease) in [
            (vec![], 0),
            (vec![7u8; 300], 0),
            (b"v".to_vec(), -5),
            (vec![1u8; 70_000], 1 << 60),
        ] {
            let item = Item::put(b"/registry/a", &value, 3, 300, 2, lease);
            let decoded = KeyValue::decode(item.kv.clone()).unwrap();
            assert_eq!(decoded.key, "/registry/a");
            assert_eq!(
                (decoded.create_revision, decoded.mod_revision, decoded.version),
                (3, 300, 2)
            );
            assert_eq!((decoded.value.as_ref(), decoded.lease), (value.as_slice(), lease));
            assert_eq!(decoded.encode_to_vec(), item.kv);
            assert_eq!(item.kv.len(), decoded.encoded_len());
            let again = Item::decode(&item.kv).unwrap();
            assert_eq!(
                (again.created, again.modified, again.version, again.lease),
                (3, 300, 2, lease)
            );
            assert_eq!(
                (again.key(), again.value()),
                (b"/registry/a".as_slice(), value.as_slice())
            );
        }
    }

    #[test]
    fn encoded_events_are_valid_for_prost() {
        let new = Item::put(b"k", b"2", 3, 4, 2, 0);
        let old = Item::put(b"k", b"1", 3, 3, 1, 0);
        let event = Event::decode(encode_event(false, &new.kv, Some(&old.kv))).unwrap();
        assert_eq!(
            (event.r#type, event.kv.unwrap().value, event.prev_kv.unwrap().value),
            (0, "2".into(), "1".into())
        );
        let deleted = Item::tombstone(b"k", 5);
        let event = Event::decode(encode_event(true, &deleted.kv, None)).unwrap();
        assert_eq!((event.r#type, event.prev_kv), (1, None));
        assert_eq!(
            event.kv.unwrap(),
            KeyValue {
                key: "k".into(),
                mod_revision: 5,
                ..KeyValue::default()
            }
        );
    }

    #[test]
    fn bytes_of_no_item_are_rejected() {
        let good = Item::put(b"key", b"value", 3, 4, 2, 9).kv;
        for cut in 1..good.len() {
            if let Ok(item) = Item::decode(&good[..cut]) {
                assert!(!item.key().is_empty(), "cut at {cut}");
            }
        }
        for bad in [
            &b""[..],
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
            b"\x0a\x05ab",
            b"\x99\x01",
            b"\x18\x01",
        ] {
            assert!(Item::decode(bad).is_err(), "{bad:?}");
        }
    }
}
