//! The loader, which is executed in place of a program that loads no preloaded library. It only calls the library,
//! which is preloaded into it and does the rest. It has C's `main`, because Rust's changes signal settings that the
//! program inherits.
#![no_main]

use core::ffi::{CStr, c_char, c_int, c_void};

type Strings = *const *const c_char;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The exit code of `towpath run` if Towpath itself has failed.
const FAILED: c_int = 125;

/// Called by libc with the arguments and the environment that the kernel has put on the stack.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, argv: Strings, envp: Strings) -> c_int {
    const NAME: &CStr = c"towpath_load";
    // SAFETY: a null handle is RTLD_DEFAULT, and the name is a C string.
    let load = unsafe { dlsym(core::ptr::null_mut(), NAME.as_ptr()) };
    if load.is_null() {
        eprintln!("towpath-loader: libtowpath.so is not preloaded; start programs with `towpath run`");
        return FAILED;
    }
    // SAFETY: the library's function of this name has this type, and both lists stay until the end.
    unsafe {
        let load: unsafe extern "C" fn(Strings, Strings) -> ! = core::mem::transmute(load);
        load(argv, envp)
    }
}
