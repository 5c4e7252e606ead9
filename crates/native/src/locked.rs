//! `mlockall` under libc's name, for the programs that link this library. The kernel's would make a whole region real
//! memory.

use core::ffi::c_int;
use towpath_client::locked;

/// `mlockall` without the rings.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    locked::lock_all(flags, None).unwrap_or_else(|errno| {
        // SAFETY: libc's errno location is valid for the calling thread.
        unsafe { *libc::__errno_location() = errno };
        -1
    })
}
