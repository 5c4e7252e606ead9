//! The memory of connections that have ended: so many of the last, in the slow path.

use std::cmp::Reverse;
use towpath_runtime::EndedSocket;
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::Ending;
use towpath_tcp::time::Micros;

/// Most connections that are remembered.
const MOST: usize = 1024;
/// Bytes of a program's name that are kept: the kernel's names of processes are shorter.
const NAME: usize = 16;

/// A connection that has ended. It has a size of its own, so that an end allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    at: Micros,
    why: Ending,
    tuple: FourTuple,
    name: [u8; NAME],
    pid: i32,
    uid: u32,
    direct: bool,
}

/// One that is remembered.
#[derive(Debug)]
struct Remembered {
    ended: Ended,
    /// So many came before it.
    number: u64,
    /// The place of its user's next one, if it is not his newest.
    next: usize,
}

/// A user who has some.
#[derive(Debug)]
struct User {
    uid: u32,
    count: usize,
    oldest: usize,
    newest: usize,
}

/// See the module. A new one takes the place of the oldest of the user who has most: none can make the service forget
/// those of the others.
#[derive(Debug)]
pub struct EndedConnections {
    all: Vec<Remembered>,
    users: Vec<User>,
    added: u64,
}

impl Default for EndedConnections {
    fn default() -> Self {
        Self { all: Vec::with_capacity(MOST), users: Vec::with_capacity(MOST), added: 0 }
    }
}

impl EndedConnections {
    /// One more.
    pub fn add(&mut self, ended: Ended) {
        let uid = ended.uid;
        let one = Remembered { ended, number: self.added, next: 0 };
        self.added += 1;
        let place = if self.all.len() < MOST {
            self.all.push(one);
            self.all.len() - 1
        } else {
            let place = self.forget_for(uid);
            self.all[place] = one;
            place
        };
        match self.users.iter_mut().find(|user| user.uid == uid) {
            Some(user) => {
                self.all[user.newest].next = place;
                (user.newest, user.count) = (place, user.count + 1);
            }
            None => self.users.push(User { uid, count: 1, oldest: place, newest: place }),
        }
    }

    /// Frees a place for one of this user, which counts already.
    fn forget_for(&mut self, uid: u32) -> usize {
        let weight = |user: &User| (user.count + usize::from(user.uid == uid), Reverse(self.all[user.oldest].number));
        let most = (0..self.users.len()).max_by_key(|at| weight(&self.users[*at])).unwrap_or_default();
        let user = &mut self.users[most];
        let place = user.oldest;
        (user.oldest, user.count) = (self.all[place].next, user.count - 1);
        if user.count == 0 {
            self.users.swap_remove(most);
        }
        place
    }

    /// All of them, the last one first.
    pub fn list(&self, now: Micros) -> Vec<EndedSocket> {
        let mut all: Vec<&Remembered> = self.all.iter().collect();
        all.sort_unstable_by_key(|one| Reverse(one.number));
        all.into_iter().map(|one| one.ended.shown(now)).collect()
    }
}

impl Ended {
    /// A connection of a program of this name, process and user, which ends now.
    pub fn new(at: Micros, why: Ending, tuple: FourTuple, (program, pid, uid): (&str, i32, u32), direct: bool) -> Self {
        let mut name = [0; NAME];
        name.iter_mut().zip(program.bytes()).for_each(|(place, byte)| *place = byte);
        Self { at, why, tuple, name, pid, uid, direct }
    }

    fn shown(&self, now: Micros) -> EndedSocket {
        let (word, why, errno) = words(self.why);
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        EndedSocket {
            ended: word.into(),
            why: why.into(),
            errno,
            ago_us: now.0.saturating_sub(self.at.0),
            local: self.tuple.local_end(),
            peer: self.tuple.remote_end(),
            program: String::from_utf8_lossy(&self.name[..length]).into_owned(),
            pid: self.pid,
            uid: self.uid,
            direct: self.direct,
        }
    }
}

/// An end in one word and in a sentence, and its errno.
fn words(why: Ending) -> (&'static str, &'static str, Option<i32>) {
    match why {
        Ending::PeerClosed => ("peer-closed", "both sides closed, the peer first", None),
        Ending::Closed => ("closed", "both sides closed, the program first", None),
        Ending::NoFin => ("no-fin", "the program closed, and the peer did not in time", None),
        Ending::PeerReset => ("peer-reset", "the peer reset it", None),
        Ending::Aborted => ("aborted", "the program reset it, or closed with unread data", None),
        Ending::Violation => ("violation", "the program, or its library, violated the contract", None),
        Ending::Accuser => ("accuser", "the program said that the other end broke the contract", None),
        Ending::Left => ("left", "the program is gone, and the peer did not take in time what it left", None),
        Ending::NotKept => {
            ("not-kept", "the program is gone, and what it left was not kept: no room, or not ready", None)
        }
        Ending::NoAnswer(errno) => ("no-answer", "the peer did not answer any more", Some(errno)),
        Ending::Cut => ("cut", "the operator ended it", None),
        Ending::PeersClosed => ("peers-closed", "the peers of both ends of its splice closed", None),
        Ending::SpliceLost => {
            ("splice-lost", "what translated its splice is gone, or could not follow a new path", None)
        }
        Ending::OtherEnd => ("other-end", "the connection that it was spliced with ended", None),
        Ending::NotOpened(errno) => ("not-opened", "it was not established", Some(errno)),
        Ending::Abandoned => ("abandoned", "the program closed it, or was gone, before it was established", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn ended_of(uid: u32, at: u64, name: &str) -> Ended {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let tuple = FourTuple { local: addr, local_port: 80, remote: addr, remote_port: at as u16 };
        Ended::new(Micros(at), Ending::PeerReset, tuple, (name, 7, uid), false)
    }

    fn ended(at: u64, name: &str) -> Ended {
        ended_of(1000, at, name)
    }

    #[test]
    fn a_flood_of_one_user_leaves_those_of_the_others() {
        let mut all = EndedConnections::default();
        let ports = |all: &EndedConnections, uid| -> Vec<u16> {
            let list = all.list(Micros(1 << 20));
            list.iter().filter(|one| one.uid == uid).map(|one| one.peer.port()).collect()
        };
        (0..5).for_each(|at| all.add(ended_of(1, at, "victim")));
        (5..9_000).for_each(|at| all.add(ended_of(2, at, "flood")));
        assert_eq!(ports(&all, 1), [4, 3, 2, 1, 0]);
        let newest = |most: u16| (0..most).map(|back| 8_999 - back).collect::<Vec<_>>();
        assert_eq!(ports(&all, 2), newest(MOST as u16 - 5));
        (9_000..9_003).for_each(|at| all.add(ended_of(1, at, "victim")));
        assert_eq!(ports(&all, 1), [9_002, 9_001, 9_000, 4, 3, 2, 1, 0], "his new ones take places of the flood's");
        assert_eq!(ports(&all, 2), newest(MOST as u16 - 8));
        // Both flood: each has half, and the newest.
        (10_000..14_000).for_each(|at| all.add(ended_of(1 + at as u32 % 2, at, "flood")));
        for uid in [1, 2] {
            let half = (10_000..14_000).rev().filter(|at| 1 + at % 2 == uid).take(MOST / 2);
            assert_eq!(ports(&all, uid.into()), half.collect::<Vec<_>>());
        }
    }

    #[test]
    fn of_more_users_than_places_the_oldest_are_forgotten() {
        let mut all = EndedConnections::default();
        let room = all.users.capacity();
        (0..3 * MOST as u64).for_each(|at| all.add(ended_of(at as u32, at, "one")));
        let uids: Vec<u32> = all.list(Micros(1 << 20)).iter().map(|one| one.uid).collect();
        assert_eq!(uids, (2 * MOST as u32..3 * MOST as u32).rev().collect::<Vec<_>>());
        assert_eq!((all.users.len(), all.users.capacity()), (MOST, room));
    }

    #[test]
    fn the_last_ones_are_remembered_and_no_more() {
        let mut all = EndedConnections::default();
        let room = all.all.capacity();
        (0..MOST as u64 + 7).for_each(|at| all.add(ended(at, "redis-server")));
        let list = all.list(Micros(MOST as u64 + 10));
        assert_eq!((list.len(), all.all.capacity()), (MOST, room));
        assert_eq!((list[0].ago_us, list[0].peer.port()), (4, MOST as u16 + 6), "the last one first");
        assert_eq!(list[MOST - 1].peer.port(), 7);
        let EndedSocket { ended, program, local, .. } = &list[0];
        assert_eq!((&**ended, program.as_str(), local.port()), ("peer-reset", "redis-server", 80));
    }

    #[test]
    fn a_name_of_any_length_fits() {
        for name in ["", "0123456789abcde", "0123456789abcdef", "0123456789abcdefg"] {
            let shown = ended(1, name).shown(Micros(1));
            assert_eq!(shown.program, name[..name.len().min(NAME)]);
        }
    }
}
