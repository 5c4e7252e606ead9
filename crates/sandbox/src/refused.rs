//! A system call that is not on the list fails with EPERM and is counted. The first of its kind is logged.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that were refused.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The last one's number.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The numbers that were logged, one bit each.
static LOGGED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// How many calls were refused, and the number of the last one.
pub fn count() -> (u64, Option<u64>) {
    let count = COUNT.load(Ordering::Relaxed);
    (count, (count > 0).then(|| LAST.load(Ordering::Relaxed)))
}

/// Handles SIGSYS, which the kernel sends for a call that is not on the list.
pub fn handle() -> io::Result<()> {
    // SAFETY: all-zero is a valid value of this structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = refuse as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: `action` is complete, and `refuse` calls nothing that a signal handler may not.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SYS_SECCOMP`: the signal comes from a filter.
const FROM_FILTER: i32 = 1;

/// The part of `siginfo_t` that a filter fills.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    _padding: i32,
    address: u64,
    number: i32,
    architecture: u32,
}

extern "C" fn refuse(_signal: i32, info: *const Info, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a complete siginfo_t, whose beginning this is.
    let info = unsafe { &*info };
    if info.code != FROM_FILTER {
        return;
    }
    let number = u64::from(info.number.unsigned_abs());
    COUNT.fetch_add(1, Ordering::Relaxed);
    LAST.store(number, Ordering::Relaxed);
    let bit = 1 << (number % 64);
    let words = LOGGED.get(number as usize / 64);
    // SAFETY: the kernel passes the context of the interrupted call, to which this thread returns.
    let context = unsafe { &mut *context };
    if words.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0) {
        log(number, first_arguments(context));
    }
    set_result(context, -i64::from(libc::EPERM));
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, value: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = value;
}

/// The call's first two arguments. A number says which operation of a call it was.
#[cfg(target_arch = "x86_64")]
fn first_arguments(context: &libc::ucontext_t) -> [u64; 2] {
    [libc::REG_RDI, libc::REG_RSI].map(|register| context.uc_mcontext.gregs[register as usize].cast_unsigned())
}

#[cfg(target_arch = "aarch64")]
fn first_arguments(context: &libc::ucontext_t) -> [u64; 2] {
    [context.uc_mcontext.regs[0], context.uc_mcontext.regs[1]]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn first_arguments(_context: &libc::ucontext_t) -> [u64; 2] {
    [0; 2]
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, value: i64) {
    context.uc_mcontext.regs[0] = value.cast_unsigned();
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_result(_context: &mut libc::ucontext_t, _value: i64) {}

/// Writes a line without memory or locks, as a signal handler must.
fn log(number: u64, arguments: [u64; 2]) {
    let mut line = [0; 192];
    let mut at = 0;
    let mut add = |text: &[u8]| {
        line[at..at + text.len()].copy_from_slice(text);
        at += text.len();
    };
    let mut digits = [0; 20];
    add(b"towpathd: the sandbox has refused system call ");
    add(decimal(number, &mut digits));
    add(b" with arguments ");
    add(decimal(arguments[0], &mut digits));
    add(b", ");
    add(decimal(arguments[1], &mut digits));
    add(b" (said once)\n");
    // SAFETY: `line` has `at` bytes and more. A failure can be told nobody.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), at) };
}

/// A number in text.
fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let (mut rest, mut first) = (number, 19);
    loop {
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[first..];
        }
        first -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_whole() {
        let mut digits = [0; 20];
        for number in [0, 9, 10, 157, u64::MAX] {
            assert_eq!(decimal(number, &mut digits), number.to_string().as_bytes());
        }
    }
}
