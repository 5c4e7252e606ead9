//! How connections end.

use crate::client::OfSlot;
use crate::figures::Figures;
use crate::group::ClientGroup;
use crate::sys;
use std::os::fd::AsFd;
use towpath_ring::Slot;
use towpath_ring::lines::{app_flags, option_flags};
use towpath_stack::ClientId;
use towpath_stack::clients::AppWords;
use towpath_stack::slots::Phase;

impl ClientGroup {
    /// Closes the kernel's socket if the application has closed its own and the kernel has all bytes. Then the kernel does the rest.
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
        // What nobody will read is a reason for a reset (RFC 2525 §2.17); what the kernel still has it sees itself.
        let unread = entry.own.got != entry.own.rx_head;
        if flags & app_flags::ABORT != 0 || unread {
            return self.reset(index, slot);
        }
        if !entry.own.has_unsent() {
            client.free(slot);
        }
    }

    /// A connection has failed: the application sees why. With `IP_RECVERR` it may only be told of something.
    pub fn fail(&mut self, index: u32, slot: Slot, errno: i32) {
        let Some(client) = self.client(index) else { return };
        let own = &mut client.slot(slot).own;
        let asked = own.options.flags & (option_flags::RECVERR | option_flags::RECVERR_SIX) != 0;
        let figures = own.fd.as_ref().filter(|_| asked).and_then(|fd| Figures::of(fd.as_fd()));
        if figures.is_some_and(|figures| !figures.is_closed()) {
            client.soft_error(slot, errno);
            return self.once_more(index, slot);
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

    /// Ends a connection with a reset because its application wishes it.
    fn reset(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !client.slot(slot).app_closed {
            return self.abort(index, slot, 0);
        }
        let entry = client.slot(slot);
        if let Some(fd) = &entry.own.fd {
            sys::abort_on_close(fd);
        }
        entry.own = OfSlot::default();
        entry.phase = Phase::Over;
        let reset = (client.shared.id, slot, client.shared.generation(slot));
        self.resets.push(reset);
    }

    /// Frees the slots of connections that were reset before this turn: if the peer is on this kernel, its application knows by now.
    pub fn tell_of_resets(&mut self, resets: Vec<(ClientId, Slot, u32)>) {
        for (id, slot, generation) in resets {
            let Some(client) = self.index_of(id).and_then(|index| self.client(index)) else { continue };
            if client.shared.generation(slot) == generation && client.slot(slot).phase == Phase::Over {
                client.free(slot);
            }
        }
    }

    /// A connection that has ended waits for its application to close it.
    pub fn look_at_ended(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if client.shared.app_words(slot).is_some_and(|words| words.flags & app_flags::CLOSED != 0) {
            client.free(slot);
        }
    }

    /// The last descriptor of a socket is gone, or it will never have one.
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
                client.own.waiting.retain(|waiting| waiting.slot != slot);
                client.free(slot);
            }
            Phase::Listening => self.close_listener(index, slot),
            Phase::Open => {
                entry.app_closed = true;
                if abort || words.is_none() {
                    return self.abort(index, slot, 0);
                }
                // Its last words count as if it had written CLOSED itself.
                self.look(index, slot);
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

    /// A listener goes, with the connections that nobody has accepted.
    pub fn close_listener(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let waiting = client.take_queue(slot);
        client.own.waiting.retain(|waiting| waiting.slot != slot);
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
