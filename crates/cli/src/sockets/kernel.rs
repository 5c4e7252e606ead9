//! The sockets that the programs of stacks have with this host's kernel, beside those with the stacks.
//!
//! All of it is asked with the rights of whoever runs the command. So users see what `ss -p` shows them: the sockets of processes whose
//! `/proc/PID/fd` they may read, in network namespaces that they may enter.

mod dump;
mod processes;

use self::processes::Namespace;
use super::Row;
use crate::locate::NoService;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use towpath_service::api::{self, Command, SocketStatus, Status};

/// The name of this host's kernel in a list of stacks.
pub const KERNEL: &str = "kernel";

/// What this host's kernel says of a socket, and no stack of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelSocket {
    /// Its number in `/proc/PID/fd`.
    pub inode: u32,
    /// Its number for as long as the host runs (`SO_COOKIE`).
    pub cookie: u64,
    /// The number of its network namespace.
    pub namespace: u64,
    /// Who has it.
    pub processes: Vec<Holder>,
    /// Its memory. `None`: the kernel does not say.
    pub memory: Option<Memory>,
}

/// A descriptor of a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The process.
    pub pid: i32,
    /// Its descriptor.
    pub fd: i32,
    /// Its program.
    pub program: String,
}

/// The memory of a socket, bytes, in the words of `ss -m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Taken by received packets.
    pub received: u32,
    /// The most that these may take.
    pub received_most: u32,
    /// Taken by packets that are on their way to the device.
    pub under_way: u32,
    /// The most that those to be sent may take.
    pub sent_most: u32,
    /// Reserved for it, and not used.
    pub reserved: u32,
    /// Taken by packets that are to be sent.
    pub queued: u32,
    /// Of options.
    pub options: u32,
    /// Packets that came while the program was in a call.
    pub backlog: u32,
    /// Dropped packets. A count, not bytes.
    pub drops: u32,
}

/// What was found.
#[derive(Default)]
pub struct Found {
    /// The sockets.
    pub rows: Vec<Row>,
    /// Why others are missing, a line each.
    pub missing: Vec<String>,
}

/// The kernel's sockets of the programs that these services serve.
pub fn of_programs(services: &[impl AsRef<Path>], named: bool) -> Result<Found, NoService> {
    let mut pids = BTreeSet::new();
    for socket in services {
        match api::ask::<Status>(socket.as_ref(), Command::Status) {
            // 0: a process of another PID namespace.
            Ok(status) => pids.extend(status.clients.iter().map(|client| client.pid).filter(|pid| *pid > 0)),
            // One of several may have ended in this moment.
            Err(_) if !named => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(of_processes(&pids))
}

/// The kernel's sockets of these processes.
fn of_processes(pids: &BTreeSet<i32>) -> Found {
    let mut found = Found::default();
    let (namespaces, unseen) = processes::by_namespace(pids);
    for namespace in namespaces {
        match sockets(&namespace) {
            Ok(rows) => found.rows.extend(rows),
            Err(why) => found.missing.push(format!(
                "the kernel's sockets of {} in another network namespace are not shown: {why}{}",
                several(namespace.programs),
                remedy(&why)
            )),
        }
    }
    if unseen > 0 {
        found.missing.push(format!(
            "the kernel's sockets of {} are not shown: its files in /proc are not yours to read; root sees them",
            several(unseen)
        ));
    }
    found
}

fn several(programs: usize) -> String {
    if programs == 1 { "a process".into() } else { format!("{programs} processes") }
}

fn remedy(why: &io::Error) -> &'static str {
    if why.kind() == io::ErrorKind::PermissionDenied { "; root may enter it" } else { "" }
}

fn sockets(namespace: &Namespace) -> io::Result<Vec<Row>> {
    // No socket, so nothing to ask for.
    if namespace.holders.is_empty() {
        return Ok(Vec::new());
    }
    let all = namespace.inside(dump::all)??;
    let row = |(mut socket, mut kernel): (SocketStatus, KernelSocket)| {
        let holders = namespace.holders.get(&kernel.inode)?;
        let first = holders.first()?;
        (socket.program, socket.pid) = (first.program.clone(), first.pid);
        kernel.processes.clone_from(holders);
        kernel.namespace = namespace.number;
        Some(Row { stack: KERNEL.into(), socket, kernel: Some(kernel) })
    };
    Ok(all.into_iter().filter_map(row).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernels_sockets_of_a_process_are_found_with_their_descriptors() {
        use std::os::fd::AsRawFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pid = std::process::id().cast_signed();
        let found = of_processes(&BTreeSet::from([pid]));
        assert!(found.missing.is_empty(), "{:?}", found.missing);
        let of = |fd: i32| {
            let has = |row: &&Row| row.kernel.as_ref().unwrap().processes.iter().any(|holder| holder.fd == fd);
            found.rows.iter().find(has).unwrap()
        };
        let (listening, open) = (of(listener.as_raw_fd()), of(client.as_raw_fd()));
        assert_eq!((&*listening.socket.state, listening.socket.local), ("LISTEN", listener.local_addr().unwrap()));
        assert_eq!((&*open.socket.state, open.socket.peer), ("ESTAB", listener.local_addr().unwrap()));
        assert_eq!((open.socket.pid, open.socket.uid), (pid, rustix::process::geteuid().as_raw()));
        let tcp = open.socket.tcp.unwrap();
        assert!(tcp.cwnd > 0 && tcp.mss > 0 && listening.socket.tcp.is_none(), "{tcp:?}");
        let kernel = open.kernel.as_ref().unwrap();
        assert!(kernel.cookie > 0 && kernel.namespace > 0 && kernel.memory.unwrap().received_most > 0, "{kernel:?}");
        // The kernel answers with all sockets; only those of the process are shown.
        let own = |row: &Row| row.kernel.as_ref().unwrap().processes.iter().all(|holder| holder.pid == pid);
        assert!(found.rows.iter().all(own));
    }

    #[test]
    fn a_process_that_has_ended_has_no_sockets_and_is_no_trouble() {
        let found = of_processes(&BTreeSet::from([i32::MAX]));
        assert!(found.rows.is_empty() && found.missing.is_empty());
    }
}
