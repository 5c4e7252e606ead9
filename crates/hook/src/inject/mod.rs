//! Programs that load no preloaded library: static ones, Go's, those of another libc. The loader (`towpath-loader`, an
//! ordinary dynamic program with the library in it) puts such a program into its own memory as the kernel would, and then
//! becomes it. The library stays beside it with a libc, a stack and thread-local storage of its own in each thread.
//!
//! The program's system calls reach the library in two ways, neither of which needs a privilege: those of a known form
//! are rewritten into jumps while the program is loaded (`sites`); all others are caught by the kernel (Syscall User
//! Dispatch, Linux 5.11), which delivers a signal (`signals`) that leads to the same entry (`entry`). So none is missed,
//! in whatever code the program makes or loads later.

mod block;
mod dispatch;
mod entry;
mod image;
mod image_calls;
mod memory;
mod signals;
mod sites;
mod thread;

use crate::answer::Answer;
use crate::calls::Handler;
use block::Block;
use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use entry::Frame;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// `AT_HWCAP2`: programs may use the instructions for the FS and GS bases.
const HWCAP2_FSGSBASE: u64 = 2;
/// Exit code of a loader that cannot.
const CANNOT: i32 = 125;
/// Room that is left between what is in use of the first stack and the program's.
const STACK_MARGIN: u64 = 4096;

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errno(i32);

/// What the handler has to do with catching itself.
#[derive(Clone, Copy)]
struct Hooks {
    before_fork: fn(),
    in_child: fn(),
    sigaction: unsafe fn(i32, *const libc::sigaction, *mut libc::sigaction) -> Answer<i32>,
}

impl Hooks {
    fn of<H: Handler>() -> Self {
        Self { before_fork: H::forking, in_child: H::forked, sigaction: H::sigaction }
    }
}

#[doc(hidden)]
pub use dispatch::{IS_HANDLED, by_number};

/// A system call past all hooks. Negative: an errno.
///
/// # Safety
/// The contract of the system call.
pub(crate) unsafe fn raw(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller's contract; the kernel changes no other registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// The auxiliary vector of this process.
fn auxiliary() -> Vec<(u64, u64)> {
    let bytes = std::fs::read("/proc/self/auxv").unwrap_or_default();
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    let pairs = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.take_while(|(kind, _)| *kind != libc::AT_NULL).collect()
}

/// Becomes the program: `argv` is the loader's name, the program's path, and the program's own arguments.
///
/// # Safety
/// `argv` and `envp` are lists of C strings that stay for good, and null at their ends.
pub unsafe fn load<H: Handler>(argv: crate::exec::Strings, envp: crate::exec::Strings) -> ! {
    // SAFETY: the caller's contract.
    let (arguments, environment) = unsafe { (owned(argv), owned(envp)) };
    let mut words = arguments.into_iter().map(|word| OsString::from_vec(word.into_bytes()));
    let (_loader, Some(path)) = (words.next(), words.next()) else {
        fail("usage: towpath-loader PROGRAM ARGV0 [ARGUMENT]... (`towpath run` calls it)");
    };
    let mut auxiliary = auxiliary();
    let loaded =
        prepare(&auxiliary).and_then(|()| possible()).and_then(|()| image::load(Path::new(&path), words.collect()));
    let image = loaded.unwrap_or_else(|why| {
        // SAFETY: the caller's contract; the program's own arguments are the third and those after it.
        unsafe { natively(&path, argv.add(2), envp, &why) }
    });
    let clean = |path: &OsStr| CString::new(path.as_bytes()).unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    let program = std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone());
    let program = program.canonicalize().unwrap_or(program);
    image_calls::set(clean(program.as_os_str()), clean(own.as_os_str()));
    if let Some(name) = image.path.file_name() {
        let name = clean(name);
        // SAFETY: a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    let environment = if image.is_static() { environment } else { crate::exec::without_library(environment) };
    auxiliary.retain(|(kind, _)| *kind != AT_RSEQ_FEATURE_SIZE && *kind != AT_RSEQ_ALIGN);
    let stack = image::Stack::new(&image, &environment, &auxiliary);
    core::mem::forget(environment);
    // SAFETY: the program is in memory.
    unsafe { become_program::<H>(image.entry, stack) }
}

/// Auxiliary values that promise `rseq`, which is the library's libc's.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
const AT_RSEQ_ALIGN: u64 = 28;

/// # Safety
/// `entry` is a program's.
unsafe fn become_program<H: Handler>(entry: u64, stack: image::Stack) -> ! {
    let library_stack = memory::map(0, block::STACK_BYTES as u64, libc::PROT_READ | libc::PROT_WRITE, 0);
    let Some(low) = library_stack else { fail("no memory for a stack") };
    let high = low + block::STACK_BYTES as u64;
    let block: &'static Block = Box::leak(Box::default());
    block.install(low, high);
    block.plain_end.store(1, Ordering::Relaxed);
    entry::DISPATCH.store(dispatch::dispatch::<H> as *const () as usize, Ordering::Relaxed);
    dispatch::init();
    memory::init();
    if signals::init().is_err() {
        fail("no handler for SIGSYS");
    }
    if let Err(errno) = block.arm() {
        fail(&format!("Syscall User Dispatch: {}", std::io::Error::from_raw_os_error(errno)));
    }
    let here: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    // SAFETY: the first stack grows down from here, and `put` itself uses less than the margin. Nothing above is left by
    // returning; the program's registers at its entry are zero but for the stack pointer.
    unsafe {
        let rsp = stack.put(here - STACK_MARGIN);
        let frame = Frame { rip: entry, rsp, ..Frame::default() };
        entry::towpath_launch(&raw const frame, high);
    }
    std::process::abort()
}

/// Looks whether this machine can, and fills in what depends on it.
fn prepare(auxiliary: &[(u64, u64)]) -> Result<(), String> {
    let hwcap2 = auxiliary.iter().find(|(kind, _)| *kind == libc::AT_HWCAP2).map_or(0, |(_, value)| *value);
    if hwcap2 & HWCAP2_FSGSBASE == 0 {
        return Err("this processor or kernel (5.9 or newer is needed) has no FSGSBASE".into());
    }
    if !std::is_x86_feature_detected!("xsave") {
        return Err("this processor has no XSAVE".into());
    }
    let (low, _high): (u32, u32);
    // SAFETY: the machine has XSAVE, so it has this.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack, preserves_flags)) };
    entry::COMPONENTS.store(low as usize & entry::VECTOR_COMPONENTS, Ordering::Relaxed);
    entry::COMPACT.store(std::is_x86_feature_detected!("xsavec").into(), Ordering::Relaxed);
    // libc takes locks only once it has seen a second thread, and it will not see those that fork off the program's.
    let _ = std::thread::spawn(|| {}).join();
    Ok(())
}

/// # Safety
/// A list of C strings with null at its end.
unsafe fn owned(list: crate::exec::Strings) -> Vec<CString> {
    let mut found = Vec::new();
    // SAFETY: the caller's contract.
    unsafe {
        let mut at = list;
        while !at.is_null() && !(*at).is_null() {
            found.push(CStr::from_ptr(*at).to_owned());
            at = at.add(1);
        }
    }
    found
}

/// Cannot be injected into: it runs on the kernel's TCP, whole.
///
/// # Safety
/// Lists as for `execve`.
unsafe fn natively(path: &OsStr, argv: crate::exec::Strings, envp: crate::exec::Strings, why: &str) -> ! {
    if std::env::var_os("TOWPATH_REQUIRE").is_some_and(|value| value == "1") {
        fail(why);
    }
    let name = CString::new(path.as_bytes()).unwrap_or_default();
    crate::exec::left_alone::<()>(&name, why);
    // SAFETY: the caller's contract.
    let errno = unsafe { raw(libc::SYS_execve, [name.as_ptr() as u64, argv as u64, envp as u64, 0, 0, 0]) };
    fail(&format!("{}: {}", path.display(), std::io::Error::from_raw_os_error(-errno as i32)))
}

fn fail(why: &str) -> ! {
    eprintln!("towpath: {why}");
    std::process::exit(CANNOT)
}

/// Can programs be injected into on this machine?
pub fn possible() -> Result<(), String> {
    // SAFETY: only looks.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err("this processor or kernel has no FSGSBASE".into());
    }
    // An impossible selector tells the call that is there (EFAULT) from one that is not (EINVAL), and changes nothing.
    // SAFETY: the address is refused.
    match unsafe { raw(libc::SYS_prctl, [59, 1, 0, 0, 1 << 63, 0]) } {
        errno if errno == -i64::from(libc::EINVAL) => {
            Err("this kernel has no Syscall User Dispatch (Linux 5.11)".into())
        }
        _ => Ok(()),
    }
}
