//! Golden test: the content of the buckets of a small store.

use super::bbolt::File;
use super::*;

fn version(revision: i64, item: Item) -> Version {
    Version {
        revision,
        delete: item.is_tombstone(),
        kv: item.kv,
    }
}

/// The content of a file as text; printable bytes are shown as they are.
fn text(parts: BackupContent) -> Vec<String> {
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let lines = buckets(parts).into_iter().flat_map(|bucket| {
        let name = bucket.name();
        let lines = bucket.entries().iter().map(move |entry| {
            let (key, value) = (show(entry.key.as_slice()), show(&entry.value));
            format!("{name} {key} {value}")
        });
        lines.collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn a_backup_contains_versions_leases_and_its_source() {
    let parts = BackupContent {
        base: vec![
            version(4, Item::put(b"b", b"2", 3, 4, 2, 0)),
            version(2, Item::put(b"c", b"", 2, 2, 1, 0)),
            version(2, Item::put(b"a", b"", 2, 2, 1, 5)),
        ],
        history: vec![
            version(6, Item::put(b"b", b"3", 3, 6, 3, 0)),
            version(6, Item::tombstone(b"a", 6)),
        ],
        revision: 6,
        compacted: 5,
        leases: vec![(-1, 60), (5, 300)],
        sequence: 258,
        epoch: 3,
        members: vec![Member {
            id: 0xfade,
            name: "one".into(),
            client_urls: vec!["http://a:1".into()],
            full: false,
        }],
    };
    let zero = r"\x00\x00\x00\x00\x00\x00\x00";
    let lines = text(parts);
    let (keys, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("key "));
    let firsts: Vec<_> = keys.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    let place = |main: u8, sub: u8| format!(r"{zero}\x{main:02x}_{zero}\x{sub:02x}");
    let tombstone = format!("{}t", place(6, 1));
    assert_eq!(firsts, [place(2, 0), place(2, 1), place(4, 0), place(6, 0), tombstone]);
    assert!(
        keys[4].ends_with(r" \n\x01a"),
        "a tombstone has only its key: {}",
        keys[4]
    );
    assert!(keys[3].ends_with(r" \n\x01b\x10\x03\x18\x06 \x03*\x013"), "{}", keys[3]);
    let compacted = place(5, 0);
    assert_eq!(
        others,
        [
            "cluster clusterVersion 3.6.0".to_owned(),
            format!(r"lease {zero}\x05 \x08\x05\x10\xac\x02"),
            r"lease \xff\xff\xff\xff\xff\xff\xff\xff \x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10<".to_owned(),
            r#"members 000000000000fade {\"id\":64222,\"peerURLs\":[\"http://a:1\"],\"name\":\"one\",\"clientURLs\":[\"http://a:1\"]}"#.to_owned(),
            r#"meta confState {\"voters\":[64222],\"auto_leave\":false}"#.to_owned(),
            r"meta consistent_index \x00\x00\x00\x00\x00\x00\x01\x02".to_owned(),
            format!("meta finishedCompactRev {compacted}"),
            format!("meta scheduledCompactRev {compacted}"),
            "meta storageVersion 3.6.0".to_owned(),
            format!(r"meta term {zero}\x03"),
        ]
    );
}

#[test]
fn a_backup_of_an_uncompacted_store_has_no_compact_revision() {
    for (compacted, expected) in [(-1, 0), (0, 2)] {
        let lines = text(BackupContent {
            compacted,
            ..BackupContent::default()
        });
        let found = lines.iter().filter(|line| line.contains("Compact")).count();
        assert_eq!(found, expected, "{compacted}: {lines:?}");
    }
    // Four pages of the file itself, and one for each of the ten buckets.
    assert_eq!(File::new(buckets(BackupContent::default())).size(), 14 * 4096);
}
