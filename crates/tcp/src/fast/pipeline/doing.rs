//! What the flow group is in the middle of, for the thread that goes on after a panic.

use crate::flow::FlowId;
use crate::messages::ToFast;

/// What the flow group does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing that a panic would leave half done.
    #[default]
    Nothing,
    /// A received batch.
    Batch,
    /// A frame that the slow path has given back.
    Injected,
    /// Something of this flow.
    Flow(FlowId),
    /// It sends.
    Sending,
}

impl Doing {
    /// What this message asks for.
    pub fn of(message: &ToFast) -> Self {
        match message {
            ToFast::Inject(..) => Self::Injected,
            ToFast::Install(setup) => Self::Flow(setup.flow),
            ToFast::SetWeight { .. } | ToFast::SetLimit { .. } | ToFast::Transmit(..) => Self::Nothing,
            ToFast::Remove(flow)
            | ToFast::Splice(flow, _)
            | ToFast::Relink(flow, _)
            | ToFast::SetWindow(flow, _)
            | ToFast::Timeout(flow, _)
            | ToFast::ProbeWindow(flow)
            | ToFast::ProbeTail(flow)
            | ToFast::SendAck(flow)
            | ToFast::Challenge(flow)
            | ToFast::KeepAlive(flow)
            | ToFast::SetMss(flow, _)
            | ToFast::SetClass(flow, _)
            | ToFast::SetService { flow, .. }
            | ToFast::Deactivate(flow)
            | ToFast::Abort { flow, .. } => Self::Flow(*flow),
        }
    }
}
