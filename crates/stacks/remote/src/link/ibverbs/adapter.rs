//! An RDMA adapter behind [`Verbs`].

use super::abi::{self, CompChannel, Context, Cq, Mr, Pd, PortAttr, Qp, QpAttr, QpCap, QpInitAttr, Wc, mask, state};
use super::exchange::{Number, Side};
use super::library::Library;
use super::port::Port;
use crate::link::pairs::{DEPTH, RECEIVES};
use crate::link::verbs::{Access, Completion, Local, Opcode, Registered, Remote, Status, Verbs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_ring::span::Span;

/// Completions taken at a time.
const TAKEN: usize = 64;
/// How long a packet waits for its answer: 4.096 µs times 2 to this, half a second. Software adapters take tens of
/// milliseconds.
const TIMEOUT: u8 = 17;
/// How often a packet is sent again before the peer counts as dead: 4 s in all. Linux's software adapter takes 7 for
/// "without end".
const RETRIES: u8 = 6;
/// Without end: a peer that posts no receives is detected as silent.
const FOR_EVER: u8 = 7;
/// Wait 0.64 ms for a receive.
const RNR_TIMER: u8 = 12;
/// Most routers that a packet may pass.
const HOPS: u8 = 64;

/// Queue pairs on a port of an adapter, with one completion queue.
pub struct Adapter {
    library: &'static Library,
    parts: Parts,
    port: Port,
    /// Largest packet of the port.
    mtu: u8,
    numbers: Vec<Number>,
    /// Registered memory by its local key. The span keeps it mapped.
    memories: Mutex<HashMap<u32, (NonNull<Mr>, Span)>>,
    /// Ends when the peer does. Nothing is sent on it once the queue pairs are connected.
    lifeline: TcpStream,
    ended: AtomicBool,
}

/// Objects of the library. They are made in this order and destroyed in the reverse order.
struct Parts {
    library: &'static Library,
    context: *mut Context,
    pd: *mut Pd,
    channel: *mut CompChannel,
    cq: *mut Cq,
    pairs: Vec<NonNull<Qp>>,
}

// SAFETY: `libibverbs` allows any call from any thread on any object, except its destruction, which only `drop` does.
unsafe impl Send for Adapter {}
// SAFETY: `libibverbs` allows any call from any thread on any object, except its destruction, which only `drop` does.
unsafe impl Sync for Adapter {}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: each object was made by the library, and is destroyed once and before the object that it was made
        // from. Objects that were not made are null.
        unsafe {
            for pair in self.pairs.drain(..) {
                (self.library.destroy_qp)(pair.as_ptr());
            }
            if !self.cq.is_null() {
                (self.library.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.library.destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (self.library.dealloc_pd)(self.pd);
            }
            (self.library.close_device)(self.context);
        }
    }
}

impl Adapter {
    /// Makes queue pairs on a port. They are not connected yet. The peer is at the other end of `lifeline`.
    pub fn open(port: Port, pairs: u32, lifeline: TcpStream) -> io::Result<Self> {
        let library = Library::get()?;
        let context = open(library, &port.device)?;
        let (pd, channel, cq) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut parts = Parts { library, context, pd, channel, cq, pairs: Vec::new() };
        let mtu = mtu(library, context, &port)?;
        let most = pairs as c_int * (DEPTH as c_int + RECEIVES as c_int);
        // SAFETY: the context is open, and the other objects were just made from it.
        unsafe {
            let ops = &*context;
            if [ops.poll_cq.is_none(), ops.req_notify_cq.is_none(), ops.post_send.is_none(), ops.post_recv.is_none()]
                .contains(&true)
            {
                return Err(io::ErrorKind::Unsupported.into());
            }
            parts.pd = made("a protection domain", (library.alloc_pd)(context))?;
            parts.channel = made("a completion channel", (library.create_comp_channel)(context))?;
            rustix::io::ioctl_fionbio(BorrowedFd::borrow_raw((*parts.channel).fd), true)?;
            let cq = (library.create_cq)(context, most, ptr::null_mut(), parts.channel, 0);
            parts.cq = made("a completion queue", cq)?;
        }
        for _ in 0..pairs {
            let pair = parts.pair(port.number)?;
            parts.pairs.push(pair);
        }
        // SAFETY: both objects live as long as `parts`.
        let number = |pair: &NonNull<Qp>| Number { qpn: unsafe { pair.as_ref() }.qp_num, psn: random() & 0xff_ffff };
        let numbers = parts.pairs.iter().map(number).collect();
        let memories = Mutex::default();
        let adapter = Self { library, parts, port, mtu, numbers, memories, lifeline, ended: AtomicBool::new(false) };
        adapter.arm()?;
        Ok(adapter)
    }

    /// This side's introduction for the peer.
    pub fn side(&self, directory: crate::link::pairs::Introduction) -> Side {
        Side { mtu: self.mtu, gid: self.port.gid, directory, pairs: self.numbers.clone() }
    }

    /// Connects each queue pair with the peer's of the same index.
    pub fn connect(&self, other: &Side) -> io::Result<()> {
        if other.pairs.len() != self.parts.pairs.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side has more queue pairs, or fewer"));
        }
        for ((pair, ours), theirs) in self.parts.pairs.iter().zip(&self.numbers).zip(&other.pairs) {
            let ready = QpAttr {
                qp_state: state::RTR,
                path_mtu: self.mtu.min(other.mtu).into(),
                dest_qp_num: theirs.qpn,
                rq_psn: theirs.psn,
                max_dest_rd_atomic: 1,
                min_rnr_timer: RNR_TIMER,
                ah_attr: abi::AhAttr {
                    dgid: other.gid,
                    sgid_index: self.port.gid_index,
                    hop_limit: HOPS,
                    is_global: 1,
                    port_num: self.port.number,
                    ..Default::default()
                },
                ..Default::default()
            };
            self.parts.modify(*pair, ready, mask::RTR, "RTR")?;
            let sends = QpAttr {
                qp_state: state::RTS,
                timeout: TIMEOUT,
                retry_cnt: RETRIES,
                rnr_retry: FOR_EVER,
                sq_psn: ours.psn,
                max_rd_atomic: 1,
                ..Default::default()
            };
            self.parts.modify(*pair, sends, mask::RTS, "RTS")?;
        }
        Ok(())
    }

    /// Requests an event for the next completion.
    fn arm(&self) -> io::Result<()> {
        // SAFETY: the context is open, and the completion queue was made from it.
        let armed = unsafe { (*self.parts.context).req_notify_cq.map(|arm| arm(self.parts.cq, 0)) };
        number(armed.unwrap_or(libc::ENOSYS))
    }

    fn pair(&self, pair: u32) -> io::Result<*mut Qp> {
        self.parts.pairs.get(pair as usize).map(|pair| pair.as_ptr()).ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn post(&self, pair: u32, id: u64, local: Local, remote: Remote, immediate: Option<u32>) -> io::Result<()> {
        let pair = self.pair(pair)?;
        let memory = lock(&self.memories).get(&local.lkey).map(|(_, span)| span.address() as u64);
        let memory = memory.ok_or(io::ErrorKind::InvalidInput)?;
        let mut part = abi::Sge { addr: memory + local.offset, length: local.length, lkey: local.lkey };
        let mut request = abi::SendWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            // Some adapters take a part of 0 bytes for one of 2 GiB.
            num_sge: c_int::from(local.length > 0),
            opcode: if immediate.is_some() { abi::WR_RDMA_WRITE_WITH_IMM } else { abi::WR_RDMA_WRITE },
            send_flags: abi::SEND_SIGNALED,
            imm_data: immediate.unwrap_or(0).to_be(),
            remote_addr: remote.address,
            rkey: remote.rkey,
            unused: [0; 9],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open, the queue pair was made from it, and the request lives until the call returns.
        // Its bytes are found by `lkey` when they are sent, in memory that is registered and mapped.
        let posted = unsafe { (*self.parts.context).post_send.map(|post| post(pair, &raw mut request, &raw mut bad)) };
        number(posted.unwrap_or(libc::ENOSYS))
    }

    fn completion(&self, wc: &Wc) -> Completion {
        // Only completions with an error can have another opcode.
        let pair = self.numbers.iter().position(|number| number.qpn == wc.qp_num).unwrap_or(0) as u32;
        let received = wc.opcode == abi::WC_RECV_RDMA_WITH_IMM;
        let opcode = if received { Opcode::Received(u32::from_be(wc.imm_data)) } else { Opcode::Write };
        Completion { id: wc.wr_id, pair, status: self.status(wc.status), opcode }
    }

    fn status(&self, status: u32) -> Status {
        match status {
            0 => Status::Success,
            4 => Status::LocalProtection,
            5 => Status::Flushed,
            10 => Status::RemoteAccess,
            12 => Status::RetryExceeded,
            13 => Status::ReceiverNotReady,
            other => {
                // SAFETY: the library returns a static text for every number.
                let text = unsafe { CStr::from_ptr((self.library.wc_status_str)(other)) };
                Status::Other(text.to_str().unwrap_or("?"))
            }
        }
    }
}

impl Parts {
    /// Makes another queue pair, into which receives can be posted.
    fn pair(&self, port: u8) -> io::Result<NonNull<Qp>> {
        let mut wanted = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: DEPTH as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: the protection domain and the completion queue belong to one open context.
        let pair = made("a queue pair", unsafe { (self.library.create_qp)(self.pd, &raw mut wanted) })?;
        let Some(pair) = NonNull::new(pair) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        let first = QpAttr {
            qp_state: state::INIT,
            port_num: port,
            qp_access_flags: (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as u32,
            ..Default::default()
        };
        self.modify(pair, first, mask::INIT, "INIT").inspect_err(|_| {
            // SAFETY: the queue pair was just made, and no other code has it.
            unsafe { (self.library.destroy_qp)(pair.as_ptr()) };
        })?;
        Ok(pair)
    }

    fn modify(&self, pair: NonNull<Qp>, mut wanted: QpAttr, mask: c_int, to: &str) -> io::Result<()> {
        // SAFETY: the queue pair has not been destroyed, and the library only reads the attributes.
        number(unsafe { (self.library.modify_qp)(pair.as_ptr(), &raw mut wanted, mask) })
            .map_err(|error| io::Error::new(error.kind(), format!("a queue pair does not become {to}: {error}")))
    }
}

/// Opens the adapter of this name.
fn open(library: &'static Library, name: &str) -> io::Result<*mut Context> {
    let mut count = 0;
    // SAFETY: the library sets the count; the list has that many entries and lives until it is freed.
    unsafe {
        let list = made("the list of adapters", (library.get_device_list)(&raw mut count))?;
        let devices = std::slice::from_raw_parts(list, count.max(0) as usize);
        let named = |device: &&*mut abi::Device| {
            let its = (library.get_device_name)(**device);
            !its.is_null() && CStr::from_ptr(its).to_bytes() == name.as_bytes()
        };
        let opened = match devices.iter().find(named) {
            Some(device) => made("the adapter", (library.open_device)(*device)),
            None => {
                let why =
                    format!("libibverbs has no driver for the RDMA adapter {name}: apt-get install ibverbs-providers");
                Err(io::Error::new(io::ErrorKind::NotFound, why))
            }
        };
        (library.free_device_list)(list);
        opened
    }
}

/// Largest packet of a port with a link.
fn mtu(library: &Library, context: *mut Context, port: &Port) -> io::Result<u8> {
    let mut attributes = PortAttr::default();
    // SAFETY: the context is open, and the buffer is larger than the structure.
    number(unsafe { (library.query_port)(context, port.number, &raw mut attributes) })?;
    if attributes.state != abi::PORT_ACTIVE {
        let why = format!("the RDMA adapter {} has no connection at port {}", port.device, port.number);
        return Err(io::Error::new(io::ErrorKind::NetworkDown, why));
    }
    Ok(attributes.active_mtu.clamp(1, 5) as u8)
}

/// The object that a call has made, or the error.
fn made<T>(what: &str, pointer: *mut T) -> io::Result<*mut T> {
    if !pointer.is_null() {
        return Ok(pointer);
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// The result of a call that returns an error number.
fn number(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error.abs())) }
}

/// A random number.
fn random() -> u32 {
    std::hash::RandomState::new().build_hasher().finish() as u32
}

impl Verbs for Adapter {
    fn pairs(&self) -> u32 {
        self.parts.pairs.len() as u32
    }
    fn reg_mr(&self, memory: &Span, access: Access) -> io::Result<Registered> {
        let flags = match access {
            Access::Local => 0,
            Access::RemoteWrite => abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE,
        };
        let (address, bytes) = (memory.address(), memory.bytes() as usize);
        // SAFETY: the bytes are mapped, and stay so until they are deregistered, because `memories` keeps the span.
        let mr = unsafe { (self.library.reg_mr)(self.parts.pd, address.cast(), bytes, flags) };
        let mr = made(&format!("registering {bytes} bytes (they are locked in memory: ulimit -l)"), mr)?;
        let Some(mr) = NonNull::new(mr) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        // SAFETY: the region was just registered, and no other code has it.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        lock(&self.memories).insert(lkey, (mr, memory.clone()));
        Ok(Registered { lkey, rkey, address: address as u64 })
    }
    fn dereg_mr(&self, memory: &Registered) {
        if let Some((mr, _mapped)) = lock(&self.memories).remove(&memory.lkey) {
            // SAFETY: the region was registered by `reg_mr`, and removing it from the table makes this the only
            // destruction.
            unsafe { (self.library.dereg_mr)(mr.as_ptr()) };
        }
    }
    fn post_write(&self, pair: u32, id: u64, local: Local, remote: Remote) -> io::Result<()> {
        self.post(pair, id, local, remote, None)
    }
    fn post_write_imm(&self, pair: u32, id: u64, local: Local, remote: Remote, immediate: u32) -> io::Result<()> {
        self.post(pair, id, local, remote, Some(immediate))
    }
    fn post_receive(&self, pair: u32, id: u64) -> io::Result<()> {
        let pair = self.pair(pair)?;
        let mut request = abi::RecvWr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open, the queue pair was made from it, and the request lives until the call returns
        // and has no memory.
        let posted = unsafe { (*self.parts.context).post_recv.map(|post| post(pair, &raw mut request, &raw mut bad)) };
        number(posted.unwrap_or(libc::ENOSYS))
    }
    fn poll_cq(&self, completions: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let mut taken = [Wc::default(); TAKEN];
            // SAFETY: the context is open, the completion queue was made from it, and the buffer has room for the
            // number asked for.
            let count = unsafe {
                let polled = (*self.parts.context).poll_cq;
                polled.map(|poll| poll(self.parts.cq, TAKEN as c_int, taken.as_mut_ptr()))
            };
            let count = usize::try_from(count.unwrap_or(-1)).map_err(|_| io::Error::other("ibv_poll_cq fails"))?;
            completions.extend(taken.iter().take(count).map(|wc| self.completion(wc)));
            if count < TAKEN {
                break;
            }
        }
        if completions.is_empty() && self.ended.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the other side has ended"));
        }
        Ok(())
    }
    fn await_cq(&self, timeout: Duration) {
        // SAFETY: the channel, and with it its descriptor, lives as long as this value.
        let channel = unsafe { BorrowedFd::borrow_raw((*self.parts.channel).fd) };
        let until = PollFlags::IN | PollFlags::RDHUP;
        let mut both = [PollFd::from_borrowed_fd(channel, PollFlags::IN), PollFd::new(&self.lifeline, until)];
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        if poll(&mut both, Some(&timeout)).is_err() {
            return;
        }
        if !both[1].revents().is_empty() {
            // The protocol sends nothing there, so any arrival ends the link.
            self.ended.store(true, Ordering::Release);
        }
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel belongs to an open context. The descriptor does not block, so the call returns an event
        // or fails.
        if unsafe { (self.library.get_cq_event)(self.parts.channel, &raw mut cq, &raw mut context) } == 0 {
            // SAFETY: an event of this queue has come, the only queue of the channel.
            unsafe { (self.library.ack_cq_events)(cq, 1) };
            // A completion before this call is seen by the caller, which polls after it. A later one raises an event.
            if self.arm().is_err() {
                self.ended.store(true, Ordering::Release);
            }
        }
    }
    fn disconnect(&self) {
        for pair in &self.parts.pairs {
            let over = QpAttr { qp_state: state::ERR, ..Default::default() };
            // A queue pair that is in error already stays so.
            let _ = self.parts.modify(*pair, over, mask::ERR, "ERR");
        }
        let _ = self.lifeline.shutdown(Shutdown::Both);
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.disconnect();
        for (_, (mr, _mapped)) in lock(&self.memories).drain() {
            // SAFETY: the region was registered by `reg_mr`, and the table no longer has it. Its queue pairs are in
            // error, so no request uses it.
            unsafe { (self.library.dereg_mr)(mr.as_ptr()) };
        }
    }
}

/// Locks the table. Every change is one step, so a panic leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
