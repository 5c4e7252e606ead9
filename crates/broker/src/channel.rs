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

/// Sends an answer without waiting. A descriptor is followed by a second answer once our copy is closed. EAGAIN: the user
/// has too many descriptors in transit.
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

/// Drops the next message with its descriptors.
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
    use crate::alone::alone;
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
        let (worker, _broker) = pair(SocketType::SEQPACKET);
        let worker = crate::Broker::new(worker);
        assert_eq!(worker.prove(full.as_fd()).map(drop), Err(-libc::EAGAIN), "the client may ask again");
        answer(&ours, &Answer::plain(7, 0), Some(full.try_clone().unwrap())).unwrap();
        let mut bytes = vec![0; ANSWER];
        let (length, descriptor) = receive(&theirs, &mut bytes).unwrap().unwrap();
        let answer = Answer::decode(&bytes[..length]).unwrap();
        assert_eq!((answer.number, answer.result, descriptor.is_none()), (7, libc::EAGAIN, true));
    }

    /// What a look at the next message says, and what is received.
    type Seen = (Option<(usize, bool)>, Option<(usize, bool)>);

    #[test]
    fn a_message_is_seen_as_it_is_received_and_the_end_is_no_message() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let cases: [(&[u8], bool, Seen); 4] = [
            (&[1, 2], false, (Some((2, false)), Some((2, false)))),
            (&[1, 2], true, (Some((2, true)), Some((2, true)))),
            (&[], true, (Some((0, true)), Some((0, true)))),
            (&[], false, (None, None)),
        ];
        for (bytes, shown, (seen, taken)) in cases {
            let (ours, theirs) = pair();
            send(&theirs, bytes, shown.then_some(file.as_fd())).unwrap();
            let mut room = [0; 2];
            // A look takes nothing.
            assert_eq!((peek(&ours, &mut room).unwrap(), peek(&ours, &mut room).unwrap()), (seen, seen));
            assert_eq!(&room[..bytes.len()], bytes);
            let received = receive(&ours, &mut room).unwrap();
            assert_eq!(received.map(|(length, descriptor)| (length, descriptor.is_some())), taken);
        }
        let (ours, theirs) = pair();
        end(&theirs);
        assert!(peek(&ours, &mut [0; 2]).unwrap().is_none() && receive(&ours, &mut [0; 2]).unwrap().is_none());
    }

    #[test]
    fn what_there_is_no_room_for_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let kind = |error: io::Error| error.kind();
        let (ours, theirs) = pair();
        send(&theirs, &[1; 3], None).unwrap();
        assert_eq!(peek(&ours, &mut [0; 2]).map_err(kind), Err(io::ErrorKind::InvalidData));
        assert_eq!(receive(&ours, &mut [0; 2]).map(drop).map_err(kind), Err(io::ErrorKind::InvalidData));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let two = [file.as_fd(); 2];
        assert!(control.push(SendAncillaryMessage::ScmRights(&two)));
        sendmsg(&theirs, &[IoSlice::new(&[1])], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(receive(&ours, &mut [0; 2]).map(drop).map_err(kind), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn an_answer_with_a_descriptor_is_followed_by_the_word_that_it_is_the_only_one() {
        let (ours, theirs) = pair();
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        answer(&theirs, &Answer::plain(7, 5), Some(writing)).unwrap();
        let mut bytes = vec![0; ANSWER];
        let mut next = || {
            let (length, descriptor) = receive(&ours, &mut bytes).unwrap().unwrap();
            let Answer { number, result, .. } = Answer::decode(&bytes[..length]).unwrap();
            (number, result, descriptor)
        };
        let (number, result, descriptor) = next();
        assert_eq!((number, result, descriptor.is_some()), (7, 5, true));
        let (number, result, none) = next();
        assert_eq!((number, result, none.is_none()), (7, 0, true));
        drop(descriptor);
        assert_eq!(rustix::io::read(&reading, &mut [0; 1]), Ok(0), "nobody has the pipe's other end any more");
        answer(&theirs, &Answer::plain(8, 0), None).unwrap();
        end(&theirs);
        assert_eq!(next().0, 8);
        assert!(receive(&ours, &mut [0; 1]).unwrap().is_none(), "an answer without one is alone");
    }

    #[test]
    fn an_answer_that_does_not_arrive_is_an_error() {
        let (ours, theirs) = pair();
        end(&ours);
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        for descriptor in [None, Some(file())] {
            let error = answer(&theirs, &Answer::plain(1, 0), descriptor).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        }
    }

    #[test]
    fn a_message_is_passed_over_with_its_descriptors_and_nobody_is_waited_for() {
        let (ours, theirs) = pair();
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        send(&theirs, &[1], Some(writing.as_fd())).unwrap();
        drop(writing);
        send(&theirs, &[2, 3], None).unwrap();
        skip(&ours).unwrap();
        assert_eq!(rustix::io::read(&reading, &mut [0; 1]), Ok(0), "nobody has it");
        assert_eq!(receive(&ours, &mut [0; 2]).unwrap().map(|(length, _)| length), Some(2));
        assert_eq!(skip(&ours).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Ends a socket, though a process of another test may have a copy.
    fn end(socket: &OwnedFd) {
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn others_with_too_many_descriptors_under_way_end_no_worker() {
        if alone("channel::tests::others_with_too_many_descriptors_under_way_end_no_worker") {
            with_too_many_under_way();
        }
    }
}
