//! A capture: it lasts as long as the conversation that has asked for it. Its thread is that conversation's.

use crate::answer_line::{error, good};
use crate::api::{self, CaptureRequest};
use crate::modules::Judged;
use crate::state::ServiceState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};
use towpath_capture::cbpf::Instruction;
use towpath_capture::{Filter, Program, Wish};
use towpath_runtime::Capture;
use towpath_runtime::capture::{LOOK_MS, Next};

/// Captures until the other side closes the conversation, or the service ends.
pub fn serve(state: Arc<ServiceState>, socket: &OwnedFd, request: &CaptureRequest) -> io::Result<()> {
    let capture = begin(&state, request);
    let answer = api::Capturing { stack: state.stack.name().into(), ports: state.settings.port_names() };
    // A stack must not outlive its service because somebody looks at it.
    let weak = Arc::downgrade(&state);
    drop(state);
    match capture {
        Ok(capture) => {
            send(socket, &good(&answer), Some(&*capture))?;
            run(&weak, socket, capture);
            Ok(())
        }
        Err(why) => send(socket, &error(why), None),
    }
}

fn begin(state: &ServiceState, request: &CaptureRequest) -> Result<Box<dyn Capture>, String> {
    let instruction = |&(code, jt, jf, k): &(u16, u8, u8, u32)| Instruction { code, jt, jf, k };
    let instructions: Vec<Instruction> = request.filter.iter().map(instruction).collect();
    let filter = match (&instructions[..], &request.module) {
        ([], None) => None,
        ([], Some(module)) => {
            // Its maps are its own, pinned or not: it counts what is captured, and no module's frames.
            let module = Judged::new(&module.object, module.program.as_deref())?.module(1, &[])?;
            Some(Filter::Module(Arc::new(module)))
        }
        (some, None) => {
            let program = Program::new(some).map_err(|why| format!("the filter: {why}"))?;
            Some(Filter::Program(Arc::new(program)))
        }
        _ => return Err("a capture has one filter: a classic program or a module".into()),
    };
    let wish = Wish { filter, snap: request.snap, bytes: request.bytes.min(api::MOST_CAPTURE_BYTES) };
    state.stack.capture(&wish).map_err(|why| why.to_string())
}

/// Sends the answer without waiting: the socket's buffer is empty, so it fits.
fn send(socket: &OwnedFd, text: &str, capture: Option<&dyn Capture>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let memory = capture.map(|capture| [capture.memory()]);
    if let Some(memory) = &memory {
        control.push(SendAncillaryMessage::ScmRights(memory));
    }
    let line = [text.as_bytes(), b"\n"].concat();
    rustix::net::sendmsg(socket, &[IoSlice::new(&line)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// While nothing can pass, the service is asked so often whether it ends, ms.
const REST_MS: u64 = 50;

/// The close of the conversation, which follows, tells the other side that everything is there.
fn run(state: &Weak<ServiceState>, socket: &OwnedFd, mut capture: Box<dyn Capture>) {
    loop {
        let next = capture.look();
        let rest_ms = match next {
            Next::Now => 0,
            Next::Soon => LOOK_MS,
            Next::Called => REST_MS,
        };
        let rest = Timespec { tv_sec: 0, tv_nsec: rest_ms as i64 * 1_000_000 };
        let call = capture.call().filter(|_| next == Next::Called).unwrap_or(socket.as_fd());
        let mut ready = [socket.as_fd(), call].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut ready, Some(&rest)) {
            Ok(_) if ready[0].revents().is_empty() => {}
            Err(Errno::INTR) => {}
            Ok(_) => match rustix::net::recv(socket, &mut [0; 64][..], RecvFlags::DONTWAIT) {
                Ok((count, _)) if count > 0 => {}
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return,
            },
            Err(_) => return,
        }
        if state.upgrade().is_none_or(|state| state.stop_requested()) {
            return;
        }
    }
}
