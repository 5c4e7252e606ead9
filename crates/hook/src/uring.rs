//! io_uring and AIO, whose operations are no caught calls. In preloaded programs these are caught: libc's `syscall`,
//! liburing's functions that make a ring, libaio's `io_submit`, and POSIX's `aio_read` and `aio_write`. In injected
//! programs the system calls are caught.

use crate::answer::{failed_with, set_errno};
use crate::calls::Handler;
use crate::masked::handled;
use crate::raw::raw;
use core::ffi::CStr;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

/// A negative errno, as liburing and libaio return it.
fn negative<T: Into<c_long>>(answer: Result<T, i32>) -> c_long {
    answer.map_or_else(|errno| -c_long::from(errno), Into::into)
}

/// libc's function `syscall`.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn by_number<H: Handler>(number: c_long, arguments: [u64; 6]) -> Result<isize, i32> {
    // SAFETY: the caller keeps the contract of this function.
    unsafe { crate::by_number::by_number(number, arguments, handled::<H>) }
}

/// `io_submit` of libaio.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn submit<H: Handler>(context: c_ulong, count: c_long, requests: *const *const c_void) -> c_int {
    // SAFETY: the caller keeps the contract of this function.
    let answer = unsafe { H::io_submit(context, count, requests) }.map(negative);
    // SAFETY: the caller keeps the contract of the function.
    answer.unwrap_or_else(|| unsafe { raw(libc::SYS_io_submit, [context, count as u64, requests as u64, 0, 0, 0]) })
        as c_int
}

/// A system call of the library's own, past all hooks.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn by_kernel(number: c_long, arguments: [u64; 6]) -> Result<c_long, i32> {
    // SAFETY: the caller keeps the contract of this function.
    match unsafe { raw(number, arguments) } {
        errno @ -4095..=-1 => Err(-errno as i32),
        answer => Ok(answer),
    }
}

/// A function of liburing that makes a ring. liburing's later system calls are not caught.
///
/// # Safety
/// The contract of the function, which returns a negative errno.
pub unsafe fn set_up<H: Handler>(name: &CStr, entries: c_uint, arguments: [*mut c_void; 4]) -> c_int {
    type Real = unsafe extern "C" fn(c_uint, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int;
    // SAFETY: the caller keeps the contract. Integers and pointers are passed alike, and a function ignores arguments
    // that it lacks.
    unsafe {
        if let Some(answer) = H::io_uring_unseen() {
            return negative(answer) as c_int;
        }
        let real: Option<Real> = core::mem::transmute(libc::dlsym(libc::RTLD_NEXT, name.as_ptr()));
        let [a, b, c, d] = arguments;
        real.map_or(-libc::ENOSYS, |real| real(entries, a, b, c, d))
    }
}

/// `aio_read` or `aio_write`. The request begins with its descriptor.
///
/// # Safety
/// The contract of the function.
pub unsafe fn aio<H: Handler>(name: *const c_char, request: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract, and libc's function has this type.
    unsafe {
        if !request.is_null() && H::is_accelerated(request.cast::<c_int>().read_unaligned()) {
            set_errno(libc::ENOSYS);
            return -1;
        }
        let real: Option<unsafe extern "C" fn(*mut c_void) -> c_int> =
            core::mem::transmute(libc::dlsym(libc::RTLD_NEXT, name));
        real.map_or_else(|| failed_with(-c_long::from(libc::ENOSYS)) as c_int, |real| real(request))
    }
}

/// Defines those functions in a preloaded library.
#[macro_export]
macro_rules! preload_uring {
    ($handler:ty) => {
        #[allow(missing_docs, clippy::missing_safety_doc)]
        mod preloaded_uring {
            use super::*;
            use $crate::libc::{c_int, c_long, c_uint, c_ulong, c_void};
            use $crate::uring;

            /// On x86-64 the last argument is on the stack.
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C-unwind" fn asked(
                number: c_long,
                a: u64,
                b: u64,
                c: u64,
                d: u64,
                e: u64,
                f: u64,
            ) -> c_long {
                // SAFETY: the caller keeps the system call's contract.
                $crate::finish(unsafe { uring::by_number::<$handler>(number, [a, b, c, d, e, f]) }) as c_long
            }

            /// libc's `syscall`. Numbers for which there is a handler go there (libuv closes by it), and forks are
            /// announced (vsftpd's). The system call itself is made here, because a child may go on at any address and
            /// on any stack.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn syscall() {
                core::arch::naked_asm!(
                    "cmp rdi, {numbers}",
                    "jae 1f",
                    "lea rax, [rip + {handled}]",
                    "cmp byte ptr [rax + rdi], 0",
                    "jne 2f",
                    "1:",
                    "cmp rdi, {clone}",
                    "je 4f",
                    "cmp rdi, {fork}",
                    "je 4f",
                    "cmp rdi, {clone3}",
                    "je 4f",
                    "5:",
                    "mov rax, rdi",
                    "mov rdi, rsi",
                    "mov rsi, rdx",
                    "mov rdx, rcx",
                    "mov r10, r8",
                    "mov r8, r9",
                    "mov r9, [rsp + 8]",
                    "syscall",
                    "cmp rax, -4095",
                    "jae 3f",
                    "ret",
                    "2:",
                    "jmp {asked}",
                    "3:",
                    "mov rdi, rax",
                    "jmp {failed}",
                    "4:",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "call {forking}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "test al, al",
                    "jz 5b",
                    "mov rax, rdi",
                    "mov rdi, rsi",
                    "mov rsi, rdx",
                    "mov rdx, rcx",
                    "mov r10, r8",
                    "mov r8, r9",
                    "mov r9, [rsp + 8]",
                    "syscall",
                    "cmp rax, -4095",
                    "jae 3b",
                    "test rax, rax",
                    "jz 6f",
                    "ret",
                    "6:",
                    "sub rsp, 8",
                    "call {forked}",
                    "add rsp, 8",
                    "xor eax, eax",
                    "ret",
                    numbers = const $crate::by_number::IS_HANDLED.len(),
                    handled = sym $crate::by_number::IS_HANDLED,
                    asked = sym asked,
                    failed = sym $crate::failed_with,
                    forking = sym $crate::forks::forking::<$handler>,
                    forked = sym $crate::forks::forked::<$handler>,
                    clone = const $crate::libc::SYS_clone,
                    fork = const $crate::libc::SYS_fork,
                    clone3 = const $crate::libc::SYS_clone3,
                )
            }

            /// The same for AArch64, where all seven arguments are in registers.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn syscall() {
                core::arch::naked_asm!(
                    "cmp x0, #{numbers}",
                    "b.hs 1f",
                    "adrp x9, {handled}",
                    "add x9, x9, :lo12:{handled}",
                    "ldrb w9, [x9, x0]",
                    "cbnz w9, 2f",
                    "1:",
                    "cmp x0, #{clone}",
                    "b.eq 4f",
                    "cmp x0, #{clone3}",
                    "b.eq 4f",
                    "5:",
                    "mov x8, x0",
                    "mov x0, x1",
                    "mov x1, x2",
                    "mov x2, x3",
                    "mov x3, x4",
                    "mov x4, x5",
                    "mov x5, x6",
                    "svc #0",
                    "cmn x0, #4095",
                    "b.cs 3f",
                    "ret",
                    "2:",
                    "b {asked}",
                    "3:",
                    "b {failed}",
                    "4:",
                    "stp x29, x30, [sp, #-80]!",
                    "mov x29, sp",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "str x6, [sp, #64]",
                    "bl {forking}",
                    "and w9, w0, #0xff",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]",
                    "ldr x6, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "cbz w9, 5b",
                    "mov x8, x0",
                    "mov x0, x1",
                    "mov x1, x2",
                    "mov x2, x3",
                    "mov x3, x4",
                    "mov x4, x5",
                    "mov x5, x6",
                    "svc #0",
                    "cmn x0, #4095",
                    "b.cs 3b",
                    "cbz x0, 6f",
                    "ret",
                    "6:",
                    "stp x29, x30, [sp, #-16]!",
                    "mov x29, sp",
                    "bl {forked}",
                    "mov x0, #0",
                    "ldp x29, x30, [sp], #16",
                    "ret",
                    numbers = const $crate::by_number::IS_HANDLED.len(),
                    handled = sym $crate::by_number::IS_HANDLED,
                    asked = sym asked,
                    failed = sym $crate::failed_with,
                    forking = sym $crate::forks::forking::<$handler>,
                    forked = sym $crate::forks::forked::<$handler>,
                    clone = const $crate::libc::SYS_clone,
                    clone3 = const $crate::libc::SYS_clone3,
                )
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn io_submit(context: c_ulong, count: c_long, requests: *const *const c_void) -> c_int {
                // SAFETY: the caller keeps the contract of this function.
                unsafe { uring::submit::<$handler>(context, count, requests) }
            }

            macro_rules! set_up {
                ($name:ident, $text:literal) => {
                    #[unsafe(no_mangle)]
                    pub unsafe extern "C" fn $name(
                        entries: c_uint,
                        a: *mut c_void,
                        b: *mut c_void,
                        c: *mut c_void,
                        d: *mut c_void,
                    ) -> c_int {
                        // SAFETY: the caller keeps the contract of this function.
                        unsafe { uring::set_up::<$handler>($text, entries, [a, b, c, d]) }
                    }
                };
            }
            set_up!(io_uring_queue_init, c"io_uring_queue_init");
            set_up!(io_uring_queue_init_params, c"io_uring_queue_init_params");
            set_up!(io_uring_queue_init_mem, c"io_uring_queue_init_mem");
            set_up!(io_uring_queue_init_try_nosqarr, c"io_uring_queue_init_try_nosqarr");
            set_up!(io_uring_setup, c"io_uring_setup");

            macro_rules! aio {
                ($name:ident, $text:literal) => {
                    #[unsafe(no_mangle)]
                    pub unsafe extern "C" fn $name(request: *mut c_void) -> c_int {
                        // SAFETY: the caller keeps the contract of this function.
                        unsafe { uring::aio::<$handler>($text.as_ptr(), request) }
                    }
                };
            }
            aio!(aio_read, c"aio_read");
            aio!(aio_read64, c"aio_read64");
            aio!(aio_write, c"aio_write");
            aio!(aio_write64, c"aio_write64");
        }
    };
}
