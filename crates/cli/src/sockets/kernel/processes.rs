//! Which process has which of the kernel's sockets, by network namespace.

use super::Holder;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A network namespace, and the sockets that processes in it have open.
pub struct Namespace {
    /// Its number.
    pub number: u64,
    /// Processes.
    pub programs: usize,
    /// Descriptors, by the socket's inode.
    pub holders: HashMap<u32, Vec<Holder>>,
    /// `None`: it is our own.
    entrance: Option<File>,
}

impl Namespace {
    /// Runs this in the namespace. Only a thread of its own goes there.
    pub fn inside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some(entrance) = &self.entrance else { return Ok(run()) };
        let thread = || {
            move_into_link_name_space(entrance.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(run())
        };
        std::thread::scope(|scope| scope.spawn(thread).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that asks there has ended by a panic")))
    }
}

/// The namespaces of these processes, and how many processes may not be looked at. Those that have ended count nowhere.
pub fn by_namespace(pids: &BTreeSet<i32>) -> (Vec<Namespace>, usize) {
    let own = fs::metadata("/proc/self/ns/net").map(|found| found.ino()).ok();
    let (mut all, mut unseen) = (BTreeMap::<u64, Namespace>::new(), 0);
    for &pid in pids {
        let process = PathBuf::from(format!("/proc/{pid}"));
        // The file leads to the namespace, even if the process ends now and its number is another's.
        let opened = File::open(process.join("ns/net")).and_then(|file| Ok((file.metadata()?.ino(), file)));
        match opened.and_then(|(number, file)| Ok((number, file, holders(pid)?))) {
            Ok((number, file, holders)) => {
                let entrance = (Some(number) != own).then_some(file);
                let namespace = all.entry(number).or_insert_with(|| Namespace {
                    number,
                    programs: 0,
                    holders: HashMap::new(),
                    entrance,
                });
                namespace.programs += 1;
                for (inode, holder) in holders {
                    namespace.holders.entry(inode).or_default().push(holder);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => unseen += 1,
            Err(_) => {}
        }
    }
    all.values_mut().flat_map(|namespace| namespace.holders.values_mut()).for_each(|holders| holders.sort());
    (all.into_values().collect(), unseen)
}

/// The sockets that a process has open.
fn holders(pid: i32) -> io::Result<Vec<(u32, Holder)>> {
    let name = fs::read(format!("/proc/{pid}/comm"))?;
    // A program may call itself anything. A terminal must not obey it.
    let program = String::from_utf8_lossy(&name).trim_end().replace(|c: char| c.is_control() || c == '"', "?");
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        // It may have been closed since.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        let fd = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(inode), Some(fd)) = (inode, fd) {
            found.push((inode, Holder { pid, fd, program: program.clone() }));
        }
    }
    Ok(found)
}
