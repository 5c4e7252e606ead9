//! Requests of the worker and answers of the broker. Both have a fixed size, and every field is checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a request.
pub const REQUEST: usize = 36;
/// Most bytes of an answer's text, which is a path at most.
pub const MOST_TEXT: usize = 4096;
/// Bytes of an answer.
pub const ANSWER: usize = 40 + MOST_TEXT;

/// What becomes of a neighbour's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The kernel asks for its address.
    Resolve,
    /// The kernel keeps it resolved.
    Manage,
    /// The kernel does so no more.
    Release,
}

/// A port that the broker has bound for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Address; `0.0.0.0` or `::` for all.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
    /// On `::`: IPv4 too.
    pub dual: bool,
}

/// What the worker asks for. See [`crate::Privileges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// One descriptor goes along. The answer has the end of a socketpair, through which another answer comes.
    Prove,
    /// Change a neighbour's entry.
    Neighbour {
        /// The device's number.
        device: u32,
        /// The neighbour's address.
        address: IpAddr,
        /// The change.
        change: Change,
    },
    /// The path of a process's program.
    Program {
        /// The process.
        process: i32,
    },
    /// Is a process in the service's network namespace?
    SharesNetwork {
        /// The process.
        process: i32,
    },
    /// Reserve the service's ports.
    ReservePorts,
    /// The CPUs that are reserved for receiving packets.
    ReservedCpus,
    /// Start another stack. The answer has the reading end of a pipe, with a text if it fails.
    StartStack {
        /// Its number in the configuration.
        number: u32,
    },
    /// Clients are served.
    Serving,
    /// The configuration file's text. The answer has a descriptor of memory with it.
    Configuration,
    /// The text that was asked for last is in force.
    ConfigurationTaken,
    /// Prepare an interface of the configuration. The answer's text says what it is.
    OpenPort {
        /// Its number in the configuration.
        number: u32,
        /// The least number of queues with a socket.
        queues: u32,
    },
    /// The answer has a copy of a descriptor.
    PortPart {
        /// The interface's number.
        number: u32,
        /// The descriptor's.
        part: u32,
    },
    /// Run the steering program on new queues.
    RenewPort {
        /// The interface's number.
        number: u32,
    },
    /// Who may connect to the service's sockets.
    OpenSockets {
        /// Every user; else the service's own.
        open: bool,
    },
    /// A raw socket for first SYNs over the device of a served interface.
    FirstSyns {
        /// The interface's number.
        number: u32,
        /// Of IPv6, not IPv4.
        v6: bool,
    },
    /// Memory for the machine code of modules, which only the broker writes. It goes along with the answer.
    CodeArea,
    /// Have the kernel's verifier judge a module, and write its code to a place of that memory. The answer has the end of a
    /// socketpair, which takes the object and then has the answer.
    Module {
        /// The place.
        place: u32,
    },
    /// Memory for what a worker leaves to the next one. It goes along with the answer.
    SuccessorMemory,
    /// What the configuration's network namespaces are now.
    Namespaces,
    /// Look whether a process of another network namespace may be joined to an address of the service's, and bind a socket
    /// there. The answer has the end of a socketpair, through which another answer comes. That one has a socket, its address
    /// and port, and the service's device with the address as its text.
    Join {
        /// The namespace's place in the configuration.
        namespace: u32,
        /// The process.
        process: i32,
        /// The address.
        remote: IpAddr,
    },
}

/// A request with its number, which the answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The number.
    pub number: u32,
    /// The request.
    pub request: Request,
}

/// What the broker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's number.
    pub number: u32,
    /// 0, or an errno or a client's answer.
    pub result: i32,
    /// A port; with a descriptor.
    pub held: Option<Held>,
    /// A flag of the answer.
    pub yes: bool,
    /// A path, a list of CPUs, what a port is, or why there is none.
    pub text: Vec<u8>,
}

/// Writes fields one after the other.
struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }
    fn word(&mut self, word: u32) {
        self.bytes(&word.to_le_bytes());
    }
    /// 20 bytes: the family, and the address.
    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => {
                self.word(4);
                self.bytes(&v4.octets());
                self.bytes(&[0; 12]);
            }
            IpAddr::V6(v6) => {
                self.word(6);
                self.bytes(&v6.octets());
            }
        }
    }
}

/// Reads fields one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn flag(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn address(&mut self) -> Option<IpAddr> {
        let family = self.word()?;
        let octets: [u8; 16] = self.array()?;
        match family {
            4 => {
                let (first, rest) = octets.split_first_chunk::<4>()?;
                rest.iter().all(|byte| *byte == 0).then(|| Ipv4Addr::from(*first).into())
            }
            6 => Some(Ipv6Addr::from(octets).into()),
            _ => None,
        }
    }
    /// All that is left is 0.
    fn ends(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

impl Request {
    /// How many descriptors go along.
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Prove { .. }))
    }
}

impl Numbered {
    /// As bytes.
    pub fn encode(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        let mut to = Writer(&mut bytes, 0);
        let head = |to: &mut Writer<'_>, kind: u32| {
            to.word(kind);
            to.word(self.number);
        };
        match self.request {
            Request::Prove => head(&mut to, 1),
            Request::Neighbour { device, address, change } => {
                head(&mut to, 2);
                to.word(device);
                to.word(match change {
                    Change::Resolve => 0,
                    Change::Manage => 1,
                    Change::Release => 2,
                });
                to.address(address);
            }
            Request::Program { process } => {
                head(&mut to, 3);
                to.word(process.cast_unsigned());
            }
            Request::SharesNetwork { process } => {
                head(&mut to, 4);
                to.word(process.cast_unsigned());
            }
            Request::ReservePorts => head(&mut to, 5),
            Request::StartStack { number } => {
                head(&mut to, 6);
                to.word(number);
            }
            Request::Serving => head(&mut to, 7),
            Request::Configuration => head(&mut to, 8),
            Request::ConfigurationTaken => head(&mut to, 9),
            Request::OpenSockets { open } => {
                head(&mut to, 10);
                to.word(open.into());
            }
            Request::ReservedCpus => head(&mut to, 11),
            Request::OpenPort { number, queues } => {
                head(&mut to, 12);
                to.word(number);
                to.word(queues);
            }
            Request::PortPart { number, part } => {
                head(&mut to, 13);
                to.word(number);
                to.word(part);
            }
            Request::RenewPort { number } => {
                head(&mut to, 14);
                to.word(number);
            }
            Request::FirstSyns { number, v6 } => {
                head(&mut to, 15);
                to.word(number);
                to.word(v6.into());
            }
            Request::CodeArea => head(&mut to, 17),
            Request::Module { place } => {
                head(&mut to, 18);
                to.word(place);
            }
            Request::Namespaces => head(&mut to, 19),
            Request::SuccessorMemory => head(&mut to, 20),
            Request::Join { namespace, process, remote } => {
                head(&mut to, 16);
                to.word(namespace);
                to.word(process.cast_unsigned());
                to.address(remote);
            }
        }
        bytes
    }

    /// From bytes. `None`: they are no request.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let mut from = Reader(bytes);
        let kind = from.word()?;
        let number = from.word()?;
        let process = |from: &mut Reader<'_>| i32::try_from(from.word()?).ok().filter(|process| *process > 0);
        let request = match kind {
            1 => Request::Prove,
            2 => {
                let device = from.word()?;
                let change = match from.word()? {
                    0 => Change::Resolve,
                    1 => Change::Manage,
                    2 => Change::Release,
                    _ => return None,
                };
                Request::Neighbour { device, address: from.address()?, change }
            }
            3 => Request::Program { process: process(&mut from)? },
            4 => Request::SharesNetwork { process: process(&mut from)? },
            5 => Request::ReservePorts,
            6 => Request::StartStack { number: from.word()? },
            7 => Request::Serving,
            8 => Request::Configuration,
            9 => Request::ConfigurationTaken,
            10 => Request::OpenSockets { open: from.flag()? },
            11 => Request::ReservedCpus,
            12 => Request::OpenPort { number: from.word()?, queues: from.word()? },
            13 => Request::PortPart { number: from.word()?, part: from.word()? },
            14 => Request::RenewPort { number: from.word()? },
            15 => Request::FirstSyns { number: from.word()?, v6: from.flag()? },
            16 => {
                let (namespace, process) = (from.word()?, process(&mut from)?);
                Request::Join { namespace, process, remote: from.address()? }
            }
            17 => Request::CodeArea,
            18 => Request::Module { place: from.word()? },
            19 => Request::Namespaces,
            20 => Request::SuccessorMemory,
            _ => return None,
        };
        from.ends().then_some(Self { number, request })
    }
}

impl Answer {
    /// An answer that is a result and nothing else.
    pub fn plain(number: u32, result: i32) -> Self {
        Self { number, result, held: None, yes: false, text: Vec::new() }
    }

    /// As bytes. A text that is too long is cut off.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ANSWER];
        let mut to = Writer(&mut bytes, 0);
        to.word(self.number);
        to.word(self.result.cast_unsigned());
        match self.held {
            Some(held) => {
                to.word(1 | u32::from(held.dual) << 1 | u32::from(held.port) << 16);
                to.address(held.addr);
            }
            None => to.bytes(&[0; 24]),
        }
        to.word(self.yes.into());
        let text = &self.text[..self.text.len().min(MOST_TEXT)];
        to.word(text.len() as u32);
        to.bytes(text);
        bytes
    }

    /// From bytes. `None`: they are no answer.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER] = bytes.try_into().ok()?;
        let mut from = Reader(bytes);
        let (number, result) = (from.word()?, from.word()?.cast_signed());
        let held = match from.word()? {
            0 => from.array::<20>().map(|_| None)?,
            word if word & 0xfffd == 1 => {
                let (dual, port) = (word & 2 != 0, (word >> 16) as u16);
                Some(Held { addr: from.address()?, port, dual })
            }
            _ => return None,
        };
        let yes = from.flag()?;
        let length = from.word()? as usize;
        let text = from.0.get(..length)?.to_vec();
        Some(Self { number, result, held, yes, text })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_rng::Rng;

    fn requests() -> Vec<Request> {
        let mut all = vec![Request::ReservePorts, Request::StartStack { number: 7 }, Request::Serving];
        all.extend([Request::Prove, Request::ReservedCpus, Request::Configuration, Request::ConfigurationTaken]);
        all.extend([true, false].map(|open| Request::OpenSockets { open }));
        all.extend([true, false].map(|v6| Request::FirstSyns { number: 3, v6 }));
        all.extend([1, i32::MAX].map(|process| Request::Program { process }));
        all.push(Request::SharesNetwork { process: 42 });
        all.extend([Request::OpenPort { number: 1, queues: 4 }, Request::PortPart { number: 1, part: u32::MAX }]);
        all.extend([Request::RenewPort { number: 2 }, Request::Namespaces]);
        all.extend([Request::CodeArea, Request::Module { place: 63 }, Request::SuccessorMemory]);
        for remote in ["192.0.2.1", "2001:db8::1"] {
            all.push(Request::Join { namespace: 3, process: 42, remote: remote.parse().unwrap() });
        }
        for change in [Change::Resolve, Change::Manage, Change::Release] {
            for address in ["192.0.2.1", "2001:db8::1", "::", "255.255.255.255"] {
                all.push(Request::Neighbour { device: 3, address: address.parse().unwrap(), change });
            }
        }
        all
    }

    #[test]
    fn what_is_written_is_read() {
        for (number, request) in requests().into_iter().enumerate() {
            let message = Numbered { number: number as u32, request };
            assert_eq!(Numbered::decode(&message.encode()), Some(message));
        }
        let held = Held { addr: "::".parse().unwrap(), port: 443, dual: true };
        for (held, text) in [(None, vec![]), (Some(held), vec![]), (None, vec![b'x'; MOST_TEXT])] {
            let answer = Answer { number: 9, result: -libc::EPERM, held, yes: true, text };
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(
            Answer::decode(&Answer { text: vec![1; 9000], ..Answer::plain(1, 0) }.encode()).unwrap().text.len(),
            4096
        );
    }

    #[test]
    fn an_answer_with_a_socket_has_no_flag_but_the_one_that_there_is() {
        let held = Held { addr: "::1".parse().unwrap(), port: 443, dual: false };
        let good = Answer { held: Some(held), ..Answer::plain(3, 0) }.encode();
        for bit in 0..16 {
            let mut other = good.clone();
            other[8 + bit / 8] ^= 1 << (bit % 8);
            let read = Answer::decode(&other).and_then(|answer| answer.held);
            assert_eq!(read, (bit == 1).then_some(Held { dual: true, ..held }), "bit {bit}");
        }
    }

    #[test]
    fn a_process_has_a_number_above_0() {
        for process in [0, -1, i32::MIN] {
            let join = Request::Join { namespace: 0, process, remote: Ipv4Addr::LOCALHOST.into() };
            for request in [Request::Program { process }, Request::SharesNetwork { process }, join] {
                assert_eq!(Numbered::decode(&Numbered { number: 1, request }.encode()), None, "{request:?}");
            }
        }
    }

    #[test]
    fn a_request_has_one_form_and_every_other_is_refused() {
        for request in requests() {
            let good = Numbered { number: 5, request }.encode();
            assert_eq!(Numbered::decode(&good[..REQUEST - 1]), None);
            assert_eq!(Numbered::decode(&[&good[..], &[0]].concat()), None);
            for at in 0..REQUEST {
                for bit in 0..8 {
                    let mut other = good;
                    other[at] ^= 1 << bit;
                    // It is refused, or it is the one form of another request.
                    assert!(Numbered::decode(&other).is_none_or(|message| message.encode() == other), "{other:?}");
                }
            }
        }
    }

    fn noise(rng: &mut Rng) -> u8 {
        rng.next_u64() as u8
    }

    #[test]
    fn fuzz_messages_of_a_fallen_worker_and_broker() {
        let mut rng = Rng::new(0x1234_5678_9abc_def1);
        for round in 0..200_000u32 {
            let mut bytes: [u8; REQUEST] = std::array::from_fn(|_| noise(&mut rng));
            if round % 2 == 0 {
                // A known kind, few bits beside it.
                bytes = std::array::from_fn(|at| if at < 4 || noise(&mut rng) > 8 { 0 } else { noise(&mut rng) });
                bytes[0] = noise(&mut rng) % 21;
            }
            if let Some(message) = Numbered::decode(&bytes) {
                assert_eq!(message.encode(), bytes);
            }
        }
        for _ in 0..2000 {
            let mut bytes = vec![0; ANSWER];
            bytes.iter_mut().take(40).for_each(|byte| *byte = if noise(&mut rng) > 60 { 0 } else { noise(&mut rng) });
            if let Some(answer) = Answer::decode(&bytes) {
                assert!(answer.text.len() <= MOST_TEXT);
            }
        }
    }
}
