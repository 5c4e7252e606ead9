//! The Internet checksum (RFC 1071).
//!
//! Sums are kept in the machine's byte order, which RFC 1071 §2 B allows. They stay unfolded in 64 bits, so that
//! 32-bit words can be added without carries.

/// Adds `bytes` to an unfolded sum. An odd last byte counts as padded with zero, so only the last piece may be odd.
/// The sum cannot overflow before 2³² words, 16 GiB, have been added.
#[inline]
pub fn add(sum: u64, bytes: &[u8]) -> u64 {
    // Four independent accumulators over 64-byte blocks, which the compiler vectorises.
    let mut lanes = [0u64; 4];
    let mut blocks = bytes.chunks_exact(64);
    for block in &mut blocks {
        let (words, _) = block.as_chunks::<4>();
        let (rows, _) = words.as_chunks::<4>();
        for row in rows {
            for (lane, word) in lanes.iter_mut().zip(row) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
    }
    let mut sum = sum + lanes.iter().sum::<u64>();
    let (words, rest) = blocks.remainder().as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0u8; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// The sum of an IPv4 header without options: two long words and a short one, with the carries of both additions. It may use
/// all 64 bits, so it is folded before anything is added.
#[inline(always)]
pub fn header(bytes: &[u8; 20]) -> u64 {
    let (first, addresses) = (u64::from_ne_bytes(part(bytes, 0)), u64::from_ne_bytes(part(bytes, 12)));
    let middle = u32::from_ne_bytes(part(bytes, 8));
    let (sum, carry) = first.carrying_add(addresses, false);
    let (sum, carry) = sum.carrying_add(middle.into(), carry);
    // After a carry no more than the short word is left.
    sum.wrapping_add(carry.into())
}

/// Some bytes of a header, as one load.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8; 20], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

/// Is the checksum of an IPv4 header without options right? Its version is not 0, so its sum is not 0 either: a right one is a
/// multiple of 2^16 - 1.
#[inline(always)]
pub fn header_is_right(bytes: &[u8; 20]) -> bool {
    header(bytes).is_multiple_of(0xffff)
}

/// Folds a sum to 16 bits without complementing it. Its `to_ne_bytes` are in wire order.
#[inline(always)]
pub fn fold(sum: u64) -> u16 {
    let (half, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    fold_half(half + u32::from(carry))
}

/// [`fold`] of 32 bits. Adding the halves in both orders carries the lower sum's overflow into the upper one.
#[inline(always)]
pub(crate) fn fold_half(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The checksum field in wire order, from the unfolded sum of a message whose checksum field is 0.
#[inline]
pub fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

/// Is the unfolded sum over a message, checksum field included, right?
#[inline]
pub fn right(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// Sum of the TCP pseudo-header over IPv4 (RFC 9293 §3.1); `tcp_len` is header and payload in bytes.
#[inline]
pub fn pseudo_header(source: [u8; 4], destination: [u8; 4], tcp_len: u16) -> u64 {
    u64::from(u32::from_ne_bytes(source)) + u64::from(u32::from_ne_bytes(destination)) + upper_layer(tcp_len)
}

/// Sum of the TCP pseudo-header over IPv6 (RFC 8200 §8.1). Length and next header add up to the same sum as IPv4's
/// narrower fields.
#[inline]
pub fn pseudo_header_v6(source: [u8; 16], destination: [u8; 16], tcp_len: u16) -> u64 {
    add(add(0, &source), &destination) + upper_layer(tcp_len)
}

#[inline]
fn upper_layer(tcp_len: u16) -> u64 {
    u64::from(u16::from_ne_bytes([0, crate::headers::PROTOCOL_TCP]))
        + u64::from(u16::from_ne_bytes(tcp_len.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071's definition, word for word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // §3: 00 01 f2 03 f4 f5 f6 f7 sums to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &bytes)).to_ne_bytes(), [0xdd, 0xf2]);
        assert_eq!(finish(add(0, &bytes)), [0x22, 0x0d]);
    }

    #[test]
    fn extremes() {
        assert_eq!(fold(0), 0);
        for sum in [1, 0xffff, 0x1_0000, 0xffff_0000, 0xffff_ffff, 0x1_0000_0000, 0x1_ffff_fffe, u64::MAX - 1] {
            // One's complement: what remains by 2^16 - 1, but never 0.
            let rest = (sum - 1) % 0xffff + 1;
            assert_eq!(u64::from(fold(sum)), rest, "{sum:x}");
        }
        assert_eq!(fold(u64::MAX), 0xffff);
        assert_eq!(finish(add(0, &[])), [0xff, 0xff]);
        for len in [1usize, 2, 3, 63, 64, 65, 65_535] {
            let ones = vec![0xff; len];
            assert_eq!(finish(add(0, &ones)), naive(&ones).to_be_bytes(), "{len} bytes of ff");
        }
    }

    proptest! {
        #[test]
        fn same_as_naive(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            prop_assert_eq!(finish(add(0, &bytes)), naive(&bytes).to_be_bytes());
        }

        #[test]
        fn a_header_is_the_sum_of_its_words(bytes in any::<[u8; 20]>()) {
            // The checksum field, in which the sum is made right.
            let mut bytes = bytes;
            bytes[0] |= 0x40;
            bytes[10..12].fill(0);
            prop_assert_eq!(finish(header(&bytes)), naive(&bytes).to_be_bytes());
            prop_assert_eq!(header_is_right(&bytes), right(add(0, &bytes)));
            let field = finish(header(&bytes));
            bytes[10..12].copy_from_slice(&field);
            prop_assert!(header_is_right(&bytes) && right(add(0, &bytes)));
        }

        #[test]
        fn pieces_at_even_offsets_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..500), cut in 0usize..250) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let (head, tail) = bytes.split_at(cut);
            prop_assert_eq!(fold(add(add(0, head), tail)), fold(add(0, &bytes)));
        }
    }
}
