//! Messages with descriptors over the socketpair between broker and worker.

use crate::message::Answer;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors of one message.
pub const MOST_DESCRIPTORS: usize = 1;

/// Sends a message.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with(socket, bytes, descriptor, SendFlags::empty())
}

/// Sends an answer without waiting: whoever asks takes the answers. One with a descriptor is sent again without it once
/// the copy here is closed, so the receiver has the only one when it goes on.
pub fn answer(socket: impl AsFd, answer: &Answer, descriptor: Option<OwnedFd>) -> io::Result<()> {
    send_with(&socket, &answer.encode(), descriptor.as_ref().map(AsFd::as_fd), SendFlags::DONTWAIT)?;
    if descriptor.is_some() {
        drop(descriptor);
        send_with(&socket, &Answer::plain(answer.number, 0).encode(), None, SendFlags::DONTWAIT)?;
    }
    Ok(())
}

fn send_with(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>, flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Looks at the next message and leaves it there. Returns its length, and whether descriptors go along; `None` at the
/// end of the stream. A message with more bytes than there is room for is an error.
pub fn peek(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<(usize, bool)>> {
    let received =
        recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK);
    let received = received?;
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // There is no room for descriptors.
    let shown = received.flags.contains(ReturnFlags::CTRUNC);
    Ok((received.bytes > 0 || shown).then_some((received.bytes, shown)))
}

/// Takes the next message. Nobody receives its descriptors.
pub fn skip(socket: impl AsFd) -> io::Result<()> {
    recvmsg(&socket, &mut [], &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?;
    Ok(())
}
/// Receives a message into `bytes`. `None` at the end of the stream. A message with more bytes or descriptors than there
/// is room for is an error.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let descriptor = descriptors.pop();
    Ok((received.bytes > 0 || descriptor.is_some()).then_some((received.bytes, descriptor)))
}
