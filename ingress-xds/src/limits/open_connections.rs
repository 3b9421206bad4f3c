//! Tracks the open connections of each source. Pure: time comes in as an argument.
//!
//! The gate adds a connection when it allows it. Envoy's access log reports its end, and such a
//! report may be lost. So a connection counts for [`COUNTED`] at most, and the log reader calls
//! [`OpenConnections::clear`] when it may have missed some. A source may then exceed its limit for
//! a while, but no source is blocked by connections that it no longer has.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use yoke_runtime::budget::source_key;

/// Maximum time for which a connection counts. Most streams end within an hour: see
/// `stream_idle_timeout` of Envoy's bootstrap.
pub const COUNTED: Duration = Duration::from_secs(3600);
/// Maximum number of tracked connections of all sources. Further ones are allowed and not counted.
pub const CAPACITY: usize = 262_144;

/// Open connections of each source.
#[derive(Debug)]
pub struct OpenConnections {
    limit: usize,
    sources: HashMap<IpAddr, Source>,
    total: usize,
}

/// Connections of one source, by the client's address and port.
#[derive(Debug, Default)]
struct Source {
    open: HashMap<SocketAddr, Open>,
    count: usize,
}

/// Connections of one address and port: a new one may start before the end of the previous one is
/// reported.
#[derive(Debug)]
struct Open {
    count: usize,
    newest: Instant,
}

impl OpenConnections {
    /// Starts without connections; `limit` is per source.
    pub fn new(limit: u32) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            sources: HashMap::new(),
            total: 0,
        }
    }

    /// Whether the source may open another connection.
    pub fn has_room(&mut self, peer: SocketAddr, now: Instant) -> bool {
        let Some(source) = self.sources.get_mut(&source_key(Some(peer.ip()))) else {
            return self.limit > 0;
        };
        if source.count >= self.limit {
            self.total -= source.count;
            source
                .open
                .retain(|_, open| now.saturating_duration_since(open.newest) < COUNTED);
            source.count = source.open.values().map(|open| open.count).sum();
            self.total += source.count;
        }
        source.count < self.limit
    }

    /// Adds a connection.
    pub fn add(&mut self, peer: SocketAddr, now: Instant) {
        if self.total >= CAPACITY {
            return;
        }
        let source = self.sources.entry(source_key(Some(peer.ip()))).or_default();
        let open = source.open.entry(peer).or_insert(Open { count: 0, newest: now });
        open.newest = now;
        open.count += 1;
        source.count += 1;
        self.total += 1;
    }

    /// Removes a connection that ended, if it is tracked.
    pub fn remove(&mut self, peer: SocketAddr) {
        let Entry::Occupied(mut source) = self.sources.entry(source_key(Some(peer.ip()))) else {
            return;
        };
        let Entry::Occupied(mut open) = source.get_mut().open.entry(peer) else {
            return;
        };
        open.get_mut().count -= 1;
        if open.get().count == 0 {
            open.remove();
        }
        source.get_mut().count -= 1;
        if source.get().count == 0 {
            source.remove();
        }
        self.total -= 1;
    }

    /// Removes all connections.
    pub fn clear(&mut self) {
        self.sources.clear();
        self.total = 0;
    }

    /// Number of tracked connections.
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn take(open: &mut OpenConnections, text: &str, now: Instant) -> bool {
        let room = open.has_room(peer(text), now);
        if room {
            open.add(peer(text), now);
        }
        room
    }

    #[test]
    fn open_connections_of_a_source_are_limited() {
        let now = Instant::now();
        let mut open = OpenConnections::new(2);
        for (rule, text, expected) in [
            ("first", "192.0.2.1:1", true),
            ("second", "192.0.2.1:2", true),
            ("third", "192.0.2.1:3", false),
            ("another's", "192.0.2.2:1", true),
            ("mapped", "[::ffff:192.0.2.1]:4", false),
            ("of a site", "[2001:db8::1]:1", true),
            ("of the same", "[2001:db8::2]:1", true),
            ("and again", "[2001:db8::3]:1", false),
            ("of the next", "[2001:db8:0:1::1]:1", true),
        ] {
            assert_eq!(take(&mut open, text, now), expected, "{rule}");
        }
        assert_eq!(open.total(), 6);
    }

    #[test]
    fn ended_connections_leave_room() {
        let now = Instant::now();
        let mut open = OpenConnections::new(1);
        assert!(take(&mut open, "192.0.2.1:1", now));
        open.remove(peer("192.0.2.1:2"));
        open.remove(peer("192.0.2.2:1"));
        assert!(!take(&mut open, "192.0.2.1:2", now), "another one ended");
        open.remove(peer("192.0.2.1:1"));
        assert!(take(&mut open, "192.0.2.1:2", now));
        open.clear();
        assert_eq!(open.total(), 0);
        assert!(take(&mut open, "192.0.2.1:3", now));
        open.remove(peer("192.0.2.1:2"));
        assert_eq!(open.total(), 1, "one that was forgotten ends");
        open.remove(peer("192.0.2.1:3"));
        assert!(open.sources.is_empty(), "nothing stays of a source");
    }

    #[test]
    fn the_report_of_an_end_may_be_late() {
        let now = Instant::now();
        let mut open = OpenConnections::new(2);
        assert!(take(&mut open, "192.0.2.1:1", now));
        assert!(take(&mut open, "192.0.2.1:1", now), "the next one from there");
        assert!(!take(&mut open, "192.0.2.1:2", now));
        open.remove(peer("192.0.2.1:1"));
        assert_eq!(open.total(), 1, "it is the first that ended");
    }

    #[test]
    fn the_report_of_an_end_may_be_lost() {
        let start = Instant::now();
        let mut open = OpenConnections::new(2);
        assert!(take(&mut open, "192.0.2.1:1", start));
        assert!(take(&mut open, "192.0.2.1:2", start + Duration::from_secs(60)));
        assert!(!take(
            &mut open,
            "192.0.2.1:3",
            start + COUNTED - Duration::from_secs(1)
        ));
        assert!(
            take(&mut open, "192.0.2.1:3", start + COUNTED),
            "the older counts no more"
        );
        assert!(!take(&mut open, "192.0.2.1:4", start + COUNTED), "the newer does");
    }

    #[test]
    fn the_number_of_tracked_connections_is_limited() {
        let now = Instant::now();
        let mut open = OpenConnections::new(1);
        for number in 0..u32::try_from(CAPACITY).unwrap() + 1000 {
            open.add(SocketAddr::from((number.to_be_bytes(), 1)), now);
        }
        assert_eq!(open.total(), CAPACITY);
    }
}
