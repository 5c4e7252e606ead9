//! The program that stands in for one that loads no preloaded library. It only calls the library, which is preloaded
//! into it and does the rest. It has a `main` of C's, because Rust's changes what happens on signals, and that is the
//! program's to inherit.
#![no_main]

use core::ffi::{CStr, c_char, c_int, c_void};

type Strings = *const *const c_char;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Exit code of `towpath run` when it is Towpath that has failed.
const FAILED: c_int = 125;

/// Called by libc with the words and the environment that the kernel has put on the stack.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, argv: Strings, envp: Strings) -> c_int {
    const NAME: &CStr = c"towpath_load";
    // SAFETY: a null handle is RTLD_DEFAULT; the name is a C string.
    let load = unsafe { dlsym(core::ptr::null_mut(), NAME.as_ptr()) };
    if load.is_null() {
        eprintln!("towpath-loader: libtowpath.so is not preloaded; start programs with `towpath run`");
        return FAILED;
    }
    // SAFETY: the library's function of this name has this type; both lists stay for good.
    unsafe {
        let load: unsafe extern "C" fn(Strings, Strings) -> ! = core::mem::transmute(load);
        load(argv, envp)
    }
}
