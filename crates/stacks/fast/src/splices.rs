//! The map of the module that translates segments of spliced connections.
//!
//! Its elements are `struct towpath_splice` of `bpf/modules/towpath.h`, one for each connection whose peer's segments
//! are translated. If nothing would see them before the module, the kernel has a copy and sends them on by itself.

use std::sync::Arc;
use towpath_modules::{Attached, Chains, Map, MapKind, Tenant};
use towpath_ports::forward::{Connection, OUT_AT, Splice, connection};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::seq::Seq;
use towpath_tcp::slow::{Forwarded, Translation};

/// The map's name in the module.
const MAP: &str = "towpath_splices";
/// Bytes of a key and of a value.
const KEY: usize = size_of::<Connection>();
const VALUE: usize = size_of::<Splice>();
/// Where the fields of a value stand. `struct towpath_splice` says what each of them is.
const LINK_AT: usize = KEY;
const SHIFTS_AT: usize = 68;
const ENDED_AT: usize = 70;
const TAGGED_AT: usize = 71;
const ACKED_AT: usize = 72;
const FIN_AT: usize = 76;
const RST_AT: usize = 80;
const NEWEST_AT: usize = 88;
const COUNTS_AT: usize = 96;
const KERNEL_COUNTS_AT: usize = 112;
/// An acknowledgement that is older by no more than this was overtaken: as in `bpf/modules/splice.h`.
const OVERTAKEN: u32 = 1 << 18;
/// Bits of `ended`.
const FIN: u8 = 1;
const RST: u8 = 2;

/// The module that translates segments, if there is one.
#[derive(Default)]
pub struct Splices(Option<Translator>);

struct Translator {
    map: Arc<Map>,
    /// Its module's: one that has taken too much time does not run any more.
    tenant: Arc<Tenant>,
    /// Its selector. It can translate only what it sees.
    selector: Option<u32>,
    /// No module sees a frame before it.
    is_first: bool,
}

impl Splices {
    /// The module among these.
    pub fn of(chains: Option<&Chains>) -> Self {
        let of_module = |(place, attached): (usize, &Attached)| {
            let map = attached.module.maps().iter().find(|map| {
                let spec = map.spec();
                let sizes = (spec.key_size as usize, spec.value_size as usize);
                spec.name == MAP && spec.kind == MapKind::Hash && sizes == (KEY, VALUE)
            });
            map.map(|map| Translator {
                map: Arc::clone(map),
                tenant: Arc::clone(&attached.tenant),
                selector: attached.selector,
                is_first: place == 0,
            })
        };
        Self(chains.into_iter().flat_map(|chains| &chains.ingress).enumerate().find_map(of_module))
    }

    fn map(&self) -> Option<&Map> {
        let translator = self.0.as_ref()?;
        translator.tenant.overrun().is_none().then_some(&translator.map)
    }

    /// Is there one that runs, and has it the frames of connections that these selectors choose?
    pub fn is_for(&self, selectors: u32) -> bool {
        let sees = |translator: &Translator| translator.selector.is_none_or(|bit| bit & selectors != 0);
        self.map().is_some() && self.0.as_ref().is_some_and(sees)
    }

    /// Enters both directions, each with the interface that it goes over; 0: back over a port that has none.
    pub fn insert(&self, translations: &[Translation; 2], interfaces: [u32; 2]) -> Result<(), i32> {
        let map = self.map().ok_or(libc::EOPNOTSUPP)?;
        let ([first, second], [out, other_out]) = (translations, interfaces);
        let elements = [(first, out), (second, other_out)].map(|(one, out)| (key(&one.from), value(one, out)));
        let [(Some(key), Some(value)), (Some(other_key), Some(other_value))] = elements else {
            return Err(libc::EOPNOTSUPP);
        };
        let full = |_| libc::EOPNOTSUPP;
        map.set(&key, &value).map_err(full)?;
        map.set(&other_key, &other_value).inspect_err(|_| _ = map.remove(&key)).map_err(full)
    }

    /// Changes the link of a direction, and the interface that it goes over.
    pub fn relink(&self, translation: &Translation, interface: u32) {
        let macs = [translation.link.destination, translation.link.source].concat();
        if let (Some(map), Some(key)) = (self.map(), key(&translation.from)) {
            map.put(&key, LINK_AT, &macs);
            map.put(&key, OUT_AT, &interface.to_ne_bytes());
        }
    }

    /// What the module and the kernel have done with the segments of this connection's peer. `copy`: the kernel's element.
    ///
    /// A FIN or RST passes the module, and the bytes before it may pass the kernel. So it counts only if it was there before the
    /// kernel's element was read. Else the application would be told of the end before these bytes.
    pub fn look(&self, tuple: &FourTuple, copy: impl FnOnce() -> Option<Splice>) -> Option<Forwarded> {
        let Forwarded { fin, rst, .. } = self.forwarded(tuple)?;
        if let Some(copy) = copy() {
            self.note(tuple, &copy);
        }
        self.forwarded(tuple).map(|now| Forwarded { fin, rst, ..now })
    }

    /// What the module has done, and the kernel as far as it has been [noted](Self::note).
    fn forwarded(&self, tuple: &FourTuple) -> Option<Forwarded> {
        let mut value = [0; VALUE];
        if !self.map()?.get(&key(tuple)?, &mut value) {
            return None;
        }
        let ended = value[ENDED_AT];
        Some(Forwarded {
            acked: Seq(number(&value, ACKED_AT)),
            newest: Seq(number(&value, NEWEST_AT)),
            fin: (ended & FIN != 0).then(|| Seq(number(&value, FIN_AT))),
            rst: (ended & RST != 0).then(|| Seq(number(&value, RST_AT))),
            segments: count(&value, COUNTS_AT).wrapping_add(count(&value, KERNEL_COUNTS_AT)),
            bytes: count(&value, COUNTS_AT + 8).wrapping_add(count(&value, KERNEL_COUNTS_AT + 8)),
        })
    }

    /// The map of which the kernel may have copies.
    pub fn first_map(&self) -> Option<&Map> {
        self.map().filter(|_| self.0.as_ref().is_some_and(|translator| translator.is_first))
    }

    /// The kernel's copy of an element; `None`: it is to have none.
    pub fn for_kernel(&self, tuple: &FourTuple) -> Option<Splice> {
        let map = self.first_map()?;
        let mut value = [0; VALUE];
        if !map.get(&key(tuple)?, &mut value) {
            return None;
        }
        value.copy_within(KERNEL_COUNTS_AT.., COUNTS_AT);
        Some(value)
    }

    /// Takes over what the kernel has noted in its copy since the last time.
    pub fn note(&self, tuple: &FourTuple, copy: &Splice) {
        let (Some(map), Some(key)) = (self.map(), key(tuple)) else { return };
        let mut value = [0; VALUE];
        if !map.get(&key, &mut value) {
            return;
        }
        let counts = &copy[COUNTS_AT..KERNEL_COUNTS_AT];
        if value[KERNEL_COUNTS_AT..] == *counts {
            return;
        }
        map.put(&key, KERNEL_COUNTS_AT, counts);
        // As the module does it.
        let [ours, kernels] = [&value, copy].map(|value| Seq(number(value, ACKED_AT)));
        let mut newest = Seq(number(&value, NEWEST_AT));
        let before = (ours.bytes_since(kernels) > OVERTAKEN).then_some(ours).filter(|ours| ours.distance(kernels) > 0);
        for other in before.into_iter().chain([Seq(number(copy, NEWEST_AT))]) {
            if other.distance(newest) > 0 {
                newest = other;
            }
        }
        map.put(&key, NEWEST_AT, &newest.0.to_ne_bytes());
        if ours.bytes_since(kernels) > OVERTAKEN {
            map.put(&key, ACKED_AT, &kernels.0.to_ne_bytes());
        }
    }

    /// Removes a direction.
    pub fn remove(&self, tuple: &FourTuple) {
        if let (Some(translator), Some(key)) = (&self.0, key(tuple)) {
            let _ = translator.map.remove(&key);
        }
    }
}

fn number(value: &Splice, at: usize) -> u32 {
    u32::from_ne_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
}

fn count(value: &Splice, at: usize) -> u64 {
    u64::from(number(value, at)) | u64::from(number(value, at + 4)) << 32
}

/// The connection as a received segment names it.
fn key(tuple: &FourTuple) -> Option<Connection> {
    connection(tuple.local_end(), tuple.remote_end())
}

/// `struct towpath_splice`.
fn value(translation: &Translation, out: u32) -> Option<Splice> {
    let Translation { from, to, link, seq, ack, tsval, tsecr, shift, acked } = translation;
    let (from, to) = (key(from)?, key(to)?);
    let mut value = [0; VALUE];
    value[..KEY].copy_from_slice(&to);
    // The last word is IP's version.
    if from[KEY - 4..] != to[KEY - 4..] {
        return None;
    }
    value[LINK_AT..LINK_AT + 6].copy_from_slice(&link.destination);
    value[LINK_AT + 6..LINK_AT + 12].copy_from_slice(&link.source);
    let added = [(52, *seq), (56, *ack), (60, *tsval), (64, *tsecr)];
    let noted = [(ACKED_AT, acked.0), (NEWEST_AT, acked.0), (OUT_AT, out)];
    for (at, number) in added.into_iter().chain(noted) {
        value[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    (value[SHIFTS_AT], value[SHIFTS_AT + 1]) = ((*shift).max(0) as u8, (-*shift).max(0) as u8);
    value[TAGGED_AT] = link.vlan.is_some().into();
    Some(value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use towpath_modules::MapSpec;
    use towpath_tcp::flow::{Link, PortId};

    /// Enters them with interfaces that have their ports' numbers.
    fn enter(splices: &Splices, translations: &[Translation; 2]) -> Result<(), i32> {
        splices.insert(translations, translations.each_ref().map(|one| one.link.port.0.into()))
    }

    fn splices(entries: u32) -> Splices {
        let spec = MapSpec {
            name: MAP.into(),
            kind: MapKind::Hash,
            key_size: KEY as u32,
            value_size: VALUE as u32,
            entries,
            flags: 0,
            initial: Vec::new(),
            read_only: false,
            programs: Vec::new(),
            pinned: false,
        };
        let map = Arc::new(Map::new(&spec, 1, |_| None));
        Splices(Some(Translator {
            map,
            tenant: Arc::new(Tenant::new("splice", 100, 1)),
            selector: None,
            is_first: true,
        }))
    }

    fn tuple(port: u16) -> FourTuple {
        let [local, remote] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        FourTuple { local, local_port: 80, remote, remote_port: port }
    }

    fn both() -> [Translation; 2] {
        let link = Link { port: PortId(1), source: [1; 6], destination: [2; 6], vlan: None };
        let first = Translation {
            from: tuple(4000),
            to: tuple(5000),
            link,
            seq: 1,
            ack: 2,
            tsval: 3,
            tsecr: 4,
            shift: -5,
            acked: Seq(6),
        };
        [first, Translation { from: tuple(5000), to: tuple(4000), shift: 7, ..first }]
    }

    #[test]
    fn an_element_is_what_the_header_of_modules_says() {
        let splices = splices(8);
        enter(&splices, &both()).unwrap();
        let map = splices.map().unwrap();
        let mut value = [0; VALUE];
        // As segments of the peer name it: from 10.0.0.2:4000 to 10.0.0.1:80.
        let named = |ports: [u8; 4]| {
            let [remote, local] = [2, 1].map(|last| [&[10, 0, 0, last][..], &[0; 12]].concat());
            [remote, local, ports.to_vec(), 4u32.to_ne_bytes().to_vec()].concat()
        };
        assert!(map.get(&named([0x0f, 0xa0, 0, 80]), &mut value));
        let mut expected = named([0x13, 0x88, 0, 80]);
        expected.extend([2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
        (1..=4u32).for_each(|number| expected.extend(number.to_ne_bytes()));
        expected.extend([0, 5, 0, 0]);
        expected.extend(6u32.to_ne_bytes());
        expected.resize(OUT_AT, 0);
        expected.extend(1u32.to_ne_bytes());
        expected.extend(6u32.to_ne_bytes());
        expected.resize(VALUE, 0);
        assert_eq!(value.as_slice(), expected);
        assert!(map.get(&key(&tuple(5000)).unwrap(), &mut value));
        assert_eq!(value[SHIFTS_AT..ENDED_AT], [7, 0]);
    }

    #[test]
    fn connections_over_ipv6_and_two_ports_are_entered_and_others_refused() {
        let six = |local: &str, remote: &str, remote_port| {
            let [local, remote] = [local, remote].map(|address| address.parse::<IpAddr>().unwrap());
            FourTuple { local, local_port: 80, remote, remote_port }
        };
        let splice = |from: FourTuple, to: FourTuple, port: u8| {
            let [first, second] = both();
            let link = Link { port: PortId(port), ..first.link };
            [Translation { from, to, link, ..first }, Translation { from: to, to: from, link, ..second }]
        };
        let (one, other) = (six("fd00::1", "fd00::2", 4000), six("fd00::1", "fd00::3", 5000));
        let splices = splices(8);
        enter(&splices, &splice(one, other, 2)).unwrap();
        let mut value = [0; VALUE];
        let ends = ["fd00::2", "fd00::1"].map(|address| address.parse::<Ipv6Addr>().unwrap().octets()).concat();
        let named = [&ends[..], &[0x0f, 0xa0, 0, 80], &6u32.to_ne_bytes()].concat();
        assert!(splices.map().unwrap().get(&named, &mut value));
        assert_eq!((number(&value, OUT_AT), value[15], value[32..36].to_vec()), (2, 3, vec![0x13, 0x88, 0, 80]));
        assert!(splices.for_kernel(&one).is_some_and(|copy| number(&copy, OUT_AT) == 2));
        let scoped = six("fe80::1", "fe80::2", 4000);
        let mapped = six("::ffff:10.0.0.1", "::ffff:10.0.0.2", 4000);
        for refused in [splice(tuple(1), one, 0), splice(scoped, one, 0)] {
            assert_eq!(enter(&splices, &refused), Err(libc::EOPNOTSUPP));
        }
        // No segment over IPv6 names a connection over IPv4.
        assert_ne!(key(&mapped), key(&tuple(4000)));
        assert_eq!(splices.map().unwrap().elements().len(), 2);
    }

    #[test]
    fn what_a_module_has_done_is_read_back_and_a_new_link_keeps_it() {
        let splices = splices(8);
        enter(&splices, &both()).unwrap();
        let begun = Forwarded { acked: Seq(6), newest: Seq(6), ..Forwarded::default() };
        assert_eq!(splices.forwarded(&tuple(4000)), Some(begun));
        let (map, key) = (splices.map().unwrap(), key(&tuple(4000)).unwrap());
        let mut value = [0; VALUE];
        assert!(map.get(&key, &mut value));
        value[ENDED_AT] = FIN | RST;
        for (at, number) in [(ACKED_AT, 10u32), (FIN_AT, 11), (RST_AT, 12), (COUNTS_AT, 13), (NEWEST_AT, 15)] {
            value[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        for (at, bytes) in [(COUNTS_AT, 14u64), (KERNEL_COUNTS_AT, 1 << 32)] {
            value[at + 8..at + 16].copy_from_slice(&bytes.to_ne_bytes());
        }
        map.set(&key, &value).unwrap();
        let link = Link { destination: [9; 6], ..both()[0].link };
        splices.relink(&Translation { link, ..both()[0] }, 0);
        let (fin, rst) = (Some(Seq(11)), Some(Seq(12)));
        let seen = Forwarded { acked: Seq(10), newest: Seq(15), fin, rst, segments: 13, bytes: (1 << 32) + 14 };
        assert_eq!(splices.forwarded(&tuple(4000)), Some(seen));
        assert!(map.get(&key, &mut value) && value[LINK_AT..LINK_AT + 6] == [9; 6]);
        splices.remove(&tuple(4000));
        assert_eq!(splices.forwarded(&tuple(4000)), None);
    }

    #[test]
    fn the_kernels_copy_counts_from_where_it_was_and_what_it_notes_is_taken_over() {
        let splices = splices(8);
        enter(&splices, &both()).unwrap();
        let mut copy = splices.for_kernel(&tuple(4000)).unwrap();
        assert_eq!(copy[..COUNTS_AT], value(&both()[0], 1).unwrap()[..COUNTS_AT]);
        copy[ACKED_AT..ACKED_AT + 4].copy_from_slice(&9u32.to_ne_bytes());
        copy[COUNTS_AT..COUNTS_AT + 8].copy_from_slice(&5u64.to_ne_bytes());
        splices.note(&tuple(4000), &copy);
        // One that was overtaken changes nothing, nor does a copy without a new segment. One that was forged does not stay.
        for (acked, segments) in [(8u32, 6u64), (1 << 31, 6), (1 << 31, 7), (9, 5)] {
            copy[ACKED_AT..ACKED_AT + 4].copy_from_slice(&acked.to_ne_bytes());
            copy[COUNTS_AT..COUNTS_AT + 8].copy_from_slice(&segments.to_ne_bytes());
            splices.note(&tuple(4000), &copy);
            let noted = splices.forwarded(&tuple(4000)).unwrap().acked;
            assert_eq!(noted, Seq(if segments == 7 { 1 << 31 } else { 9 }));
        }
        let seen = Forwarded { acked: Seq(9), newest: Seq(1 << 31), segments: 5, ..Forwarded::default() };
        assert_eq!(splices.forwarded(&tuple(4000)), Some(seen));
        let again = splices.for_kernel(&tuple(4000)).unwrap();
        assert_eq!((number(&again, ACKED_AT), count(&again, COUNTS_AT)), (9, 5));
        let behind = Splices(splices.0.map(|translator| Translator { is_first: false, ..translator }));
        assert_eq!(behind.for_kernel(&tuple(4000)), None, "another module sees the frames first");
    }

    #[test]
    fn an_end_counts_only_with_all_that_the_kernel_has_sent_on_before_it() {
        let splices = splices(8);
        enter(&splices, &both()).unwrap();
        let (from, map) = (tuple(4000), splices.map().unwrap());
        let counted = |bytes: u64| {
            let mut copy = splices.for_kernel(&from).unwrap();
            copy[COUNTS_AT + 8..COUNTS_AT + 16].copy_from_slice(&bytes.to_ne_bytes());
            copy
        };
        // The kernel's element is read. Then the kernel sends more on, and the module has the end.
        let seen = splices.look(&from, || {
            let copy = counted(100);
            map.put(&key(&from).unwrap(), ENDED_AT, &[FIN]);
            Some(copy)
        });
        assert_eq!(seen, Some(Forwarded { acked: Seq(6), newest: Seq(6), bytes: 100, ..Forwarded::default() }));
        let seen = splices.look(&from, || Some(counted(150))).unwrap();
        assert_eq!((seen.bytes, seen.fin), (150, Some(Seq(0))));
    }

    #[test]
    fn a_map_that_is_full_or_not_there_splices_nothing() {
        let full = splices(1);
        assert_eq!(enter(&full, &both()), Err(libc::EOPNOTSUPP));
        assert!(full.map().unwrap().elements().is_empty(), "not one direction alone");
        assert_eq!(enter(&Splices::of(None), &both()), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_module_with_a_selector_splices_the_connections_that_it_sees() {
        let all = splices(2);
        assert!(all.is_for(0) && !Splices::default().is_for(u32::MAX));
        let some = Splices(all.0.map(|translator| Translator { selector: Some(4), ..translator }));
        assert!(some.is_for(4) && some.is_for(6) && !some.is_for(3) && !some.is_for(0));
    }
}
