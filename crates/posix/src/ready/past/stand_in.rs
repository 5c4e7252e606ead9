//! A stand-in: a kernel object that has the readiness of an accelerated socket, so that the kernel can tell of it.
//!
//! It is one end of a pair of UNIX sockets. Bytes that wait in it make it readable, and bytes that its other end has not
//! taken make it unwritable. What the other end has ended, it shows as ended.

use crate::ready::readiness::{ERR, HUP, IN, OUT, RDHUP};
use libc::c_int;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use towpath_client::descriptors;
use towpath_client::sys::{self, Sys};

/// The events that can be shown. Urgent bytes cannot: not every kernel has them for UNIX sockets.
const SHOWN: u32 = IN | OUT | RDHUP | HUP | ERR;
/// Those that a pair cannot take back.
const ENDS: u32 = RDHUP | HUP | ERR;
/// The size of the pair's buffers, which the kernel raises to its least one.
const BUFFER: usize = 1;
const CHUNK: usize = 1024;

/// One pair. Dropping it closes it, which takes it out of the native set.
pub struct StandIn {
    /// The end that the native set has.
    near: c_int,
    /// -1 = it is closed.
    far: c_int,
    /// The events that it has now.
    shown: u32,
}

impl StandIn {
    /// One without events.
    pub fn new() -> Sys<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let made = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (near, far) = made.map_err(Errno::raw_os_error)?;
        let near = descriptors::protect(near)?;
        let Ok(far) = descriptors::protect(far) else {
            descriptors::unprotect(near);
            return Err(libc::EMFILE);
        };
        let made = Self { near, far, shown: 0 };
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(sys::borrow(&near), BUFFER);
        made.stop_room();
        Ok(made)
    }

    /// The descriptor for the native set.
    pub fn descriptor(&self) -> c_int {
        self.near
    }

    /// The events that it has now.
    pub fn shown(&self) -> u32 {
        self.shown
    }

    /// From now on it has these events. `again`: what it has had already counts as a new edge. False: this pair cannot
    /// show them any more, and a new one is needed.
    pub fn show(&mut self, events: u32, again: bool) -> bool {
        let events = shown_as(events);
        let (ended, gone) = (self.shown & ENDS, self.shown & !events);
        if gone & ENDS != 0 || (ended & HUP != 0 && events & ERR & !ended != 0) {
            return false;
        }
        let new = events & !self.shown;
        if gone & IN != 0 {
            empty(self.near);
        }
        if gone & OUT != 0 {
            self.stop_room();
        }
        if new & OUT != 0 {
            empty(self.far);
        }
        if new & IN != 0 && events & RDHUP == 0 {
            put(self.far, 1);
        }
        if new & ENDS != 0 {
            self.end(events);
        } else if again && new == 0 {
            self.repeat(events);
        }
        self.shown = events;
        true
    }

    /// Ends those events that are not among these, and begins none.
    pub fn lower(&mut self, events: u32) {
        let kept = self.shown & (shown_as(events) | ENDS);
        if kept != self.shown {
            // An end that has been shown also shows as readable.
            self.show(if kept & ENDS != 0 { kept | self.shown & IN } else { kept }, false);
        }
    }

    fn stop_room(&self) {
        while put(self.near, CHUNK) {}
    }

    fn end(&mut self, events: u32) {
        if events & ERR != 0 {
            // Bytes that are lost when the other end closes are an error.
            put(self.near, 1);
            descriptors::unprotect(core::mem::replace(&mut self.far, -1));
            return;
        }
        let how = if events & HUP != 0 { Shutdown::Both } else { Shutdown::Write };
        let _ = rustix::net::shutdown(sys::borrow(&self.far), how);
    }

    /// Another edge of an event that it has.
    fn repeat(&self, events: u32) {
        if events & IN != 0 && events & ENDS == 0 {
            if !put(self.far, 1) {
                empty(self.near);
                put(self.far, 1);
            }
        } else if events & OUT != 0 && events & (HUP | ERR) == 0 {
            put(self.near, 1);
            empty(self.far);
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        [self.near, self.far].into_iter().filter(|fd| *fd >= 0).for_each(descriptors::unprotect);
    }
}

/// The events as a pair can show them. An end or an error counts as readable, and an error is shown with a hang-up only.
fn shown_as(events: u32) -> u32 {
    let events = events & SHOWN;
    match events & (HUP | ERR) {
        0 => events,
        ERR => events & !ERR | IN,
        _ => events | IN | RDHUP,
    }
}

fn put(fd: c_int, count: usize) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(sys::borrow(&fd), &[0; CHUNK][..count], flags).is_ok()
}

/// Takes all bytes that wait at this end.
fn empty(fd: c_int) {
    let mut bytes = [0u8; 4 * CHUNK];
    while let Ok((1.., _)) = rustix::net::recv(sys::borrow(&fd), &mut bytes, RecvFlags::DONTWAIT) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn polled(stand_in: &StandIn) -> u32 {
        let events = (IN | OUT | RDHUP) as i16;
        let mut fds = [libc::pollfd { fd: stand_in.descriptor(), events, revents: 0 }];
        let _ = sys::ppoll(&mut fds, Some(Duration::ZERO), core::ptr::null());
        u32::from(fds[0].revents as u16)
    }

    #[test]
    fn it_has_the_events_that_it_is_told() {
        crate::tests::os::start();
        let mut stand_in = StandIn::new().expect("a pair");
        assert_eq!(polled(&stand_in), 0);
        for events in [IN, IN | OUT, OUT, 0, OUT, IN, 0, IN | OUT, IN | OUT | RDHUP, IN | OUT | RDHUP | HUP] {
            for again in [false, true] {
                assert!(stand_in.show(events, again));
                assert_eq!((polled(&stand_in), stand_in.shown()), (events, events));
            }
        }
        stand_in.lower(0);
        assert_eq!(polled(&stand_in), IN | RDHUP | HUP | OUT & polled(&stand_in));
        assert!(!stand_in.show(IN, false), "an end cannot be taken back");
        let mut failed = StandIn::new().expect("a pair");
        let events = IN | OUT | RDHUP | HUP | ERR;
        assert!(failed.show(events, false));
        assert_eq!(polled(&failed), events);
    }

    #[test]
    fn each_edge_is_told_again() {
        crate::tests::os::start();
        let mut stand_in = StandIn::new().expect("a pair");
        let epfd = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("epoll");
        let flags = rustix::event::epoll::EventFlags::from_bits_retain(IN | OUT | RDHUP | libc::EPOLLET as u32);
        let data = rustix::event::epoll::EventData::new_u64(1);
        let near = stand_in.descriptor();
        rustix::event::epoll::add(&epfd, sys::borrow(&near), data, flags).expect("add");
        let told = || {
            let mut events = Vec::with_capacity(4);
            let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = rustix::event::epoll::wait(&epfd, rustix::buffer::spare_capacity(&mut events), Some(&zero));
            events.iter().fold(0, |all, event: &rustix::event::epoll::Event| all | { event.flags }.bits())
        };
        assert_eq!(told(), 0);
        for events in [IN, IN | OUT, OUT] {
            stand_in.show(events, false);
            told();
            for _ in 0..1000 {
                stand_in.show(events, true);
                assert_eq!((told(), told()), (events, 0));
            }
        }
        stand_in.show(OUT, false);
        assert_eq!(told(), 0, "nothing new");
    }
}
