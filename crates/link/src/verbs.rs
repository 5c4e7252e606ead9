//! What a link needs of RDMA verbs: the calls of `libibverbs` (and of its bindings) that it makes, with their meaning there. A provider keeps
//! protection domain, completion queue and connected queue pairs (RC) behind them: [`crate::ibverbs`] those of an adapter;
//! [`crate::software`] has none.

use std::io;
use std::time::Duration;
use towpath_ring::span::Span;

/// Memory that a provider has registered (`ibv_reg_mr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Names it in work requests of this side.
    pub lkey: u32,
    /// Names it in those of the other side.
    pub rkey: u32,
    /// Where it begins, for the other side.
    pub address: u64,
}

/// What the other side may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it is only sent from.
    Local,
    /// Write into it (`IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE`).
    RemoteWrite,
}

/// Bytes of this side (`ibv_sge`).
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Whose they are.
    pub lkey: u32,
    /// From its beginning, bytes.
    pub offset: u64,
    /// How many.
    pub length: u32,
}

/// A place of the other side (`ibv_send_wr::wr.rdma`).
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Whose it is.
    pub rkey: u32,
    /// Where.
    pub address: u64,
}

/// How a work request ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Success,
    /// The local memory is not registered or not as long (`IBV_WC_LOC_PROT_ERR`).
    LocalProtection,
    /// The other side's memory is not registered for that (`IBV_WC_REM_ACCESS_ERR`).
    RemoteAccess,
    /// The other side does not answer (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The other side has posted no receive (`IBV_WC_RNR_RETRY_EXC_ERR`).
    ReceiverNotReady,
    /// It stood behind one that failed (`IBV_WC_WR_FLUSH_ERR`).
    Flushed,
    /// Something else: the adapter's text.
    Other(&'static str),
}

impl Status {
    /// For people.
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

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A write of this side.
    Write,
    /// A receive: a write with this immediate is in memory, and every write of its queue pair before it.
    Received(u32),
}

/// An entry of the completion queue (`ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the work request.
    pub id: u64,
    /// Its queue pair.
    pub pair: u32,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
}

/// Connected queue pairs with one completion queue.
pub trait Verbs: Send + Sync {
    /// How many queue pairs.
    fn pairs(&self) -> u32;
    /// `ibv_reg_mr`. The memory stays mapped until it is deregistered.
    fn reg_mr(&self, memory: &Span, access: Access) -> io::Result<Registered>;
    /// `ibv_dereg_mr`.
    fn dereg_mr(&self, memory: &Registered);
    /// `ibv_post_send` of `IBV_WR_RDMA_WRITE`, signalled.
    fn post_write(&self, pair: u32, id: u64, local: Local, remote: Remote) -> io::Result<()>;
    /// `ibv_post_send` of `IBV_WR_RDMA_WRITE_WITH_IMM`, signalled. It takes a receive of the other side.
    fn post_write_imm(&self, pair: u32, id: u64, local: Local, remote: Remote, immediate: u32) -> io::Result<()>;
    /// `ibv_post_recv` without memory: immediates bring none.
    fn post_receive(&self, pair: u32, id: u64) -> io::Result<()>;
    /// `ibv_poll_cq`: appends what has ended.
    fn poll_cq(&self, completions: &mut Vec<Completion>) -> io::Result<()>;
    /// `ibv_req_notify_cq` and `ibv_get_cq_event`: waits until something has ended, for so long at most.
    fn await_cq(&self, timeout: Duration);
    /// Takes the queue pairs of both sides to their error state.
    fn disconnect(&self);
}
