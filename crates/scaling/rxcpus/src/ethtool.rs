//! The indirection table, by the ioctl of ethtool(8). Every kernel and device with a table supports it. Netlink can
//! write the table only since Linux 6.17.

use crate::table::Table;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::AsRawFd;

/// Commands (linux/ethtool.h).
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;
/// `struct ethtool_rxnfc` in words, and a few more.
const RXNFC_WORDS: usize = 64;
/// Larger tables are taken for errors.
const MOST_BUCKETS: u32 = 1 << 16;

/// Gives the kernel a command: its number and the rest of its structure, in words. The kernel may write to them.
fn command(interface: &str, words: &mut [u32]) -> io::Result<()> {
    // The words must hold all that the kernel writes for the command: for a table the size in its second word, for
    // rxnfc 192 bytes.
    let needed = match words.first() {
        Some(&(ETHTOOL_GRXFHINDIR | ETHTOOL_SRXFHINDIR)) if words.len() > 1 => 2 + words[1] as usize,
        Some(&ETHTOOL_GRXRINGS) => RXNFC_WORDS,
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
    fn no_command_is_given_that_the_kernel_could_answer_past_the_end() {
        for mut words in
            [vec![], vec![ETHTOOL_GRXFHINDIR], vec![ETHTOOL_GRXFHINDIR, 1], vec![ETHTOOL_GRXRINGS; 3], vec![1; 100]]
        {
            assert_eq!(command("lo", &mut words).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{words:?}");
        }
    }
}
