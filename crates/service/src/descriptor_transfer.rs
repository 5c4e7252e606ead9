//! Moves descriptors from the table of one thread of the service into that of another, over a socket of their own.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors of one message.
const MOST: usize = 2;

/// Sends descriptors in one message.
pub fn send(socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Receives the descriptors of one message. There are none if the table has no room for them.
pub fn receive(socket: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received,
        }
    };
    if received.is_err() {
        return Vec::new();
    }
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    #[test]
    fn messages_with_one_and_two_descriptors_stay_apart() {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(one.as_fd(), &[file.as_fd()]).unwrap();
        send(one.as_fd(), &[file.as_fd(), file.as_fd()]).unwrap();
        assert_eq!(receive(other.as_fd()).len(), 1);
        assert_eq!(receive(other.as_fd()).len(), 2);
        drop(one);
        assert!(receive(other.as_fd()).is_empty());
    }
}
