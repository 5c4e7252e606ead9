//! Numbers that an attacker must not guess: initial sequence numbers (RFC 6528), timestamp offsets (RFC 7323 §5.4),
//! ephemeral ports (RFC 6056).

use crate::flow::FourTuple;
use crate::seq::Seq;
use crate::time::Micros;
use std::net::IpAddr;

/// Keys of this run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secrets {
    isn: [u64; 2],
    timestamp: [u64; 2],
    cookie: [u64; 2],
    rate: u64,
}

impl Secrets {
    /// Draws new keys.
    pub(super) fn new(mut random: impl FnMut() -> u64) -> Self {
        let mut key = || [random(), random()];
        Self { isn: key(), timestamp: key(), cookie: key(), rate: key()[0] }
    }
    /// RFC 6528 §3: ISN = M + F(tuple, secret), M ticking every 4 µs (RFC 9293 §3.4.1, MUST-8, SHLD-1).
    pub(super) fn isn(&self, now: Micros, tuple: &FourTuple) -> Seq {
        Seq(((now.0 / 4) as u32).wrapping_add(hash(self.isn, tuple) as u32))
    }
    /// Key of the rate limits.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }
    /// Part of a SYN cookie. It differs for every tuple, `user`, initial sequence number of the peer, and `period`.
    pub(super) fn cookie(&self, tuple: &FourTuple, user: u32, irs: Seq, period: u32) -> u32 {
        let salt = u64::from(irs.0) << 32 | u64::from(period);
        hash([self.cookie[0] ^ u64::from(user), self.cookie[1] ^ salt], tuple) as u32
    }
    /// It is the same for every incarnation of a tuple, so that timestamps keep rising from one to the next.
    pub(super) fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        hash(self.timestamp, tuple) as u32
    }
}

/// Moves an initial sequence number beyond those of an earlier incarnation of the connection (as Linux: by 65,535 + 2).
pub(super) fn later_isn(isn: Seq, old: Option<Seq>) -> Seq {
    match old {
        Some(old) if !isn.after(old) => old.add(65_537),
        _ => isn,
    }
}

/// Keyed hash of a tuple. It cannot be computed without the key (RFC 9293 MUST-9).
fn hash(key: [u64; 2], tuple: &FourTuple) -> u64 {
    let mut bytes = [0u8; 36];
    let mut len = 0;
    let mut append = |piece: &[u8]| {
        bytes[len..len + piece.len()].copy_from_slice(piece);
        len += piece.len();
    };
    for address in [tuple.local, tuple.remote] {
        match address {
            IpAddr::V4(address) => append(&address.octets()),
            IpAddr::V6(address) => append(&address.octets()),
        }
    }
    append(&tuple.local_port.to_be_bytes());
    append(&tuple.remote_port.to_be_bytes());
    siphash(key, &bytes[..len])
}

/// SipHash-2-4 (Aumasson, Bernstein 2012).
fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    };
    let mut words = bytes.chunks_exact(8);
    for word in words.by_ref() {
        absorb(little_endian(word));
    }
    absorb(little_endian(words.remainder()) | (bytes.len() as u64) << 56);
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// Up to eight bytes, first one lowest.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// One SipRound.
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const TUPLE: FourTuple = FourTuple {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        local_port: 80,
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        remote_port: 4000,
    };

    /// The same over IPv6, between fd00::1 and fd00::2.
    const TUPLE_V6: FourTuple = FourTuple {
        local: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
        remote: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
        ..TUPLE
    };

    /// Keys that are multiples of one number.
    fn secrets() -> Secrets {
        let mut n = 0u64;
        Secrets::new(|| {
            n += 1;
            n.wrapping_mul(0x0123_4567_89ab_cdef)
        })
    }

    /// The authors' vectors: the input is 0, 1, 2 and so on, of every length up to two words.
    #[test]
    fn siphash_reference_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let input: Vec<u8> = (0..16).collect();
        let expected = [
            0x726f_db47_dd0e_0e31,
            0x74f8_39c5_93dc_67fd,
            0x0d6c_8009_d9a9_4f5a,
            0x8567_6696_d7fb_7e2d,
            0xcf27_94e0_2771_87b7,
            0x1876_5564_cd99_a68d,
            0xcbc9_466e_58fe_e3ce,
            0xab02_00f5_8b01_d137,
            0x93f5_f579_9a93_2462,
            0x9e00_82df_0ba9_e4b0,
            0x7a5d_bbc5_94dd_b9f3,
            0xf4b3_2f46_226b_ada7,
            0x751e_8fbc_860e_e5fb,
            0x14ea_5627_c084_3d90,
            0xf723_ca90_8e7a_f2ee,
            0xa129_ca61_49be_45e5,
            0x3f2a_cc7f_57c2_9bdb,
        ];
        for (len, expected) in expected.into_iter().enumerate() {
            assert_eq!(siphash(key, &input[..len]), expected, "{len} bytes");
        }
    }

    /// Computed by another program: SipHash over both addresses and then both ports, in network order.
    #[test]
    fn the_numbers_of_a_tuple_are_the_hash_of_its_addresses_and_ports() {
        let keys = secrets();
        assert_eq!(keys.rate(), 0x0123_4567_89ab_cdefu64.wrapping_mul(7));
        for (tuple, isn, offset) in [(TUPLE, 0x4b66_1de7, 0xcb74_53c4), (TUPLE_V6, 0x34d3_6eda, 0x4c43_b8c6)] {
            assert_eq!(keys.isn(Micros(0), &tuple), Seq(isn));
            assert_eq!(keys.isn(Micros(123_456_789), &tuple), Seq(isn).add(30_864_197), "a tick is 4 µs");
            assert_eq!(keys.timestamp_offset(&tuple), offset);
        }
    }

    /// The user changes the first half of the key; the peer's number and the period change the second.
    #[test]
    fn a_cookie_hashes_the_tuple_with_user_and_number_and_period_in_the_key() {
        let keys = secrets();
        for (tuple, user, irs, period, expected) in [
            (TUPLE, 0, 0, 0, 0x4184_6310),
            (TUPLE, 5, 77, 1000, 0xad8a_2145),
            (TUPLE, u32::MAX, 0xfedc_ba98, u32::MAX, 0xa309_4070),
            (TUPLE_V6, 0, 0, 0, 0xf74b_7572),
            (TUPLE_V6, 5, 77, 1000, 0x9c0e_0ec2),
            (TUPLE_V6, u32::MAX, 0xfedc_ba98, u32::MAX, 0x0928_cd55),
        ] {
            assert_eq!(keys.cookie(&tuple, user, Seq(irs), period), expected, "user {user}");
        }
    }

    #[test]
    fn a_later_number_is_beyond_the_old_ones_and_only_then_another() {
        let old = Some(Seq(1000));
        assert_eq!(later_isn(Seq(5), None), Seq(5));
        assert_eq!([1001, 1000, 999].map(|isn| later_isn(Seq(isn), old)), [Seq(1001), Seq(66_537), Seq(66_537)]);
    }

    /// RFC 9293 MUST-8, SHLD-1, MUST-9.
    #[test]
    fn isn_moves_with_the_clock_and_differs_by_tuple_and_key() {
        let mut n = 0;
        let mut random = || {
            n += 1;
            n
        };
        let (a, b) = (Secrets::new(&mut random), Secrets::new(&mut random));
        let other = FourTuple { remote_port: 4001, ..TUPLE };
        let at = |s: &Secrets, us, t: &FourTuple| s.isn(Micros(us), t);
        assert_eq!(at(&a, 4_000_000, &TUPLE).bytes_since(at(&a, 0, &TUPLE)), 1_000_000);
        assert_ne!(at(&a, 0, &TUPLE), at(&a, 0, &other));
        assert_ne!(at(&a, 0, &TUPLE), at(&b, 0, &TUPLE));
        assert_ne!(a.timestamp_offset(&TUPLE), at(&a, 0, &TUPLE).0);
    }
}
