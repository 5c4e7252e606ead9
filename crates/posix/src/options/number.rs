//! Setting and reading the options of the table on a socket in a slot.

use crate::io::send;
use crate::options::table::{self, Bit, Place, Row};
use crate::options::{buffers, peek, stack};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use towpath_client::command;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_ring::lines::{app_flags, state};

/// `setsockopt` by a row of the table. `name` is the row's option, or the variant that forces it.
pub fn set(fd: c_int, socket: &Socket, row: &Row, name: c_int, value: c_int) -> Sys<()> {
    let line = socket.options();
    match row.place {
        Place::AppFlag(flag) => set_app_flag(socket, flag, value != 0),
        Place::OwnFlag(flag) => socket.mark(flag, value != 0),
        Place::StackFlag(flag) => {
            table::mark(line, flag, value != 0);
            stack::changed(socket);
        }
        Place::StackWord(word) => {
            if row.is(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) && value == 0 && socket.state() != state::CLOSED {
                return Err(libc::EINVAL);
            }
            let before = word.load(line);
            word.store(line, (word.accepts)(value)?);
            stack::changed(socket);
            let now = word.load(line);
            if row.is(libc::IPPROTO_IP, libc::IP_TOS) && now != before {
                set_priority(fd, socket, now);
            }
        }
        Place::Buffer(at) => buffers::set(fd, socket, (name, row.name), at, value)?,
        Place::PacingRate => stack::set_max_pacing(socket, stack::rate_of(value.cast_unsigned())),
        Place::Pair(shown) => {
            socket.mark(flag::EMULATED_ON_PAIR, true);
            sys::setsockopt(fd, row.level, row.name, value)?;
            if shown.show(line, value) {
                stack::changed(socket);
            }
        }
        Place::Peek => {
            let _receiving = socket.private().receiving.lock().ok_or(libc::EAGAIN)?;
            peek::set(socket.private(), socket.app().rx_head.load(Relaxed), value);
        }
        Place::Bit(bit) => set_bit(socket, row, bit, value)?,
    }
    Ok(())
}

fn set_app_flag(socket: &Socket, flag: u32, on: bool) {
    match flag {
        app_flags::QUICKACK => socket.mark(flag::QUICKACK_OFF, !on),
        app_flags::CORK => {
            socket.mark(flag::CORKED, on);
            if !on {
                let held = socket.has_app(flag);
                send::let_go(socket);
                if held {
                    socket.mark_app(flag, false);
                }
                return;
            }
        }
        // Switching Nagle's algorithm off sends the bytes that it held back.
        app_flags::NODELAY if on => send::let_go(socket),
        _ => {}
    }
    match flag {
        // The stack reads them together with the next bytes. It must look at once only if it has bytes that it holds back.
        app_flags::NODELAY | app_flags::CORK => socket.mark_app_for_bytes(flag, on),
        _ if socket.has_app(flag) != on => socket.mark_app(flag, on),
        _ => {}
    }
}

/// The priority follows the type of service, as in Linux's `rt_tos2priority`.
fn set_priority(fd: c_int, socket: &Socket, type_of_service: c_int) {
    let priority = [0, 1, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4][(type_of_service as usize & 0x1e) / 2];
    if let Some(row) = table::find(libc::SOL_SOCKET, libc::SO_PRIORITY) {
        let _ = set(fd, socket, row, row.name, priority);
    }
}

fn set_bit(socket: &Socket, row: &Row, Bit { bit, only_two, on_by_default, shown }: Bit, value: c_int) -> Sys<()> {
    let late = row.is(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) && socket.state() != state::CLOSED;
    if (only_two && !(0..=1).contains(&value)) || late {
        return Err(libc::EINVAL);
    }
    let emulated = &socket.private().emulated;
    // Linux accepts `TCP_THIN_DUPACK` and always reads it as 0.
    if (value != 0) != on_by_default && !row.is(libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK) {
        emulated.fetch_or(bit, Relaxed);
    } else {
        emulated.fetch_and(!bit, Relaxed);
    }
    if shown.show(socket.options(), value) {
        stack::changed(socket);
    }
    Ok(())
}

/// `getsockopt` by a row of the table.
pub fn get(fd: c_int, socket: &Socket, row: &Row) -> Sys<c_int> {
    let line = socket.options();
    Ok(match row.place {
        Place::AppFlag(app_flags::QUICKACK) => (!socket.has(flag::QUICKACK_OFF)).into(),
        Place::AppFlag(app_flags::CORK) => socket.has(flag::CORKED).into(),
        Place::AppFlag(flag) => socket.has_app(flag).into(),
        Place::OwnFlag(flag) => socket.has(flag).into(),
        Place::StackFlag(flag) => (line.flags.load(Relaxed) & flag != 0).into(),
        Place::StackWord(_) if row.is(libc::IPPROTO_TCP, libc::TCP_MAXSEG) && is_connected(socket) => {
            command::refresh(socket);
            socket.info().mss.load(Relaxed) as c_int
        }
        Place::StackWord(word) => word.load(line),
        Place::Buffer(at) => buffers::get(socket, row.name, at),
        Place::PacingRate => stack::max_pacing(socket).min(u32::MAX.into()) as c_int,
        Place::Pair(_) => sys::getsockopt(fd, row.level, row.name, 0)?,
        Place::Peek => peek::get(socket.private(), socket.app().rx_head.load(Relaxed)),
        Place::Bit(Bit { bit, on_by_default, .. }) => {
            ((socket.private().emulated.load(Relaxed) & bit != 0) != on_by_default).into()
        }
    })
}

fn is_connected(socket: &Socket) -> bool {
    !matches!(socket.state(), state::LISTENING | state::CLOSED)
}
