//! The indirection table, and what a device says of itself, by the ioctl of ethtool(8). Every kernel and device with a table supports it. Netlink can
//! write the table only since Linux 6.17.

use crate::table::Table;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::AsRawFd;

/// Commands (linux/ethtool.h).
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GRXFH: u32 = 0x29;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;
/// `struct ethtool_rxnfc` in words, and a few more.
const RXNFC_WORDS: usize = 64;
/// Offloads that have a command of their own, with their names.
const OFFLOADS: [(u32, &str); 5] = [(0x14, "rx"), (0x16, "tx"), (0x1e, "tso"), (0x23, "gso"), (0x2b, "gro")];
/// The bit of GFLAGS for LRO.
const FLAG_LRO: u32 = 1 << 15;
/// TCP over IPv4, and the bits that say that its ports are hashed.
const TCP_V4_FLOW: u32 = 1;
const RXH_PORTS: u32 = 0b11 << 6;
/// Larger tables are taken for errors.
const MOST_BUCKETS: u32 = 1 << 16;

/// Gives the kernel a command: its number and the rest of its structure, in words. The kernel may write to them.
fn command(interface: &str, words: &mut [u32]) -> io::Result<()> {
    // The words must hold all that the kernel writes for the command: for a table the size in its second word, for
    // rxnfc 192 bytes.
    let needed = match words.first() {
        Some(&(ETHTOOL_GRXFHINDIR | ETHTOOL_SRXFHINDIR)) if words.len() > 1 => 2 + words[1] as usize,
        // `struct ethtool_drvinfo` has 196 bytes.
        Some(&(ETHTOOL_GRXRINGS | ETHTOOL_GRXFH | ETHTOOL_GDRVINFO)) => RXNFC_WORDS,
        // `struct ethtool_value`.
        Some(&command) if command == ETHTOOL_GFLAGS || OFFLOADS.iter().any(|(one, _)| *one == command) => 2,
        _ => usize::MAX,
    };
    if words.len() < needed || interface.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: `ifreq` is plain data, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` is a whole ifreq that lives during the call. It points to words that are borrowed mutably and
    // at least as many as the kernel writes for this command, as checked at the beginning.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The driver of a network device, and its place on a bus, which software has none of.
pub fn driver(interface: &str) -> io::Result<(String, String)> {
    let mut words = [0; RXNFC_WORDS];
    words[0] = ETHTOOL_GDRVINFO;
    command(interface, &mut words)?;
    let text = |from: usize| {
        let bytes: Vec<u8> = words[from..from + 8].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    // After the command: driver, version, firmware and bus, of 32 bytes each.
    Ok((text(1), text(25)))
}

/// The offloads that are on.
pub fn offloads(interface: &str) -> Vec<&'static str> {
    let value = |what: u32| {
        let mut words = [what, 0];
        command(interface, &mut words).map_or(0, |()| words[1])
    };
    let mut on: Vec<_> = OFFLOADS.iter().filter(|(what, _)| value(*what) != 0).map(|(_, name)| *name).collect();
    if value(ETHTOOL_GFLAGS) & FLAG_LRO != 0 {
        on.push("lro");
    }
    on
}

/// Do the ports of TCP segments decide on their queue, too?
pub fn hashes_ports(interface: &str) -> io::Result<bool> {
    let mut words = [0; RXNFC_WORDS];
    words[..2].copy_from_slice(&[ETHTOOL_GRXFH, TCP_V4_FLOW]);
    command(interface, &mut words)?;
    Ok(words[2] & RXH_PORTS == RXH_PORTS)
}

/// The table of a network device. It is an error if it has none, or does not show it.
pub fn table(interface: &str) -> io::Result<Table> {
    let mut rings = [0; RXNFC_WORDS];
    rings[0] = ETHTOOL_GRXRINGS;
    command(interface, &mut rings)?;
    // `data` is a word of 64 bits, after the command and the flow type.
    let queues = u32::try_from(u64::from(rings[2]) | u64::from(rings[3]) << 32).map_err(io::Error::other)?;
    let mut size = [ETHTOOL_GRXFHINDIR, 0];
    command(interface, &mut size)?;
    if size[1] == 0 || size[1] > MOST_BUCKETS || queues == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut words = vec![0; 2 + size[1] as usize];
    words[..2].copy_from_slice(&[ETHTOOL_GRXFHINDIR, size[1]]);
    command(interface, &mut words)?;
    Ok(Table { buckets: words.split_off(2), queues })
}

/// Writes the table. Empty: the device's default.
pub fn set_table(interface: &str, buckets: &[u32]) -> io::Result<()> {
    let size = u32::try_from(buckets.len()).map_err(io::Error::other)?;
    let mut words = vec![ETHTOOL_SRXFHINDIR, size];
    words.extend_from_slice(buckets);
    command(interface, &mut words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_has_no_table_says_so() {
        assert_eq!(table("lo").unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(table("tp-none").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(table("a-name-longer-than-the-kernel-takes").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_no_device_has_no_driver_and_no_offloads() {
        assert_eq!(driver("tp-none").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(offloads("tp-none"), [""; 0]);
        assert!(hashes_ports("tp-none").is_err());
    }

    #[test]
    fn no_command_is_given_that_the_kernel_could_answer_past_the_end() {
        for mut words in
            [vec![], vec![ETHTOOL_GRXFHINDIR], vec![ETHTOOL_GRXFHINDIR, 1], vec![ETHTOOL_GRXRINGS; 3], vec![1; 100]]
        {
            assert_eq!(command("lo", &mut words).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{words:?}");
        }
    }
}
