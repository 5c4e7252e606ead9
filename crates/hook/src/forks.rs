//! Forks that libc's handlers (`pthread_atfork`) do not notice: by `syscall`, by `clone` with a function, and by
//! `_Fork`.

use crate::calls::Handler;
use crate::ready;
use core::ffi::c_void;
use libc::{c_int, c_long, c_ulong};

/// Before `syscall` with `clone`, `clone3` or `fork`. True: the child gets a copy of the memory, and `forked` must be
/// called in it.
///
/// # Safety
/// The contract of the system call, of which these are the first arguments.
pub unsafe extern "C" fn forking<H: Handler>(number: c_long, first: u64, second: u64) -> bool {
    let flags = match number {
        libc::SYS_clone => first,
        // SAFETY: the caller keeps the contract: the structure has this many bytes, and begins with the flags.
        libc::SYS_clone3 if first != 0 && second >= 8 => unsafe { (first as *const u64).read_unaligned() },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => 0,
        _ => return false,
    };
    shares::<H>(flags);
    let copies = ready() && flags & libc::CLONE_VM as u64 == 0;
    if copies {
        H::forking();
    }
    copies
}

/// Before a clone with these flags, which may make a thread that libc does not know of.
fn shares<H: Handler>(flags: u64) {
    if ready() && flags & libc::CLONE_VM as u64 != 0 && flags & libc::CLONE_VFORK as u64 == 0 {
        H::sharing_memory();
    }
}

/// In the child of such a fork.
pub extern "C" fn forked<H: Handler>() {
    H::forked();
}

/// `_Fork`: `fork` without handlers.
///
/// # Safety
/// The contract of the function.
pub unsafe fn bare<H: Handler>() -> c_int {
    // SAFETY: libc's function has this type.
    let real: Option<unsafe extern "C" fn() -> c_int> =
        unsafe { core::mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr())) };
    let Some(real) = real else { return crate::answer::failed_with(-c_long::from(libc::ENOSYS)) as c_int };
    if ready() {
        H::forking();
    }
    // SAFETY: the caller keeps the contract of this function.
    let pid = unsafe { real() };
    if pid == 0 && ready() {
        H::forked();
    }
    pid
}

type Body = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone =
    unsafe extern "C" fn(Option<Body>, *mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int;

/// The function that the child of a `clone` runs. The parent keeps it until `clone` has returned, and the child has a
/// copy.
struct Child {
    body: Body,
    argument: *mut c_void,
}

/// The first function of the child.
unsafe extern "C" fn begin<H: Handler>(child: *mut c_void) -> c_int {
    H::forked();
    // SAFETY: `clone` made the value, and its caller gave this function for this argument.
    unsafe {
        let Child { body, argument } = child.cast::<Child>().read();
        body(argument)
    }
}

/// libc's `clone`.
///
/// # Safety
/// The contract of the function; `more` are its last three arguments, which may be missing.
pub unsafe fn clone<H: Handler>(
    body: Option<Body>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    more: [*mut c_void; 3],
) -> c_int {
    // SAFETY: libc's function has this type.
    let real: Option<Clone> = unsafe { core::mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"clone".as_ptr())) };
    let Some(real) = real else { return crate::answer::failed_with(-c_long::from(libc::ENOSYS)) as c_int };
    let [parent_tid, tls, child_tid] = more;
    shares::<H>(u64::from(flags as u32));
    match body {
        Some(body) if ready() && c_ulong::from(flags as u32) & libc::CLONE_VM as c_ulong == 0 => {
            H::forking();
            let mut child = Child { body, argument };
            let child = (&raw mut child).cast();
            // SAFETY: the caller keeps the contract, and the child's copy of this stack has the same addresses.
            unsafe { real(Some(begin::<H>), stack, flags, child, parent_tid, tls, child_tid) }
        }
        // SAFETY: the caller keeps the contract of the function.
        body => unsafe { real(body, stack, flags, argument, parent_tid, tls, child_tid) },
    }
}

/// Defines these functions in a preloaded library, where `syscall` is defined too.
#[macro_export]
macro_rules! preload_forks {
    ($handler:ty) => {
        #[allow(missing_docs, clippy::missing_safety_doc)]
        mod preloaded_forks {
            use super::*;
            use $crate::libc::{c_int, c_void};

            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn _Fork() -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { $crate::forks::bare::<$handler>() }
            }

            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments)]
            pub unsafe extern "C" fn clone(
                body: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
                stack: *mut c_void,
                flags: c_int,
                argument: *mut c_void,
                parent_tid: *mut c_void,
                tls: *mut c_void,
                child_tid: *mut c_void,
            ) -> c_int {
                let more = [parent_tid, tls, child_tid];
                // SAFETY: the caller keeps the contract of this function.
                unsafe { $crate::forks::clone::<$handler>(body, stack, flags, argument, more) }
            }
        }
    };
}
