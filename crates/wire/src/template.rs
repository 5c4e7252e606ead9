//! Headers of a flow's frames from what they have in common, over IPv4 without a tag. The sums of the constant fields
//! are stored, so that a frame adds only what differs.

use crate::checksum;
use crate::emit::Made;
use crate::headers::{DONT_FRAGMENT, ETHERTYPE_IPV4, PROTOCOL_TCP};
use crate::options::{STAMPS_START, Timestamps};
use crate::{ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES, TIMESTAMP_BYTES};

/// The constant fields. Words are as they lie in a frame, in the machine's byte order. Each is read where it is written
/// into the frame.
pub trait Template {
    /// The first eight bytes of Ethernet destination and source.
    fn macs(&self) -> u64;
    /// Their last four bytes.
    fn last_mac(&self) -> u32;
    /// Source address, then destination address.
    fn addresses(&self) -> u64;
    /// Source port, then destination port.
    fn ports(&self) -> u32;
    /// Type of service, whose ECN field is 0, and time to live.
    fn service(&self) -> (u8, u8);
    /// What [`sums`] returns for these fields.
    fn sums(&self) -> u32;

    /// Like [`crate::emit::make`] of the same fields.
    #[inline(always)]
    fn make(&self, fields: &Fields, stamps: Option<Timestamps>, payload_len: usize, out: &mut [u8]) -> Option<Made> {
        let options = if stamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        let payload_offset = FIXED + options;
        if payload_len > usize::from(u16::MAX) - (payload_offset - ETHERNET_BYTES) {
            return None;
        }
        let end = payload_offset + payload_len;
        let total_len = (end - ETHERNET_BYTES) as u16;
        let (headers, rest) = out.get_mut(..end)?.split_first_chunk_mut::<FIXED>()?;
        // What is read last needs no register until then.
        constant(self, headers, fields);
        tcp(headers, fields, (TCP_BYTES + options) as u8);
        if let Some(stamps) = stamps {
            let (place, _) = rest.split_first_chunk_mut::<TIMESTAMP_BYTES>()?;
            put(place, 0, STAMPS_START);
            put(place, 4, stamps.value.to_be_bytes());
            put(place, 8, stamps.echo.to_be_bytes());
        }
        let sums = self.sums();
        changing(headers, fields, total_len, sums & 0xffff);
        let tcp_len = total_len - IPV4_BYTES as u16;
        let pseudo = u64::from(sums >> 16) + u64::from(u16::from_ne_bytes(tcp_len.to_be_bytes()));
        Some(Made::of(payload_offset, end, START, pseudo))
    }
}

/// The fields in which the frames of a flow differ, without options but timestamps.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// See [`crate::flags`].
    pub flags: u8,
    /// Window as it goes into the header (already scaled).
    pub window: u16,
    /// Urgent pointer; means something only with [`crate::flags::URG`].
    pub urgent: u16,
    /// ECN field (RFC 3168 §5).
    pub ecn: u8,
    /// IPv4 identification.
    pub ident: u16,
}

/// Sums of the constant fields: of the IPv4 header in the low half, of the pseudo-header in the high half. Addresses are
/// as they lie in a frame. Neither sum is 0, so folding them early does not change a checksum.
pub fn sums(source: u32, destination: u32, tos: u8, ttl: u8) -> u32 {
    let word = |bytes: [u8; 2]| u64::from(u16::from_ne_bytes(bytes));
    let addresses = u64::from(source) + u64::from(destination);
    let ip = word([0x45, tos]) + word(DONT_FRAGMENT.to_be_bytes()) + word([ttl, PROTOCOL_TCP]) + addresses;
    let pseudo = word([0, PROTOCOL_TCP]) + addresses;
    u32::from(checksum::fold(ip)) | u32::from(checksum::fold(pseudo)) << 16
}

const START: usize = ETHERNET_BYTES + IPV4_BYTES;
const FIXED: usize = START + TCP_BYTES;

/// What is the same in all frames of a flow, but for the ECN field: of the Ethernet and IPv4 headers, and the ports behind them.
#[inline(always)]
fn constant(of: &(impl Template + ?Sized), headers: &mut [u8; FIXED], fields: &Fields) {
    let [kind_high, kind_low] = ETHERTYPE_IPV4.to_be_bytes();
    let [df_high, df_low] = DONT_FRAGMENT.to_be_bytes();
    put(headers, 0, of.macs().to_ne_bytes());
    put(headers, 8, of.last_mac().to_ne_bytes());
    put(headers, 26, of.addresses().to_ne_bytes());
    put(headers, START, of.ports().to_ne_bytes());
    let (tos, ttl) = of.service();
    put(headers, 12, [kind_high, kind_low, 0x45, tos | fields.ecn]);
    put(headers, 20, [df_high, df_low, ttl, PROTOCOL_TCP]);
}

/// Length, identification and checksum of the IPv4 header. `sum`: that of its constant fields.
#[inline(always)]
fn changing(headers: &mut [u8; FIXED], fields: &Fields, total_len: u16, sum: u32) {
    // Side by side, as they lie in the frame.
    let both = (u32::from(total_len) << 16 | u32::from(fields.ident)).to_be();
    let ecn = u32::from(u16::from_ne_bytes([0, fields.ecn]));
    // After a carry no more than two 16-bit words are left.
    let (half, carry) = both.overflowing_add(sum + ecn);
    put(headers, 16, both.to_ne_bytes());
    put(headers, 24, (!checksum::fold_half(half.wrapping_add(carry.into()))).to_ne_bytes());
}

/// The TCP header behind its ports, with a checksum of 0. `len`: its bytes, options included.
#[inline(always)]
fn tcp(headers: &mut [u8; FIXED], fields: &Fields, len: u8) {
    let [window_high, window_low] = fields.window.to_be_bytes();
    let [urgent_high, urgent_low] = fields.urgent.to_be_bytes();
    put(headers, START + 4, fields.seq.to_be_bytes());
    put(headers, START + 8, fields.ack.to_be_bytes());
    put(headers, START + 12, [(len / 4) << 4, fields.flags, window_high, window_low]);
    put(headers, START + 16, [0, 0, urgent_high, urgent_low]);
}

/// Puts bytes at a constant place, as one store.
#[inline(always)]
fn put<const N: usize, const SIZE: usize>(out: &mut [u8; SIZE], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::emit::{self, Header};
    use crate::options::Options;
    use proptest::prelude::*;

    struct Constant {
        macs: [u8; 12],
        ends: Vec<u8>,
        ports: u32,
        service: (u8, u8),
        sums: u32,
    }

    impl Template for Constant {
        fn macs(&self) -> u64 {
            u64::from_ne_bytes(self.macs[..8].try_into().unwrap())
        }
        fn last_mac(&self) -> u32 {
            u32::from_ne_bytes(self.macs[8..].try_into().unwrap())
        }
        fn addresses(&self) -> u64 {
            u64::from_ne_bytes(self.ends[..].try_into().unwrap())
        }
        fn ports(&self) -> u32 {
            self.ports
        }
        fn service(&self) -> (u8, u8) {
            self.service
        }
        fn sums(&self) -> u32 {
            self.sums
        }
    }

    proptest! {
        /// Frames from a template are those that `emit` makes, to the bit, their offloads and lengths too.
        #[test]
        fn a_template_makes_the_frames_that_emit_makes(
            macs in any::<[u8; 12]>(),
            ends in any::<([u8; 4], [u8; 4], u16, u16)>(),
            numbers in any::<(u32, u32, u16, u16, u16)>(),
            bytes in any::<(u8, u8, u8)>(),
            ecn in 0u8..4,
            stamps in proptest::option::of(any::<(u32, u32)>()),
            payload in prop_oneof![0usize..1500, 65_000usize..66_000],
            room in prop_oneof![Just(66_000usize), 0usize..1600],
        ) {
            let ((source, destination, source_port, destination_port), (tos, ttl, flags)) = (ends, bytes);
            let (seq, ack, window, urgent, ident) = numbers;
            let tos = tos & !3;
            let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            let header = Header {
                source_mac: macs[6..].try_into().unwrap(),
                destination_mac: macs[..6].try_into().unwrap(),
                vlan: None,
                source: source.into(),
                destination: destination.into(),
                source_port, destination_port, seq, ack, flags, window, ident, urgent, ttl,
                tos: tos | ecn,
                options: Options { timestamps, ..Options::NONE },
            };
            let header_ends = [source, destination].concat();
            let [a, b] = source_port.to_be_bytes();
            let [c, d] = destination_port.to_be_bytes();
            let (source, destination) = (u32::from_ne_bytes(source), u32::from_ne_bytes(destination));
            let template = Constant {
                macs,
                ends: header_ends,
                ports: u32::from_ne_bytes([a, b, c, d]),
                service: (tos, ttl),
                sums: sums(source, destination, tos, ttl),
            };
            let fields = Fields { seq, ack, flags, window, urgent, ecn, ident };
            let (mut first, mut second) = (vec![0xaa; room], vec![0xaa; room]);
            let made = emit::make(&header, payload, &mut first);
            let same = template.make(&fields, timestamps, payload, &mut second);
            prop_assert_eq!(made.is_some(), same.is_some());
            let (Some(made), Some(same)) = (made, same) else { return Ok(()) };
            prop_assert_eq!((made.payload_offset, made.end), (same.payload_offset, same.end));
            prop_assert_eq!(&first, &second);
            prop_assert_eq!(made.partial_checksum(&mut first), same.partial_checksum(&mut second));
            prop_assert_eq!(&first, &second);
            made.fill_checksum(&mut first);
            same.fill_checksum(&mut second);
            prop_assert_eq!(&first, &second);
        }
    }
}
