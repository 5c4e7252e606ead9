//! `splice.bpf.c`: each segment becomes one of the other connection, with checksums that a full computation gives, too. The
//! kernel's program that sends segments on without the module (`bpf/forward.bpf.h`) makes the same of them.
#![allow(clippy::unwrap_used)]

mod common;

use aya::maps::{HashMap, MapData};
use aya::programs::SchedClassifier;
use aya::{Ebpf, include_bytes_aligned};
use common::{MOST_BYTES, compiled, frames, interpreted, may_verify, object_file};
use std::os::fd::{AsFd, OwnedFd};
use towpath_modules::verify::{Accepted, test_run, update_map};
use towpath_modules::{Action, Frame, Instance, Object};
use towpath_rng::Rng;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A connection as received segments name it: both addresses, and both ports.
type Connection = [u8; 12];

/// `struct towpath_splice`, without what the module counts.
#[derive(Clone, Copy)]
struct Splice {
    to: Connection,
    macs: [u8; 12],
    seq: u32,
    ack: u32,
    tsval: u32,
    tsecr: u32,
    left: u8,
    right: u8,
}

impl Splice {
    fn random(rng: &mut Rng) -> Self {
        let [mut to, mut macs] = [[0; 12]; 2];
        rng.fill(&mut to);
        rng.fill(&mut macs);
        let shift = rng.below(15) as u8;
        let (left, right) = if rng.chance(500_000) { (shift, 0) } else { (0, shift) };
        let [seq, ack, tsval, tsecr] = std::array::from_fn(|_| number(rng));
        Self { to, macs, seq, ack, tsval, tsecr, left, right }
    }

    fn value(&self) -> Vec<u8> {
        let numbers = [self.seq, self.ack, self.tsval, self.tsecr].map(u32::to_ne_bytes).concat();
        [&self.to[..], &self.macs, &numbers, &[self.left, self.right], &[0; 46]].concat()
    }
}

/// Any number, often one near where sums overflow.
fn number(rng: &mut Rng) -> u32 {
    [0, 1, 0xffff, 0x1_0000, u32::MAX, rng.next_u64() as u32][rng.below(6) as usize]
}

#[derive(Clone)]
enum Opt {
    Nop,
    Timestamps(u32, u32),
    Sack(Vec<u32>),
    /// Of this kind, with these bytes.
    Other(u8, Vec<u8>),
    /// No more options, but bytes.
    End(Vec<u8>),
}

impl Opt {
    fn bytes(&self) -> Vec<u8> {
        let numbers = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
        let (kind, body) = match self {
            Self::Nop => return vec![1],
            Self::End(rest) => return [&[0], &rest[..]].concat(),
            Self::Timestamps(value, echo) => (8, numbers(&[*value, *echo])),
            Self::Sack(edges) => (5, numbers(edges)),
            Self::Other(kind, body) => (*kind, body.clone()),
        };
        [&[kind, body.len() as u8 + 2], &body[..]].concat()
    }

    fn random(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, most| {
            let mut bytes = vec![0; rng.below(most) as usize];
            rng.fill(&mut bytes);
            bytes
        };
        match rng.below(12) {
            0..=3 => Self::Nop,
            4..=6 => Self::Timestamps(number(rng), number(rng)),
            7..=9 => Self::Sack((0..2 * rng.below(5)).map(|_| number(rng)).collect()),
            10 => Self::Other([2, 3, 4, 19, 254][rng.below(5) as usize], some(rng, 12)),
            _ => Self::End(some(rng, 9)),
        }
    }
}

/// A segment, and the parts of its frame that stay as they are.
#[derive(Clone)]
struct Segment {
    macs: [u8; 12],
    connection: Connection,
    rest_of_ip: [u8; 3],
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    urgent: [u8; 2],
    options: Vec<Opt>,
    payload: Vec<u8>,
    padding: usize,
}

/// The Internet checksum as RFC 1071 defines it.
fn checksum(pieces: &[&[u8]]) -> [u8; 2] {
    let bytes = pieces.concat();
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

impl Segment {
    fn random(rng: &mut Rng, connection: Connection, longest: u64) -> Self {
        let (mut options, mut bytes) = (Vec::new(), 0);
        while rng.chance(800_000) {
            let option = Opt::random(rng);
            bytes += option.bytes().len();
            if bytes > 40 {
                break;
            }
            let ends = matches!(option, Opt::End(_));
            options.push(option);
            if ends {
                break;
            }
        }
        let mut macs = [0; 12];
        rng.fill(&mut macs);
        let mut payload = vec![0; rng.below(longest) as usize];
        rng.fill(&mut payload);
        let flags = if rng.chance(100_000) { 0 } else { ACK } | [0, 0, 0, FIN, RST, 8, 32][rng.below(7) as usize];
        Self {
            macs,
            connection,
            rest_of_ip: [rng.below(256) as u8, rng.below(256) as u8, 2 + rng.below(254) as u8],
            seq: number(rng),
            ack: number(rng),
            flags,
            window: number(rng) as u16,
            urgent: [0, rng.below(9) as u8],
            options,
            payload,
            padding: rng.below(7) as usize,
        }
    }

    /// Its frame, with whole checksums.
    fn bytes(&self) -> Vec<u8> {
        let mut options: Vec<u8> = self.options.iter().flat_map(Opt::bytes).collect();
        options.resize(options.len().next_multiple_of(4), 1);
        let tcp_length = 20 + options.len() + self.payload.len();
        let (length, [tos, ident, ttl]) = ((20 + tcp_length as u16).to_be_bytes(), self.rest_of_ip);
        let (addresses, ports) = self.connection.split_at(8);
        let mut ip = vec![0x45, tos, length[0], length[1], 0, ident, 0x40, 0, ttl, 6, 0, 0];
        ip.extend(addresses);
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum);
        let numbers = [self.seq, self.ack].map(u32::to_be_bytes).concat();
        let words = [(5 + options.len() as u8 / 4) << 4, self.flags];
        let mut tcp = [ports, &numbers, &words, &self.window.to_be_bytes(), &[0; 2], &self.urgent, &options].concat();
        let sum = checksum(&[addresses, &[0, 6], &(tcp_length as u16).to_be_bytes(), &tcp, &self.payload]);
        tcp[16..18].copy_from_slice(&sum);
        [&self.macs[..], &[8, 0], &ip[..], &tcp, &self.payload, &vec![0xa5; self.padding]].concat()
    }

    /// What goes on.
    fn spliced(&self, by: &Splice) -> Self {
        let mut sent = by.to;
        sent[..8].rotate_left(4);
        sent[8..].rotate_left(2);
        let acknowledges = self.flags & ACK != 0;
        let option = |option: &Opt| match option {
            Opt::Timestamps(value, echo) => {
                let by_echo = if acknowledges && *echo != 0 { by.tsecr } else { 0 };
                Opt::Timestamps(value.wrapping_add(by.tsval), echo.wrapping_add(by_echo))
            }
            Opt::Sack(edges) => Opt::Sack(edges.iter().map(|edge| edge.wrapping_add(by.ack)).collect()),
            other => other.clone(),
        };
        let [tos, ident, ttl] = self.rest_of_ip;
        Self {
            macs: by.macs,
            connection: sent,
            rest_of_ip: [tos, ident, ttl - 1],
            seq: self.seq.wrapping_add(by.seq),
            ack: self.ack.wrapping_add(if acknowledges { by.ack } else { 0 }),
            window: (u64::from(self.window) << by.left >> by.right).min(0xffff) as u16,
            options: self.options.iter().map(option).collect(),
            ..self.clone()
        }
    }
}

/// What the module has counted in an element: `ended`, `acked`, `fin`, `rst`, `segments` and `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    ended: u8,
    numbers: [u32; 3],
    sums: [u64; 2],
}

impl Counted {
    fn of(value: &[u8]) -> Self {
        let number = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let sum = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        Self { ended: value[42], numbers: [44, 48, 52].map(number), sums: [56, 64].map(sum) }
    }

    fn add(&mut self, segment: &Segment) {
        let length = segment.payload.len();
        if segment.flags & ACK != 0 && self.numbers[0].wrapping_sub(segment.ack) > 1 << 18 {
            self.numbers[0] = segment.ack;
        }
        if segment.flags & FIN != 0 {
            self.numbers[1] = segment.seq.wrapping_add(length as u32 + 1);
            self.ended |= 1;
        }
        if segment.flags & RST != 0 {
            self.numbers[2] = segment.seq;
            self.ended |= 2;
        }
        self.sums = [self.sums[0] + 1, self.sums[1] + length as u64];
    }
}

/// The kernel's program that sends segments on.
struct Forwarder {
    _object: Ebpf,
    program: OwnedFd,
    flows: HashMap<MapData, Connection, u32>,
    splices: HashMap<MapData, Connection, [u8; 88]>,
}

impl Forwarder {
    /// A connection that the other side has begun, and that is spliced.
    const PASSIVE_AND_SPLICED: u32 = 2 | 4;
    /// `TC_ACT_SHOT`, `TC_ACT_REDIRECT`.
    const DROP: u32 = 2;
    const REDIRECT: u32 = 7;

    fn new() -> Self {
        let mut object = Ebpf::load(include_bytes_aligned!("../../../bpf/steer.bpf.o")).unwrap();
        let program: &mut SchedClassifier = object.program_mut("towpath_drop").unwrap().try_into().unwrap();
        program.load().unwrap();
        let program = program.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
        let flows = HashMap::try_from(object.take_map("flows").unwrap()).unwrap();
        let splices = HashMap::try_from(object.take_map("splices").unwrap()).unwrap();
        Self { _object: object, program, flows, splices }
    }

    fn set(&mut self, key: &Connection, by: &Splice) {
        self.splices.insert(key, <[u8; 88]>::try_from(by.value()).unwrap(), 0).unwrap();
        self.flows.insert(key, Self::PASSIVE_AND_SPLICED, 0).unwrap();
    }

    /// Segments that end a connection are the stack's: it is dropped behind the stack's sockets. `counted`: of the others.
    fn expect(&self, segment: &Segment, by: &Splice, counted: &mut Counted) {
        let goes_on = segment.flags & (SYN | FIN | RST) == 0;
        let (bytes, expected) = (segment.bytes(), segment.spliced(by).bytes());
        if bytes.len() >= MOST_BYTES {
            return;
        }
        let (verdict, after) = test_run(&self.program, &bytes).unwrap();
        if goes_on {
            assert_eq!((verdict, &after), (Self::REDIRECT, &expected), "{bytes:02x?}");
            counted.add(segment);
        } else {
            assert_eq!((verdict, &after), (Self::DROP, &bytes), "{bytes:02x?}");
        }
        assert_eq!(Counted::of(&self.splices.get(&segment.connection, 0).unwrap()), *counted);
    }
}

/// The module everywhere that it can run. Each has a map of its own.
struct Everywhere {
    kernel: Option<Accepted>,
    instances: Vec<Instance>,
}

impl Everywhere {
    /// `None`: there is no clang.
    fn new() -> Option<Self> {
        let object = Object::parse(&object_file("bpf/modules/splice.bpf.c")?).unwrap();
        let mut instances = vec![Instance::new(&interpreted(&object, 0), 0)];
        assert!(!instances[0].module().wants_room(), "it has the frame where it lies");
        let kernel = may_verify().then(|| {
            let (accepted, module) = compiled(&object, 0).unwrap();
            instances.push(Instance::new(&module, 0));
            accepted
        });
        Some(Self { kernel, instances })
    }

    fn set(&self, key: &Connection, by: &Splice) {
        if let Some(kernel) = &self.kernel {
            update_map(&kernel.maps[0], key, &by.value()).unwrap();
        }
        for instance in &self.instances {
            instance.module().maps()[0].set(key, &by.value()).unwrap();
        }
    }

    /// What becomes of a frame, which is the same everywhere.
    #[track_caller]
    fn run(&mut self, bytes: &[u8]) -> (Action, Vec<u8>) {
        let run = |instance: &mut Instance| {
            let mut bytes = bytes.to_vec();
            (instance.run(&mut Frame::whole(&mut bytes)), bytes)
        };
        let all: Vec<_> = self.instances.iter_mut().map(run).collect();
        assert!(all.iter().all(|one| one == &all[0]), "compiled and interpreted on {bytes:02x?}");
        assert_eq!(self.instances[0].faults, 0, "the interpreter has ended it on {bytes:02x?}");
        if let Some(kernel) = self.kernel.as_ref().filter(|_| bytes.len() < MOST_BYTES) {
            let (action, after) = test_run(&kernel.programs[0], bytes).unwrap();
            assert_eq!((Action::of(action.into()), after), all[0], "the kernel on {bytes:02x?}");
        }
        all.into_iter().next().unwrap()
    }

    /// What was counted of a connection, the same everywhere.
    fn counted(&self, key: &Connection) -> Counted {
        let of = |instance: &Instance| {
            let elements = instance.module().maps()[0].elements();
            Counted::of(&elements.iter().find(|element| element.0 == key).unwrap().1[0])
        };
        let all: Vec<_> = self.instances.iter().map(of).collect();
        assert!(all.iter().all(|one| one == &all[0]), "{all:?}");
        all[0]
    }
}

fn connection(rng: &mut Rng) -> Connection {
    let mut connection = [0; 12];
    rng.fill(&mut connection);
    connection
}

#[test]
fn each_segment_becomes_one_of_the_other_connection() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(21);
    for _ in 0..frames() / 30 {
        let (key, by) = (connection(&mut rng), Splice::random(&mut rng));
        everywhere.set(&key, &by);
        let mut counted = Counted::default();
        for number in 0..30 {
            let longest = if number == 0 { 65_400 } else { 1500 };
            let segment = Segment::random(&mut rng, key, longest);
            let (action, after) = everywhere.run(&segment.bytes());
            assert_eq!(action, Action::Tx, "{:02x?}", segment.bytes());
            assert_eq!(after, segment.spliced(&by).bytes(), "{:02x?}", segment.bytes());
            counted.add(&segment);
        }
        assert_eq!(everywhere.counted(&key), counted);
    }
}

#[test]
fn the_kernel_makes_the_same_of_what_begins_and_ends_nothing() {
    if !may_verify() {
        return;
    }
    let (mut forwarder, mut rng) = (Forwarder::new(), Rng::new(23));
    for _ in 0..frames() / 30 {
        let (key, by) = (connection(&mut rng), Splice::random(&mut rng));
        forwarder.set(&key, &by);
        let mut counted = Counted::default();
        for _ in 0..30 {
            forwarder.expect(&Segment::random(&mut rng, key, 1500), &by, &mut counted);
        }
    }
}

#[test]
fn the_largest_super_segment_goes_on() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(22);
    let (key, by) = (connection(&mut rng), Splice::random(&mut rng));
    everywhere.set(&key, &by);
    let mut segment = Segment::random(&mut rng, key, 1);
    (segment.options, segment.payload) = (vec![Opt::Timestamps(1, 2)], vec![7; 65_535 - 52]);
    assert_eq!(everywhere.run(&segment.bytes()), (Action::Tx, segment.spliced(&by).bytes()));
    assert_eq!(everywhere.counted(&key).sums, [1, 65_535 - 52]);
}

#[test]
fn other_frames_pass_as_they_are() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(23);
    for _ in 0..frames() / 30 {
        let (key, by) = (connection(&mut rng), Splice::random(&mut rng));
        everywhere.set(&key, &by);
        let segment = Segment::random(&mut rng, key, 100);
        let mut others = vec![Segment { flags: SYN, ..segment.clone() }.bytes()];
        others.push(Segment { flags: SYN | ACK, ..segment.clone() }.bytes());
        for bit in 0..96 {
            let mut another = segment.clone();
            another.connection[bit / 8] ^= 1 << (bit % 8);
            others.push(another.bytes());
        }
        // IPv6, a tag, options of IP, a fragment, the last fragment, UDP.
        for (place, byte) in [(12, 0x86), (12, 0x81), (14, 0x46), (14, 0x65), (20, 0x20), (21, 1), (23, 17)] {
            let mut bytes = segment.bytes();
            bytes[place] = byte;
            others.push(bytes);
        }
        others.extend([14, 34, 53].map(|length| segment.bytes()[..length].to_vec()));
        for bytes in others {
            assert_eq!(everywhere.run(&bytes), (Action::Pass, bytes));
        }
        assert_eq!(everywhere.counted(&key), Counted::default());
    }
}

#[test]
fn malformed_segments_of_a_spliced_connection_are_dropped() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(24);
    let (key, by) = (connection(&mut rng), Splice::random(&mut rng));
    everywhere.set(&key, &by);
    let mut segment = Segment::random(&mut rng, key, 1);
    segment.flags = ACK;
    let options: [&[u8]; 9] = [
        &[254, 0, 1, 1],
        &[254, 1, 1, 1],
        &[254, 5, 1, 1],
        &[1, 1, 1, 254],
        &[8, 9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
        &[8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[1, 1, 8, 10, 0, 0, 0, 0],
        &[5, 6, 0, 0, 0, 0, 1, 1],
        &[5, 10, 0, 0],
    ];
    let mut malformed: Vec<Vec<u8>> = options
        .into_iter()
        // The payload follows, so that the frame does not end there.
        .map(|options| {
            let mut bytes =
                Segment { options: vec![], payload: [options, &[0; 40]].concat(), ..segment.clone() }.bytes();
            bytes[46] = (5 + options.len() as u8 / 4) << 4;
            bytes
        })
        .collect();
    segment.options = vec![Opt::Nop; 4];
    for (place, byte) in [(46, 0x40), (46, 0), (46, 0xf0), (17, 43), (17, 19), (16, 1), (22, 1), (22, 0)] {
        let mut bytes = segment.bytes();
        bytes[place] = byte;
        malformed.push(bytes);
    }
    let mut forwarder = may_verify().then(Forwarder::new);
    forwarder.iter_mut().for_each(|forwarder| forwarder.set(&key, &by));
    for bytes in malformed {
        assert_eq!(everywhere.run(&bytes).0, Action::Drop, "{bytes:02x?}");
        if let Some(forwarder) = &forwarder {
            assert_eq!(test_run(&forwarder.program, &bytes).unwrap(), (Forwarder::DROP, bytes));
        }
    }
    assert_eq!(everywhere.counted(&key), Counted::default());
}
