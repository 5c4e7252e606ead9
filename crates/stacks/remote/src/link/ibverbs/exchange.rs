//! Both sides introduce themselves over TCP before their queue pairs are connected, and confirm the connection.

use crate::link::pairs::Introduction;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time limit of the whole exchange.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Version of the exchange.
const MAGIC: [u8; 4] = *b"TPv1";
/// Bytes before the queue pairs: magic, largest packet, number of queue pairs, address, directory.
const HEAD: usize = 4 + 1 + 1 + 16 + 4 + 8;
/// Bytes of a queue pair.
const PAIR: usize = 8;
/// Most queue pairs.
pub const MOST: usize = 16;
/// Sent as soon as the peer can write.
const READY: u8 = b'R';

/// A queue pair, as the peer must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its number, 24 bits.
    pub qpn: u32,
    /// Number of its first packet, 24 bits.
    pub psn: u32,
}

/// The introduction of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Largest packet, `enum ibv_mtu`.
    pub mtu: u8,
    /// The address of its port.
    pub gid: [u8; 16],
    /// Its directory of registered memory.
    pub directory: Introduction,
    /// Its queue pairs.
    pub pairs: Vec<Number>,
}

impl Side {
    /// Encodes it, in network byte order.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([self.mtu, self.pairs.len() as u8]);
        bytes.extend(self.gid);
        bytes.extend(self.directory.rkey.to_be_bytes());
        bytes.extend(self.directory.address.to_be_bytes());
        for pair in &self.pairs {
            bytes.extend(pair.qpn.to_be_bytes());
            bytes.extend(pair.psn.to_be_bytes());
        }
        bytes
    }

    /// Decodes it. The peer is not trusted.
    pub fn decode(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let mut head = head.as_slice();
        if take(&mut head) != MAGIC {
            return Err(wrong("no Towpath of this version speaks RDMA so"));
        }
        let [mtu, count] = take(&mut head);
        if !(1..=5).contains(&mtu) || !(1..=MOST).contains(&count.into()) {
            return Err(wrong("there are no such packets or queue pairs"));
        }
        let gid = take(&mut head);
        let rkey = u32::from_be_bytes(take(&mut head));
        let directory = Introduction { rkey, address: u64::from_be_bytes(take(&mut head)) };
        let mut pairs = vec![0; usize::from(count) * PAIR];
        from.read_exact(&mut pairs)?;
        let number = |mut pair: &[u8]| {
            let [qpn, psn] = [0; 2].map(|_: u8| u32::from_be_bytes(take(&mut pair)));
            (qpn >> 24 == 0 && psn >> 24 == 0).then_some(Number { qpn, psn })
        };
        let pairs = pairs.chunks(PAIR).map(number).collect::<Option<_>>();
        Ok(Self { mtu, gid, directory, pairs: pairs.ok_or_else(|| wrong("there is no such queue pair"))? })
    }
}

/// The first bytes, zeros if there are none.
fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    from.split_off(..N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side: {why}"))
}

/// A stream with a deadline, which a peer that sends single bytes cannot extend.
struct Hurried<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Hurried<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the other side does not say what RDMA needs");
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        let read = Read::read(&mut self.stream, to);
        read.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { late() } else { error })
    }
}

/// Sends this side's introduction and receives the peer's.
pub fn introduce(mut stream: &TcpStream, ours: &Side, until: Instant) -> io::Result<Side> {
    // It fits into an empty socket buffer, whatever the peer does.
    stream.write_all(&ours.encode())?;
    Side::decode(&mut Hurried { stream, until })
}

/// This side's queue pairs are connected. Waits for the peer's.
pub fn ready(mut stream: &TcpStream, until: Instant) -> io::Result<()> {
    stream.write_all(&[READY])?;
    let mut said = [0];
    Hurried { stream, until }.read_exact(&mut said)?;
    if said != [READY] { Err(wrong("it is not ready")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    fn side(pairs: u32) -> Side {
        let pairs = (0..pairs).map(|n| Number { qpn: 17 + n, psn: 0xff_ffff - n }).collect();
        let directory = Introduction { rkey: 0x1234_5678, address: 0x7fff_0000_1000 };
        Side { mtu: 3, gid: *b"0123456789abcdef", directory, pairs }
    }

    fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn both_sides_learn_of_each_other() {
        let (near, far) = streams();
        let until = Instant::now() + SEND_TIMEOUT;
        let there = std::thread::spawn(move || {
            let met = introduce(&far, &side(2), until).unwrap();
            ready(&far, until).unwrap();
            met
        });
        assert_eq!(introduce(&near, &side(4), until).unwrap(), side(2));
        ready(&near, until).unwrap();
        assert_eq!(there.join().unwrap(), side(4));
    }

    #[test]
    fn whatever_is_said_is_read_whole_or_not_at_all() {
        bolero::check!().with_type::<(Vec<u8>, bool)>().with_iterations(2000).for_each(|(bytes, likely)| {
            // The magic never matches by chance.
            let mut bytes = bytes.clone();
            if *likely && bytes.len() > 5 {
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[4], bytes[5]) = (1 + bytes[4] % 6, bytes[5] % 18);
            }
            let mut left = bytes.as_slice();
            if let Ok(side) = Side::decode(&mut left) {
                assert_eq!(side.encode(), bytes[..bytes.len() - left.len()]);
                assert!((1..=MOST).contains(&side.pairs.len()) && (1..=5).contains(&side.mtu));
                assert!(side.pairs.iter().all(|pair| pair.qpn < 1 << 24 && pair.psn < 1 << 24));
            }
        });
    }

    #[test]
    fn what_is_cut_off_or_wrong_is_refused() {
        let whole = side(4).encode();
        assert_eq!(Side::decode(&mut whole.as_slice()).unwrap(), side(4));
        for length in 0..whole.len() {
            assert!(Side::decode(&mut &whole[..length]).is_err(), "{length}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            Side::decode(&mut bytes.as_slice())
        };
        for (at, byte) in [(0, b'X'), (4, 0), (4, 6), (5, 0), (5, 17), (HEAD, 1), (HEAD + 4, 1)] {
            assert!(with(at, byte).is_err(), "{at} {byte}");
        }
    }

    #[test]
    fn who_sends_a_byte_now_and_then_is_not_waited_for_longer() {
        let (near, mut far) = streams();
        let slow = std::thread::spawn(move || {
            for byte in side(1).encode() {
                if far.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let late = introduce(&near, &side(1), Instant::now() + Duration::from_millis(100)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(near);
        slow.join().unwrap();
    }
}
