//! Threads and processes of the program. libc's `pthread_create` makes each thread, so that the library has its
//! thread-local storage, a stack and an allocator there. Then the thread becomes the program's.

use super::block::{Block, STACK_BYTES};
use super::entry::{self, Frame};
use super::hooks::Hooks;
use super::signals;
use crate::raw::raw;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, Ordering};

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const THREAD: u64 = libc::CLONE_THREAD as u64;
const SETTLS: u64 = libc::CLONE_SETTLS as u64;
const PARENT_SETTID: u64 = libc::CLONE_PARENT_SETTID as u64;
const CHILD_SETTID: u64 = libc::CLONE_CHILD_SETTID as u64;
const CHILD_CLEARTID: u64 = libc::CLONE_CHILD_CLEARTID as u64;
/// The bits of the signal that tells the parent of the end.
const EXIT_SIGNAL: u64 = 0xff;
/// The bytes at the end of the thread's stack that belong to libc.
const STACK_MARGIN: u64 = 32 * 1024;

/// The part of `struct clone_args` that is used.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Clone {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// The parameters with which a new thread starts.
struct Start {
    frame: Frame,
    clone: Clone,
    mask: u64,
    /// The new thread's id, once it has begun.
    tid: AtomicI32,
}

/// `clone`, `fork` and `vfork`.
///
/// # Safety
/// The contract of the system call that `frame` holds.
pub unsafe fn clone(frame: &mut Frame, hooks: Hooks) -> i64 {
    let [flags, stack, parent_tid, child_tid, tls, _] = frame.arguments();
    let clone = Clone { flags, stack, parent_tid, child_tid, tls, ..Clone::default() };
    let call = match frame.rax as i64 {
        libc::SYS_fork => Clone { flags: libc::SIGCHLD as u64, ..Clone::default() },
        libc::SYS_vfork => Clone { flags: VM | VFORK | libc::SIGCHLD as u64, ..Clone::default() },
        _ => clone,
    };
    // SAFETY: the caller keeps the contract of the system call.
    unsafe { begin(frame, call, hooks) }
}

/// `clone3`.
///
/// # Safety
/// The contract of the system call that `frame` holds.
pub unsafe fn clone3(frame: &mut Frame, hooks: Hooks) -> i64 {
    let [args, bytes, ..] = frame.arguments();
    if args == 0 || (bytes as usize) < size_of::<Clone>() {
        return -i64::from(libc::EINVAL);
    }
    // SAFETY: the caller keeps the contract: the first version of the structure at least.
    let mut call = unsafe { (args as *const Clone).read_unaligned() };
    if call.stack != 0 {
        call.stack += call.stack_size;
    }
    call.flags |= call.exit_signal & EXIT_SIGNAL;
    // SAFETY: the caller keeps the contract of the system call.
    unsafe { begin(frame, call, hooks) }
}

/// # Safety
/// The addresses in `clone` are valid for the system call.
unsafe fn begin(frame: &mut Frame, clone: Clone, hooks: Hooks) -> i64 {
    match (clone.flags & VM != 0, clone.flags & THREAD != 0, clone.flags & VFORK != 0) {
        (true, true, _) => thread(frame, clone),
        // SAFETY: the caller keeps the contract.
        (true, false, true) => unsafe { vfork(frame, clone) },
        // A process that shares memory and runs beside its parent: obsolete since there are threads.
        (true, false, false) => -i64::from(libc::EINVAL),
        // SAFETY: the caller keeps the contract.
        (false, ..) => unsafe { process(frame, clone, hooks) },
    }
}

fn thread(frame: &Frame, clone: Clone) -> i64 {
    let mask = signals::block_all();
    let mut frame = Frame { rax: 0, ..*frame };
    if clone.stack != 0 {
        frame.rsp = clone.stack;
    }
    if clone.flags & SETTLS != 0 {
        frame.fs = clone.tls;
    }
    let start = Start { frame, clone, mask, tid: AtomicI32::new(0) };
    let created = create(&start);
    if created == 0 {
        // The new thread reads from this stack, so this one waits until it has.
        while start.tid.load(Ordering::Acquire) == 0 {
            let wait = [start.tid.as_ptr() as u64, libc::FUTEX_WAIT as u64, 0, 0, 0, 0];
            // SAFETY: the word is on this stack.
            unsafe { raw(libc::SYS_futex, wait) };
        }
    }
    signals::restore(mask);
    if created == 0 { start.tid.load(Ordering::Relaxed).into() } else { -i64::from(libc::EAGAIN) }
}

fn create(start: &Start) -> i32 {
    // SAFETY: the attributes are initialised before use. The new thread's `Start` outlives its use there.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        let mut id: libc::pthread_t = 0;
        let argument = core::ptr::from_ref(start).cast_mut().cast();
        let created = libc::pthread_create(&raw mut id, &raw const attributes, body, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        created
    }
}

extern "C" fn body(argument: *mut libc::c_void) -> *mut libc::c_void {
    let block = Block::default();
    // SAFETY: the creator waits until `tid` is set, and until then keeps the value.
    let start = unsafe { &*argument.cast::<Start>() };
    let (frame, clone, mask) = (start.frame, start.clone, start.mask);
    let here = core::ptr::from_ref(&block) as u64;
    block.install(here - STACK_BYTES as u64 + STACK_MARGIN, here);
    let tid = block.tid.load(Ordering::Relaxed);
    block.program_fs.store(frame.fs, Ordering::Relaxed);
    if clone.flags & CHILD_CLEARTID != 0 {
        block.clear_tid.store(clone.child_tid, Ordering::Relaxed);
    }
    for (flag, address) in [(PARENT_SETTID, clone.parent_tid), (CHILD_SETTID, clone.child_tid)] {
        if clone.flags & flag != 0 && address != 0 {
            // SAFETY: the program has named these addresses for the thread's id.
            unsafe { (address as *mut i32).write(tid) };
        }
    }
    let armed = signals::arm(&block).is_ok();
    start.tid.store(tid, Ordering::Release);
    wake(start.tid.as_ptr() as u64);
    if !armed {
        // It worked for the first thread. Without it only a part of the program would be hooked.
        std::process::abort();
    }
    signals::restore(mask);
    // SAFETY: these are the registers with which the program's thread begins.
    unsafe { entry::towpath_launch(&raw const frame, 0) };
    core::ptr::null_mut()
}

fn wake(address: u64) {
    // SAFETY: the call only looks sleepers up by address.
    unsafe { raw(libc::SYS_futex, [address, libc::FUTEX_WAKE as u64, i32::MAX as u64, 0, 0, 0]) };
}

/// `exit`: the end of one thread.
pub fn end(frame: &Frame) -> i64 {
    let block = Block::current();
    // SAFETY: the call takes no arguments.
    let tid = unsafe { raw(libc::SYS_gettid, [0; 6]) };
    if i64::from(block.tid.load(Ordering::Relaxed)) != tid {
        // A child of vfork: the block is its parent's.
        // SAFETY: the call takes a number.
        return unsafe { raw(libc::SYS_exit, frame.arguments()) };
    }
    signals::block_all();
    // The kernel would act on this list at the thread's end, when the program may have freed the thread's memory.
    // SAFETY: the list is null.
    unsafe { raw(libc::SYS_set_robust_list, [0, 24, 0, 0, 0, 0]) };
    let clear = block.clear_tid.load(Ordering::Relaxed);
    if clear != 0 {
        // SAFETY: the program has named this address for the thread's end.
        unsafe { (*(clear as *const AtomicI32)).store(0, Ordering::Release) };
        wake(clear);
    }
    if block.plain_end.load(Ordering::Relaxed) != 0 {
        // SAFETY: the call takes a number.
        return unsafe { raw(libc::SYS_exit, frame.arguments()) };
    }
    // SAFETY: this runs on the thread's stack, below its `towpath_launch`, and no destructor is due in between.
    unsafe { entry::towpath_leave_thread() }
}

/// A child with its own memory.
///
/// # Safety
/// As [`begin`].
unsafe fn process(frame: &mut Frame, clone: Clone, hooks: Hooks) -> i64 {
    let plain = clone.flags & !(PARENT_SETTID | CHILD_SETTID | CHILD_CLEARTID | EXIT_SIGNAL) == 0
        && clone.flags & EXIT_SIGNAL == libc::SIGCHLD as u64;
    let result = if plain {
        // SAFETY: libc's fork keeps its own locks consistent, and runs the library's handlers.
        match unsafe { libc::fork() } {
            -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN)),
            pid => pid.into(),
        }
    } else {
        (hooks.before_fork)();
        let flags = clone.flags & !(SETTLS | CHILD_CLEARTID);
        let number = libc::SYS_clone;
        let third = if clone.pidfd != 0 { clone.pidfd } else { clone.parent_tid };
        // SAFETY: the caller keeps the contract. The child goes on here, on its copy of this stack.
        let result = unsafe { raw(number, [flags, 0, third, clone.child_tid, 0, 0]) };
        if result == 0 {
            (hooks.in_child)();
        }
        result
    };
    if result == 0 {
        in_child(frame, clone);
    } else if plain && result > 0 && clone.flags & PARENT_SETTID != 0 && clone.parent_tid != 0 {
        // SAFETY: the program has named this address for the child's id.
        unsafe { (clone.parent_tid as *mut i32).write(result as i32) };
    }
    result
}

fn in_child(frame: &mut Frame, clone: Clone) {
    let block = Block::current();
    // SAFETY: the call takes no arguments.
    let tid = unsafe { raw(libc::SYS_gettid, [0; 6]) } as i32;
    block.tid.store(tid, Ordering::Relaxed);
    // A forked child has one thread.
    block.plain_end.store(1, Ordering::Relaxed);
    let clear = if clone.flags & CHILD_CLEARTID != 0 { clone.child_tid } else { 0 };
    block.clear_tid.store(clear, Ordering::Relaxed);
    if clone.flags & CHILD_SETTID != 0 && clone.child_tid != 0 {
        // SAFETY: the program has named this address for the child's id.
        unsafe { (clone.child_tid as *mut i32).write(tid) };
    }
    if clone.stack != 0 {
        frame.rsp = clone.stack;
    }
    if signals::arm(block).is_err() {
        std::process::abort();
    }
}

/// The registers with which a child of vfork begins. Its parent sleeps until the child has released the memory, so one
/// per thread is enough.
#[repr(transparent)]
struct Child(UnsafeCell<Frame>);

std::thread_local! {
    static CHILD: Child = const { Child(UnsafeCell::new(Frame {
        fs: 0, r15: 0, r14: 0, r13: 0, r12: 0, rbp: 0, rbx: 0, r9: 0, r8: 0, r10: 0, rdx: 0, rsi: 0, rdi: 0, rax: 0,
        rip: 0, rsp: 0,
    })) };
}

/// # Safety
/// As [`begin`].
unsafe fn vfork(frame: &Frame, clone: Clone) -> i64 {
    let rsp = if clone.stack != 0 { clone.stack } else { frame.rsp };
    let fs = if clone.flags & SETTLS != 0 { clone.tls } else { frame.fs };
    // SAFETY: it is this thread's own, and nobody else uses it now.
    CHILD.with(|child| unsafe { child.0.get().write(Frame { rax: 0, rsp, fs, ..*frame }) });
    let third = if clone.pidfd != 0 { clone.pidfd } else { clone.parent_tid };
    let flags = clone.flags & !SETTLS;
    let call = [libc::SYS_clone as u64, flags, clone.stack, third, clone.child_tid, 0, 0];
    // SAFETY: the child begins at `child_of_vfork`, and never returns here.
    unsafe { entry::towpath_vfork(&raw const call) }
}

/// Called first in a child of vfork, on its parent's stack and storage. Returns the registers with which it goes on.
pub extern "C" fn child_of_vfork() -> *const Frame {
    // An error does no harm: the child's calls go to the kernel until it executes a program.
    let _ = signals::arm(Block::current());
    CHILD.with(|child| child.0.get().cast_const())
}
