//! AddressSanitizer's library refuses to start unless it comes first among a program's libraries. A preloaded library
//! comes before it. The order does no harm: this library's calls go to the next function of their name, which is the
//! sanitizer's.

use core::ffi::c_char;

/// The options with which AddressSanitizer begins. A program that has a function of this name has its own asked, and
/// ASAN_OPTIONS comes after both.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
