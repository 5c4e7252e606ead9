//! A message and its descriptors on the socket.

use super::{MAX_FDS, MESSAGE_BYTES, Reply, Request, invalid};
use core::mem::MaybeUninit;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};

/// Sends one request with its descriptors.
pub fn send_request(socket: BorrowedFd<'_>, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(socket, &request.encode(), request.descriptors(), fds)
}

/// Receives one request; `Ok(None)` at end of file.
pub fn recv_request(socket: BorrowedFd<'_>) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let Some((packet, fds)) = recv(socket)? else { return Ok(None) };
    let request = match Request::decode(&packet) {
        Ok(request) => request,
        Err(error) => {
            discard(fds);
            return Err(error);
        }
    };
    if fds.len() != request.descriptors() {
        discard(fds);
        return Err(invalid("request with a wrong number of descriptors"));
    }
    Ok(Some((request, fds)))
}

/// Sends one reply with its descriptors.
pub fn send_reply(socket: BorrowedFd<'_>, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(socket, &reply.encode(), reply.descriptors(), fds)
}

/// Receives one reply (blocking). End of file is an error of kind `UnexpectedEof`.
pub fn recv_reply(socket: BorrowedFd<'_>) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let Some((packet, fds)) = recv(socket)? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let reply = Reply::decode(&packet)?;
    if fds.len() != reply.descriptors() {
        return Err(invalid("reply with a wrong number of descriptors"));
    }
    Ok((reply, fds))
}

fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8; MESSAGE_BYTES],
    expected: usize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if fds.len() != expected || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "wrong number of descriptors for this message"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL) {
            // A packet is sent whole or not at all.
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// One packet and its descriptors; `None` at end of file. On an error all descriptors received are closed.
fn recv(socket: BorrowedFd<'_>) -> io::Result<Option<([u8; MESSAGE_BYTES], Vec<OwnedFd>)>> {
    let mut packet = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut packet)];
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC)
        && let Err(error @ (Errno::MFILE | Errno::NFILE)) = rustix::io::fcntl_dupfd_cloexec(socket, 0)
    {
        // The kernel leaves descriptors out where this process may open no more. The message is not at fault.
        return Err(error.into());
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        discard(fds);
        return Err(invalid("message too long or with too many descriptors"));
    }
    match received.bytes {
        // An empty packet looks the same. No correct sender sends one.
        0 => {
            discard(fds);
            Ok(None)
        }
        MESSAGE_BYTES => Ok(Some((packet, fds))),
        _ => {
            discard(fds);
            Err(invalid("message cut short"))
        }
    }
}

/// Closes descriptors of a wrong message without waiting: its sender has chosen how long a TCP socket lingers.
fn discard(fds: Vec<OwnedFd>) {
    for fd in fds {
        if matches!(sockopt::socket_domain(&fd), Ok(AddressFamily::INET | AddressFamily::INET6)) {
            let _ = sockopt::set_socket_linger(&fd, None);
        }
    }
}
