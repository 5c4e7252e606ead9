//! Properties of a network interface, read by ioctl and netlink. /sys is not used, because it shows the namespace that
//! it was mounted in, not the thread's.

use crate::link::Link;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const ETHTOOL_GDRVINFO: u32 = 3;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rest: [u8; 64],
}

/// A network interface of the calling thread's namespace.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub index: u32,
    pub mtu_bytes: u32,
    /// Received frames may have partial checksums: on veth and tap from this kernel, on virtio from the host's.
    pub is_virtual: bool,
}

impl Interface {
    /// Finds an interface by name; `None` = there is none.
    pub fn find(name: &str) -> io::Result<Option<Self>> {
        let Ok(c_name) = CString::new(name) else { return Ok(None) };
        if c_name.as_bytes().len() >= libc::IFNAMSIZ {
            return Ok(None);
        }
        // SAFETY: `c_name` is a NUL-terminated string, which the call only reads.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Ok(None);
        }
        let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        let mut request = request(&c_name);
        ioctl(&socket, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU succeeded, so it has filled this member of the union.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        // A tap device says that it is on the bus "tap", so the kind of the device is asked for, too.
        let has_kind = || Link::of(index).is_ok_and(|link| link.is_some_and(|link| link.kind.is_some()));
        let is_virtual = driver(&socket, &c_name)
            .is_none_or(|info| info.bus[0] == 0 || info.driver.starts_with(b"virtio") || has_kind());
        Ok(Some(Self { name: name.into(), index, mtu_bytes: mtu.max(0) as u32, is_virtual }))
    }

    /// The id of the XDP program that is attached to it.
    pub fn xdp_program(&self) -> io::Result<Option<u32>> {
        Ok(Link::of(self.index)?.and_then(|link| link.program))
    }
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers; no memory is passed.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A request about the interface `name`, which must be shorter than IFNAMSIZ.
fn request(name: &CString) -> libc::ifreq {
    // SAFETY: `ifreq` is plain data, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    request
}

fn ioctl(socket: &OwnedFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `request` is a complete ifreq. The requests used here write only to it and to the buffer it points to.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what as _, std::ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn driver(socket: &OwnedFd, name: &CString) -> Option<DriverInfo> {
    const { assert!(size_of::<DriverInfo>() == 196) };
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        rest: [0; 64],
    };
    let mut request = request(name);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut info).cast();
    ioctl(socket, libc::SIOCETHTOOL, &mut request).ok()?;
    Some(info)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let lo = Interface::find("lo").unwrap().unwrap();
        assert!(lo.index > 0 && lo.mtu_bytes >= 576 && lo.is_virtual, "{lo:?}");
        assert_eq!(lo.xdp_program().unwrap(), None);
    }

    #[test]
    fn absent_and_impossible_names() {
        for name in ["wr-none", "", "a\0b", "a-name-longer-than-the-kernel-takes"] {
            assert!(Interface::find(name).unwrap().is_none(), "{name:?}");
        }
    }
}
