//! Bytes: from the send ring to the kernel, from the kernel to the receive ring.

use crate::asides::Gone;
use crate::client::OfSlot;
use crate::figures::Figures;
use crate::group::ClientGroup;
use crate::sys;
use rustix::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use towpath_ring::Slot;
use towpath_ring::lines::{app_flags, status, want};
use towpath_stack::clients::AppWords;
use towpath_stack::slots::Phase;

/// Bytes moved each way for one connection before the others have their turn.
const SHARE: u32 = 512 << 10;

/// How the look at a connection ended.
enum Found {
    /// It goes on.
    Alive,
    /// It has failed with this errno.
    Failed(i32),
}

impl ClientGroup {
    /// Does what there is to do for a connection: what the application has asked for, what the kernel has, what it takes.
    pub fn look_at_connection(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let geometry = client.shared.region.geometry();
        let Ok(words) = self.believe(index, slot) else {
            if let Some(client) = self.client(index) {
                client.shared.lied();
            }
            return self.abort(index, slot, libc::ECONNRESET);
        };
        if let Some(words) = words {
            self.flags(index, slot, &words);
        }
        let before = self.own(index, slot).map(|own| (own.sent, own.got, own.status));
        let files = self.own(index, slot).map_or(0, |own| own.asides.file_bytes());
        let sent = self.transmit(index, slot, words.and_then(|words| words.urgent));
        if let (Found::Failed(_), Some(own)) = (&sent, self.own(index, slot)) {
            // What came before the reset is still there to be read.
            own.readable = true;
        }
        let received = self.receive(index, slot);
        let ended =
            if matches!((&sent, &received), (Found::Alive, Found::Alive)) { self.ended(index, slot) } else { None };
        let Some(client) = self.client(index) else { return };
        let own = &mut client.slot(slot).own;
        let (after, tx_tail, urgent) = ((own.sent, own.got, own.status), own.tx_tail, own.urgent_got.take());
        let left = own.asides.file_bytes();
        let limit = geometry.send_limit(own.options.send_buffer);
        let moved = before.is_some_and(|before| before != after) || files != left;
        if files != left {
            client.shared.region.info(slot).file_bytes.store(left, Ordering::Release);
        }
        if moved {
            show(client.line(slot), after, urgent);
        }
        if urgent.is_some() {
            client.out.announce(&client.shared, slot);
        }
        for found in [sent, received] {
            if let Found::Failed(errno) = found {
                return self.fail(index, slot, errno);
            }
        }
        if before.is_some_and(|(_, got, _)| got != after.1) {
            self.sampler.delivered(connection(index, slot), after.1, self.now_us);
        }
        let Some(client) = self.client(index) else { return };
        if moved {
            let told = before.is_none_or(|(_, got, status)| got != after.1 || status != after.2);
            if told || left == 0 && wants_room(client.shared.region.app(slot), tx_tail.wrapping_sub(after.0), limit) {
                client.raise(slot);
            }
        } else if left == 0
            && wants_room(client.shared.region.app(slot), tx_tail.wrapping_sub(after.0), limit)
            && words.is_some()
        {
            // It may have asked after the room was there.
            client.raise(slot);
        }
        match ended {
            Some(0) => self.over(index, slot),
            Some(errno) => self.fail(index, slot, errno),
            None => self.finish(index, slot, words.as_ref()),
        }
    }

    /// Reads the application's line and takes its positions over; `Err` = they contradict the contract.
    pub fn believe(&mut self, index: u32, slot: Slot) -> Result<Option<AppWords>, ()> {
        let Some(client) = self.client(index) else { return Ok(None) };
        let words = client.shared.app_words(slot);
        let (tx_bytes, rx_bytes) = (client.shared.region.geometry().tx_bytes, client.shared.region.geometry().rx_bytes);
        let entry = client.slot(slot);
        let open = entry.phase == Phase::Open && !entry.own.closing;
        match &words {
            Some(words) if open => {
                let (tx_tail, rx_head) = (entry.own.tx_tail, entry.own.rx_head);
                if !believe(&mut entry.own, words, tx_bytes, rx_bytes) {
                    return Err(());
                }
                entry.own.flags |= words.flags & app_flags::URGENT;
                let (given, taken) = (words.tx_tail.wrapping_sub(tx_tail), words.rx_head.wrapping_sub(rx_head));
                self.sampler.moved(connection(index, slot), given, taken, words.rx_head, self.now_us);
                Ok(Some(*words))
            }
            _ => Ok(words),
        }
    }

    /// What the application has switched since the last look.
    pub fn flags(&mut self, index: u32, slot: Slot, words: &AppWords) {
        let Some(own) = self.own(index, slot) else { return };
        let changed = std::mem::replace(&mut own.flags, words.flags) ^ words.flags;
        let Some(fd) = &own.fd else { return };
        let names = [
            (app_flags::NODELAY, libc::TCP_NODELAY),
            (app_flags::CORK, libc::TCP_CORK),
            (app_flags::QUICKACK, libc::TCP_QUICKACK),
        ];
        if changed & words.flags & app_flags::SHUT_RD != 0 {
            // What comes after it is answered as the kernel does.
            let _ = rustix::net::shutdown(fd, Shutdown::Read);
        }
        for (bit, name) in names.into_iter().filter(|(bit, _)| changed & bit != 0) {
            sys::set(fd, libc::IPPROTO_TCP, name, (words.flags & bit != 0).into());
        }
    }

    /// Sends what the ring holds, all of it in one call if the kernel takes it.
    fn transmit(&mut self, index: u32, slot: Slot, urgent: Option<u32>) -> Found {
        let allowed = self.allowed(index);
        let Some(Some(client)) = self.clients.get_mut(index as usize) else { return Found::Alive };
        let region = std::sync::Arc::clone(&client.shared.region);
        let own = &mut client.slot(slot).own;
        let OfSlot { fd: Some(fd), sent, tx_tail, writable, shut, status, urgent_sent, ahead, asides, .. } = own else {
            return Found::Alive;
        };
        let granted = allowed.map_or(SHARE, |allowed| allowed.min(SHARE));
        let (ring, mut share) = (region.tx(slot), granted);
        while *writable && share > 0 {
            let (len, flags) = crate::urgent::part(*sent, asides.stop(*sent, *tx_tail), urgent, *urgent_sent);
            if len == 0 {
                if !asides.is_due(*sent, *tx_tail) {
                    break;
                }
                match asides.go(fd.as_fd(), &ring, share) {
                    Ok(Gone { count, in_ring }) => {
                        share = share.saturating_sub(count as u32);
                        if in_ring {
                            *sent = sent.wrapping_add(count as u32);
                        } else {
                            self.counts.file_bytes += count as u64;
                        }
                    }
                    Err(libc::EAGAIN) => *writable = false,
                    Err(libc::EINTR) => {}
                    Err(errno) => return Found::Failed(errno),
                }
                continue;
            }
            let done = ahead.sent.take();
            self.counts.sends += u64::from(done.is_none());
            match done.unwrap_or_else(|| sys::send(fd.as_fd(), &ring, *sent, len.min(share), flags)) {
                Ok(count) => {
                    *sent = sent.wrapping_add(count as u32);
                    share = share.saturating_sub(count as u32);
                    self.counts.sent_bytes += count as u64;
                    if flags & libc::MSG_OOB != 0 {
                        *urgent_sent = urgent;
                    }
                }
                Err(libc::EAGAIN) => *writable = false,
                Err(libc::EINTR) => {}
                Err(errno) => return Found::Failed(errno),
            }
        }
        if *sent != *tx_tail || asides.is_due(*sent, *tx_tail) {
            let (writable, waits) = (*writable, allowed.is_some() && share == 0);
            if waits {
                self.wait_for_rate(index, slot);
            } else if writable {
                self.once_more(index, slot);
            }
        } else if own.flags & app_flags::SHUT_WR != 0 && !*shut {
            *shut = true;
            *status |= status::TX_CLOSED;
            // It fails only for a connection that is over, of which a read will tell.
            let _ = rustix::net::shutdown(&*fd, Shutdown::Write);
        }
        if allowed.is_some() {
            self.has_sent(index, granted - share);
        }
        Found::Alive
    }

    /// Receives as much as the ring has room for.
    fn receive(&mut self, index: u32, slot: Slot) -> Found {
        let Some(Some(client)) = self.clients.get_mut(index as usize) else { return Found::Alive };
        let region = std::sync::Arc::clone(&client.shared.region);
        let own = &mut client.slot(slot).own;
        let (ring, mut share) = (region.rx(slot), SHARE);
        while own.readable && share > 0 {
            let Some(fd) = &own.fd else { break };
            let room = own.receive_room(region.geometry());
            if room == 0 {
                return Found::Alive;
            }
            if own.marked && crate::urgent::is_next(fd.as_fd()) {
                own.marked = false;
                own.status |= status::URGENT;
                own.urgent_got = Some(own.got);
            }
            let done = own.ahead.received.take();
            self.counts.receives += u64::from(done.is_none());
            let (room, result) = done.unwrap_or_else(|| (room, sys::receive(fd.as_fd(), &ring, own.got, room)));
            match result {
                Ok(0) => {
                    own.readable = false;
                    own.status |= status::RX_EOF;
                }
                Ok(count) => {
                    own.got = own.got.wrapping_add(count as u32);
                    share = share.saturating_sub(count as u32);
                    self.counts.received_bytes += count as u64;
                    // That was all, and more will be told of; but not of an end, which has been already.
                    own.readable = count as u32 == room || own.ending || own.marked;
                }
                Err(libc::EAGAIN) => own.readable = false,
                Err(libc::EINTR) => {}
                Err(errno) => return Found::Failed(errno),
            }
        }
        if own.readable {
            self.once_more(index, slot);
        }
        Found::Alive
    }
}

impl ClientGroup {
    /// Has a connection ended of which everything has been read, and with what errno (0: in order)? A reset that comes after the end of the
    /// stream is none that a read would tell of.
    fn ended(&mut self, index: u32, slot: Slot) -> Option<i32> {
        let own = self.own(index, slot)?;
        let (true, false, Some(fd)) = (own.ending, own.readable, &own.fd) else { return None };
        own.ending = false;
        match sys::take_error(fd) {
            0 if own.closing => None,
            0 => Figures::of(fd.as_fd()).is_some_and(|figures| figures.is_closed()).then_some(0),
            errno => Some(errno),
        }
    }
}

/// A number for the sampler.
fn connection(index: u32, slot: Slot) -> u64 {
    u64::from(index) << 32 | u64::from(slot.raw())
}

/// Takes the application's positions over. False = they contradict the contract.
fn believe(own: &mut OfSlot, words: &AppWords, tx_bytes: u32, rx_bytes: u32) -> bool {
    let queued = words.tx_tail.wrapping_sub(own.sent);
    let forward = queued >= own.tx_tail.wrapping_sub(own.sent);
    let taken = words.rx_head.wrapping_sub(own.rx_head);
    let unread = own.got.wrapping_sub(own.rx_head);
    let nothing_more = own.shut && queued != 0;
    if queued > tx_bytes || !forward || taken > unread || unread > rx_bytes || nothing_more {
        return false;
    }
    (own.tx_tail, own.rx_head) = (words.tx_tail, words.rx_head);
    true
}

/// Publishes positions, then what follows them.
fn show(line: &towpath_ring::StackLine, (sent, got, bits): (u32, u32, u32), urgent: Option<u32>) {
    if let Some(urgent) = urgent {
        line.urgent.store(urgent, Ordering::Release);
    }
    line.tx_head.store(sent, Ordering::Release);
    line.rx_tail.store(got, Ordering::Release);
    line.status.store(bits, Ordering::Release);
}

/// Does the application wait for room, and is a third of what it may use of the ring free?
fn wants_room(app: &towpath_ring::AppLine, queued: u32, limit: u32) -> bool {
    // Against the application's "ask, then look again": either it sees the new `tx_head` or we see that it asks.
    fence(Ordering::SeqCst);
    app.want.load(Ordering::Relaxed) & want::WRITABLE != 0 && limit.saturating_sub(queued) >= limit / 3
}
