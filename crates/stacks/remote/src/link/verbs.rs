//! The calls of RDMA verbs (`libibverbs` and its bindings) that a link makes, with their meaning there. A provider
//! hides protection domain, completion queue and connected queue pairs (RC): [`crate::link::ibverbs`] of an adapter,
//! [`crate::link::software`] without one.

use std::io;
use std::time::Duration;
use towpath_ring::span::Span;

/// Memory that a provider has registered (`ibv_reg_mr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Names it in work requests of this side (`lkey`).
    pub lkey: u32,
    /// Names it in work requests of the peer (`rkey`).
    pub rkey: u32,
    /// Its first address, as the peer uses it.
    pub address: u64,
}

/// The peer's rights on registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing. It is only sent from.
    Local,
    /// Write (`IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE`).
    RemoteWrite,
}

/// Bytes of this side (`ibv_sge`).
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Key of the memory.
    pub lkey: u32,
    /// Offset, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub length: u32,
}

/// Memory of the peer (`ibv_send_wr::wr.rdma`).
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Key of the memory.
    pub rkey: u32,
    /// Address.
    pub address: u64,
}

/// How a work request ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Success,
    /// The local memory is not registered, or too short (`IBV_WC_LOC_PROT_ERR`).
    LocalProtection,
    /// The peer's memory is not registered for that (`IBV_WC_REM_ACCESS_ERR`).
    RemoteAccess,
    /// The peer does not answer (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The peer has posted no receive (`IBV_WC_RNR_RETRY_EXC_ERR`).
    ReceiverNotReady,
    /// A request before it has failed (`IBV_WC_WR_FLUSH_ERR`).
    Flushed,
    /// Another error: the adapter's text.
    Other(&'static str),
}

impl Status {
    /// The status as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalProtection => "local protection error",
            Self::RemoteAccess => "remote access error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::ReceiverNotReady => "receiver not ready",
            Self::Flushed => "work request flushed",
            Self::Other(text) => text,
        }
    }
}

/// The kind of work request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A write of this side.
    Write,
    /// A receive. A write with this immediate is in memory, and every earlier write of its queue pair.
    Received(u32),
}

/// An entry of the completion queue (`ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Id of the work request.
    pub id: u64,
    /// Its queue pair.
    pub pair: u32,
    /// Its status.
    pub status: Status,
    /// Its kind.
    pub opcode: Opcode,
}

/// Connected queue pairs with one completion queue.
pub trait Verbs: Send + Sync {
    /// Number of queue pairs.
    fn pairs(&self) -> u32;
    /// `ibv_reg_mr`. The memory stays mapped until it is deregistered.
    fn reg_mr(&self, memory: &Span, access: Access) -> io::Result<Registered>;
    /// `ibv_dereg_mr`.
    fn dereg_mr(&self, memory: &Registered);
    /// `ibv_post_send` of `IBV_WR_RDMA_WRITE`, signalled.
    fn post_write(&self, pair: u32, id: u64, local: Local, remote: Remote) -> io::Result<()>;
    /// `ibv_post_send` of `IBV_WR_RDMA_WRITE_WITH_IMM`, signalled. It consumes a receive of the peer.
    fn post_write_imm(&self, pair: u32, id: u64, local: Local, remote: Remote, immediate: u32) -> io::Result<()>;
    /// `ibv_post_recv` without memory, because immediates carry no bytes.
    fn post_receive(&self, pair: u32, id: u64) -> io::Result<()>;
    /// `ibv_poll_cq`: appends completions.
    fn poll_cq(&self, completions: &mut Vec<Completion>) -> io::Result<()>;
    /// `ibv_req_notify_cq` and `ibv_get_cq_event`: waits for a completion, at most this long.
    fn await_cq(&self, timeout: Duration);
    /// Takes the queue pairs of both sides to their error state.
    fn disconnect(&self);
}
