//! Sideband commands: parts of files, which never pass through the ring; TLS records that are not data; and the keys
//! of TLS. The kernel's socket gets each at its position of the stream.

use crate::client_files::ShownFile;
use crate::group::ClientGroup;
use crate::sideband_queue::Pending;
use crate::sys;
use rustix::fd::BorrowedFd;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;

use towpath_ring::command::Command;
use towpath_ring::sideband::{Secure, SidebandCommand};
use towpath_runtime::ClientId;
use towpath_runtime::files::SharedFile;
use towpath_runtime::slots::Phase;

/// Most entries that wait on one connection.
const MOST: usize = 16;
/// Most files of a client at a time. Each is a descriptor of the stack.
const MOST_FILES: usize = 256;

impl ClientGroup {
    /// Takes a file in. Returns its number.
    pub fn add_file(&mut self, id: ClientId, shared: SharedFile) -> io::Result<u32> {
        let gone = || io::Error::from_raw_os_error(libc::ENOTCONN);
        let SharedFile { process, replaces, file } = shared;
        self.forget_file(id, process, replaces);
        let index = self.index_of(id).ok_or_else(gone)?;
        let full = || io::Error::from_raw_os_error(libc::ENFILE);
        let client = self.client(index).ok_or_else(gone)?;
        let share = client.shared.take_descriptor().ok_or_else(full)?;
        let known = &mut client.own.files;
        if known.files.len() >= MOST_FILES {
            return Err(full());
        }
        known.last = known.last.checked_add(1).ok_or_else(full)?;
        known.files.insert(known.last, (process, Arc::new(ShownFile { fd: file, _share: share })));
        Ok(known.last)
    }

    /// Forgets a file that its process no longer needs. Parts that are queued are still sent.
    pub fn forget_file(&mut self, id: ClientId, process: u32, file: u32) {
        let Some(client) = self.index_of(id).and_then(|index| self.client(index)) else { return };
        if client.own.files.files.get(&file).is_some_and(|(owner, _)| *owner == process) {
            client.own.files.files.remove(&file);
        }
    }

    /// Handles a sideband command.
    pub fn sideband_command(&mut self, index: u32, slot: Slot, seq: u32, command: &Command) {
        // The same entry may stand for changed options.
        self.options(index, slot);
        let result = self.queue_sideband(index, slot, command);
        let Some(client) = self.client(index) else { return };
        client.slot(slot).command_seq = seq;
        client.answer(slot, seq, result.map_or_else(|errno| -errno, |()| 0));
        if result.is_ok() {
            self.schedule(index, slot);
        }
    }

    fn queue_sideband(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        let words = self.validate_positions(index, slot).map_err(|()| libc::EINVAL)?;
        let client = self.client(index).ok_or(libc::ENOTCONN)?;
        let sideband = SidebandCommand::of(command).ok_or(libc::EINVAL)?;
        let file = match sideband {
            // The file is unknown now if the process that has shown it has ended, or has withdrawn it.
            SidebandCommand::File { file, .. } => {
                Some(Arc::clone(client.own.files.files.get(&file).map(|(_, file)| file).ok_or(libc::ESTALE)?))
            }
            _ => None,
        };
        let region = Arc::clone(&client.shared.region);
        let entry = client.slot(slot);
        if words.is_none() || entry.phase != Phase::Open || entry.own.closing || entry.own.shut {
            return Err(libc::ENOTCONN);
        }
        let own = &mut entry.own;
        let queue = &mut own.sideband.queue;
        match (sideband, file) {
            (SidebandCommand::File { at, .. } | SidebandCommand::Record { at, .. }, _) if at != own.tx_tail => {
                return Err(libc::EINVAL);
            }
            _ if queue.len() >= MOST => return Err(libc::EAGAIN),
            (SidebandCommand::File { at, offset, length, .. }, Some(file)) => {
                queue.push_back(Pending::File { at, file, offset, left: length });
                region.info(slot).file_bytes.store(own.sideband.file_bytes(), Ordering::Release);
            }
            (SidebandCommand::Record { at, length, kind }, _) => {
                queue.push_back(Pending::ConnectionRecord { at, left: length, kind })
            }
            (SidebandCommand::Secure { at, length, what }, _) => {
                if !queue.is_empty() || at != own.sent || at != own.tx_tail {
                    return Err(libc::EAGAIN);
                }
                let mut value = vec![0; length as usize];
                region.tx(slot).read(at, &mut value);
                let fd = own.fd.as_ref().ok_or(libc::ENOTCONN)?;
                secure(fd.as_fd(), what, &value)?;
                own.sideband.secured = true;
            }
            (SidebandCommand::File { .. }, None) => return Err(libc::ESTALE),
        }
        Ok(())
    }
}

/// Linux's option at level SOL_TLS.
const TLS_TX: i32 = 1;

fn secure(fd: BorrowedFd<'_>, what: Secure, value: &[u8]) -> Result<(), i32> {
    let (level, name) = match what {
        Secure::Protocol => (libc::IPPROTO_TCP, libc::TCP_ULP),
        Secure::Send => (sys::SOL_TLS, TLS_TX),
        // Received bytes are in the ring already, still encrypted.
        Secure::Receive => return Err(libc::EOPNOTSUPP),
    };
    if sys::set_bytes(fd, level, name, value) { Ok(()) } else { Err(sys::last_error()) }
}
