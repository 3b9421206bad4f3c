//! Hand-written HTTP/2, for bytes that no library sends.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::PATIENCE;
use super::tenant::open;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
const ACK: u8 = 1;

/// One frame.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A connection on which a client may send any bytes.
pub struct Frames {
    stream: TlsStream<TcpStream>,
}

/// Everything that was received on a connection until it was quiet or closed.
#[derive(Debug, Default)]
pub struct Heard {
    pub frames: Vec<Frame>,
    pub closed: bool,
}

impl Heard {
    /// The data of one stream.
    pub fn text(&self, stream: u32) -> String {
        let own = self.frames.iter();
        let own = own.filter(|frame| frame.kind == DATA && frame.stream == stream);
        let bytes: Vec<u8> = own.flat_map(|frame| frame.payload.clone()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The status of the answer on a stream. It is the first header field: an entry of the static
    /// table, or digits in codes of five or six bits (RFC 7541, A and B).
    pub fn code(&self, stream: u32) -> Option<u16> {
        let mut own = self.frames.iter().filter(|frame| frame.stream == stream);
        let payload = &own.find(|frame| frame.kind == HEADERS)?.payload;
        if let Some(index) = [0x88, 0x8c, 0x8d, 0x8e]
            .iter()
            .position(|byte| payload.first() == Some(byte))
        {
            return Some([200, 400, 404, 500][index]);
        }
        let mut bits = u32::from_be_bytes(payload.get(2..6)?.try_into().ok()?);
        let mut digit = || {
            let width = if bits >> 27 < 3 { 5 } else { 6 };
            let code = u16::try_from(bits >> (32 - width)).unwrap();
            bits <<= width;
            if width == 5 { code } else { code - 0x16 }
        };
        Some(digit() * 100 + digit() * 10 + digit())
    }

    /// Number of frames of a type.
    pub fn count(&self, kind: u8) -> usize {
        self.frames.iter().filter(|frame| frame.kind == kind).count()
    }
}

impl Frames {
    /// Connects and sends the preface of every client.
    pub async fn open(ingress: SocketAddr, name: &str, config: &ClientConfig) -> Self {
        let mut connection = Self::open_silent(ingress, name, config).await;
        connection.write(PREFACE).await;
        connection.send(SETTINGS, 0, 0, &[]).await;
        connection
    }

    /// Connects and sends nothing.
    pub async fn open_silent(ingress: SocketAddr, name: &str, config: &ClientConfig) -> Self {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = open(ingress, name, &config).await.unwrap();
        Self { stream }
    }

    /// Sends bytes. A client that is cut off meanwhile notices it when it reads.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        let written = tokio::time::timeout(PATIENCE, async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        });
        written.await.is_ok_and(|result| result.is_ok())
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.write(&frame(kind, flags, stream, payload)).await
    }

    /// Sends a complete header without a body.
    pub async fn request(&mut self, stream: u32, fields: &[(&str, &str)]) -> bool {
        let flags = END_HEADERS | END_STREAM;
        self.send(HEADERS, flags, stream, &fields_of(fields)).await
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    /// Reads until `enough`, until the end, or until nothing arrives for `quiet`.
    pub async fn listen(&mut self, quiet: Duration, mut enough: impl FnMut(&Frame) -> bool) -> Heard {
        let mut heard = Heard::default();
        loop {
            match tokio::time::timeout(quiet, self.next()).await {
                Err(_) => return heard,
                Ok(None) => {
                    heard.closed = true;
                    return heard;
                }
                Ok(Some(frame)) => {
                    if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                        self.send(SETTINGS, ACK, 0, &[]).await;
                    }
                    let done = enough(&frame);
                    heard.frames.push(frame);
                    if done {
                        return heard;
                    }
                }
            }
        }
    }
}

/// Encodes one frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Header fields of a request with a token.
pub fn fields<'a>(bearer: &'a str, path: &'a str) -> [(&'a str, &'a str); 5] {
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "10.96.0.1"),
        (":path", path),
        ("authorization", bearer),
    ]
}

/// Encodes header fields as literals.
pub fn fields_of(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.extend(length_of(text.len()));
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// Encodes a length with a prefix of seven bits (RFC 7541, 5.1).
fn length_of(length: usize) -> Vec<u8> {
    let Some(mut rest) = length.checked_sub(127) else {
        return vec![u8::try_from(length).unwrap()];
    };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128 + 128).unwrap());
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}
