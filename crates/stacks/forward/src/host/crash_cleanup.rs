//! Cleans up after a guest or a remote server that has died. It can no longer write the stack's words in the regions,
//! so the host does. Connections are reset with ECONNRESET. New requests fail with ENETDOWN until another guest is up.
//! If there will be one, listeners and calls of `accept` wait for it; else they end too.

use crate::host::clients::HostClient;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::op;
use towpath_ring::dirty::acknowledge;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::wake::{futex_wake, notify};
use towpath_runtime::info::show_over;

/// The fate of listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listeners {
    /// Another guest will serve them.
    Wait,
    /// They are reset too.
    End,
}

/// Resets every connection of a client, and its listeners if they end.
pub fn reset_all(client: &HostClient, listeners: Listeners) {
    for slot in client.slots() {
        let line = client.region.stack(slot);
        let ends = match line.state.load(Ordering::Acquire) {
            state::CONNECTING | state::ESTABLISHED => true,
            state::LISTENING => listeners == Listeners::End,
            _ => false,
        };
        if ends {
            show_over(&client.region, slot, libc::ECONNRESET);
            raise_event(client, slot);
        }
        if line.state.load(Ordering::Relaxed) != state::LISTENING {
            client.release_all(slot.raw());
        }
    }
    answer_commands(client);
    for (_, doorbell) in client.contexts() {
        notify(std::os::fd::AsFd::as_fd(&doorbell));
    }
}

/// Answers the commands that a client has posted meanwhile, and frees the slots that it has closed.
pub fn answer_commands(client: &HostClient) {
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
            // A refresh needs no answer from a stack: the last values are there.
            let result = if command.op == op::REFRESH { 0 } else { -libc::ENETDOWN };
            line.command_result.store(result, Ordering::Relaxed);
            line.command_done.store(seq, Ordering::Release);
            client.release_all(slot.raw());
            raise_event(client, slot);
        }
        let app = region.app(slot);
        let closed = app.generation.load(Ordering::Acquire) == line.generation.load(Ordering::Relaxed)
            && app.flags.load(Ordering::Acquire) & app_flags::CLOSED != 0;
        if closed {
            free_slot(client, slot);
        }
    }
    // Clients notify for every command and slot now, because no stack will disarm the queue.
    queue.arm();
}

/// The application has closed a socket: frees its slot.
pub fn close_slot(client: &HostClient, raw: u32, generation: u32) {
    let Some(slot) = client.region.slot(raw) else { return };
    if client.region.stack(slot).generation.load(Ordering::Relaxed) == generation {
        free_slot(client, slot);
    }
}

fn free_slot(client: &HostClient, slot: Slot) {
    let line = &client.region.stack(slot).state;
    if matches!(line.load(Ordering::Relaxed), state::CLOSED | state::LISTENING) {
        line.store(state::FREE, Ordering::Release);
        client.release_all(slot.raw());
    }
}

/// Raises an event for a slot. The positions in the event queues are the dead stack's last ones.
fn raise_event(client: &HostClient, slot: Slot) {
    let (region, line) = (&client.region, client.region.stack(slot));
    let seq = line.event_seq.load(Ordering::Relaxed).wrapping_add(1);
    line.event_seq.store(seq, Ordering::Release);
    let mask = region.app(slot).ctx_mask.load(Ordering::Acquire);
    for (context, _) in
        client.contexts().into_iter().filter(|(context, _)| mask.checked_shr(*context).unwrap_or(0) & 1 != 0)
    {
        let mut tail = region.events(context as usize, 0).written();
        region.queue_event_again(context as usize, 0, slot, &mut tail);
    }
    futex_wake(&line.event_seq);
}
