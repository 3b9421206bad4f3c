//! HTTP/2 frames that no client sends.

use super::at_once;
use crate::support::PATIENCE;
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, Frames, GOAWAY, HEADERS, Heard, PADDED, PING, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, fields_of, frame,
};
use crate::terminated::{NAMES, Stage};

/// Number of frames of a flood; Envoy's own limit is far below.
const FLOOD: usize = 20_000;

/// Expected result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The connection closes.
    Closed,
    /// The ingress answers on the stream with this code, and no API server is reached.
    Refused(u16),
    /// The stream is reset, and no API server is reached.
    Reset,
    /// The cluster of the token answers.
    Own,
}
use Answer::{Closed, Own, Refused, Reset};

/// Every row has its answer, silence is not one, and only the token's own cluster gets a request.
/// Returns the number of rows.
pub(super) async fn run(stage: &Stage, failed: &mut Vec<String>) -> usize {
    let rows = headers(stage).into_iter().map(|(rule, fields, expected)| {
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields);
        (rule, bytes, expected)
    });
    let rows: Vec<_> = rows.chain(raw(stage)).collect();
    let before = stage.requests();
    let answers = rows.iter().map(|(rule, bytes, expected)| async move {
        let config = stage.root.client(None);
        let mut connection = Frames::open(stage.envoy.ingress, NAMES[0], &config).await;
        connection.write(bytes).await;
        let ended = |frame: &Frame| match frame.kind {
            _ if *expected == Closed => frame.kind == GOAWAY,
            DATA | HEADERS => frame.flags & END_STREAM != 0,
            kind => [GOAWAY, RST_STREAM].contains(&kind),
        };
        let heard = connection.listen(PATIENCE, ended).await;
        let own = heard.text(1).contains("\"cluster\":\"a\"");
        let last = heard.frames.last().filter(|frame| ended(frame));
        let on_stream = last.filter(|frame| frame.stream == 1).map(|frame| frame.kind);
        let good = match expected {
            Closed => heard.closed || last.is_some_and(|frame| frame.kind == GOAWAY),
            Refused(code) => [Some(DATA), Some(HEADERS)].contains(&on_stream) && heard.code(1) == Some(*code),
            Reset => on_stream == Some(RST_STREAM),
            Own => on_stream == Some(DATA),
        };
        let good = good && own == (*expected == Own);
        (!good).then(|| format!("{rule}: wanted {expected:?}, heard {}", tell(&heard)))
    });
    failed.extend(at_once(answers).await);
    let own = rows.iter().filter(|(.., expected)| *expected == Own).count();
    assert_eq!(
        stage.requests(),
        [before[0] + own, before[1]],
        "each once, and nobody else"
    );
    rows.len() + streams_are_counted(stage).await
}

fn tell(heard: &Heard) -> String {
    let kinds: Vec<_> = heard.frames.iter().map(|frame| (frame.kind, frame.stream)).collect();
    format!("{kinds:?} closed {} {}", heard.closed, heard.text(1))
}

/// A client that opens more streams than the announced limit gets none of the surplus ones.
async fn streams_are_counted(stage: &Stage) -> usize {
    let mut connection = Frames::open(stage.envoy.ingress, NAMES[0], &stage.root.client(None)).await;
    let bearer = stage.bearer(0);
    for number in 0..101_u32 {
        let fields = fields(&bearer, "/watch");
        connection.request(2 * number + 1, &fields).await;
    }
    let heard = connection
        .listen(PATIENCE, |frame| frame.kind == RST_STREAM || frame.kind == GOAWAY)
        .await;
    let last = heard.frames.last().unwrap();
    assert_eq!((last.kind, last.stream), (RST_STREAM, 201), "{}", tell(&heard));
    1
}

/// Rows of one header each, with a token of A.
fn headers(stage: &Stage) -> Vec<(&'static str, Vec<u8>, Answer)> {
    let bearer = stage.bearer(0);
    let b = stage.clusters[1].public_name();
    let good = fields(&bearer, "/api");
    let with = |more: &[(&str, &str)]| fields_of(&[&good[..], more].concat());
    let first = |more: &[(&str, &str)]| fields_of(&[more, &good[..]].concat());
    let without = |name: &str| {
        let left: Vec<_> = good.into_iter().filter(|(key, _)| *key != name).collect();
        fields_of(&left)
    };
    let instead = |name: &str, value: &str| {
        let other: Vec<_> = good
            .iter()
            .map(|(key, old)| (*key, if *key == name { value } else { *old }))
            .collect();
        fields_of(&other)
    };
    let crumbs = vec![("cookie", "a=b"); 150];
    let long = "a".repeat(40_000);
    vec![
        ("nothing odd", with(&[]), Own),
        ("a name in capitals", with(&[("X-Remote-User", "b")]), Closed),
        (
            "a line end in a value",
            with(&[("x-a", "1\r\nx-yoke-cluster: b")]),
            Closed,
        ),
        ("a NUL in a value", with(&[("x-a", "a\0b")]), Closed),
        ("a space in a name", with(&[("x a", "1")]), Closed),
        ("a colon in a name", with(&[("x-a:", "1")]), Closed),
        ("a name that is empty", with(&[("", "1")]), Closed),
        ("chunks", with(&[("transfer-encoding", "chunked")]), Closed),
        ("a connection's header", with(&[("connection", "upgrade")]), Closed),
        ("an upgrade", with(&[("upgrade", "websocket")]), Closed),
        ("no method", without(":method"), Closed),
        ("no path", without(":path"), Closed),
        ("no scheme", without(":scheme"), Closed),
        ("no authority", without(":authority"), Closed),
        ("a path that is empty", instead(":path", ""), Closed),
        ("a path without a slash", instead(":path", "api"), Closed),
        ("a path with a space", instead(":path", "/a b"), Closed),
        (
            "a method with a line end",
            instead(":method", "GET / HTTP/1.1\r\nx: y"),
            Closed,
        ),
        ("a scheme that is none", instead(":scheme", "gopher"), Own),
        (
            "an authority with somebody in it",
            instead(":authority", &format!("a@{b}")),
            Closed,
        ),
        ("two paths", with(&[(":path", "/b")]), Closed),
        ("two authorities", first(&[(":authority", &b)]), Closed),
        ("an unknown one of its own", first(&[(":cluster", "b")]), Closed),
        ("B's name beside the authority", with(&[("host", &b)]), Own),
        ("a length and no body", with(&[("content-length", "5")]), Closed),
        (
            "two lengths",
            with(&[("content-length", "0"), ("content-length", "5")]),
            Closed,
        ),
        ("te that is none", with(&[("te", "gzip")]), Closed),
        (
            "CONNECT by another protocol",
            first(&[(":protocol", "websocket")]),
            Closed,
        ),
        ("many crumbs", with(&crumbs), Reset),
        ("a long value", with(&[("x-a", &long)]), Closed),
        ("an underscore", with(&[("x_remote_user", "b")]), Reset),
        ("the token twice", with(&[("authorization", &bearer)]), Refused(401)),
        (
            "the token of another beside it",
            with(&[("authorization", &stage.bearer(1))]),
            Refused(401),
        ),
    ]
}

/// Rows of other bytes on a connection.
fn raw(stage: &Stage) -> Vec<(&'static str, Vec<u8>, Answer)> {
    let bearer = stage.bearer(0);
    let block = fields_of(&fields(&bearer, "/api"));
    let whole = END_HEADERS | END_STREAM;
    let many = |bytes: &[u8]| bytes.repeat(FLOOD);
    // A header index with 100 entries, each referenced many times: 60 KB would expand to 240 MB.
    let bomb = {
        let mut block = block.clone();
        block.extend(b"\x40\x06cookie\x7f\x81\x1f");
        block.extend([b'a'; 4000]);
        block.extend(vec![0xbe; 60_000]);
        let mut bytes = frame(HEADERS, END_STREAM, 1, &block[..16_000]);
        for part in block[16_000..].chunks(16_000) {
            bytes.extend(frame(CONTINUATION, 0, 1, part));
        }
        bytes.extend(frame(CONTINUATION, END_HEADERS, 1, &[]));
        bytes
    };
    let endless = [
        frame(HEADERS, 0, 1, &block),
        many(&frame(CONTINUATION, 0, 1, b"\0\x01a\x01b")),
    ]
    .concat();
    let nobodys = fields_of(&fields("", "/api"));
    let aborted = |number: usize| {
        let stream = u32::try_from(2 * number + 1).unwrap();
        [
            frame(HEADERS, whole, stream, &nobodys),
            frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        ]
        .concat()
    };
    let body = frame(
        HEADERS,
        END_HEADERS,
        1,
        &fields_of(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/api"),
        ]),
    );
    let setting = |id: u8, value: u32| frame(SETTINGS, 0, 0, &[&[0, id][..], &value.to_be_bytes()].concat());
    let trailer = fields_of(&[("x-yoke-cluster", "name/b"), ("authorization", &stage.bearer(1))]);
    vec![
        ("data where no stream is", frame(DATA, 0, 1, b"a"), Closed),
        ("a stream of the server's", frame(HEADERS, whole, 2, &block), Closed),
        ("no stream", frame(HEADERS, whole, 0, &block), Closed),
        (
            "a promise",
            frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], &block[..]].concat()),
            Closed,
        ),
        (
            "a frame that goes on and never began",
            frame(CONTINUATION, END_HEADERS, 1, &block),
            Closed,
        ),
        (
            "a header between others",
            [frame(HEADERS, 0, 1, &block), frame(PING, 0, 0, &[0; 8])].concat(),
            Closed,
        ),
        ("a frame past its size", frame(DATA, 0, 1, &[0; 20_000]), Closed),
        (
            "padding past its frame",
            frame(HEADERS, whole | PADDED, 1, &[&[255][..], b"a"].concat()),
            Closed,
        ),
        (
            "an index that is none",
            frame(HEADERS, whole, 1, &[0xff, 0x80, 0x01]),
            Closed,
        ),
        ("an index without an end", frame(HEADERS, whole, 1, &[0xff; 40]), Closed),
        (
            "a text past its frame",
            frame(HEADERS, whole, 1, b"\0\x7f\xff\xff\xff\x7f"),
            Closed,
        ),
        (
            "a table past its size",
            frame(HEADERS, whole, 1, &[0x3f, 0xe1, 0xff, 0xff, 0x7f]),
            Closed,
        ),
        ("a window of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Closed),
        (
            "a window past all numbers",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2),
            Closed,
        ),
        ("a setting past its numbers", setting(4, u32::MAX), Closed),
        ("frames that are too small", setting(5, 1), Closed),
        ("half a setting", frame(SETTINGS, 0, 0, &[0, 4, 0]), Closed),
        ("a ping of nine bytes", frame(PING, 0, 0, &[0; 9]), Closed),
        ("an index that grows", bomb, Closed),
        ("a header without an end", endless, Closed),
        ("settings without an end", many(&setting(3, 100)), Closed),
        ("pings without an end", many(&frame(PING, 0, 0, &[0; 8])), Closed),
        (
            "empty data without an end",
            [body, many(&frame(DATA, 0, 1, &[]))].concat(),
            Closed,
        ),
        (
            "priorities without an end",
            many(&frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
            Closed,
        ),
        (
            "requests given up without an end",
            (0..FLOOD / 4).flat_map(aborted).collect(),
            Closed,
        ),
        (
            "the token of another after the request",
            [
                frame(HEADERS, END_HEADERS, 1, &block),
                frame(HEADERS, whole, 1, &trailer),
            ]
            .concat(),
            Own,
        ),
    ]
}
