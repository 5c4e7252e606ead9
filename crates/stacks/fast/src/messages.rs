//! The messages between the slow path and the flow groups.

use crate::clients::ClientShared;
use crate::filter::Filter;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use towpath_capture::Tap;
use towpath_ports::Port;
use towpath_recorder::{self as recorder, Entry, Kind, Message};
use towpath_ring::Slot;
use towpath_tcp::flow::{FlowId, PortId};
use towpath_tcp::messages::{ToFast, ToSlow};

/// Slow path to flow group.
pub enum ToGroup {
    /// The protocol's own message.
    Tcp(ToFast),
    /// A new client.
    AddClient(Arc<ClientShared>),
    /// Forget a client (it has no flows); answered by [`FromGroup::Forgotten`].
    DropClient(u32),
    /// Opens or closes an event context. The sender is dropped when this is done.
    Context {
        /// The client's index.
        client: u32,
        /// Its context.
        context: usize,
        /// The context's eventfd; `None` = close it.
        wake: Option<Arc<OwnedFd>>,
        /// Its drop is the answer.
        done: mpsc::Sender<()>,
    },
    /// Begins (`Some`: a tap for each port) or ends a capture. The sender is dropped when this is done.
    Capture {
        /// The taps.
        taps: Option<Vec<Tap>>,
        /// Its drop is the answer.
        done: mpsc::Sender<()>,
    },
    /// Puts these before the ports (`Some`: one for each), or nothing. The sender is dropped when this is done.
    Modules {
        /// By port.
        filters: Option<Vec<Filter>>,
        /// Its drop is the answer.
        done: mpsc::Sender<()>,
    },
    /// Translate this segment, which came on this port before its connection was spliced.
    Translate(PortId, Box<[u8]>),
    /// This port takes the place of the one with this number, whose interface has gone.
    Port(PortId, Box<dyn Port>),
    /// Look at this slot as if it stood in the dirty set.
    DataQueued {
        /// The client's index.
        client: u32,
        /// Its slot.
        slot: Slot,
    },
    /// The application is gone or never saw this connection. The group acts as if it had closed the slot.
    Close {
        /// The client's index.
        client: u32,
        /// Its slot.
        slot: Slot,
        /// Only if the slot is still of this generation.
        generation: u32,
        /// With RST.
        abort: bool,
    },
}

/// Flow group to slow path.
pub enum FromGroup {
    /// The protocol's own message.
    Tcp(ToSlow),
    /// The application has queued a slot that has no flow on this flow group.
    DataQueued {
        /// The client's index.
        client: u32,
        /// Its slot.
        slot: Slot,
    },
    /// The application has closed the slot, and the flow has been told.
    Closed {
        /// The client's index.
        client: u32,
        /// Its slot.
        slot: Slot,
        /// The generation that was closed.
        generation: u32,
    },
    /// A client is forgotten.
    Forgotten(u32),
}

/// Records a message to a flow group's fast path, if it is a rare one. What comes with each round trip is none, and segments are no
/// messages of a flow.
pub fn record_to_fast(flow_group: usize, message: &ToFast) {
    let (flow, which) = match message {
        ToFast::Remove(flow) => (flow, Message::Remove),
        ToFast::Abort { flow, .. } => (flow, Message::Abort),
        ToFast::ProbeWindow(flow) => (flow, Message::ProbeWindow),
        ToFast::ProbeTail(flow) => (flow, Message::ProbeTail),
        ToFast::KeepAlive(flow) => (flow, Message::KeepAlive),
        ToFast::Challenge(flow) => (flow, Message::Challenge),
        ToFast::SetMss(flow, _) => (flow, Message::SetMss),
        ToFast::Relink(flow, _) => (flow, Message::Relink),
        ToFast::Splice(flow, _) => (flow, Message::Splice),
        ToFast::Install(_)
        | ToFast::SetWindow(..)
        | ToFast::Timeout(..)
        | ToFast::SendAck(_)
        | ToFast::SetService { .. }
        | ToFast::Deactivate(_)
        | ToFast::SetWeight { .. }
        | ToFast::SetClass(..)
        | ToFast::SetLimit { .. }
        | ToFast::Transmit(..)
        | ToFast::Inject(..) => return,
    };
    record_message(flow_group, *flow, which);
}

/// The same of a message to the slow path.
pub fn record_to_slow(flow_group: usize, message: &ToSlow) {
    if let Some((flow, which)) = to_record(message) {
        record_message(flow_group, flow, which);
    }
}

fn to_record(message: &ToSlow) -> Option<(FlowId, Message)> {
    let (flow, which) = match message {
        ToSlow::Loss(flow) => (flow, Message::Loss),
        ToSlow::Undone(flow) => (flow, Message::Undone),
        ToSlow::Closing(flow) => (flow, Message::Closing),
        ToSlow::Reset(flow) => (flow, Message::Reset),
        ToSlow::AppClosed(flow) => (flow, Message::AppClosed),
        ToSlow::Aborted(flow) => (flow, Message::Aborted),
        ToSlow::Violated(flow) => (flow, Message::Violated),
        ToSlow::Segment(..) | ToSlow::Active(_) | ToSlow::Marked(_) | ToSlow::Held(..) | ToSlow::Removed(_) => {
            return None;
        }
    };
    Some((*flow, which))
}

fn record_message(flow_group: usize, flow: FlowId, which: Message) {
    let key = u64::from(flow.0) | (which as u64) << 32;
    recorder::record(&Entry { flag: which as u8, flow_group: flow_group as u32, ..Entry::new(Kind::Message, key) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_that_an_application_brings_about_is_recorded_under_its_name() {
        type Make = fn(FlowId) -> ToSlow;
        let ends: [(Make, Message); 4] = [
            (ToSlow::AppClosed, Message::AppClosed),
            (ToSlow::Aborted, Message::Aborted),
            (ToSlow::Violated, Message::Violated),
            (ToSlow::Reset, Message::Reset),
        ];
        for (message, which) in ends {
            assert_eq!(to_record(&message(FlowId(7))), Some((FlowId(7), which)));
        }
        assert_eq!(to_record(&ToSlow::Active(FlowId(7))), None, "it comes with each round trip");
    }
}
