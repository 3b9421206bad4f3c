//! The processes that announced themselves lately. Times are passed in.

use crate::peer::message::Announcement;
use crate::store::peers::Member;
use std::collections::BTreeMap;
use std::time::Duration;

/// Announcement interval of a process that knows others, or is not the writer. A writer without
/// others is silent: a new process announces itself first.
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// A process that did not announce itself for this long counts as gone.
const ABSENT_AFTER: Duration = Duration::from_secs(5);

/// The newest announcement of each process, with its time.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    members: BTreeMap<u64, (Duration, Member)>,
}

impl Roster {
    /// Records the announcement of a process.
    pub(crate) fn record(&mut self, announcement: Announcement, now: Duration) {
        let Announcement {
            member: id,
            name,
            client_urls,
            leaving,
            full,
        } = announcement;
        if leaving {
            self.members.remove(&id);
        } else {
            let member = Member {
                id,
                name,
                client_urls,
                full,
            };
            self.members.insert(id, (now, member));
        }
        self.members
            .retain(|_, (announced, _)| now <= *announced + ABSENT_AFTER);
    }

    /// The processes whose announcement is recent enough.
    pub(crate) fn members(&self, now: Duration) -> Vec<Member> {
        let recent = self
            .members
            .values()
            .filter(|(announced, _)| now <= *announced + ABSENT_AFTER);
        recent.map(|(_, member)| member.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_and_leaving_members_are_removed() {
        let announcement = |member: u64, leaving: bool| Announcement {
            member,
            name: String::new(),
            client_urls: Vec::new(),
            leaving,
            full: false,
        };
        let second = Duration::from_secs(1);
        let mut roster = Roster::default();
        roster.record(announcement(1, false), second);
        roster.record(announcement(2, false), 4 * second);
        let ids = |roster: &Roster, now: u32| -> Vec<u64> {
            roster.members(now * second).iter().map(|member| member.id).collect()
        };
        assert_eq!(ids(&roster, 6), [1, 2]);
        assert_eq!(ids(&roster, 7), [2]);
        roster.record(announcement(1, false), 8 * second);
        assert_eq!(ids(&roster, 9), [1, 2]);
        roster.record(announcement(1, true), 9 * second);
        assert_eq!(ids(&roster, 9), [2]);
        assert_eq!(ids(&roster, 10), [0; 0]);
    }
}
