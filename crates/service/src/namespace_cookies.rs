//! The network namespaces that a configuration names, and the kernel's cookies of those that have the names now. A namespace
//! that is made anew under its name has another cookie, and no cookie comes twice.

use crate::{netns, port_proof};
use std::io;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The namespace with this cookie.
    Cookie(u64),
    /// No namespace has the name.
    Gone,
    /// It could not be asked for.
    Unknown,
}

/// One of the names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// A stack that is bound to none.
    Nobody,
    /// The namespace in which the service was started.
    Start,
    /// A name of `ip netns`, or a path.
    Of(String),
}

/// The names in a configuration: its own stack's, its other stacks' by their numbers, and those about which rules on joins can
/// be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    all: Vec<Name>,
    stacks: usize,
}

impl Names {
    /// These: `None` among stacks is one that is bound to no namespace. Any other `None` is the namespace in which the
    /// service was started.
    pub fn new(own: Option<String>, stacks: Vec<Option<String>>, others: Vec<Option<String>>) -> Self {
        let (named, count) = (|netns: Option<String>| netns.map_or(Name::Start, Name::Of), stacks.len());
        let stacks = stacks.into_iter().map(|netns| netns.map_or(Name::Nobody, Name::Of));
        let all = std::iter::once(named(own)).chain(stacks).chain(others.into_iter().map(named));
        Self { all: all.collect(), stacks: count }
    }

    /// Is any of the stacks bound to a namespace?
    pub fn have_stacks(&self) -> bool {
        self.all.iter().skip(1).take(self.stacks).any(|name| *name != Name::Nobody)
    }

    /// Is the name of this place a namespace's?
    pub fn is_bound(&self, place: usize) -> bool {
        self.all.get(place).is_some_and(|name| *name != Name::Nobody)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The place of a stack's name.
    pub fn stack(&self, place: usize) -> Option<usize> {
        place.checked_sub(1).filter(|number| *number < self.stacks)
    }

    /// The place of a name that joins can be about.
    pub fn other(&self, place: usize) -> Option<usize> {
        place.checked_sub(1 + self.stacks)
    }

    /// What they lead to now. The caller needs the right to enter all of them.
    pub fn ask(&self) -> Vec<Found> {
        let ask = |name: &Name| match name {
            Name::Nobody => Found::Unknown,
            Name::Start => found(cookie(None)),
            Name::Of(netns) => found(cookie(Some(netns))),
        };
        self.all.iter().map(ask).collect()
    }
}

/// The kernel's cookie of a network namespace, by its name in the configuration.
fn cookie(netns: Option<&str>) -> io::Result<u64> {
    let asked = || -> io::Result<u64> {
        netns::enter_named(netns)?;
        port_proof::own_namespace().ok_or_else(|| io::ErrorKind::Unsupported.into())
    };
    // A thread of its own, because it does not come back.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, asked)?;
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

fn found(asked: io::Result<u64>) -> Found {
    match asked {
        Ok(cookie) => Found::Cookie(cookie),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Gone,
        // `ip netns add` makes the file first, and binds the namespace to it then.
        Err(_) => Found::Unknown,
    }
}

/// As the broker answers.
pub fn encode(found: &[Found]) -> Vec<u8> {
    let word = |found: &Found| match found {
        Found::Cookie(cookie) => cookie.to_string(),
        Found::Gone => "gone".into(),
        Found::Unknown => "unknown".into(),
    };
    found.iter().map(word).collect::<Vec<_>>().join(" ").into()
}

/// From such an answer. `None`: it is none.
pub fn decode(answer: &[u8]) -> Option<Vec<Found>> {
    let word = |word: &str| match word {
        "gone" => Some(Found::Gone),
        "unknown" => Some(Found::Unknown),
        cookie => cookie.parse().ok().map(Found::Cookie),
    };
    std::str::from_utf8(answer).ok()?.split(' ').map(word).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_leads_to_a_cookie_or_is_gone() {
        let path = |path: &str| Some(path.to_owned());
        let others = ["/nonexistent/ns", "/proc/thread-self/ns/net", "/proc/self/ns"].map(path);
        let stacks = [&[None][..], &others].concat();
        let names = Names::new(None, stacks, others.to_vec());
        let own = Found::Cookie(port_proof::own_namespace().unwrap());
        let stacks = [Found::Unknown, Found::Gone, own, Found::Unknown];
        // A kernel stack is bound to none. To enter the own namespace needs a right that root alone has.
        let found = names.ask();
        let expected: Vec<_> = [&[own][..], &stacks, &stacks[1..]].concat();
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let may = rustix::process::geteuid().is_root() || *expected != own || place == 0;
            assert!(found == expected || !may, "{place}: {found:?}");
        }
        assert_eq!(found.len(), expected.len());
        assert!(names.have_stacks() && !Names::new(None, vec![None], Vec::new()).have_stacks());
        assert_eq!([0, 1, 4, 5].map(|place| names.stack(place)), [None, Some(0), Some(3), None]);
        assert_eq!([4, 5, 7].map(|place| names.other(place)), [None, Some(0), Some(2)]);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_namespace_keeps_nobody_waiting() {
        let folder = std::env::temp_dir().join(format!("towpath-no-namespace-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let netns = pipe.to_str().map(str::to_owned);
        assert_eq!(Names::new(None, vec![netns], Vec::new()).ask()[1], Found::Unknown);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let all = [Found::Cookie(7), Found::Gone, Found::Unknown, Found::Cookie(u64::MAX)];
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        for wrong in ["", "7 ", "-1", "7 8x", "\u{fe}"] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(decode(&[0xff]), None);
    }
}
