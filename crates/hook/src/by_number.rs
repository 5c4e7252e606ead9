//! System calls by their numbers: which of them concern sockets, and what the [`Handler`] makes of them. The numbers are this
//! architecture's; newer ones have no `poll`, `select` and the like.

use crate::answer::{Answer, outcome};
use crate::calls::Handler;
use crate::exec::caught;
use crate::raw::raw;
use libc::{c_int, sigset_t};

/// More than any number of a system call.
pub const NUMBERS: usize = 512;

/// The calls for which the handler is asked.
pub const HANDLED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_close,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_pselect6,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_exit_group,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_pidfd_getfd,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_submit,
];

/// Is libc's `syscall` of this number more than a system call? The handler is asked, or a program is executed.
pub static IS_HANDLED: [u8; NUMBERS] = {
    let (mut table, mut at) = ([0; NUMBERS], 0);
    while at < HANDLED.len() {
        table[HANDLED[at] as usize] = 1;
        at += 1;
    }
    table[libc::SYS_execve as usize] = 1;
    table[libc::SYS_execveat as usize] = 1;
    table
};

/// A signal set in the size that libc's functions take.
pub(crate) fn wide(set: u64) -> sigset_t {
    // SAFETY: all zero is a valid set.
    let mut wide: sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: libc's set begins with the kernel's set.
    unsafe { (&raw mut wide).cast::<u64>().write(set) };
    wide
}

pub(crate) fn result<T: Into<i64>>(answer: Answer<T>) -> Option<i64> {
    answer.map(|answer| answer.map_or_else(|errno| -i64::from(errno), Into::into))
}

fn size(answer: Answer<isize>) -> Option<i64> {
    result(answer.map(|answer| answer.map(|count| count as i64)))
}

/// The handler's answer to a system call. `None`: the kernel carries it out. Not for those that wait with a set of blocked
/// signals.
///
/// # Safety
/// The contract of the system call.
#[inline(always)]
pub(crate) unsafe fn answer<H: Handler>(number: i64, arguments: [u64; 6]) -> Option<i64> {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of the system call, which the function of its name shares.
    unsafe {
        match number {
            libc::SYS_socket => result(H::socket(fd, b as _, c as _)),
            libc::SYS_bind => result(H::bind(fd, b as _, c as _)),
            libc::SYS_listen => result(H::listen(fd, b as _)),
            libc::SYS_accept => result(H::accept(fd, b as _, c as _)),
            libc::SYS_accept4 => result(H::accept4(fd, b as _, c as _, d as _)),
            libc::SYS_connect => result(H::connect(fd, b as _, c as _)),
            libc::SYS_close => result(H::close(fd)),
            libc::SYS_shutdown => result(H::shutdown(fd, b as _)),
            libc::SYS_getsockname => result(H::getsockname(fd, b as _, c as _)),
            libc::SYS_getpeername => result(H::getpeername(fd, b as _, c as _)),
            libc::SYS_getsockopt => result(H::getsockopt(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_setsockopt => result(H::setsockopt(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_fcntl => result(H::fcntl(fd, b as _, c as _)),
            libc::SYS_ioctl => result(H::ioctl(fd, b, c as _)),
            libc::SYS_read => size(H::read(fd, b as _, c as _)),
            libc::SYS_readv => size(H::readv(fd, b as _, c as _)),
            libc::SYS_preadv2 => size(H::preadv2(fd, b as _, c as _, d as _, f as _)),
            libc::SYS_pwritev2 => size(H::pwritev2(fd, b as _, c as _, d as _, f as _)),
            libc::SYS_recvfrom => size(H::recvfrom(fd, b as _, c as _, d as _, e as _, f as _)),
            libc::SYS_recvmsg => size(H::recvmsg(fd, b as _, c as _)),
            libc::SYS_recvmmsg => result(H::recvmmsg(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_write => size(H::write(fd, b as _, c as _)),
            libc::SYS_writev => size(H::writev(fd, b as _, c as _)),
            libc::SYS_sendto => size(H::sendto(fd, b as _, c as _, d as _, e as _, f as _)),
            libc::SYS_sendmsg => size(H::sendmsg(fd, b as _, c as _)),
            libc::SYS_sendmmsg => result(H::sendmmsg(fd, b as _, c as _, d as _)),
            libc::SYS_sendfile => size(H::sendfile(fd, b as _, c as _, d as _)),
            libc::SYS_splice => size(H::splice(fd, b as _, c as _, d as _, e as _, f as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => result(H::poll(a as _, b as _, c as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => result(H::select(fd, b as _, c as _, d as _, e as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => result(H::epoll_create(fd)),
            libc::SYS_epoll_create1 => result(H::epoll_create1(fd)),
            libc::SYS_epoll_ctl => result(H::epoll_ctl(fd, b as _, c as _, d as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => result(H::epoll_wait(fd, b as _, c as _, d as _)),
            libc::SYS_dup => result(H::dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => result(H::dup2(fd, b as _)),
            libc::SYS_dup3 => result(H::dup3(fd, b as _, c as _)),
            // The handler is asked before the process leaves its root, wherever it goes.
            libc::SYS_chroot | libc::SYS_pivot_root => result(H::chroot(a as _)),
            libc::SYS_unshare => result(H::unshare(fd)),
            libc::SYS_prctl => result(H::prctl(fd, b, c, d, e)),
            // This sets a filter, too.
            libc::SYS_seccomp if a == u64::from(libc::SECCOMP_SET_MODE_FILTER) => {
                result(H::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER.into(), c, 0, 0))
            }
            libc::SYS_pidfd_getfd => result(H::pidfd_getfd(fd, b as _, c as _)),
            libc::SYS_mlockall => result(H::mlockall(fd)),
            libc::SYS_munlockall => result(H::munlockall()),
            libc::SYS_io_uring_setup => result(H::io_uring_setup(a as _, b as _)),
            libc::SYS_io_uring_enter => result(H::io_uring_enter(fd, b as _)),
            libc::SYS_io_uring_register => result(H::io_uring_register(fd, b as _, c as _, d as _)),
            libc::SYS_io_submit => result(H::io_submit(a, b as _, c as _)),
            libc::SYS_close_range => result(H::close_range(a as _, b as _, c as _)),
            _ => None,
        }
    }
}

/// libc's function `syscall`. Programs also use it for calls that have functions of their own (libuv closes by it). `handled` asks
/// the handler, and then the kernel.
///
/// # Safety
/// The contract of the system call.
#[inline(always)]
pub(crate) unsafe fn by_number(
    number: i64,
    arguments: [u64; 6],
    handled: unsafe fn(i64, [u64; 6]) -> i64,
) -> Result<isize, i32> {
    let [a, b, c, d, e, _] = arguments;
    // SAFETY: the caller keeps the contract of the system call.
    let outcome = unsafe {
        match number {
            _ if !crate::ready() => raw(number, arguments),
            libc::SYS_execve => return outcome(caught::execve(a as _, b as _, c as _) as isize),
            libc::SYS_execveat => {
                return outcome(caught::execveat(a as c_int, b as _, c as _, d as _, e as c_int) as isize);
            }
            _ => handled(number, arguments),
        }
    };
    // The kernel's errors are -4095 to -1. The handler has one more, CANCELED.
    if (-i64::from(crate::cancel::CANCELED)..0).contains(&outcome) {
        Err(-outcome as i32)
    } else {
        Ok(outcome as isize)
    }
}
