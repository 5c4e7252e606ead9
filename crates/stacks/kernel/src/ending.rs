//! How connections end.

use crate::client::KernelSocket;
use crate::group::ClientGroup;
use crate::sys;
use crate::tcp_info::TcpInfo;
use std::os::fd::AsFd;
use towpath_ring::Slot;
use towpath_ring::lines::app_flags;
use towpath_ring::options::option_flags;
use towpath_runtime::ClientId;
use towpath_runtime::clients::AppWords;
use towpath_runtime::slots::Phase;

impl ClientGroup {
    /// Closes the kernel's socket if the application has closed its own and the kernel has taken all bytes. The kernel
    /// completes the rest.
    pub fn finish(&mut self, index: u32, slot: Slot, words: Option<&AppWords>) {
        let Some(client) = self.client(index) else { return };
        let entry = client.slot(slot);
        let flags = words.map_or(0, |words| words.flags);
        if flags & app_flags::CLOSED != 0 {
            entry.app_closed = true;
            entry.own.closing = true;
        }
        if !entry.own.closing {
            return;
        }
        // Bytes that nobody will read are a reason for a reset (RFC 2525 §2.17). The kernel checks its own queue
        // itself.
        let unread = entry.own.got != entry.own.rx_head;
        if flags & app_flags::ABORT != 0 || unread {
            return self.reset(index, slot);
        }
        if !entry.own.has_unsent() {
            client.free(slot);
        }
    }

    /// A connection has failed, and the application sees the error. With `IP_RECVERR` the error may be a soft one.
    pub fn fail(&mut self, index: u32, slot: Slot, errno: i32) {
        let Some(client) = self.client(index) else { return };
        let own = &mut client.slot(slot).own;
        let asked = own.options.flags & (option_flags::RECVERR | option_flags::RECVERR_SIX) != 0;
        let tcp_info = own.fd.as_ref().filter(|_| asked).and_then(|fd| TcpInfo::of(fd.as_fd()));
        if tcp_info.is_some_and(|tcp_info| !tcp_info.is_closed()) {
            client.soft_error(slot, errno);
            return self.schedule_next_turn(index, slot);
        }
        client.over(slot, errno);
        self.counts.resets += 1;
    }

    /// Both directions of a connection have ended in order.
    pub fn over(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        client.over(slot, 0);
    }

    /// Ends a connection with a reset. The application, if it is still there, sees `errno`.
    pub fn abort(&mut self, index: u32, slot: Slot, errno: i32) {
        let Some(client) = self.client(index) else { return };
        if let Some(fd) = &client.slot(slot).own.fd {
            sys::abort_on_close(fd);
        }
        if client.slot(slot).app_closed {
            client.free(slot);
        } else {
            client.over(slot, errno);
        }
    }

    /// Resets a connection because its application wants that.
    fn reset(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !client.slot(slot).app_closed {
            return self.abort(index, slot, 0);
        }
        let entry = client.slot(slot);
        if let Some(fd) = &entry.own.fd {
            sys::abort_on_close(fd);
        }
        entry.own = KernelSocket::default();
        entry.phase = Phase::Over;
        let reset = (client.shared.id, slot, client.shared.generation(slot));
        self.resets.push(reset);
    }

    /// Frees the slots of connections that were reset before this turn. If the peer is on this kernel, its application
    /// knows by now.
    pub fn tell_of_resets(&mut self, resets: Vec<(ClientId, Slot, u32)>) {
        for (id, slot, generation) in resets {
            let Some(client) = self.index_of(id).and_then(|index| self.client(index)) else { continue };
            if client.shared.generation(slot) == generation && client.slot(slot).phase == Phase::Over {
                client.free(slot);
            }
        }
    }

    /// An ended connection waits until its application closes it.
    pub fn serve_ended(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if client.shared.app_words(slot).is_some_and(|words| words.flags & app_flags::CLOSED != 0) {
            client.free(slot);
        }
    }

    /// Closes a slot: the last descriptor of its socket is gone, or it will never have one.
    pub fn close(&mut self, index: u32, slot: Slot, generation: u32, abort: bool) {
        let Some(client) = self.client(index) else { return };
        if client.shared.generation(slot) != generation {
            return;
        }
        let words = client.shared.app_words(slot);
        let entry = client.slot(slot);
        match entry.phase {
            Phase::Free | Phase::Child | Phase::Direct => {}
            Phase::Over | Phase::Opening => {
                entry.app_closed = true;
                client.own.pending_commands.retain(|waiting| waiting.slot != slot);
                client.free(slot);
            }
            Phase::Listening => self.close_listener(index, slot),
            Phase::Open => {
                entry.app_closed = true;
                if abort || words.is_none() {
                    return self.abort(index, slot, 0);
                }
                // Its last words count as if it had written CLOSED itself.
                self.serve_slot(index, slot);
                let Some(client) = self.client(index) else { return };
                if client.shared.generation(slot) == generation && client.slot(slot).phase == Phase::Open {
                    client.slot(slot).own.closing = true;
                    self.finish(index, slot, None);
                } else if client.shared.generation(slot) == generation && client.slot(slot).phase == Phase::Over {
                    client.free(slot);
                }
            }
        }
    }

    /// Closes a listener, with the connections that nobody has accepted.
    pub fn close_listener(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let waiting = client.take_queue(slot);
        client.own.pending_commands.retain(|waiting| waiting.slot != slot);
        client.free(slot);
        for (child, generation) in waiting {
            self.close(index, child, generation, true);
        }
    }

    /// Takes the soft errors that the kernel has queued.
    pub fn soft_errors(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let Some(fd) = client.slot(slot).own.fd.as_ref().and_then(|fd| fd.try_clone().ok()) else { return };
        for _ in 0..16 {
            match sys::soft_error(fd.as_fd()) {
                Some(errno) if errno > 0 => client.soft_error(slot, errno),
                Some(_) => {}
                None => break,
            }
        }
    }
}
