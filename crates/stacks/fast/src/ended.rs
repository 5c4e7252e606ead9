//! The memory of connections that have ended: so many of the last, in the slow path.

use std::collections::VecDeque;
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

/// See the module.
#[derive(Debug)]
pub struct EndedConnections(VecDeque<Ended>);

impl Default for EndedConnections {
    fn default() -> Self {
        Self(VecDeque::with_capacity(MOST))
    }
}

impl EndedConnections {
    /// One more.
    pub fn add(&mut self, ended: Ended) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(ended);
    }

    /// All of them, the last one first.
    pub fn list(&self, now: Micros) -> Vec<EndedSocket> {
        self.0.iter().rev().map(|ended| ended.shown(now)).collect()
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

    fn ended(at: u64, name: &str) -> Ended {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let tuple = FourTuple { local: addr, local_port: 80, remote: addr, remote_port: at as u16 };
        Ended::new(Micros(at), Ending::PeerReset, tuple, (name, 7, 1000), false)
    }

    #[test]
    fn the_last_ones_are_remembered_and_no_more() {
        let mut all = EndedConnections::default();
        let room = all.0.capacity();
        (0..MOST as u64 + 7).for_each(|at| all.add(ended(at, "redis-server")));
        let list = all.list(Micros(MOST as u64 + 10));
        assert_eq!((list.len(), all.0.capacity()), (MOST, room));
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
