//! The table of caught calls: names, signatures in libc, and system calls that replace them until the real functions
//! are known.

use crate::answer::Answer;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, pthread_t, sigaction, sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval,
};

/// The size of the kernel's signal set in bytes, which system calls ask for.
const SIGSET_BYTES: usize = 8;

fn look_up(name: &core::ffi::CStr) -> usize {
    // SAFETY: `name` is a C string, and the answer is an address or null.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

macro_rules! calls {
    (
        ($d:tt)
        caught { $( fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $raw:expr; )* }
        same { $( fn $other:ident($($oarg:ident: $oty:ty),*) -> $oret:ty = $main:ident($($marg:ident),*) $(if $guard:expr)?; )* }
    ) => {
        static TABLE: Table = Table {
            $($name: AtomicUsize::new(0),)*
            $($other: AtomicUsize::new(0),)*
        };

        struct Table {
            $($name: AtomicUsize,)*
            $($other: AtomicUsize,)*
        }

        /// Looks up all real functions. Called once, from `.init_array`.
        pub fn resolve() {
            const fn c(name: &str) -> &core::ffi::CStr {
                match core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without its terminating zero"),
                }
            }
            $(TABLE.$name.store(look_up(const { c(concat!(stringify!($name), "\0")) }), Ordering::Relaxed);)*
            $(TABLE.$other.store(look_up(const { c(concat!(stringify!($other), "\0")) }), Ordering::Relaxed);)*
        }

        /// The real functions. Each has the contract of libc's function of its name, including errno.
        #[allow(missing_docs, unused_variables)]
        pub mod real {
            use super::*;
            $(
                /// # Safety
                /// The contract of the libc function of this name.
                #[inline]
                pub unsafe fn $name($($arg: $ty),*) -> $ret {
                    let address = TABLE.$name.load(Ordering::Relaxed);
                    if address == 0 {
                        // SAFETY: the caller keeps the contract of the function, which is also that of the system call.
                        #[allow(unused_unsafe)]
                        return unsafe { $raw };
                    }
                    // SAFETY: `resolve` put the address of libc's function of this name, which has this signature.
                    unsafe { core::mem::transmute::<usize, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(address)($($arg),*) }
                }
            )*
            $(
                /// # Safety
                /// The contract of the libc function of this name.
                #[inline]
                pub unsafe fn $other($($oarg: $oty),*) -> $oret {
                    let address = TABLE.$other.load(Ordering::Relaxed);
                    if address == 0 {
                        // SAFETY: the caller keeps the contract, which both names share.
                        return unsafe { $main($($marg),*) };
                    }
                    // SAFETY: `resolve` put the address of libc's function of this name, which has this signature.
                    unsafe {
                        core::mem::transmute::<usize, unsafe extern "C-unwind" fn($($oty),*) -> $oret>(address)($($oarg),*)
                    }
                }
            )*
        }

        /// The meaning of the caught calls. Every method has the contract of libc's function of its name.
        #[allow(unused_variables, missing_docs)]
        pub trait Handler {
            /// Called once, when the real functions are known, before any other method.
            fn init() {}
            /// Called before a `fork` that libc does not make.
            fn forking() {}
            /// In the child of such a `fork`.
            fn forked() {}
            /// Called before a `clone` that libc does not make, whose child runs beside its parent in the same memory.
            fn sharing_memory() {}
            /// True: only caught calls may use this descriptor, not the kernel itself.
            fn is_accelerated(fd: c_int) -> bool {
                false
            }
            /// # Safety
            /// The contract of the system call.
            unsafe fn io_uring_setup(entries: c_uint, params: *mut c_void) -> Answer<c_int> {
                None
            }
            /// A ring is about to be made whose further system calls will not be caught.
            fn io_uring_unseen() -> Answer<c_int> {
                None
            }
            /// # Safety
            /// The contract of the system call.
            unsafe fn io_uring_enter(fd: c_int, submit: c_uint) -> Answer<c_int> {
                None
            }
            /// # Safety
            /// The contract of the system call.
            unsafe fn io_uring_register(fd: c_int, op: c_uint, arg: *mut c_void, count: c_uint) -> Answer<c_int> {
                None
            }
            /// # Safety
            /// The contract of the system call.
            unsafe fn io_submit(context: c_ulong, count: c_long, requests: *const *const c_void) -> Answer<c_long> {
                None
            }
            $(
                /// # Safety
                /// The contract of the libc function of this name.
                unsafe fn $name($($arg: $ty),*) -> Answer<$ret> {
                    None
                }
            )*
        }

        /// The fast path of the most frequent calls, which comes before the [`Handler`]. What it does not do itself it leaves to
        /// `whole`, the rest of the call, which asks the handler. So it must before [`Handler::init`], and in a cancellation point
        /// once a thread has been cancelled ([`cancel::ever`](crate::cancel::ever)). A call ends with that one, so that a fast
        /// path need not save registers for it.
        #[allow(unused_variables, missing_docs)]
        pub trait Usual {
            $(
                /// # Safety
                /// The contract of the libc function of this name, which `whole` is, too.
                #[inline(always)]
                unsafe fn $name($($arg: $ty,)* whole: unsafe extern "C-unwind" fn($($ty),*) -> $ret) -> $ret {
                    // SAFETY: the caller keeps the contract of the function.
                    unsafe { whole($($arg),*) }
                }
            )*
        }

        /// Defines the exported functions of a preloaded library and lets them ask the given [`Usual`] and [`Handler`].
        #[macro_export]
        macro_rules! preload {
            ($d handler:ty) => {
                #[allow(missing_docs, clippy::missing_safety_doc)]
                mod preloaded {
                    use super::*;
                    use $crate::libc::*;

                    extern "C" fn start() {
                        $crate::start(<$d handler as $crate::Handler>::init);
                    }
                    #[used]
                    #[unsafe(link_section = ".init_array")]
                    static START: extern "C" fn() = start;

                    #[cfg(target_arch = "x86_64")]
                    $crate::loader_entry!($d handler);

                    $(
                        #[unsafe(no_mangle)]
                        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                            #[inline(never)]
                            unsafe extern "C-unwind" fn whole($($arg: $ty),*) -> $ret {
                                let point = const { $crate::cancel::is_point(stringify!($name)) };
                                if if point { $crate::ready_at_point() } else { $crate::ready() } {
                                    // SAFETY: the caller keeps the contract of this function.
                                    if let Some(result) = unsafe { <$d handler as $crate::Handler>::$name($($arg),*) } {
                                        return $crate::finish(result);
                                    }
                                }
                                // SAFETY: the caller keeps the contract of the function.
                                unsafe { $crate::real::$name($($arg),*) }
                            }
                            // SAFETY: the caller keeps the contract of the function.
                            unsafe { <$d handler as $crate::Usual>::$name($($arg,)* whole) }
                        }
                    )*
                    $(
                        #[unsafe(no_mangle)]
                        pub unsafe extern "C-unwind" fn $other($($oarg: $oty),*) -> $oret {
                            let point = const { $crate::cancel::is_point(stringify!($main)) };
                            if (if point { $crate::ready_at_point() } else { $crate::ready() }) $( && $guard )? {
                                // SAFETY: the caller keeps the contract of this function.
                                if let Some(result) = unsafe { <$d handler as $crate::Handler>::$main($($marg),*) } {
                                    return $crate::finish(result);
                                }
                            }
                            // SAFETY: the caller keeps the contract of the function.
                            unsafe { $crate::real::$other($($oarg),*) }
                        }
                    )*
                }
            };
        }
    };
}

macro_rules! sys {
    ($number:ident, $($arg:expr),*) => { libc::syscall(libc::$number, $($arg),*) as _ };
}

calls! {
    ($)
    caught {
        fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = sys!(SYS_socket, domain, kind, protocol);
        fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = sys!(SYS_bind, fd, addr, len);
        fn listen(fd: c_int, backlog: c_int) -> c_int = sys!(SYS_listen, fd, backlog);
        fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = sys!(SYS_accept4, fd, addr, len, 0);
        fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
            = sys!(SYS_accept4, fd, addr, len, flags);
        fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = sys!(SYS_connect, fd, addr, len);
        fn close(fd: c_int) -> c_int = sys!(SYS_close, fd);
        fn shutdown(fd: c_int, how: c_int) -> c_int = sys!(SYS_shutdown, fd, how);
        fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
            = sys!(SYS_getsockname, fd, addr, len);
        fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
            = sys!(SYS_getpeername, fd, addr, len);
        fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int
            = sys!(SYS_getsockopt, fd, level, name, value, len);
        fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
            = sys!(SYS_setsockopt, fd, level, name, value, len);
        fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = sys!(SYS_fcntl, fd, cmd, arg);
        fn ioctl(fd: c_int, request: c_ulong, arg: c_long) -> c_int = sys!(SYS_ioctl, fd, request, arg);
        fn sockatmark(fd: c_int) -> c_int = {
            let mut answer: c_int = 0;
            let outcome: c_int = sys!(SYS_ioctl, fd, 0x8905, &raw mut answer);
            if outcome < 0 { -1 } else { answer }
        };
        fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = sys!(SYS_read, fd, buf, len);
        fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = sys!(SYS_readv, fd, iov, count);
        fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t
            = sys!(SYS_recvfrom, fd, buf, len, flags, null_mut::<sockaddr>(), null_mut::<socklen_t>());
        fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, alen: *mut socklen_t)
            -> ssize_t = sys!(SYS_recvfrom, fd, buf, len, flags, addr, alen);
        fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = sys!(SYS_recvmsg, fd, msg, flags);
        fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
            = sys!(SYS_recvmmsg, fd, msgs, count, flags, timeout);
        fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = sys!(SYS_write, fd, buf, len);
        fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = sys!(SYS_writev, fd, iov, count);
        fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t
            = sys!(SYS_sendto, fd, buf, len, flags, null::<sockaddr>(), 0);
        fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, alen: socklen_t)
            -> ssize_t = sys!(SYS_sendto, fd, buf, len, flags, addr, alen);
        fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = sys!(SYS_sendmsg, fd, msg, flags);
        fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
            = sys!(SYS_sendmmsg, fd, msgs, count, flags);
        fn sendfile(out: c_int, input: c_int, offset: *mut off_t, len: size_t) -> ssize_t
            = sys!(SYS_sendfile, out, input, offset, len);
        fn splice(input: c_int, in_offset: *mut loff_t, out: c_int, out_offset: *mut loff_t, len: size_t, flags: c_uint)
            -> ssize_t = sys!(SYS_splice, input, in_offset, out, out_offset, len, flags);
        fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = {
            let time = timespec { tv_sec: (timeout_ms / 1000).into(), tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000 };
            let time = if timeout_ms < 0 { null() } else { &raw const time };
            sys!(SYS_ppoll, fds, count, time, null::<sigset_t>(), SIGSET_BYTES)
        };
        fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = {
            // The system call writes the remaining time back, and the function must not.
            let copy = if timeout.is_null() { timespec { tv_sec: 0, tv_nsec: 0 } } else { *timeout };
            let time = if timeout.is_null() { null() } else { &raw const copy };
            sys!(SYS_ppoll, fds, count, time, mask, SIGSET_BYTES)
        };
        fn select(count: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int = {
            let mut copy = timespec { tv_sec: 0, tv_nsec: 0 };
            if !timeout.is_null() {
                copy = timespec { tv_sec: (*timeout).tv_sec, tv_nsec: (*timeout).tv_usec * 1000 };
            }
            let time = if timeout.is_null() { null() } else { &raw const copy };
            sys!(SYS_pselect6, count, r, w, e, time, null::<c_void>())
        };
        fn pselect(count: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec,
            mask: *const sigset_t) -> c_int = {
            let copy = if timeout.is_null() { timespec { tv_sec: 0, tv_nsec: 0 } } else { *timeout };
            let time = if timeout.is_null() { null() } else { &raw const copy };
            let sixth = (mask, SIGSET_BYTES);
            sys!(SYS_pselect6, count, r, w, e, time, &raw const sixth)
        };
        fn epoll_create(size: c_int) -> c_int = sys!(SYS_epoll_create1, 0);
        fn epoll_create1(flags: c_int) -> c_int = sys!(SYS_epoll_create1, flags);
        fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int
            = sys!(SYS_epoll_ctl, epfd, op, fd, event);
        fn epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int
            = sys!(SYS_epoll_pwait, epfd, events, count, timeout_ms, null::<sigset_t>(), SIGSET_BYTES);
        fn epoll_pwait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t)
            -> c_int = sys!(SYS_epoll_pwait, epfd, events, count, timeout_ms, mask, SIGSET_BYTES);
        fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec,
            mask: *const sigset_t) -> c_int = sys!(SYS_epoll_pwait2, epfd, events, count, timeout, mask, SIGSET_BYTES);
        fn dup(fd: c_int) -> c_int = sys!(SYS_dup, fd);
        fn dup2(fd: c_int, new: c_int) -> c_int
            = if fd != new {
                sys!(SYS_dup3, fd, new, 0)
            } else if libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) < 0 { -1 } else { fd };
        fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int = sys!(SYS_dup3, fd, new, flags);
        fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = sys!(SYS_close_range, first, last, flags);
        fn closefrom(first: c_int) -> () = { let _: c_long = sys!(SYS_close_range, first, c_uint::MAX, 0); };
        fn fclose(stream: *mut FILE) -> c_int = libc::EOF;
        fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = {
            type Real = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
            core::mem::transmute::<usize, Real>(look_up(c"fdopen"))(fd, mode)
        };
        fn fileno(stream: *mut FILE) -> c_int = {
            type Real = unsafe extern "C" fn(*mut FILE) -> c_int;
            core::mem::transmute::<usize, Real>(look_up(c"fileno"))(stream)
        };
        fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
            = sys!(SYS_preadv2, fd, iov, count, offset, 0, flags);
        fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
            = sys!(SYS_pwritev2, fd, iov, count, offset, 0, flags);
        // The system call takes another structure. Allocators call neither function, so they may be looked up here.
        fn sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int = {
            type Real = unsafe extern "C" fn(c_int, *const sigaction, *mut sigaction) -> c_int;
            core::mem::transmute::<usize, Real>(look_up(c"sigaction"))(signal, new, old)
        };
        fn chroot(path: *const c_char) -> c_int = sys!(SYS_chroot, path);
        fn unshare(flags: c_int) -> c_int = sys!(SYS_unshare, flags);
        fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = sys!(SYS_prctl, option, a, b, c, d);
        fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int = sys!(SYS_pidfd_getfd, pidfd, fd, flags);
        fn mlockall(flags: c_int) -> c_int = sys!(SYS_mlockall, flags);
        fn munlockall() -> c_int = sys!(SYS_munlockall,);
        fn pthread_cancel(thread: pthread_t) -> c_int = {
            type Real = unsafe extern "C-unwind" fn(pthread_t) -> c_int;
            core::mem::transmute::<usize, Real>(look_up(c"pthread_cancel"))(thread)
        };
        fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t = {
            type Real = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
            core::mem::transmute::<usize, Real>(look_up(c"signal"))(signal, handler)
        };
    }
    same {
        fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int = fcntl(fd, cmd, arg);
        fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, len: size_t) -> ssize_t
            = sendfile(out, input, offset, len);
        fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
            = preadv2(fd, iov, count, offset, flags);
        fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
            = pwritev2(fd, iov, count, offset, flags);
        fn fileno_unlocked(stream: *mut FILE) -> c_int = fileno(stream);
        fn __sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int
            = sigaction(signal, new, old);
        fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t
            = read(fd, buf, len) if len <= room;
        fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
            = recv(fd, buf, len, flags) if len <= room;
        fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
            alen: *mut socklen_t) -> ssize_t = recvfrom(fd, buf, len, flags, addr, alen) if len <= room;
        fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int
            = poll(fds, count, timeout_ms) if room / size_of::<pollfd>() >= count as usize;
        fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t)
            -> c_int = ppoll(fds, count, timeout, mask) if room / size_of::<pollfd>() >= count as usize;
        fn __close(fd: c_int) -> c_int = close(fd);
        fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = read(fd, buf, len);
        fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = write(fd, buf, len);
        fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = send(fd, buf, len, flags);
        fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = connect(fd, addr, len);
        fn __fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = fcntl(fd, cmd, arg);
        fn __dup2(fd: c_int, new: c_int) -> c_int = dup2(fd, new);
        fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = poll(fds, count, timeout_ms);
        fn __select(count: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int
            = select(count, r, w, e, timeout);
    }
}
