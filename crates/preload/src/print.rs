//! `dprintf` and its relatives on sockets in slots. libc's own call the kernel from within libc, where nothing can be
//! caught. So libc formats into memory, and the text is sent from there.

use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{c_char, c_int, c_void};
use towpath_hook::set_errno;
use towpath_posix::{is_in_a_slot, send_all};

/// A `va_list` as a function gets it on x86-64 and AArch64: the address of its state.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int;
}

/// The formatted text; null = it cannot be made.
///
/// # Safety
/// The contract of `vasprintf`. A `flag` that is positive: format strings in writable memory must not have `%n`.
unsafe fn made(flag: c_int, format: *const c_char, arguments: Arguments) -> (*mut c_char, usize) {
    let mut text = core::ptr::null_mut();
    // SAFETY: the caller vouches for the format and its arguments.
    let len = unsafe {
        match flag {
            0 => vasprintf(&raw mut text, format, arguments),
            _ => __vasprintf_chk(&raw mut text, flag, format, arguments),
        }
    };
    if len < 0 { (core::ptr::null_mut(), 0) } else { (text, len as usize) }
}

/// `vdprintf`, or its fortified form if `flag` is not 0.
///
/// # Safety
/// The contract of `vdprintf`.
unsafe fn print(fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    if !(towpath_hook::ready() && is_in_a_slot(fd)) {
        // SAFETY: the caller keeps the contract of `vdprintf`.
        return unsafe { libcs(fd, flag, format, arguments) };
    }
    // SAFETY: the caller keeps the contract of `vdprintf`.
    let (text, len) = unsafe { made(flag, format, arguments) };
    if text.is_null() {
        return -1;
    }
    // SAFETY: libc has made the text, of this length.
    let sent = send_all(fd, unsafe { core::slice::from_raw_parts(text.cast(), len) });
    // SAFETY: libc has allocated the text, and it is not used any more.
    unsafe { libc::free(text.cast()) };
    match sent {
        Ok(()) => len as c_int,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// libc's own `vdprintf`.
///
/// # Safety
/// The contract of `vdprintf`.
unsafe fn libcs(fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let mut address = REAL.load(Ordering::Relaxed);
    if address == 0 {
        // SAFETY: the name is a C string, and the answer is an address or null.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__vdprintf_chk".as_ptr()) } as usize;
        REAL.store(address, Ordering::Relaxed);
    }
    if address == 0 {
        set_errno(libc::ENOSYS);
        return -1;
    }
    type Real = unsafe extern "C" fn(c_int, c_int, *const c_char, Arguments) -> c_int;
    // SAFETY: glibc's function has this signature. With flag 0 it is `vdprintf`.
    unsafe { core::mem::transmute::<usize, Real>(address)(fd, flag, format, arguments) }
}

/// `vdprintf`.
///
/// # Safety
/// The contract of `vdprintf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller keeps the contract of `vdprintf`.
    unsafe { print(fd, 0, format, arguments) }
}

/// `vdprintf` in the form that fortified programs call.
///
/// # Safety
/// The contract of `vdprintf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller keeps the contract of `vdprintf`.
    unsafe { print(fd, flag, format, arguments) }
}

/// A variadic function that calls another one with its arguments as a `va_list` (System V ABI §3.5.7). It makes the
/// register save area and the state that points at it, at the stack arguments, and at the number of named arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $to:ident, $named:literal, $list:literal) => {
        /// libc's function of this name.
        ///
        /// # Safety
        /// The contract of libc's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 0xd8",
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 8], 8 * ", $named),
                "mov dword ptr [rsp + 12], 48",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 16], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 24], rax",
                concat!("lea ", $list, ", [rsp + 8]"),
                "call {to}",
                "add rsp, 0xd8",
                "ret",
                to = sym $to,
            )
        }
    };
}

/// The same for AArch64 (Procedure Call Standard, appendix B). The state has the stack arguments, the ends of the two areas of saved
/// registers, and how far before them the next arguments are, as negative numbers.
#[cfg(target_arch = "aarch64")]
macro_rules! variadic {
    ($name:ident, $to:ident, $named:literal, $list:literal) => {
        /// libc's function of this name.
        ///
        /// # Safety
        /// The contract of libc's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "mov x29, sp",
                "stp q0, q1, [sp, #48]",
                "stp q2, q3, [sp, #80]",
                "stp q4, q5, [sp, #112]",
                "stp q6, q7, [sp, #144]",
                "stp x0, x1, [sp, #176]",
                "stp x2, x3, [sp, #192]",
                "stp x4, x5, [sp, #208]",
                "stp x6, x7, [sp, #224]",
                "add x9, sp, #240",
                "stp x9, x9, [sp, #16]",
                "add x9, sp, #176",
                "str x9, [sp, #32]",
                concat!("mov w9, #(8 * ", $named, " - 64)"),
                "mov w10, #-128",
                "stp w9, w10, [sp, #40]",
                concat!("add ", $list, ", sp, #16"),
                "bl {to}",
                "ldp x29, x30, [sp], #240",
                "ret",
                to = sym $to,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(dprintf, vdprintf, "2", "rdx");
#[cfg(target_arch = "x86_64")]
variadic!(__dprintf_chk, __vdprintf_chk, "3", "rcx");
#[cfg(target_arch = "aarch64")]
variadic!(dprintf, vdprintf, "2", "x2");
#[cfg(target_arch = "aarch64")]
variadic!(__dprintf_chk, __vdprintf_chk, "3", "x3");
