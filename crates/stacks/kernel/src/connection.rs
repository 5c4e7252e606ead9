//! Bytes: from the send ring to the kernel, from the kernel to the receive ring.

use crate::client::KernelSocket;
use crate::group::ClientGroup;
use crate::sideband_queue::SentPart;
use crate::sys;
use crate::tcp_info::TcpInfo;
use rustix::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::lines::{app_flags, status};
use towpath_ring::wake::asks_for_room;
use towpath_runtime::clients::{AppMarks, AppWords};
use towpath_runtime::slots::Phase;

/// Bytes moved each way for one connection before other connections are served.
const SHARE: u32 = 512 << 10;

/// How sending or receiving has ended.
enum IoOutcome {
    /// The connection continues.
    Alive,
    /// The connection has failed with this errno.
    Failed(i32),
}

/// How a connection has ended.
enum ConnectionEnd {
    /// Both directions have ended in order.
    InOrder,
    /// With this errno.
    Failed(i32),
}

impl ClientGroup {
    /// Serves a connection: flags of the application, bytes out, bytes in, the end.
    pub fn serve_connection(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let geometry = client.shared.region.geometry();
        let Ok(words) = self.validate_positions(index, slot) else {
            if let Some(client) = self.client(index) {
                client.shared.violated_contract();
            }
            return self.abort(index, slot, libc::ECONNRESET);
        };
        if let Some(words) = words {
            self.flags(index, slot, &words);
        }
        let before = self.own(index, slot).map(|own| (own.sent, own.got, own.status));
        let files = self.own(index, slot).map_or(0, |own| own.sideband.file_bytes());
        let marks = words.and_then(|words| words.marks).unwrap_or_default();
        let sent = self.transmit(index, slot, &marks);
        if let (IoOutcome::Failed(_), Some(own)) = (&sent, self.own(index, slot)) {
            // Bytes that arrived before the reset can still be read.
            own.readable = true;
        }
        let received = self.receive(index, slot);
        let ended = if matches!((&sent, &received), (IoOutcome::Alive, IoOutcome::Alive)) {
            self.ended(index, slot)
        } else {
            None
        };
        let Some(client) = self.client(index) else { return };
        let own = &mut client.slot(slot).own;
        let (after, tx_tail, urgent) = ((own.sent, own.got, own.status), own.tx_tail, own.urgent_got.take());
        let left = own.sideband.file_bytes();
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
            if let IoOutcome::Failed(errno) = found {
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
            // The application may have asked for room after the room was free.
            client.raise(slot);
        }
        match ended {
            Some(ConnectionEnd::InOrder) => self.over(index, slot),
            Some(ConnectionEnd::Failed(errno)) => self.fail(index, slot, errno),
            None => self.finish(index, slot, words.as_ref()),
        }
    }

    /// Loads the application's line and takes its positions over. `Err` if they violate the contract.
    pub fn validate_positions(&mut self, index: u32, slot: Slot) -> Result<Option<AppWords>, ()> {
        let Some(client) = self.client(index) else { return Ok(None) };
        let words = client.shared.app_words(slot);
        let (tx_bytes, rx_bytes) = (client.shared.region.geometry().tx_bytes, client.shared.region.geometry().rx_bytes);
        let entry = client.slot(slot);
        let open = entry.phase == Phase::Open && !entry.own.closing;
        match &words {
            Some(words) if open => {
                let (tx_tail, rx_head) = (entry.own.tx_tail, entry.own.rx_head);
                if !validate(&mut entry.own, words, tx_bytes, rx_bytes) {
                    return Err(());
                }
                entry.own.marked = words.marks.is_some_and(|marks| marks != entry.own.marks_done);
                let (given, taken) = (words.tx_tail.wrapping_sub(tx_tail), words.rx_head.wrapping_sub(rx_head));
                self.sampler.moved(connection(index, slot), given, taken, words.rx_head, self.now_us);
                Ok(Some(*words))
            }
            _ => Ok(words),
        }
    }

    /// Sets flags that the application has changed.
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
            // From here on the kernel answers the peer's data by its own rules.
            let _ = rustix::net::shutdown(fd, Shutdown::Read);
        }
        for (bit, name) in names.into_iter().filter(|(bit, _)| changed & bit != 0) {
            sys::set(fd, libc::IPPROTO_TCP, name, (words.flags & bit != 0).into());
        }
    }

    /// Sends the bytes of the ring, in one call if the kernel takes them all.
    fn transmit(&mut self, index: u32, slot: Slot, marks: &AppMarks) -> IoOutcome {
        let allowed = self.allowed(index);
        let Some(Some(client)) = self.clients.get_mut(index as usize) else { return IoOutcome::Alive };
        let region = std::sync::Arc::clone(&client.shared.region);
        let own = &mut client.slot(slot).own;
        let own_flags = own.flags;
        let KernelSocket { fd: Some(fd), sent, tx_tail, writable, shut, status, marks_done, batched, sideband, .. } =
            own
        else {
            return IoOutcome::Alive;
        };
        let granted = allowed.map_or(SHARE, |allowed| allowed.min(SHARE));
        let (ring, mut share) = (region.tx(slot), granted);
        // All before it has been sent already, with the cork on.
        if marks.flush.is_some_and(|end| sent.wrapping_sub(end).cast_signed() >= 0) {
            flush(fd, own_flags, marks, marks_done);
        }
        while *writable && share > 0 {
            let (len, flags) = crate::urgent::part(*sent, sideband.next_stop(*sent, *tx_tail), marks, marks_done);
            if len == 0 {
                if !sideband.is_due(*sent, *tx_tail) {
                    break;
                }
                match sideband.send_next(fd.as_fd(), &ring, share) {
                    Ok(SentPart { count, in_ring }) => {
                        share = share.saturating_sub(count as u32);
                        if in_ring {
                            *sent = sent.wrapping_add(count as u32);
                        } else {
                            self.counts.file_bytes += count as u64;
                        }
                    }
                    Err(libc::EAGAIN) => *writable = false,
                    Err(libc::EINTR) => {}
                    Err(errno) => return IoOutcome::Failed(errno),
                }
                continue;
            }
            let done = batched.sent.take();
            self.counts.sends += u64::from(done.is_none());
            match done.unwrap_or_else(|| sys::send(fd.as_fd(), &ring, *sent, len.min(share), flags)) {
                Ok(count) => {
                    *sent = sent.wrapping_add(count as u32);
                    share = share.saturating_sub(count as u32);
                    self.counts.sent_bytes += count as u64;
                    if flags & libc::MSG_OOB != 0 {
                        marks_done.urgent = marks.urgent;
                    }
                    if marks.record == Some(*sent) {
                        marks_done.record = marks.record;
                    }
                    if marks.flush == Some(*sent) {
                        flush(fd, own_flags, marks, marks_done);
                    }
                }
                Err(libc::EAGAIN) => *writable = false,
                Err(libc::EINTR) => {}
                Err(errno) => return IoOutcome::Failed(errno),
            }
        }
        if *sent != *tx_tail || sideband.is_due(*sent, *tx_tail) {
            let (writable, waits) = (*writable, allowed.is_some() && share == 0);
            if waits {
                self.wait_for_rate(index, slot);
            } else if writable {
                self.schedule_next_turn(index, slot);
            }
        } else if own.flags & app_flags::SHUT_WR != 0 && !*shut {
            *shut = true;
            *status |= status::TX_CLOSED;
            // This fails only if the connection is over. A read will report that.
            let _ = rustix::net::shutdown(&*fd, Shutdown::Write);
        }
        if allowed.is_some() {
            self.has_sent(index, granted - share);
        }
        IoOutcome::Alive
    }

    /// Receives as much as the ring has room for.
    fn receive(&mut self, index: u32, slot: Slot) -> IoOutcome {
        let Some(Some(client)) = self.clients.get_mut(index as usize) else { return IoOutcome::Alive };
        let region = std::sync::Arc::clone(&client.shared.region);
        let own = &mut client.slot(slot).own;
        let (ring, mut share) = (region.rx(slot), SHARE);
        while own.readable && share > 0 {
            let Some(fd) = &own.fd else { break };
            let room = own.receive_room(region.geometry());
            if room == 0 {
                return IoOutcome::Alive;
            }
            if own.urgent_announced && crate::urgent::is_next(fd.as_fd()) {
                own.urgent_announced = false;
                own.status |= status::URGENT;
                own.urgent_got = Some(own.got);
            }
            let done = own.batched.received.take();
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
                    // A short read empties the socket, and the next bytes raise an event. An end that has been
                    // reported raises none.
                    own.readable = count as u32 == room || own.ending || own.urgent_announced;
                }
                Err(libc::EAGAIN) => own.readable = false,
                Err(libc::EINTR) => {}
                Err(errno) => return IoOutcome::Failed(errno),
            }
        }
        if own.readable {
            self.schedule_next_turn(index, slot);
        }
        IoOutcome::Alive
    }
}

impl ClientGroup {
    /// How a connection has ended, if it has and everything has been read. A reset after the end of the stream is no
    /// end that a read would report.
    fn ended(&mut self, index: u32, slot: Slot) -> Option<ConnectionEnd> {
        let own = self.own(index, slot)?;
        let (true, false, Some(fd)) = (own.ending, own.readable, &own.fd) else { return None };
        own.ending = false;
        match sys::take_error(fd) {
            0 if own.closing => None,
            0 => TcpInfo::of(fd.as_fd()).is_some_and(|tcp_info| tcp_info.is_closed()).then_some(ConnectionEnd::InOrder),
            errno => Some(ConnectionEnd::Failed(errno)),
        }
    }
}

/// The connection's key for the sampler.
fn connection(index: u32, slot: Slot) -> u64 {
    u64::from(index) << 32 | u64::from(slot.raw())
}

/// Takes the application's positions over. False if they violate the contract.
fn validate(own: &mut KernelSocket, words: &AppWords, tx_bytes: u32, rx_bytes: u32) -> bool {
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

/// Publishes the positions, then the status that depends on them.
fn show(line: &towpath_ring::StackLine, (sent, got, bits): (u32, u32, u32), urgent: Option<u32>) {
    if let Some(urgent) = urgent {
        line.urgent.store(urgent, Ordering::Release);
    }
    line.tx_head.store(sent, Ordering::Release);
    line.rx_tail.store(got, Ordering::Release);
    line.status.store(bits, Ordering::Release);
}

/// True if the application waits for room, and a third of its share of the ring is free.
fn wants_room(app: &towpath_ring::AppLine, queued: u32, limit: u32) -> bool {
    asks_for_room(&app.want) && limit.saturating_sub(queued) >= limit / 3
}

/// The cork is off for a moment, so that the kernel sends what it holds.
#[cold]
fn flush(fd: &OwnedFd, flags: u32, marks: &AppMarks, done: &mut AppMarks) {
    if std::mem::replace(&mut done.flush, marks.flush) != marks.flush && flags & app_flags::CORK != 0 {
        sys::set(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
        sys::set(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1);
    }
}
