//! Carries out caught system calls. Most go to the [`Handler`]; a few concern the catching itself.

use super::block::Block;
use super::entry::{CAUGHT, Frame};
use super::hooks::Hooks;
use super::{memory, signals, sites, thread};
use crate::by_number::HANDLED;
use crate::calls::Handler;
use crate::masked::{handled, without_ours};
use crate::raw::raw;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;

/// `arch_prctl` codes.
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_FS: u64 = 0x1003;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// The calls that concern the catching itself.
const OWN: [i64; 19] = [
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_exit,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_arch_prctl,
    libc::SYS_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
];

/// Fills the table of caught calls.
pub fn init() {
    // SAFETY: the callback only reads the description that it is given.
    unsafe { libc::dl_iterate_phdr(Some(note_ours), core::ptr::null_mut()) };
    for number in OWN.iter().chain(HANDLED) {
        CAUGHT[*number as usize].store(1, Ordering::Relaxed);
    }
}

/// The address ranges of the library's libc and of the library itself, which has libc's `syscall`.
static OURS: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

unsafe extern "C" fn note_ours(about: *mut libc::dl_phdr_info, _size: usize, _data: *mut libc::c_void) -> c_int {
    let known = [libc::sysconf as *const () as u64, init as *const () as u64];
    // SAFETY: the linker gives a valid description of one object.
    unsafe {
        let about = &*about;
        for header in core::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum.into()) {
            let begin = about.dlpi_addr + header.p_vaddr;
            for (known, [from, to]) in known.iter().zip(&OURS) {
                if header.p_type == libc::PT_LOAD && (begin..begin + header.p_memsz).contains(known) {
                    from.store(begin, Ordering::Relaxed);
                    to.store(begin + header.p_memsz, Ordering::Relaxed);
                }
            }
        }
    }
    0
}

/// True: the call comes from the library's own libc, in a signal handler that has interrupted the program.
fn is_the_librarys(frame: &Frame) -> bool {
    OURS.iter().any(|[from, to]| (from.load(Ordering::Relaxed)..to.load(Ordering::Relaxed)).contains(&frame.rip))
        && frame.rax != libc::SYS_rt_sigreturn as u64
}

/// A caught system call of the program.
pub extern "C" fn dispatch<H: Handler>(frame: &mut Frame) -> u64 {
    if is_the_librarys(frame) {
        // SAFETY: libc keeps the contract of its own call.
        return unsafe { raw(frame.rax as i64, frame.arguments()) } as u64;
    }
    // SAFETY: the frame is of a system call whose contract the program keeps.
    let own = unsafe { own(frame, Hooks::of::<H>()) };
    let outcome = match own {
        Some(outcome) => outcome,
        // SAFETY: the frame is of a system call whose contract the program keeps.
        None => unsafe { handled::<H>(frame.rax as i64, frame.arguments()) },
    };
    outcome as u64
}

/// # Safety
/// The contract of the system call that `frame` holds.
unsafe fn own(frame: &mut Frame, hooks: Hooks) -> Option<i64> {
    let arguments = frame.arguments();
    let [first, second, third, fourth, ..] = arguments;
    let number = frame.rax as i64;
    // SAFETY: the caller keeps the contract of the system call, whichever it is.
    unsafe {
        Some(match number {
            libc::SYS_clone | libc::SYS_fork | libc::SYS_vfork => thread::clone(frame, hooks),
            libc::SYS_clone3 => thread::clone3(frame, hooks),
            libc::SYS_exit => thread::end(frame),
            libc::SYS_execve => super::image_calls::execve(first, second, third),
            libc::SYS_execveat => super::image_calls::execveat(arguments),
            libc::SYS_readlink | libc::SYS_readlinkat => super::image_calls::read_link(number, arguments),
            libc::SYS_brk => memory::brk(first) as i64,
            // A handler may have interrupted the library's allocator.
            libc::SYS_mmap => sites::map(arguments, Block::current().outer.load(Ordering::Relaxed) == 0),
            libc::SYS_rseq => -i64::from(libc::ENOSYS),
            libc::SYS_set_tid_address => {
                let block = Block::current();
                block.clear_tid.store(first, Ordering::Relaxed);
                block.tid.load(Ordering::Relaxed).into()
            }
            libc::SYS_prctl if first == PR_SET_SYSCALL_USER_DISPATCH => -i64::from(libc::EINVAL),
            libc::SYS_arch_prctl => match first {
                ARCH_SET_FS => {
                    frame.fs = second;
                    Block::current().program_fs.store(second, Ordering::Relaxed);
                    0
                }
                ARCH_GET_FS => {
                    (second as *mut u64).write(frame.fs);
                    0
                }
                // The GS base points at the thread's block.
                ARCH_SET_GS => -i64::from(libc::EPERM),
                _ => raw(number, arguments),
            },
            libc::SYS_rt_sigaction => signals::action(arguments, hooks),
            libc::SYS_rt_sigprocmask => match without_ours(second, fourth) {
                Some(set) => raw(number, [first, &raw const set as u64, third, fourth, 0, 0]),
                None => raw(number, arguments),
            },
            libc::SYS_rt_sigsuspend => match without_ours(first, second) {
                Some(set) => raw(number, [&raw const set as u64, second, 0, 0, 0, 0]),
                None => raw(number, arguments),
            },
            libc::SYS_rt_sigreturn => super::entry::towpath_sigreturn(frame.rsp),
            _ => return None,
        })
    }
}
