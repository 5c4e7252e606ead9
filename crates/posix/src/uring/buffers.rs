//! Provided buffer rings (`IORING_REGISTER_PBUF_RING`), from which receives take their buffers. Only one side, the
//! kernel or the library, takes from a group. If it is the library, the group's head is kept here.

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

/// `struct io_uring_buf`. The last field of a ring's first buffer is the ring's tail.
#[repr(C)]
#[derive(Clone, Copy)]
struct Buffer {
    address: u64,
    len: u32,
    id: u16,
    tail: u16,
}

/// The side that takes buffers from a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    Nobody,
    Library,
    Kernel,
}

/// One buffer group of a ring.
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

// SAFETY: `with` is the only access to `groups`, and it holds the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), groups: UnsafeCell::new(Vec::new()) };

fn with<R>(work: impl FnOnce(&mut Vec<Group>) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    Some(work(unsafe { &mut *SHARED.groups.get() }))
}

fn find(groups: &mut [Group], ring: u32, number: u16) -> Option<&mut Group> {
    groups.iter_mut().find(|group| group.ring == ring && group.number == number)
}

/// IORING_REGISTER_PBUF_RING. The group is registered with the kernel and remembered here.
///
/// # Safety
/// The contract of `io_uring_register`, with any addresses.
pub unsafe fn register(fd: c_int, ring: u32, op: c_uint, arg: *mut c_void, count: c_uint) -> Sys<c_int> {
    // SAFETY: the kernel checks the address itself and answers EFAULT.
    let done = unsafe { kernel(libc::SYS_io_uring_register, [fd as u64, op.into(), arg as u64, count.into(), 0, 0]) }?;
    // SAFETY: `user::read` accepts any address, and any bytes are a valid `Registration`.
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
    // Buffers that are consumed in parts (IOU_PBUF_RING_INC) are left to the kernel.
    let taker = if wanted.flags & PBUF_RING_INC == 0 { Taker::Nobody } else { Taker::Kernel };
    let (number, mask) = (wanted.group, (wanted.entries - 1) as u16);
    with(|groups| groups.push(Group { ring, number, at: at.cast(), mask, head: 0, taker, _mapping: mapping }));
    Ok(done as c_int)
}

/// IORING_UNREGISTER_PBUF_RING. The caller passes the request to the kernel too.
///
/// # Safety
/// `arg` may be any address.
pub unsafe fn unregister(ring: u32, arg: *mut c_void) {
    // SAFETY: `user::read` accepts any address, and any bytes are a valid `Registration`.
    if let Ok(wanted) = unsafe { user::read(arg.cast::<Registration>()) } {
        with(|groups| groups.retain(|group| group.ring != ring || group.number != wanted.group));
    }
}

/// IORING_REGISTER_PBUF_STATUS. Answers only for a group from which the library takes; `None` leaves it to the kernel.
///
/// # Safety
/// `arg` may be any address.
pub unsafe fn status(ring: u32, arg: *mut c_void) -> Option<Sys<c_int>> {
    let words = arg.cast::<u32>();
    // SAFETY: `user::read` accepts any address, and any bytes are a valid number.
    let number = unsafe { user::read(words) }.ok()?;
    let head = with(|groups| {
        let group = find(groups, ring, u16::try_from(number).ok()?)?;
        (group.taker == Taker::Library).then_some(group.head)
    });
    // SAFETY: `user::write` accepts any address of the program.
    head.flatten().map(|head| unsafe { user::write(words.wrapping_add(1), u32::from(head)) }.map(|()| 0))
}

/// A group of IORING_OP_PROVIDE_BUFFERS. Only the kernel knows its buffers, so only the kernel takes from it.
pub fn provided(ring: u32, number: u16) {
    with(|groups| {
        if find(groups, ring, number).is_none() {
            let (at, taker) = (core::ptr::null(), Taker::Kernel);
            groups.push(Group { ring, number, at, mask: 0, head: 0, taker, _mapping: None });
        }
    });
}

/// The kernel is about to take a buffer from a group. False: it must not, because the library already takes from it.
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

/// The next buffer of a group, and the completion flags that name it. At most `most` bytes of it are used (0 = all).
/// It stays the next one until [`taken`] is called. ENOBUFS: the group is empty. EOPNOTSUPP: the kernel takes from it.
pub fn next(ring: u32, number: u16, most: usize) -> Sys<(iovec, u32)> {
    let found = with(|groups| {
        let group = find(groups, ring, number).ok_or(libc::ENOBUFS)?;
        if group.taker == Taker::Kernel {
            return Err(libc::EOPNOTSUPP);
        }
        group.taker = Taker::Library;
        // SAFETY: `user::read` accepts any address, and any bytes are a valid `Buffer`.
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

/// The next buffer of a group has been filled: the one after it is next.
pub fn taken(ring: u32, number: u16) {
    with(|groups| {
        if let Some(group) = find(groups, ring, number) {
            group.head = group.head.wrapping_add(1);
        }
    });
}

/// A ring is closed: its groups are forgotten.
pub fn forget(ring: u32) {
    with(|groups| groups.retain(|group| group.ring != ring));
}

/// In a forked child: the groups belong to the parent's rings.
pub fn forked() {
    SHARED.lock.reset();
    // The mappings were not inherited (MADV_DONTFORK), so they must not be unmapped.
    with(|groups| core::mem::forget(core::mem::take(groups)));
}
