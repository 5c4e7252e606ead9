//! Whose connections are: the comments of frames.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use towpath_capture::Name;
use towpath_capture::ends::ends;
use towpath_capture::record::{DIRECT, Header, Kind};

/// Most connections that are remembered. With more, all are forgotten, and those that go on have no name.
const MOST: usize = 1 << 18;

/// The names that the service has told.
#[derive(Default)]
pub struct Names {
    /// By local and remote end.
    connections: HashMap<[SocketAddr; 2], Name>,
    /// By address (`None` = any) and port.
    listeners: HashMap<(Option<IpAddr>, u16), Name>,
}

impl Names {
    /// Takes a name.
    pub fn told(&mut self, name: Name) {
        if name.remote.port() == 0 {
            let ip = Some(name.local.ip()).filter(|ip| !ip.is_unspecified());
            self.listeners.insert((ip, name.local.port()), name);
            return;
        }
        if self.connections.len() >= MOST {
            self.connections.clear();
        }
        self.connections.insert([name.local, name.remote], name);
    }

    /// The comment of a frame: `curl (pid 7, uid 1000) 10.0.0.1:4000 > 10.0.0.2:80`. Empty = it is no TCP.
    pub fn comment(&self, header: &Header, frame: &[u8]) -> String {
        let Some([from, to]) = ends(frame) else { return String::new() };
        // A listener's name stands for a connection that has none yet, at an end that is here.
        let within = header.place == DIRECT || header.place == 0;
        let outgoing = header.kind == Kind::Frame { outgoing: true };
        let sender = self.name(from, to, within || outgoing).map_or_else(String::new, |name| who(name) + " ");
        let receiver =
            self.name(to, from, within || !outgoing).map_or_else(String::new, |name| format!(" {}", who(name)));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_capture::conversation::Conversation;

    fn name(local: &str, remote: &str, program: &str) -> Name {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        Name { local, remote, pid: 7, uid: 1000, program: program.into() }
    }

    fn comments(names: &Names, place: u16, outgoing: bool) -> Vec<String> {
        let header = Header { kind: Kind::Frame { outgoing }, place, time_ns: 0, length: 0 };
        let ends = ["10.0.0.1:4000", "10.0.0.2:80"].map(|end| end.parse().unwrap());
        let mut all = Vec::new();
        Conversation::opens(ends, |frame| all.push(names.comment(&header, frame)));
        all.truncate(2);
        all
    }

    #[test]
    fn a_comment_names_the_programs_at_the_ends_that_are_here() {
        let mut names = Names::default();
        names.told(name("0.0.0.0:80", "0.0.0.0:0", "nginx"));
        assert_eq!(comments(&names, 1, true)[0], "10.0.0.1:4000 > 10.0.0.2:80", "the other end is not here");
        assert_eq!(comments(&names, 1, false)[0], "10.0.0.1:4000 > 10.0.0.2:80 nginx (pid 7, uid 1000)");
        names.told(name("10.0.0.1:4000", "10.0.0.2:80", "curl"));
        names.told(name("10.0.0.2:80", "10.0.0.1:4000", "worker"));
        let both = [
            "curl (pid 7, uid 1000) 10.0.0.1:4000 > 10.0.0.2:80 worker (pid 7, uid 1000)",
            "worker (pid 7, uid 1000) 10.0.0.2:80 > 10.0.0.1:4000 curl (pid 7, uid 1000)",
        ];
        assert_eq!(comments(&names, DIRECT, false), both);
    }
}
