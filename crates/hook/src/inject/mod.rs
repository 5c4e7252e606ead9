//! Programs that load no preloaded library: static ones, Go's, those of another libc. The loader (`towpath-loader`) is an
//! ordinary dynamic program with the library in it. It maps such a program into its own memory as the kernel would, and
//! becomes it. The library stays beside it, with a libc, a stack and thread-local storage of its own in each thread.
//!
//! System calls of a known form are rewritten into jumps while the program is loaded (`sites`). The kernel catches all
//! others (Syscall User Dispatch, Linux 5.11) and delivers a signal (`signals`). Both lead to the same entry (`entry`). So no
//! call is missed, in whatever code the program makes or loads later. Neither needs a privilege.

mod block;
mod dispatch;
mod entry;
mod hooks;
mod image;
mod image_calls;
pub(crate) mod memory;
mod signals;
mod sites;
mod support;
mod thread;

use crate::calls::Handler;
use crate::program::{self, HookMethod};
use crate::raw::{Errno, raw};
use block::Block;
use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use entry::Frame;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The exit code of a loader that cannot run the program.
const CANNOT: i32 = 125;
/// The bytes at the end of the first thread's library stack that cannot be used.
const STACK_GUARD: u64 = 4096;
/// The bytes between the used part of the first stack and the program's stack.
const STACK_MARGIN: u64 = 4096;

pub use support::possible;

/// The symbol that `towpath-loader` calls, from [`preload!`](crate::preload).
#[doc(hidden)]
#[macro_export]
macro_rules! loader_entry {
    ($handler:ty) => {
        /// The function that the loader calls.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn towpath_load(argv: $crate::exec::Strings, envp: $crate::exec::Strings) -> ! {
            // SAFETY: the caller keeps the contract.
            unsafe { $crate::inject::load::<$handler>(argv, envp) }
        }
    };
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
/// `argv` and `envp` are null-terminated lists of C strings that are never freed.
pub unsafe fn load<H: Handler>(argv: crate::exec::Strings, envp: crate::exec::Strings) -> ! {
    // SAFETY: the caller keeps the contract: both are lists of C strings.
    let (arguments, environment) = unsafe { (owned(argv), owned(envp)) };
    let mut words = arguments.into_iter().map(|word| OsString::from_vec(word.into_bytes()));
    let (_loader, Some(path)) = (words.next(), words.next()) else {
        fail("usage: towpath-loader PROGRAM ARGV0 [ARGUMENT]... (`towpath run` calls it)");
    };
    let mut auxiliary = auxiliary();
    let loaded =
        prepare(&auxiliary).and_then(|()| possible()).and_then(|()| image::load(Path::new(&path), words.collect()));
    let image = loaded.unwrap_or_else(|why| {
        // SAFETY: the caller keeps the contract. The program's own arguments are the third one and those after it.
        unsafe { natively(&path, argv.add(2), envp, &why) }
    });
    let clean = |path: &OsStr| CString::new(path.as_bytes()).unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    crate::exec::loader::executed(&own);
    let program = std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone());
    let program = program.canonicalize().unwrap_or(program);
    image_calls::set(clean(program.as_os_str()), clean(own.as_os_str()));
    if let Some(name) = image.path.file_name() {
        let name = clean(name);
        // SAFETY: the name is a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    let environment = if image.is_static() { environment } else { crate::exec::without_library(environment) };
    auxiliary.retain(|(kind, _)| *kind != AT_RSEQ_FEATURE_SIZE && *kind != AT_RSEQ_ALIGN);
    let stack = image::Stack::new(&image, &environment, &auxiliary);
    core::mem::forget(environment);
    // SAFETY: `image` has mapped the program, so this is its entry point.
    unsafe { become_program::<H>(image.entry, stack, image.is_stack_executable) }
}

/// Auxiliary values that announce `rseq`, which the library's libc uses itself.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
const AT_RSEQ_ALIGN: u64 = 28;

/// # Safety
/// `entry` is the entry point of a mapped program.
unsafe fn become_program<H: Handler>(entry: u64, stack: image::Stack, is_stack_executable: bool) -> ! {
    let library_stack = memory::map(0, block::STACK_BYTES as u64, libc::PROT_READ | libc::PROT_WRITE, 0);
    let Some(low) = library_stack else { fail("no memory for a stack") };
    // Nothing but a fault tells that it was too small.
    // SAFETY: the memory is new, and nobody uses it yet.
    unsafe { libc::mprotect(low as *mut _, STACK_GUARD as usize, libc::PROT_NONE) };
    let (low, high) = (low + STACK_GUARD, low + block::STACK_BYTES as u64);
    let block: &'static Block = Box::leak(Box::default());
    block.install(low, high);
    block.plain_end.store(1, Ordering::Relaxed);
    entry::DISPATCH.store(dispatch::dispatch::<H> as *const () as usize, Ordering::Relaxed);
    entry::CHILD_OF_VFORK.store(thread::child_of_vfork as *const () as usize, Ordering::Relaxed);
    dispatch::init();
    memory::init();
    if signals::init().is_err() {
        fail("no handler for SIGSYS");
    }
    if let Err(Errno(errno)) = signals::arm(block) {
        fail(&format!("Syscall User Dispatch: {}", std::io::Error::from_raw_os_error(errno)));
    }
    let here: u64;
    // SAFETY: only reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    // SAFETY: the first stack grows down from here, and `put` itself uses less than the margin. No frame above is
    // returned to. At the program's entry all registers are zero, except the stack pointer.
    unsafe {
        let rsp = stack.put(here - STACK_MARGIN);
        if is_stack_executable && !image::make_stack_executable(rsp) {
            fail("the stack cannot be made executable");
        }
        let frame = Frame { rip: entry, rsp, ..Frame::default() };
        entry::towpath_launch(&raw const frame, high);
    }
    std::process::abort()
}

/// Checks this machine, and sets the values that depend on its processor.
fn prepare(auxiliary: &[(u64, u64)]) -> Result<(), String> {
    let hwcap2 = auxiliary.iter().find(|(kind, _)| *kind == libc::AT_HWCAP2).map_or(0, |(_, value)| *value);
    if hwcap2 & support::HWCAP2_FSGSBASE == 0 {
        return Err("this processor or kernel (5.9 or newer is needed) has no FSGSBASE".into());
    }
    if !std::is_x86_feature_detected!("xsave") {
        return Err("this processor has no XSAVE".into());
    }
    let (low, _high): (u32, u32);
    // SAFETY: the machine has XSAVE, and so this instruction.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack, preserves_flags)) };
    entry::COMPONENTS.store(low as usize & entry::VECTOR_COMPONENTS, Ordering::Relaxed);
    entry::COMPACT.store(std::is_x86_feature_detected!("xsavec").into(), Ordering::Relaxed);
    // libc takes locks only once it has seen a second thread. It will not see the program's, so this shows it one.
    let _ = std::thread::spawn(|| {}).join();
    Ok(())
}

/// # Safety
/// A list of C strings with null at its end.
unsafe fn owned(list: crate::exec::Strings) -> Vec<CString> {
    let mut found = Vec::new();
    // SAFETY: the caller keeps the contract, and the walk ends at the null.
    unsafe {
        let mut at = list;
        while !at.is_null() && !(*at).is_null() {
            found.push(CStr::from_ptr(*at).to_owned());
            at = at.add(1);
        }
    }
    found
}

/// Executes a program that cannot be injected. All its sockets stay with the kernel.
///
/// # Safety
/// Both are lists as for `execve`.
unsafe fn natively(path: &OsStr, argv: crate::exec::Strings, envp: crate::exec::Strings, why: &str) -> ! {
    if std::env::var_os("TOWPATH_REQUIRE").is_some_and(|value| value == "1") {
        fail(why);
    }
    let name = CString::new(path.as_bytes()).unwrap_or_default();
    crate::exec::left_alone::<()>(&name, why);
    // SAFETY: the caller keeps the contract.
    let environment = unsafe { owned(envp) };
    let clean = match program::method_for(Path::new(path)) {
        // A preloaded library would see only a part of the program's calls.
        HookMethod::Inject(_) if program::loads_libraries(Path::new(path)) => crate::exec::without_library(environment),
        // The program may have musl, such as one that can be executed and not read. It would come back here, for ever.
        HookMethod::Unknown | HookMethod::None(_)
            if environment.iter().any(|entry| crate::exec::loader::begins(entry)) =>
        {
            crate::exec::without_library(environment)
        }
        _ => Vec::new(),
    };
    let mut list: Vec<_> = clean.iter().map(|entry| entry.as_ptr()).collect();
    list.push(core::ptr::null());
    let envp = if clean.is_empty() { envp } else { list.as_ptr() };
    // SAFETY: the caller keeps the contract: both are lists as for `execve`.
    let errno = unsafe { raw(libc::SYS_execve, [name.as_ptr() as u64, argv as u64, envp as u64, 0, 0, 0]) };
    fail(&format!("{}: {}", path.display(), std::io::Error::from_raw_os_error(-errno as i32)))
}

fn fail(why: &str) -> ! {
    eprintln!("towpath: {why}");
    std::process::exit(CANNOT)
}
