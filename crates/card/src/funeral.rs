//! What becomes of the applications when their card is dead: nobody writes the stack's words in their regions any more, so the host
//! does. Connections end with ECONNRESET; what applications ask for from then on fails with ENETDOWN, until another card is there. If there will
//! be one, listeners wait for that, and with them whoever waits for a connection; else they end as well.

use crate::places::Served;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::op;
use towpath_ring::dirty::acknowledge;
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::wake::{futex_wake, ring};

/// What becomes of the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listeners {
    /// Another card will serve them.
    Wait,
    /// Nobody will.
    End,
}

/// Ends every connection of a client, and its listeners or not.
pub fn bury(client: &Served, listeners: Listeners) {
    for slot in client.slots() {
        let line = client.region.stack(slot);
        let ends = match line.state.load(Ordering::Acquire) {
            state::CONNECTING | state::ESTABLISHED => true,
            state::LISTENING => listeners == Listeners::End,
            _ => false,
        };
        if ends {
            line.error.store(libc::ECONNRESET as u32, Ordering::Relaxed);
            line.status
                .store(line.status.load(Ordering::Relaxed) | status::RESET | status::TX_CLOSED, Ordering::Relaxed);
            client.region.info(slot).tcp_state.store(7, Ordering::Relaxed);
            line.state.store(state::CLOSED, Ordering::Release);
            tell(client, slot);
        }
        if line.state.load(Ordering::Relaxed) != state::LISTENING {
            client.free_all(slot.raw());
        }
    }
    answer(client);
    for (_, bell) in client.contexts() {
        ring(std::os::fd::AsFd::as_fd(&bell));
    }
}

/// Answers what a client has asked for meanwhile, and frees what it has closed.
pub fn answer(client: &Served) {
    let (queue, region) = (client.region.commands(), &client.region);
    let mut head = queue.position();
    for _ in 0..region.geometry().slots {
        let Some(raw) = queue.pop(&mut head) else { break };
        let Some(slot) = region.slot(raw) else { continue };
        acknowledge(&region.app(slot).ctl_seq, &region.stack(slot).ctl_ack);
    }
    for slot in client.slots() {
        let line = region.stack(slot);
        let (seq, command) = region.command(slot).read();
        let open = seq != 0 && seq != line.command_done.load(Ordering::Relaxed);
        if open && region.layout().is_app_slot(slot) {
            // Everything that there was to refresh is there.
            let result = if command.op == op::REFRESH { 0 } else { -libc::ENETDOWN };
            line.command_result.store(result, Ordering::Relaxed);
            line.command_done.store(seq, Ordering::Release);
            client.free_all(slot.raw());
            tell(client, slot);
        }
        let app = region.app(slot);
        let closed = app.generation.load(Ordering::Acquire) == line.generation.load(Ordering::Relaxed)
            && app.flags.load(Ordering::Acquire) & app_flags::CLOSED != 0;
        if closed {
            free(client, slot);
        }
    }
    // It rings for every door and every command, as nobody will disarm this any more.
    queue.arm();
}

/// The application has closed a socket: its slot can be used again.
pub fn hang_up(client: &Served, raw: u32, generation: u32) {
    let Some(slot) = client.region.slot(raw) else { return };
    if client.region.stack(slot).generation.load(Ordering::Relaxed) == generation {
        free(client, slot);
    }
}

fn free(client: &Served, slot: Slot) {
    let line = &client.region.stack(slot).state;
    if matches!(line.load(Ordering::Relaxed), state::CLOSED | state::LISTENING) {
        line.store(state::FREE, Ordering::Release);
        client.free_all(slot.raw());
    }
}

/// Raises an event. The positions in the queues are the dead card's last.
fn tell(client: &Served, slot: Slot) {
    let (region, line) = (&client.region, client.region.stack(slot));
    let seq = line.event_seq.load(Ordering::Relaxed).wrapping_add(1);
    line.event_seq.store(seq, Ordering::Release);
    let mask = region.app(slot).ctx_mask.load(Ordering::Acquire);
    for (context, _) in
        client.contexts().into_iter().filter(|(context, _)| mask.checked_shr(*context).unwrap_or(0) & 1 != 0)
    {
        let queue = region.events(context as usize, 0);
        let (seq, ack) = region.event_words(context as usize, 0, slot);
        queue.push_again(&mut queue.written(), slot);
        seq.store(ack.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
    futex_wake(&line.event_seq);
}
