//! `splice.bpf.c`: each segment becomes one of the other connection, with checksums that a full computation gives, too, over IPv4 and
//! IPv6. The kernel's program that sends segments on without the module (`bpf/forward.bpf.h`) makes the same of them.
#![allow(clippy::unwrap_used)]

mod common;
mod segments;

use aya::maps::{HashMap, MapData};
use aya::programs::SchedClassifier;
use aya::{Ebpf, include_bytes_aligned};
use common::{MOST_BYTES, compiled, frames, interpreted, may_verify, object_file};
use segments::{ACK, Connection, FIN, Opt, RST, SYN, Segment, Splice, is_v6, named, spliced};
use std::os::fd::{AsFd, OwnedFd};
use towpath_modules::verify::{Accepted, test_run, update_map};
use towpath_modules::{Action, Frame, Instance, Object};
use towpath_rng::Rng;

/// What the module has counted in an element: `ended`, `acked`, `fin`, `rst`, `segments` and `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    ended: u8,
    numbers: [u32; 4],
    sums: [u64; 2],
}

impl Counted {
    fn of(value: &[u8]) -> Self {
        let number = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        let sum = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
        Self { ended: value[70], numbers: [72, 76, 80, 88].map(number), sums: [96, 104].map(sum) }
    }

    fn add(&mut self, segment: &Segment) {
        let length = segment.payload.len();
        let behind = self.numbers[0].wrapping_sub(segment.ack);
        if segment.flags & ACK != 0 && behind > 1 << 18 {
            if behind < 1 << 31 && self.numbers[0].wrapping_sub(self.numbers[3]) < 1 << 31 {
                self.numbers[3] = self.numbers[0];
            }
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
    flows: HashMap<MapData, [u8; 12], u32>,
    flows6: HashMap<MapData, [u8; 36], u32>,
    splices: HashMap<MapData, Connection, [u8; 128]>,
}

impl Forwarder {
    /// A connection that the other side has begun, and that is spliced.
    const PASSIVE_AND_SPLICED: u32 = 2 | 4;
    /// `TCX_NEXT`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`.
    const NEXT: u32 = u32::MAX;
    const DROP: u32 = 2;
    const REDIRECT: u32 = 7;

    fn new() -> Self {
        let mut object = Ebpf::load(include_bytes_aligned!("../../../bpf/steer.bpf.o")).unwrap();
        let program: &mut SchedClassifier = object.program_mut("towpath_drop").unwrap().try_into().unwrap();
        program.load().unwrap();
        let program = program.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
        let flows = HashMap::try_from(object.take_map("flows").unwrap()).unwrap();
        let flows6 = HashMap::try_from(object.take_map("flows6").unwrap()).unwrap();
        let splices = HashMap::try_from(object.take_map("splices").unwrap()).unwrap();
        Self { _object: object, program, flows, flows6, splices }
    }

    fn set(&mut self, key: &Connection, by: &Splice) {
        self.splices.insert(key, <[u8; 128]>::try_from(by.value()).unwrap(), 0).unwrap();
        let flow = named(key);
        if is_v6(key) {
            self.flows6.insert(<[u8; 36]>::try_from(flow).unwrap(), Self::PASSIVE_AND_SPLICED, 0).unwrap();
        } else {
            self.flows.insert(<[u8; 12]>::try_from(flow).unwrap(), Self::PASSIVE_AND_SPLICED, 0).unwrap();
        }
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

    /// What becomes of a frame, which is the same everywhere. `Redirect` is over the port that the element says.
    #[track_caller]
    fn run(&mut self, bytes: &[u8], out: u32) -> (Action, Vec<u8>) {
        let run = |instance: &mut Instance| {
            let mut bytes = bytes.to_vec();
            let action = instance.run(&mut Frame::whole(&mut bytes));
            assert!(action != Action::Redirect || instance.over() == out, "over {}", instance.over());
            (action, bytes)
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

/// What an element has segments do.
fn goes(by: &Splice) -> Action {
    if by.out == 0 { Action::Tx } else { Action::Redirect }
}

#[test]
fn each_segment_becomes_one_of_the_other_connection() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(21);
    for round in 0..frames() / 15 {
        let (key, by) = spliced(&mut rng, round % 2 == 1);
        everywhere.set(&key, &by);
        let mut counted = Counted::default();
        for number in 0..30 {
            let longest = if number == 0 { 65_400 } else { 1500 };
            let segment = Segment::random(&mut rng, key, longest);
            let tagged = segment.tagged(7);
            assert_eq!(everywhere.run(&tagged, by.out), (Action::Pass, tagged), "it is of another network");
            let (action, after) = everywhere.run(&segment.bytes(), by.out);
            assert_eq!(action, goes(&by), "{:02x?}", segment.bytes());
            assert_eq!(after, segment.spliced(&by).bytes(), "{:02x?}", segment.bytes());
            counted.add(&segment);
        }
        assert_eq!(everywhere.counted(&key), counted);
    }
}

/// It keeps the tag.
#[test]
fn each_segment_of_a_vlan_becomes_one_of_the_other_connection_there() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(26);
    for round in 0..frames() / 30 {
        let (key, by) = spliced(&mut rng, round % 2 == 1);
        let by = Splice { tagged: true, ..by };
        everywhere.set(&key, &by);
        let mut counted = Counted::default();
        for number in 0..15 {
            let longest = if number == 0 { 65_400 } else { 1500 };
            let segment = Segment::random(&mut rng, key, longest);
            // The priority is a part of the tag, too.
            let tag = rng.next_u64() as u16;
            let expected = (goes(&by), segment.spliced(&by).tagged(tag));
            assert_eq!(everywhere.run(&segment.tagged(tag), by.out), expected, "{:02x?}", segment.bytes());
            counted.add(&segment);
            let bare = segment.bytes();
            assert_eq!(everywhere.run(&bare, by.out), (Action::Pass, bare), "it is of another network");
            let syn = Segment { flags: SYN, ..segment }.tagged(tag);
            assert_eq!(everywhere.run(&syn, by.out), (Action::Pass, syn));
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
    for round in 0..frames() / 15 {
        let (key, by) = spliced(&mut rng, round % 2 == 1);
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
    for (v6, most) in [(false, 65_535 - 52), (true, 65_535 - 32)] {
        let (key, by) = spliced(&mut rng, v6);
        everywhere.set(&key, &by);
        let mut segment = Segment::random(&mut rng, key, 1);
        (segment.options, segment.payload) = (vec![Opt::Timestamps(1, 2)], vec![7; most]);
        assert_eq!(everywhere.run(&segment.bytes(), by.out), (goes(&by), segment.spliced(&by).bytes()));
        assert_eq!(everywhere.counted(&key).sums, [1, most as u64]);
    }
}

#[test]
fn other_frames_pass_as_they_are() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut rng = Rng::new(23);
    // The other family, a tag, another version, options of IP, fragments, UDP.
    let v4 = [(12, 0x86), (12, 0x81), (14, 0x46), (14, 0x65), (20, 0x20), (21, 1), (23, 17)];
    // The other family, a tag, another version, extension headers, a fragment, UDP.
    let v6 = [(12, 0x08), (12, 0x81), (14, 0x40), (20, 0), (20, 43), (20, 60), (20, 44), (20, 17)];
    for round in 0..frames() / 15 {
        let is_v6 = round % 2 == 1;
        let (key, by) = spliced(&mut rng, is_v6);
        everywhere.set(&key, &by);
        let segment = Segment::random(&mut rng, key, 100);
        let mut others = vec![Segment { flags: SYN, ..segment.clone() }.bytes()];
        others.push(Segment { flags: SYN | ACK, ..segment.clone() }.bytes());
        let places = if is_v6 { (0..36).collect::<Vec<_>>() } else { (0..4).chain(16..20).chain(32..36).collect() };
        for bit in 0..8 * places.len() {
            let mut another = segment.clone();
            another.connection[places[bit / 8]] ^= 1 << (bit % 8);
            others.push(another.bytes());
        }
        for (place, byte) in if is_v6 { &v6[..] } else { &v4 } {
            let mut bytes = segment.bytes();
            bytes[*place] = *byte;
            others.push(bytes);
        }
        let tcp_at = segment.tcp_at();
        others.extend([14, tcp_at, tcp_at + 19].map(|length| segment.bytes()[..length].to_vec()));
        for bytes in others {
            assert_eq!(everywhere.run(&bytes, 0), (Action::Pass, bytes));
        }
        assert_eq!(everywhere.counted(&key), Counted::default());
    }
}

#[test]
fn no_segment_over_ipv6_is_taken_for_one_over_ipv4() {
    let Some(mut everywhere) = Everywhere::new() else { return };
    let mut forwarder = may_verify().then(Forwarder::new);
    let mut rng = Rng::new(25);
    let (key, by) = spliced(&mut rng, false);
    everywhere.set(&key, &by);
    forwarder.iter_mut().for_each(|forwarder| forwarder.set(&key, &by));
    // The same four bytes first, as in the tables, and last behind ::ffff:, as elsewhere.
    let mut mapped = [key; 2];
    for at in [0, 16] {
        mapped[1].copy_within(at..at + 4, at + 12);
        mapped[1][at..at + 10].fill(0);
        mapped[1][at + 10..at + 12].fill(0xff);
    }
    for mut connection in mapped {
        connection[36..].copy_from_slice(&6u32.to_ne_bytes());
        let mut segment = Segment::random(&mut rng, connection, 100);
        segment.flags = ACK;
        let bytes = segment.bytes();
        assert_eq!(everywhere.run(&bytes, 0), (Action::Pass, bytes.clone()));
        if let Some(forwarder) = &forwarder {
            assert_eq!(test_run(&forwarder.program, &bytes).unwrap(), (Forwarder::NEXT, bytes));
        }
    }
    assert_eq!(everywhere.counted(&key), Counted::default());
}

/// As in the talk about FlexTOE: what makes the segment another one's is to be seen at a glance.
#[test]
fn ends_and_numbers_are_rewritten_in_24_lines() {
    let source = include_str!("../../../bpf/modules/splice.h");
    let lines = ["readdressed", "renumbered"].map(|name| {
        let begin = source.find(&format!("static __always_inline void {name}(")).unwrap();
        let function = source[begin..].split_inclusive('\n').take_while(|line| !line.starts_with('}'));
        // The last one is the brace.
        function.filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).count() + 1
    });
    assert!(lines.iter().sum::<usize>() <= 24, "{lines:?}");
}

#[test]
fn malformed_segments_of_a_spliced_connection_are_dropped() {
    let Some(mut everywhere) = Everywhere::new() else { return };
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
    let mut forwarder = may_verify().then(Forwarder::new);
    let mut rng = Rng::new(24);
    // Lengths of IP that are too small and too large, and hops that are over.
    for (v6, ip) in [
        (false, [(17, 43), (17, 19), (16, 1), (22, 1), (22, 0)]),
        (true, [(19, 23), (19, 0), (18, 1), (21, 1), (21, 0)]),
    ] {
        let (key, by) = spliced(&mut rng, v6);
        everywhere.set(&key, &by);
        let mut segment = Segment::random(&mut rng, key, 1);
        (segment.flags, segment.options) = (ACK, vec![Opt::Nop; 4]);
        let words_at = segment.tcp_at() + 12;
        // The payload follows, so that the frame does not end there.
        let with_options = |options: &&[u8]| {
            let mut bytes =
                Segment { options: vec![], payload: [*options, &[0; 40]].concat(), ..segment.clone() }.bytes();
            bytes[words_at] = (5 + options.len() as u8 / 4) << 4;
            bytes
        };
        let mut malformed: Vec<Vec<u8>> = options.iter().map(with_options).collect();
        for (place, byte) in ip.into_iter().chain([0x40, 0, 0xf0].map(|byte| (words_at, byte))) {
            let mut bytes = segment.bytes();
            bytes[place] = byte;
            malformed.push(bytes);
        }
        forwarder.iter_mut().for_each(|forwarder| forwarder.set(&key, &by));
        for bytes in malformed {
            assert_eq!(everywhere.run(&bytes, 0).0, Action::Drop, "{bytes:02x?}");
            if let Some(forwarder) = &forwarder {
                assert_eq!(test_run(&forwarder.program, &bytes).unwrap(), (Forwarder::DROP, bytes));
            }
        }
        assert_eq!(everywhere.counted(&key), Counted::default());
    }
}
