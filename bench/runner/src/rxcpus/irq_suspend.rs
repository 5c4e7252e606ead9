//! Interrupts of a side's network device stay suspended while its programs find work by polling (Linux 6.13).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Suspends interrupts for at most `ns` after the last work, for every NAPI instance of `interface` in a network
/// namespace.
pub fn suspend(namespace: &Path, interface: &str, ns: u32) -> io::Result<()> {
    let namespace = File::open(namespace)?;
    let interface = interface.to_owned();
    let work = move || {
        use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        // Only this thread changes its namespace, and it ends with this work.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let index = name_to_index(socket(AddressFamily::INET, SocketType::DGRAM, None)?, &interface)?;
        let napis = towpath_rxcpus::napis(index)?;
        if napis.is_empty() {
            return Err(io::Error::other(format!("{interface} has no NAPI instance")));
        }
        napis.iter().try_for_each(|napi| towpath_rxcpus::set_irq_suspend(napi.id, ns))
    };
    std::thread::spawn(work).join().map_err(|_| io::Error::other("the thread that sets it has panicked"))?
}
