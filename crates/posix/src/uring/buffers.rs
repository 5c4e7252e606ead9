//! Rings of buffers from which receives take (`IORING_REGISTER_PBUF_RING`). A group whose buffers are taken here has its head here, and
//! is not the kernel's any more: one of the two takes from it.

use super::abi::{CQE_BUFFER_SHIFT, CQE_F_BUFFER, OFF_PBUF_RING, PBUF_RING_INC, PBUF_RING_MMAP};
use super::{Mapping, kernel};
use crate::io::user;
use core::cell::UnsafeCell;
use libc::{c_int, c_uint, c_void, iovec};
use towpath_client::lock::Lock;
use towpath_client::sys::Sys;

/// `struct io_uring_buf_reg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Registration {
    address: u64,
    entries: u32,
    group: u16,
    flags: u16,
    _reserved: [u64; 3],
}

/// `struct io_uring_buf`. The last field of the first one is the ring's tail.
#[repr(C)]
#[derive(Clone, Copy)]
struct Buffer {
    address: u64,
    len: u32,
    id: u16,
    tail: u16,
}

/// Who takes from a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    Nobody,
    Library,
    Kernel,
}

/// One group of a ring.
struct Group {
    ring: u32,
    number: u16,
    at: *const Buffer,
    mask: u16,
    head: u16,
    taker: Taker,
    _mapping: Option<Mapping>,
}

struct Shared {
    lock: Lock,
    groups: UnsafeCell<Vec<Group>>,
}

// SAFETY: only used under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), groups: UnsafeCell::new(Vec::new()) };

fn with<R>(work: impl FnOnce(&mut Vec<Group>) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: locked.
    Some(work(unsafe { &mut *SHARED.groups.get() }))
}

fn find(groups: &mut [Group], ring: u32, number: u16) -> Option<&mut Group> {
    groups.iter_mut().find(|group| group.ring == ring && group.number == number)
}

/// IORING_REGISTER_PBUF_RING: the kernel's too.
///
/// # Safety
/// The contract of `io_uring_register`, with any addresses.
pub unsafe fn register(fd: c_int, ring: u32, op: c_uint, arg: *mut c_void, count: c_uint) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract.
    let done = unsafe { kernel(libc::SYS_io_uring_register, [fd as u64, op.into(), arg as u64, count.into(), 0, 0]) }?;
    // SAFETY: any bytes are a registration.
    let wanted = unsafe { user::read(arg.cast::<Registration>()) }?;
    if !wanted.entries.is_power_of_two() || wanted.entries > 1 << 15 {
        return Ok(done as c_int);
    }
    let offset = OFF_PBUF_RING | u64::from(wanted.group) << 16;
    let mapping = (wanted.flags & PBUF_RING_MMAP != 0)
        .then(|| Mapping::of(fd, offset, wanted.entries as usize * size_of::<Buffer>()));
    let (at, mapping) = match mapping {
        Some(Ok(mapping)) => (mapping.at(0), Some(mapping)),
        Some(Err(_)) => (core::ptr::null(), None),
        None => (wanted.address as *const u8, None),
    };
    // Buffers of which parts are taken are left to the kernel.
    let taker = if wanted.flags & PBUF_RING_INC == 0 { Taker::Nobody } else { Taker::Kernel };
    let (number, mask) = (wanted.group, (wanted.entries - 1) as u16);
    with(|groups| groups.push(Group { ring, number, at: at.cast(), mask, head: 0, taker, _mapping: mapping }));
    Ok(done as c_int)
}

/// IORING_UNREGISTER_PBUF_RING, of which the kernel hears too.
///
/// # Safety
/// `arg` may be any address.
pub unsafe fn unregister(ring: u32, arg: *mut c_void) {
    // SAFETY: any bytes are a registration.
    if let Ok(wanted) = unsafe { user::read(arg.cast::<Registration>()) } {
        with(|groups| groups.retain(|group| group.ring != ring || group.number != wanted.group));
    }
}

/// IORING_REGISTER_PBUF_STATUS of a group whose head is here.
///
/// # Safety
/// `arg` may be any address.
pub unsafe fn status(ring: u32, arg: *mut c_void) -> Option<Sys<c_int>> {
    let words = arg.cast::<u32>();
    // SAFETY: any bytes are numbers.
    let number = unsafe { user::read(words) }.ok()?;
    let head = with(|groups| {
        let group = find(groups, ring, u16::try_from(number).ok()?)?;
        (group.taker == Taker::Library).then_some(group.head)
    });
    // SAFETY: the program's memory.
    head.flatten().map(|head| unsafe { user::write(words.wrapping_add(1), u32::from(head)) }.map(|()| 0))
}

/// Buffers are given one by one (IORING_OP_PROVIDE_BUFFERS), of which only the kernel knows.
pub fn provided(ring: u32, number: u16) {
    with(|groups| {
        if find(groups, ring, number).is_none() {
            let (at, taker) = (core::ptr::null(), Taker::Kernel);
            groups.push(Group { ring, number, at, mask: 0, head: 0, taker, _mapping: None });
        }
    });
}

/// The kernel is about to take from a group. False: it must not.
pub fn leave_to_kernel(ring: u32, number: u16) -> bool {
    with(|groups| match find(groups, ring, number) {
        Some(group) if group.taker == Taker::Library => false,
        Some(group) => {
            group.taker = Taker::Kernel;
            true
        }
        None => true,
    }) != Some(false)
}

/// The next buffer of a group, of which at most `most` bytes are wanted (0 = all), and the flags by which a completion names it. It stays the
/// next one until it is [`taken`]. ENOBUFS: there is none now; EOPNOTSUPP: it cannot be taken from here.
pub fn next(ring: u32, number: u16, most: usize) -> Sys<(iovec, u32)> {
    let found = with(|groups| {
        let group = find(groups, ring, number).ok_or(libc::ENOBUFS)?;
        if group.taker == Taker::Kernel {
            return Err(libc::EOPNOTSUPP);
        }
        group.taker = Taker::Library;
        // SAFETY: wherever the program has put them; any bytes are buffers.
        let (tail, buffer) = unsafe {
            let tail = user::read(group.at)?.tail;
            (tail, user::read(group.at.wrapping_add(usize::from(group.head & group.mask)))?)
        };
        if tail == group.head {
            return Err(libc::ENOBUFS);
        }
        let len = if most == 0 { buffer.len as usize } else { most.min(buffer.len as usize) };
        let vector = iovec { iov_base: buffer.address as *mut c_void, iov_len: len };
        Ok((vector, CQE_F_BUFFER | u32::from(buffer.id) << CQE_BUFFER_SHIFT))
    });
    found.unwrap_or(Err(libc::EAGAIN))
}

/// The next buffer has been filled.
pub fn taken(ring: u32, number: u16) {
    with(|groups| {
        if let Some(group) = find(groups, ring, number) {
            group.head = group.head.wrapping_add(1);
        }
    });
}

/// The ring has gone.
pub fn forget(ring: u32) {
    with(|groups| groups.retain(|group| group.ring != ring));
}

/// In a forked child.
pub fn forked() {
    SHARED.lock.reset();
    // The mappings were not inherited.
    with(|groups| core::mem::forget(core::mem::take(groups)));
}
