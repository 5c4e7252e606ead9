//! Whose connections are: the comments of frames.

use crate::ends::{Key, ends, key};
use crate::pcapng::packet_options;
use crate::record::{DIRECT, Header, Kind, Name};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Most connections that are remembered. With more, all are forgotten, and those that go on have no name.
const MOST: usize = 1 << 18;

/// Directions of connections whose comments are kept ready, as a power of two.
const READY_BITS: u32 = 14;

/// The names that the service has told.
#[derive(Default)]
pub struct Names {
    /// By local and remote end.
    connections: HashMap<[SocketAddr; 2], Name>,
    /// By address (`None` = any) and port.
    listeners: HashMap<(Option<IpAddr>, u16), Name>,
    /// The options of the last frames. A hostile peer can choose its ports so that they are made anew for each frame, and nothing
    /// worse.
    ready: Vec<Ready>,
    /// Those of a frame that is none of these.
    other: Vec<u8>,
    /// What was made ready before the last general change is old.
    round: u64,
}

/// The options of the frames that go one way.
#[derive(Clone)]
struct Ready {
    round: u64,
    seen: Seen,
    key: Key,
    options: Vec<u8>,
}

/// Where a frame was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Both ends are here.
    Within,
    Outgoing,
    Incoming,
}

impl Seen {
    fn of(header: &Header) -> Self {
        if header.place == DIRECT || header.place == 0 {
            Self::Within
        } else if header.kind == (Kind::Frame { outgoing: true }) {
            Self::Outgoing
        } else {
            Self::Incoming
        }
    }
    fn outgoing(self) -> Option<bool> {
        Some(self == Self::Outgoing).filter(|_| self != Self::Within)
    }
}

impl Names {
    /// Takes a name.
    pub fn told(&mut self, name: Name) {
        if name.remote.port() == 0 {
            let ip = Some(name.local.ip()).filter(|ip| !ip.is_unspecified());
            self.listeners.insert((ip, name.local.port()), name);
            self.round += 1;
            return;
        }
        if self.connections.len() >= MOST {
            self.connections.clear();
            self.round += 1;
        }
        // It stands in the comments of both directions.
        for [from, to] in [[name.local, name.remote], [name.remote, name.local]] {
            let ready = Key::of(from, to).and_then(|key| self.ready.get_mut(place(&key)));
            if let Some(ready) = ready {
                ready.options.clear();
            }
        }
        self.connections.insert([name.local, name.remote], name);
    }

    /// The options of a frame's block in the file: the comment `curl (pid 7, uid 1000) 10.0.0.1:4000 > 10.0.0.2:80`, unless it is
    /// no TCP, and the direction.
    pub fn options(&mut self, header: &Header, frame: &[u8]) -> &[u8] {
        let seen = Seen::of(header);
        let Some(key) = key(frame) else {
            self.other = self.made(seen, frame);
            return &self.other;
        };
        let at = place(&key);
        let is_it = self.ready.get(at).is_some_and(|ready| {
            // Options have at least an end.
            ready.key == key && ready.round == self.round && ready.seen == seen && !ready.options.is_empty()
        });
        if !is_it {
            self.make_ready(at, key, seen, frame);
        }
        &self.ready[at].options
    }

    #[cold]
    fn make_ready(&mut self, at: usize, key: Key, seen: Seen, frame: &[u8]) {
        if self.ready.is_empty() {
            let none = Ready { round: 0, seen: Seen::Within, key: Key::V4([0; 3]), options: Vec::new() };
            self.ready.resize(1 << READY_BITS, none);
        }
        self.ready[at] = Ready { round: self.round, seen, key, options: self.made(seen, frame) };
    }

    #[cold]
    fn made(&self, seen: Seen, frame: &[u8]) -> Vec<u8> {
        let comment = ends(frame).map_or_else(String::new, |ends| self.comment(seen, ends));
        packet_options(&comment, seen.outgoing())
    }

    fn comment(&self, seen: Seen, [from, to]: [SocketAddr; 2]) -> String {
        // A listener's name stands for a connection that has none yet, at an end that is here.
        let sender = self.name(from, to, seen != Seen::Incoming).map_or_else(String::new, |name| who(name) + " ");
        let receiver =
            self.name(to, from, seen != Seen::Outgoing).map_or_else(String::new, |name| format!(" {}", who(name)));
        format!("{sender}{from} > {to}{receiver}")
    }

    fn name(&self, local: SocketAddr, remote: SocketAddr, here: bool) -> Option<&Name> {
        let listener = |ip| self.listeners.get(&(ip, local.port())).filter(|_| here);
        self.connections.get(&[local, remote]).or_else(|| listener(Some(local.ip()))).or_else(|| listener(None))
    }
}

fn who(name: &Name) -> String {
    format!("{} (pid {}, uid {})", name.program, name.pid, name.uid)
}

/// The place among those that are ready of a direction with this key.
#[inline]
fn place(key: &Key) -> usize {
    let mix = |words: &[u32]| {
        words
            .iter()
            .fold(0u64, |mixed, word| (mixed.rotate_left(32) ^ u64::from(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    let mixed = match key {
        Key::V4(words) => mix(words),
        Key::V6(words) => mix(words),
    };
    (mixed >> (u64::BITS - READY_BITS)) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conversation::Conversation;
    use crate::pcapng::packet_options;

    fn name(local: &str, remote: &str, program: &str) -> Name {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        Name { local, remote, pid: 7, uid: 1000, program: program.into() }
    }

    /// Of a SYN and its answer.
    fn options(names: &mut Names, place: u16, outgoing: bool, ends: [&str; 2]) -> Vec<Vec<u8>> {
        let header = Header { kind: Kind::Frame { outgoing }, place, time_ns: 0, length: 0 };
        let mut all = Vec::new();
        Conversation::opens(ends.map(|end| end.parse().unwrap()), |frame| {
            all.push(names.options(&header, frame).to_vec());
        });
        all.truncate(2);
        all
    }

    #[test]
    fn a_comment_names_the_programs_at_the_ends_that_are_here() {
        let mut names = Names::default();
        let ends = ["10.0.0.1:4000", "10.0.0.2:80"];
        names.told(name("0.0.0.0:80", "0.0.0.0:0", "nginx"));
        let check = |names: &mut Names, place, outgoing: bool, comment: &str| {
            let direction = Some(outgoing).filter(|_| place != DIRECT);
            // What is ready is the same as what is made.
            for _ in 0..2 {
                assert_eq!(options(names, place, outgoing, ends)[0], packet_options(comment, direction), "{comment}");
            }
        };
        // The other end is not here.
        check(&mut names, 1, true, "10.0.0.1:4000 > 10.0.0.2:80");
        check(&mut names, 1, false, "10.0.0.1:4000 > 10.0.0.2:80 nginx (pid 7, uid 1000)");
        names.told(name(ends[0], ends[1], "curl"));
        check(&mut names, 1, true, "curl (pid 7, uid 1000) 10.0.0.1:4000 > 10.0.0.2:80");
        names.told(name(ends[1], ends[0], "worker"));
        let both = "curl (pid 7, uid 1000) 10.0.0.1:4000 > 10.0.0.2:80 worker (pid 7, uid 1000)";
        check(&mut names, DIRECT, false, both);
        let back = "worker (pid 7, uid 1000) 10.0.0.2:80 > 10.0.0.1:4000 curl (pid 7, uid 1000)";
        assert_eq!(options(&mut names, DIRECT, false, ends)[1], packet_options(back, None));
    }

    #[test]
    fn a_name_that_comes_later_stands_in_all_comments_from_then_on() {
        let mut names = Names::default();
        let comment = |names: &mut Names, ends| {
            String::from_utf8_lossy(&options(names, DIRECT, false, ends).concat()).into_owned()
        };
        for ends in [["10.0.0.1:4000", "10.0.0.2:80"], ["[fd00::1]:4000", "[fd00::2]:80"]] {
            assert_eq!(comment(&mut names, ends).matches("(pid").count(), 0);
            names.told(name(ends[0], ends[1], "curl"));
            assert_eq!(comment(&mut names, ends).matches("curl (pid").count(), 2, "in both directions");
            names.told(name(ends[0], ends[1], "wget"));
            assert_eq!(comment(&mut names, ends).matches("wget (pid").count(), 2);
            // A listener's name is any connection's.
            names.told(name("0.0.0.0:80", "0.0.0.0:0", "nginx"));
            assert_eq!(comment(&mut names, ends).matches("nginx (pid").count(), 2);
            names.listeners.clear();
            names.round += 1;
        }
    }

    /// More connections than are kept ready: those that share a place have their own names all the same.
    #[test]
    fn connections_that_share_a_place_have_their_own_names() {
        let mut names = Names::default();
        for _ in 0..2 {
            for port in 1..=40_000 {
                let ends = [format!("10.0.0.1:{port}"), "10.0.0.2:80".into()];
                let comment = format!("{} > {}", ends[0], ends[1]);
                let first = options(&mut names, 1, true, [&ends[0], &ends[1]]).remove(0);
                assert_eq!(first, packet_options(&comment, Some(true)));
            }
        }
    }

    /// Frames that are no TCP, are cut, or have IP options.
    #[test]
    fn what_has_no_key_is_made_each_time() {
        let mut names = Names::default();
        let header = Header { kind: Kind::Frame { outgoing: false }, place: 1, time_ns: 0, length: 0 };
        let ends = ["10.0.0.1:4000", "10.0.0.2:80"].map(|end| end.parse().unwrap());
        let mut frames = Vec::new();
        Conversation::opens(ends, |frame| frames.push(frame.to_vec()));
        let mut syn = frames.swap_remove(0);
        assert_eq!(names.options(&header, &syn[..37]), packet_options("", Some(false)));
        assert_eq!(names.options(&header, &[]), packet_options("", Some(false)));
        // Four bytes of options behind the addresses.
        syn[14] = 0x46;
        syn.splice(34..34, [1, 1, 1, 0]);
        assert_eq!(names.options(&header, &syn), packet_options("10.0.0.1:4000 > 10.0.0.2:80", Some(false)));
        syn[23] = 17;
        assert_eq!(names.options(&header, &syn), packet_options("", Some(false)));
    }
}
