//! `ioctl` of sockets.

use crate::fd::table::{self, Descriptor, Pending};
use crate::io::{sigurg, urgent, user};
use libc::{c_int, c_long, c_ulong};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{command, idle, stack_info};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::lines::state;

/// Linux's constants, which libc lacks.
const FIOSETOWN: libc::Ioctl = 0x8901;
const SIOCSPGRP: libc::Ioctl = 0x8902;
const SIOCATMARK: libc::Ioctl = 0x8905;
const SIOCOUTQNSD: libc::Ioctl = 0x894b;
/// The first and the last request about routes, interfaces and neighbours. None is about the socket.
const SIOCADDRT: libc::Ioctl = 0x890b;
const SIOCBRDELIF: libc::Ioctl = 0x89a3;

/// `ioctl`.
///
/// # Safety
/// `arg` is a number or any address, as `request` has it.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, arg: c_long) -> Answer<c_int> {
    let owner = matches!(request as _, FIOSETOWN | SIOCSPGRP);
    if let (Descriptor::Pending(_), true) = (table::get(fd), owner) {
        table::update_pending(fd, |pending| pending.owned = true);
    }
    let argument = arg as *mut c_int;
    let sets_mode = request as libc::Ioctl == libc::FIONBIO;
    if sets_mode && let Descriptor::Pending(Pending { lost: true, .. }) = table::get(fd) {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid number. The kernel reports a wrong address.
        if let Ok(on) = unsafe { user::read(argument) } {
            table::update_pending(fd, |pending| pending.nonblock = on != 0);
        }
    }
    let socket = table::socket(fd)?;
    if owner {
        // SAFETY: the arguments are those of the program's `ioctl`, and the kernel checks the address.
        let set = outcome(unsafe { real::ioctl(fd, request, arg) });
        socket.mark(flag::FILE_CHANGED, true);
        // SAFETY: the kernel has just read an integer there.
        return Some(set.inspect(|_| sigurg::set_owner(&socket, libc::F_SETOWN, unsafe { *argument }.into())));
    }
    if sets_mode {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid number.
        let on = unsafe { user::read(argument) };
        return Some(on.map(|on| {
            socket.mark(flag::NONBLOCK, on != 0);
            0
        }));
    }
    if socket.kernel_half() {
        return None;
    }
    // SAFETY: `user::write` accepts any address of the program.
    let put = |answer| unsafe { user::write(argument, answer) };
    if (SIOCADDRT..=SIOCBRDELIF).contains(&(request as libc::Ioctl)) && request as libc::Ioctl != SIOCOUTQNSD {
        return Some(about_interfaces(&socket, request, arg));
    }
    let answer = asked(&socket, request as _);
    if answer.is_none() {
        // The kernel carries it out on the open file.
        socket.mark(flag::FILE_CHANGED, true);
    }
    answer.map(|answer| answer.and_then(put).map(|()| 0))
}

/// A request about the host's interfaces, which the kernel answers on any socket of the family. The one behind the
/// descriptor is an AF_UNIX socket.
fn about_interfaces(socket: &Socket, request: c_ulong, arg: c_long) -> Sys<c_int> {
    let any = sys::socket(if socket.has(flag::SIX) { libc::AF_INET6 } else { libc::AF_INET })?;
    // SAFETY: the arguments are those of the program's `ioctl`, and the kernel checks the address.
    let answer = outcome(unsafe { real::ioctl(any, request, arg) });
    sys::close(any);
    answer
}

/// The answer to a query; `None` leaves it to the kernel.
fn asked(socket: &Socket, request: libc::Ioctl) -> Option<Sys<c_int>> {
    Some(Ok(match request {
        libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD if socket.state() == state::LISTENING => {
            return Some(Err(libc::EINVAL));
        }
        libc::FIONREAD => {
            idle::unread_seen(socket);
            urgent::inquiry(&socket.view()) as c_int
        }
        libc::TIOCOUTQ => stack_info::queued_now(socket).0 as c_int,
        SIOCOUTQNSD => {
            if stack_info::holds(socket).is_none() && stack_info::queued(socket).0 > 0 {
                command::refresh(socket);
            }
            stack_info::queued_now(socket).1 as c_int
        }
        SIOCATMARK => urgent::at_mark(&socket.view()).into(),
        _ => return None,
    }))
}
