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
/// the copy here is closed, so the receiver has the only one when it goes on. Others of this user may have as many
/// descriptors under way as it may have. Then the answer is EAGAIN.
pub fn answer(socket: impl AsFd, answer: &Answer, descriptor: Option<OwnedFd>) -> io::Result<()> {
    let sent = send_with(&socket, &answer.encode(), descriptor.as_ref().map(AsFd::as_fd), SendFlags::DONTWAIT);
    if descriptor.is_some() && sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ETOOMANYREFS)) {
        let none = Answer::plain(answer.number, libc::EAGAIN);
        return send_with(&socket, &none.encode(), None, SendFlags::DONTWAIT);
    }
    sent?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::ANSWER;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets};

    /// More than the process below may have open.
    const UNDER_WAY: usize = 100;

    /// In a process of its own, as the limit and the rights are the process's.
    fn with_too_many_under_way() {
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let ((ours, theirs), (full, _other)) = (pair(SocketType::SEQPACKET), pair(SocketType::STREAM));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(UNDER_WAY))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let many = [full.as_fd(); UNDER_WAY];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&full, &[IoSlice::new(&[1])], &mut control, SendFlags::empty()).unwrap();
        let limit = Rlimit { current: Some(UNDER_WAY as u64 / 2), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).unwrap();
        assert_eq!(
            send(&ours, &[1], Some(full.as_fd())).unwrap_err().raw_os_error(),
            Some(libc::ETOOMANYREFS),
            "the kernel refuses them"
        );
        answer(&ours, &Answer::plain(7, 0), Some(full.try_clone().unwrap())).unwrap();
        let mut bytes = vec![0; ANSWER];
        let (length, descriptor) = receive(&theirs, &mut bytes).unwrap().unwrap();
        let answer = Answer::decode(&bytes[..length]).unwrap();
        assert_eq!((answer.number, answer.result, descriptor.is_none()), (7, libc::EAGAIN, true));
    }

    #[test]
    fn others_with_too_many_descriptors_under_way_end_no_worker() {
        const NAME: &str = "channel::tests::others_with_too_many_descriptors_under_way_end_no_worker";
        const CHILD: &str = "BROKER_TEST_UNDER_WAY";
        if std::env::var_os(CHILD).is_some() {
            return with_too_many_under_way();
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
