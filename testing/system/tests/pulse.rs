//! A worker that hangs is replaced; one that somebody has stopped is not.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::ptr::null_mut;
use std::time::Duration;
use towpath_system_tests::{Program, Service, until};

/// The last two bytes of the instruction that a thread is at: a jump to itself.
const HANGS: libc::c_long = 0xfeeb;

/// A call of ptrace. `data`: a number or an address, as the request takes it.
fn trace(request: libc::c_uint, process: i32, at: u64, data: u64) -> libc::c_long {
    // SAFETY: the addresses that are given are those of live values here, or of the traced process.
    let result = unsafe { libc::ptrace(request, process, at as *mut libc::c_void, data as *mut libc::c_void) };
    assert!(result >= 0 || request == libc::PTRACE_PEEKTEXT, "ptrace: {}", std::io::Error::last_os_error());
    result
}

/// Has the process's main thread run for ever where it is.
fn hang(process: i32) {
    trace(libc::PTRACE_SEIZE, process, 0, 0);
    trace(libc::PTRACE_INTERRUPT, process, 0, 0);
    // SAFETY: null takes no status.
    assert_eq!(unsafe { libc::waitpid(process, null_mut(), libc::__WALL) }, process);
    // SAFETY: all zeros are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, process, 0, (&raw mut registers) as u64);
    // Not the call again that was interrupted, which begins before this place.
    registers.orig_rax = u64::MAX;
    trace(libc::PTRACE_SETREGS, process, 0, (&raw const registers) as u64);
    let text = trace(libc::PTRACE_PEEKTEXT, process, registers.rip, 0);
    trace(libc::PTRACE_POKETEXT, process, registers.rip, (text & !0xffff | HANGS).cast_unsigned());
    trace(libc::PTRACE_DETACH, process, 0, 0);
}

#[test]
#[ignore = "a worker hangs for a minute: make test-slow"]
fn a_worker_that_hangs_is_replaced_and_one_that_is_stopped_is_not() {
    let service = Service::start(|program| program);
    let (worker, served) = (service.running.worker(), || service.accelerated("/bin/true").run(30).code);
    let signal = |signal: &str| Program::line(&format!("kill -{signal} {worker}")).run(10).ok();
    signal("STOP");
    // Longer than a pulse may stand still.
    std::thread::sleep(Duration::from_secs(75));
    signal("CONT");
    assert_eq!((service.running.worker(), served()), (worker, 0), "{}", service.running.output());
    hang(worker);
    until("it is seen", 120, || service.running.output().contains("the process that serves has not run for 60 s"));
    until("another serves", 30, || service.running.worker() != worker && served() == 0);
}
