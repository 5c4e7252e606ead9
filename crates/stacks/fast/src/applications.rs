//! A flow group's turn, as far as applications are concerned: it takes what they have written and read, and shows them what has come.

use crate::clients::{AppMarks, AppWords};
use crate::group::FlowGroup;
use crate::messages::FromGroup;
use crate::owner::owner;
use crate::ring_growth;
use crate::rings::{Endpoint, Flow, OneFlow};
use std::sync::atomic::Ordering;
use towpath_probes::{self as probes, Stage};
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::wake::asks_for_room;
use towpath_ring::{AppLine, Slot};
use towpath_runtime::sampler::Sampler;
use towpath_tcp::flow::FlowId;
use towpath_tcp::messages::{self as tcp, AppUpdate, AppView, FlowEvent, News, event};
use towpath_tcp::time::Micros;

/// Queued slots looked at in one turn over all clients, and for one client before the next client's.
const DATA_BATCH: usize = 64;
const DATA_PER_CLIENT: usize = 16;

impl FlowGroup {
    /// Takes what applications have queued, and returns how much it was.
    pub fn data_queues(&mut self, now: Micros) -> usize {
        let (places, mut work) = (self.rings.places(), 0);
        if places == 0 {
            return 0;
        }
        let next = self.scratch.first_client + 1;
        self.scratch.first_client = if next < places { next } else { 0 };
        // What one client leaves of the turn is the others'. A turn costs system calls, whatever it sends.
        loop {
            let before = work;
            let mut index = self.scratch.first_client;
            for _ in 0..places {
                if work == DATA_BATCH {
                    self.scratch.full += u64::from(self.has_data());
                    return work;
                }
                work += self.data_queue(now, index as u32, DATA_PER_CLIENT.min(DATA_BATCH - work));
                index = if index + 1 < places { index + 1 } else { 0 };
            }
            if work - before < DATA_PER_CLIENT {
                return work;
            }
        }
    }

    /// Takes up to `most` entries of a client, and returns how many there were.
    // By itself, so that it has all registers.
    #[inline(never)]
    fn data_queue(&mut self, now: Micros, index: u32, most: usize) -> usize {
        let Some(client) = self.rings.client(index) else { return 0 };
        let mut numbers = [0; DATA_PER_CLIENT];
        let taken = client.shared.next_data_some(self.number, &mut client.data_head, &mut numbers[..most]);
        client.items += taken as u64;
        for number in &numbers[..taken] {
            match self.rings.client(index).and_then(|client| client.flow_of(*number)) {
                Some(flow) => self.written::<true>(now, flow),
                None => self.without_flow(index, *number),
            }
        }
        taken
    }

    /// Has any client queued a slot that is still to be looked at?
    fn has_data(&mut self) -> bool {
        let number = self.number;
        self.rings.clients().any(|client| !client.shared.region.data_queue(number).is_empty(client.data_head))
    }

    /// Reads the application's words of a slot, if its flow is here. This is in the midst of messages, which may change the ports and
    /// what stands beside them. So nothing may have been given to a port yet, and no reply goes at once.
    pub fn look_at(&mut self, now: Micros, index: u32, slot: Slot) {
        if let Some(flow) = self.rings.flow_of(index, slot) {
            self.written::<false>(now, flow);
        }
    }

    /// Reads the application's words of a flow. Mostly they are the reply to what has come in this turn, which may go at once.
    #[inline(always)]
    fn written<const AT_ONCE: bool>(&mut self, now: Micros, flow: FlowId) {
        let Self { fast, rings, scratch, ports, .. } = self;
        let Some(Flow { endpoint, memory, .. }) = rings.flow(flow) else { return };
        let Some(words) = AppWords::read(&memory.lines().app, endpoint.generation) else { return };
        let usual = words.flags & !app_flags::NODELAY == 0 && !endpoint.closed;
        if !usual || ring_growth::is_news(endpoint, &words) {
            // A copy, so that the words of the usual case are in no memory.
            return self.update(now, flow, &AppWords { ..words });
        }
        let update = update_of(words.flags & app_flags::NODELAY, &AppWords { marks: None, ..words });
        let told = if AT_ONCE {
            fast.app_update_at_once(now, flow, update, &OneFlow(memory), ports)
        } else {
            fast.app_update(now, flow, update)
        };
        match told {
            Ok(()) => moved(endpoint, &mut scratch.sampler, now, flow, &words),
            Err(_) => self.violated(flow),
        }
    }

    /// The flow of a slot is not in this group: the slow thread is told, which knows its group.
    #[cold]
    #[inline(never)]
    fn without_flow(&mut self, index: u32, number: u32) {
        let Some(client) = self.rings.client(index) else { return };
        let Some(slot) = client.shared.region.slot(number) else { return };
        if !client.shared.words(slot).relayed.swap(true, Ordering::SeqCst) {
            self.outbox.send(FromGroup::DataQueued { client: index, slot });
        }
    }

    /// The application is gone. The bytes that it has queued are still sent if its words keep the contract.
    pub fn close(&mut self, now: Micros, index: u32, slot: Slot, generation: u32, abort: bool) {
        let Some(flow) = self.rings.flow_of(index, slot) else { return };
        let Some(endpoint) = self.rings.endpoint(flow).copied().filter(|e| e.generation == generation) else { return };
        let Some(client) = self.rings.client(index) else { return };
        let (tx_tail, rx_head, want) = (endpoint.tx_tail, endpoint.rx_head, endpoint.sizes);
        let last = AppWords { flags: 0, tx_tail, rx_head, want, marks: None };
        let mut words = client.shared.app_words(slot).unwrap_or(last);
        words.flags |= app_flags::CLOSED | if abort { app_flags::ABORT } else { 0 };
        self.update(now, flow, &words);
    }

    /// Takes over the application's words, whatever they say.
    #[inline(never)]
    fn update(&mut self, now: Micros, flow: FlowId, words: &AppWords) {
        let Some(endpoint) = self.rings.endpoint(flow) else { return };
        let flag = |bit| words.flags & bit != 0;
        let (closed, client, slot, generation) =
            (flag(app_flags::CLOSED), endpoint.client, endpoint.slot, endpoint.generation);
        // After CLOSED nothing but an abort is new.
        if endpoint.closed && !flag(app_flags::ABORT) {
            return;
        }
        let tell = closed && !std::mem::replace(&mut endpoint.closed, closed);
        let sizes_are_news = ring_growth::is_news(endpoint, words);
        if sizes_are_news {
            ring_growth::take_send_size(&mut self.rings, &mut self.fast, flow, words);
        }
        match self.fast.app_update(now, flow, update_of(words.flags, words)) {
            Ok(()) => {
                if sizes_are_news {
                    ring_growth::take_receive_size(&mut self.rings, &mut self.fast, now, flow, words);
                }
                let Some(endpoint) = self.rings.endpoint(flow) else { return };
                moved(endpoint, &mut self.scratch.sampler, now, flow, words);
            }
            Err(_) => self.violated(flow),
        }
        if tell {
            probes::close(owner(client, slot).0, flag(app_flags::ABORT));
            self.outbox.send(FromGroup::Closed { client, slot, generation });
        }
    }

    #[cold]
    fn violated(&mut self, flow: FlowId) {
        if let Some((_, client)) = self.rings.with_client(flow) {
            client.shared.violated_contract();
        }
    }

    /// Divides the time of turns with work since it was divided last among the programs. Each has as much of it as it had of the
    /// entries that were taken and of the events that were shown. What a turn has done for nobody is charged to nobody.
    pub fn charge(&mut self, busy_us: u64) {
        let spent_ns = busy_us.saturating_sub(std::mem::replace(&mut self.scratch.charged_us, busy_us)) * 1000;
        let all: u64 = self.rings.clients().map(|client| client.items).sum();
        if all == 0 {
            return;
        }
        for client in self.rings.clients() {
            let share = u128::from(spent_ns) * u128::from(std::mem::take(&mut client.items)) / u128::from(all);
            if share > 0 {
                client.shared.busy_ns.fetch_add(share as u64, Ordering::Relaxed);
            }
        }
    }

    /// Shows applications the changes of their flows.
    #[inline]
    pub fn publish(&mut self) -> usize {
        // After a turn that ended by a panic there may be somebody to notify without an event.
        let any = self.fast.has_events() || !self.scratch.to_notify.is_empty();
        if any { self.publish_events() } else { 0 }
    }

    #[inline(never)]
    fn publish_events(&mut self) -> usize {
        let mut work = 0;
        while let Some(News { event, tx_head, rx_tail, is_usual }) = self.fast.next_event() {
            if is_usual {
                self.show(event, (tx_head, rx_tail), None);
            } else {
                self.show_unusual(event);
            }
            work += 1;
        }
        while let Some(index) = self.scratch.to_notify.pop() {
            if let Some(client) = self.rings.client(index) {
                client.out.notify(&client.shared);
            }
        }
        work
    }

    /// [`FlowGroup::publish`] as a part of a turn.
    #[inline]
    pub fn publish_stage(&mut self) -> usize {
        let work = self.publish();
        probes::stage::<{ Stage::Publish as u32 }>(work);
        work
    }

    #[cold]
    #[inline(never)]
    fn show_unusual(&mut self, mut event: FlowEvent) {
        let mut view = self.fast.view(event.flow);
        if let Some(Flow { memory, .. }) = self.rings.flow(event.flow).filter(|flow| flow.endpoint.half_done) {
            // What looks like an orderly end would hide that bytes are missing in front of it.
            (view.rx_tail, view.eof) = (memory.lines().stack.rx_tail.load(Ordering::Relaxed), false);
            event.what &= !event::EOF;
        }
        self.show(event, (view.tx_head, view.rx_tail), Some(&view));
    }

    /// Shows an application the positions of its flow, and raises the event. `view`: the rest, if that is not as usual.
    #[inline(always)]
    fn show(&mut self, event: FlowEvent, (tx_head, rx_tail): (u32, u32), view: Option<&AppView>) {
        let (Self { rings, scratch, .. }, FlowEvent { flow, what }) = (self, event);
        let Some((Flow { endpoint, memory, words }, client)) = rings.with_client(flow) else { return };
        let has = |bit| what & bit != 0;
        client.items += 1;
        let (slot, lines) = (endpoint.slot, memory.lines());
        let line = &lines.stack;
        if let Some(view) = view {
            endpoint.status |= if view.eof || has(event::EOF) { status::RX_EOF } else { 0 }
                | if view.tx_closed || has(event::TX_CLOSED) { status::TX_CLOSED } else { 0 }
                | if has(event::ERROR) { status::RESET | status::TX_CLOSED } else { 0 }
                | if view.urgent.is_some() { status::URGENT } else { 0 };
            if let Some(urgent) = view.urgent {
                line.urgent.store(urgent, Ordering::Release);
            }
        }
        line.tx_head.store(tx_head, Ordering::Release);
        line.rx_tail.store(rx_tail, Ordering::Release);
        if let Some(view) = view {
            if has(event::ERROR) {
                line.error.store(view.errno as u32, Ordering::Release);
            }
            line.status.store(endpoint.status, Ordering::Release);
            if endpoint.status & status::RESET != 0 {
                line.state.store(state::CLOSED, Ordering::Release);
            }
            if has(event::URGENT) {
                client.out.announce(&client.shared, slot);
            }
        }
        if has(event::READABLE) {
            scratch.sampler.delivered(flow.0.into(), rx_tail, scratch.now_us);
        }
        let raise = what & !event::ROOM != 0 || wants_room(&lines.app, endpoint, tx_head);
        if raise && client.out.raise_in_turn(words.get(), slot, line, endpoint.generation) {
            scratch.to_notify.push(endpoint.client);
        }
    }
}

/// The fast path's form of the application's words, of which the flags are `flags`.
#[inline(always)]
fn update_of(flags: u32, words: &AppWords) -> AppUpdate {
    let flag = |bit| flags & bit != 0;
    AppUpdate {
        tx_tail: words.tx_tail,
        rx_head: words.rx_head,
        shut_wr: flag(app_flags::SHUT_WR),
        shut_rd: flag(app_flags::SHUT_RD),
        closed: flag(app_flags::CLOSED),
        abort: flag(app_flags::ABORT),
        nodelay: flag(app_flags::NODELAY),
        cork: flag(app_flags::CORK),
        quickack: flag(app_flags::QUICKACK),
        marks: words.marks.map(|AppMarks { urgent, flush, record }| tcp::AppMarks { urgent, flush, record }),
    }
}

/// The fast path has accepted these positions.
#[inline(always)]
fn moved(endpoint: &mut Endpoint, sampler: &mut Sampler, now: Micros, flow: FlowId, words: &AppWords) {
    let (given, taken) = (words.tx_tail.wrapping_sub(endpoint.tx_tail), words.rx_head.wrapping_sub(endpoint.rx_head));
    (endpoint.tx_tail, endpoint.rx_head) = (words.tx_tail, words.rx_head);
    sampler.moved(flow.0.into(), given, taken, words.rx_head, now.0);
}

/// Does the application wait for room, and is a third of the ring free?
#[inline]
fn wants_room(line: &AppLine, endpoint: &Endpoint, tx_head: u32) -> bool {
    let (queued, bytes) = (endpoint.tx_tail.wrapping_sub(tx_head), endpoint.tx_bytes);
    asks_for_room(&line.want) && bytes.saturating_sub(queued) >= bytes / 3
}
