//! An RDMA adapter behind [`Verbs`].

use super::abi::{self, CompChannel, Context, Cq, Mr, Pd, PortAttr, Qp, QpAttr, QpCap, QpInitAttr, Wc, mask, state};
use super::exchange::{Number, Side};
use super::library::Library;
use super::port::Port;
use crate::pairs::{DEPTH, RECEIVES};
use crate::verbs::{Access, Completion, Local, Opcode, Registered, Remote, Status, Verbs};
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
/// How long a packet waits for its answer, 4.096 µs times 2 to this: half a second. Adapters in software take tens of milliseconds.
const TIMEOUT: u8 = 17;
/// How often it is sent again. After that the other side is dead: 4 s in all. Linux's adapter in software takes 7 for "for ever".
const RETRIES: u8 = 6;
/// As often as it takes: who posts no receives shows no life either.
const FOR_EVER: u8 = 7;
/// Wait 0.64 ms for a receive.
const RNR_TIMER: u8 = 12;
/// Routers that a packet passes.
const HOPS: u8 = 64;

/// Queue pairs on a port of an adapter, with one completion queue.
pub struct Adapter {
    library: &'static Library,
    parts: Parts,
    port: Port,
    /// Largest packet of the port.
    mtu: u8,
    numbers: Vec<Number>,
    /// What is registered, by its local key. It stays mapped.
    memories: Mutex<HashMap<u32, (NonNull<Mr>, Span)>>,
    /// Ends when the other side does; nothing is said on it once the queue pairs are connected.
    lifeline: TcpStream,
    ended: AtomicBool,
}

/// What is made of the adapter, in this order, and unmade in the other.
struct Parts {
    library: &'static Library,
    context: *mut Context,
    pd: *mut Pd,
    channel: *mut CompChannel,
    cq: *mut Cq,
    pairs: Vec<NonNull<Qp>>,
}

// SAFETY: `libibverbs` lets any thread make any call on any object at any time, but for what unmakes them, and that is done by who drops this.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: each was made by the library, is unmade once, and before what it was made from; null are those that were not made.
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
    /// Queue pairs on a port that are not connected yet; the other side is at the end of `lifeline`.
    pub fn open(port: Port, pairs: u32, lifeline: TcpStream) -> io::Result<Self> {
        let library = Library::get()?;
        let context = open(library, &port.device)?;
        let (pd, channel, cq) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut parts = Parts { library, context, pd, channel, cq, pairs: Vec::new() };
        let mtu = mtu(library, context, &port)?;
        let most = pairs as c_int * (DEPTH as c_int + RECEIVES as c_int);
        // SAFETY: an open context, and what has just been made of it.
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
        // SAFETY: they live as long as `parts`.
        let number = |pair: &NonNull<Qp>| Number { qpn: unsafe { pair.as_ref() }.qp_num, psn: random() & 0xff_ffff };
        let numbers = parts.pairs.iter().map(number).collect();
        let memories = Mutex::default();
        let adapter = Self { library, parts, port, mtu, numbers, memories, lifeline, ended: AtomicBool::new(false) };
        adapter.arm()?;
        Ok(adapter)
    }

    /// This side, for the other.
    pub fn side(&self, directory: crate::pairs::Introduction) -> Side {
        Side { mtu: self.mtu, gid: self.port.gid, directory, pairs: self.numbers.clone() }
    }

    /// Connects each queue pair with the other side's of the same place.
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

    /// The next completion makes an event.
    fn arm(&self) -> io::Result<()> {
        // SAFETY: an open context, and a completion queue of it.
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
            // To some adapters a part of no bytes is one of 2 GiB.
            num_sge: c_int::from(local.length > 0),
            opcode: if immediate.is_some() { abi::WR_RDMA_WRITE_WITH_IMM } else { abi::WR_RDMA_WRITE },
            send_flags: abi::SEND_SIGNALED,
            imm_data: immediate.unwrap_or(0).to_be(),
            remote_addr: remote.address,
            rkey: remote.rkey,
            unused: [0; 9],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: an open context, a queue pair of it, a request that lives until the call is back. Its bytes are looked up by `lkey`
        // when they are sent, and that memory is registered and mapped.
        let posted = unsafe { (*self.parts.context).post_send.map(|post| post(pair, &raw mut request, &raw mut bad)) };
        number(posted.unwrap_or(libc::ENOSYS))
    }

    fn completion(&self, wc: &Wc) -> Completion {
        // Only error completions can be of none of these.
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
                // SAFETY: the library answers with a text that it always has, whatever the number.
                let text = unsafe { CStr::from_ptr((self.library.wc_status_str)(other)) };
                Status::Other(text.to_str().unwrap_or("?"))
            }
        }
    }
}

impl Parts {
    /// One more queue pair, into which receives can be posted.
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
        // SAFETY: a protection domain and completion queue of one context.
        let pair = made("a queue pair", unsafe { (self.library.create_qp)(self.pd, &raw mut wanted) })?;
        let Some(pair) = NonNull::new(pair) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        let first = QpAttr {
            qp_state: state::INIT,
            port_num: port,
            qp_access_flags: (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as u32,
            ..Default::default()
        };
        self.modify(pair, first, mask::INIT, "INIT").inspect_err(|_| {
            // SAFETY: it was made here, and nobody has it.
            unsafe { (self.library.destroy_qp)(pair.as_ptr()) };
        })?;
        Ok(pair)
    }

    fn modify(&self, pair: NonNull<Qp>, mut wanted: QpAttr, mask: c_int, to: &str) -> io::Result<()> {
        // SAFETY: a queue pair that has not been destroyed; the library only reads what is wanted.
        number(unsafe { (self.library.modify_qp)(pair.as_ptr(), &raw mut wanted, mask) })
            .map_err(|error| io::Error::new(error.kind(), format!("a queue pair does not become {to}: {error}")))
    }
}

/// Opens the adapter of this name.
fn open(library: &'static Library, name: &str) -> io::Result<*mut Context> {
    let mut count = 0;
    // SAFETY: the library fills in how many there are; the list has as many entries, and lives until it is freed.
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

/// Largest packet of a port that has a connection.
fn mtu(library: &Library, context: *mut Context, port: &Port) -> io::Result<u8> {
    let mut attributes = PortAttr::default();
    // SAFETY: an open context, and more room than the structure takes.
    number(unsafe { (library.query_port)(context, port.number, &raw mut attributes) })?;
    if attributes.state != abi::PORT_ACTIVE {
        let why = format!("the RDMA adapter {} has no connection at port {}", port.device, port.number);
        return Err(io::Error::new(io::ErrorKind::NetworkDown, why));
    }
    Ok(attributes.active_mtu.clamp(1, 5) as u8)
}

/// What a call has made, or why it has not.
fn made<T>(what: &str, pointer: *mut T) -> io::Result<*mut T> {
    if !pointer.is_null() {
        return Ok(pointer);
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// What a call that returns an error number means.
fn number(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error.abs())) }
}

/// A number that nobody can guess.
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
        // SAFETY: the bytes are mapped, and stay so until they are deregistered: `memories` keeps the span.
        let mr = unsafe { (self.library.reg_mr)(self.parts.pd, address.cast(), bytes, flags) };
        let mr = made(&format!("registering {bytes} bytes (they are locked in memory: ulimit -l)"), mr)?;
        let Some(mr) = NonNull::new(mr) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        // SAFETY: it was made just now.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        lock(&self.memories).insert(lkey, (mr, memory.clone()));
        Ok(Registered { lkey, rkey, address: address as u64 })
    }
    fn dereg_mr(&self, memory: &Registered) {
        if let Some((mr, _mapped)) = lock(&self.memories).remove(&memory.lkey) {
            // SAFETY: it was made by `reg_mr`, and nobody else has taken it out.
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
        // SAFETY: an open context, a queue pair of it, a request that lives until the call is back and has no memory.
        let posted = unsafe { (*self.parts.context).post_recv.map(|post| post(pair, &raw mut request, &raw mut bad)) };
        number(posted.unwrap_or(libc::ENOSYS))
    }
    fn poll_cq(&self, completions: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let mut taken = [Wc::default(); TAKEN];
            // SAFETY: an open context, a completion queue of it, room for as many as are asked for.
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
        // SAFETY: the channel, and with it its descriptor, lives as long as this.
        let channel = unsafe { BorrowedFd::borrow_raw((*self.parts.channel).fd) };
        let until = PollFlags::IN | PollFlags::RDHUP;
        let mut both = [PollFd::from_borrowed_fd(channel, PollFlags::IN), PollFd::new(&self.lifeline, until)];
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        if poll(&mut both, Some(&timeout)).is_err() {
            return;
        }
        if !both[1].revents().is_empty() {
            // Whatever is said there, it is not what was agreed.
            self.ended.store(true, Ordering::Release);
        }
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a channel of an open context. What is waited for is there, or the call fails: the descriptor does not block.
        if unsafe { (self.library.get_cq_event)(self.parts.channel, &raw mut cq, &raw mut context) } == 0 {
            // SAFETY: an event has come of this queue, the only one of the channel.
            unsafe { (self.library.ack_cq_events)(cq, 1) };
            // What ends before this is seen by who looks after this call, and what ends after it makes an event.
            if self.arm().is_err() {
                self.ended.store(true, Ordering::Release);
            }
        }
    }
    fn disconnect(&self) {
        for pair in &self.parts.pairs {
            let over = QpAttr { qp_state: state::ERR, ..Default::default() };
            // One that is over already does not mind.
            let _ = self.parts.modify(*pair, over, mask::ERR, "ERR");
        }
        let _ = self.lifeline.shutdown(Shutdown::Both);
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.disconnect();
        for (_, (mr, _mapped)) in lock(&self.memories).drain() {
            // SAFETY: as in `dereg_mr`. Its queue pairs are over, so nothing of it is underway any more.
            unsafe { (self.library.dereg_mr)(mr.as_ptr()) };
        }
    }
}

/// The lock. Who panicked with it has left the table whole: every change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
