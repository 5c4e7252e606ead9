//! The application's system calls on the node's sockets, with Linux's results and errors.

use crate::connection::pattern;
use crate::constants::{self as c, EAGAIN, EBADF, EINPROGRESS, EINVAL, EISCONN, ENOTCONN, EPIPE};
use crate::descriptors::{Descriptor, DescriptorKind};
use crate::frame::REMOTE;
use crate::pending_call::{Answer, Outcome, Progress};
use crate::runner::{LOCAL_PORT, Runner};
use crate::script::{Call, Returns, Value};
use std::net::IpAddr;
use towpath_sim::{Phase, SocketId};

fn done(answer: Answer) -> Outcome {
    Ok(Some(Ok(answer)))
}

impl Runner {
    /// Performs a call, or retries one that blocks.
    pub(crate) fn attempt(&mut self, call: &Call, progress: &mut Progress) -> Outcome {
        let number = |i: usize| call.args.get(i).and_then(Value::number);
        let fd = number(0).unwrap_or(-1);
        let new = match call.returns {
            Returns::Number(n) => Some(n),
            _ => None,
        };
        match call.name.as_str() {
            "socket" => done(self.socket(number(1).ok_or("an unknown type of socket")?, new)),
            "epoll_create" | "epoll_create1" => done(Ok(self.descriptors.open(DescriptorKind::Epoll, new))),
            "poll" => self.poll(call, progress),
            _ if self.descriptors.get(fd).is_none() => done(Err(EBADF)),
            "bind" => {
                let port = call.args.get(1).and_then(|a| a.member("sin_port")).and_then(Value::number);
                done(self.with(fd, |d| d.port = port.map_or(LOCAL_PORT, |port| port as u16)))
            }
            "listen" => done(self.listen(fd, number(1).unwrap_or(0))),
            "accept" => self.accept(fd, 0, new),
            "accept4" => self.accept(fd, number(3).unwrap_or(0), new),
            "connect" => self.connect(fd, call, progress),
            "read" => self.receive(fd, number(2), 0, &call.args[1..]),
            "recv" | "recvfrom" => self.receive(fd, number(2), number(3).ok_or("unknown flags")?, &call.args[1..]),
            "readv" | "recvmsg" => {
                let message = call.args.get(1).ok_or("no buffer")?;
                self.receive(
                    fd,
                    Some(vector_bytes(message)?),
                    number(2).filter(|_| call.name == "recvmsg").unwrap_or(0),
                    &[],
                )
            }
            "write" => self.transmit(fd, number(2), 0, progress),
            "send" | "sendto" => self.transmit(fd, number(2), number(3).ok_or("unknown flags")?, progress),
            "writev" | "sendmsg" => {
                let message = call.args.get(1).ok_or("no buffer")?;
                self.transmit(
                    fd,
                    Some(vector_bytes(message)?),
                    number(2).filter(|_| call.name == "sendmsg").unwrap_or(0),
                    progress,
                )
            }
            "shutdown" => done(self.shutdown(fd, number(1).ok_or("an unknown way to shut down")?)),
            "close" => done(self.close(fd)),
            "fcntl" => self.fcntl(fd, call),
            "ioctl" => self.ioctl(fd, call),
            "setsockopt" => self.set_option(fd, call),
            "getsockopt" => self.get_option(fd, call),
            "epoll_ctl" => self.epoll_ctl(fd, call),
            "epoll_wait" => self.epoll_wait(fd, call, progress),
            other => Err(format!("{other}()")),
        }
    }

    fn socket(&mut self, kind: i64, wanted: Option<i64>) -> Answer {
        let fd = self.descriptors.open(DescriptorKind::Fresh, wanted);
        self.with(fd, |d| d.nonblocking = kind & c::O_NONBLOCK != 0)?;
        Ok(fd)
    }

    pub(crate) fn with(&mut self, fd: i64, change: impl FnOnce(&mut Descriptor)) -> Answer {
        change(self.descriptors.get_mut(fd).ok_or(EBADF)?);
        Ok(0)
    }

    pub(crate) fn stream(&self, fd: i64) -> Option<SocketId> {
        match self.descriptors.get(fd)?.kind {
            DescriptorKind::Stream(id) => Some(id),
            _ => None,
        }
    }

    fn listen(&mut self, fd: i64, backlog: i64) -> Answer {
        let Some(descriptor) = self.descriptors.get(fd) else { return Err(EBADF) };
        if descriptor.kind != DescriptorKind::Fresh {
            return Err(EINVAL);
        }
        let port = descriptor.port;
        let options = descriptor.options;
        let id = self.node.listen(port, backlog.max(0) as u32)?;
        self.node.set_options(id, options);
        self.with(fd, |d| d.kind = DescriptorKind::Listener(id))
    }

    fn accept(&mut self, fd: i64, flags: i64, wanted: Option<i64>) -> Outcome {
        let Some(&Descriptor { kind: DescriptorKind::Listener(listener), nonblocking, port, options, .. }) =
            self.descriptors.get(fd)
        else {
            return done(Err(EINVAL));
        };
        let Some(id) = self.node.accept(listener) else {
            return if nonblocking { done(Err(EAGAIN)) } else { Ok(None) };
        };
        let new = self.descriptors.open(DescriptorKind::Stream(id), wanted);
        let _ = self.with(new, |d| (d.nonblocking, d.port, d.options) = (flags & c::O_NONBLOCK != 0, port, options));
        done(Ok(new))
    }

    fn connect(&mut self, fd: i64, call: &Call, progress: &mut Progress) -> Outcome {
        let Some(descriptor) = self.descriptors.get(fd) else { return done(Err(EBADF)) };
        let nonblocking = descriptor.nonblocking;
        match descriptor.kind {
            DescriptorKind::Fresh => {
                let port = call.args.get(1).and_then(|a| a.member("sin_port")).and_then(Value::number);
                let port = port.map_or(LOCAL_PORT, |port| port as u16);
                match self.node.connect_with(IpAddr::from(REMOTE), port, descriptor.port, descriptor.options) {
                    Ok(id) => {
                        let nodelay = descriptor_nodelay(self.descriptors.get(fd));
                        if nodelay {
                            self.node.tell(id, |update| update.nodelay = true);
                        }
                        let _ = self.with(fd, |d| d.kind = DescriptorKind::Stream(id));
                        progress.begun = true;
                        if nonblocking { done(Err(EINPROGRESS)) } else { Ok(None) }
                    }
                    Err(errno) => done(Err(errno)),
                }
            }
            DescriptorKind::Stream(id) => match self.node.phase(id) {
                Phase::Connecting if progress.begun => Ok(None),
                Phase::Connecting => done(Err(c::EALREADY)),
                Phase::Failed(errno) => {
                    let told = descriptor.told;
                    let _ = self.with(fd, |d| d.told = true);
                    done(Err(if told { c::errno("ECONNABORTED").unwrap_or(0) } else { errno }))
                }
                _ if progress.begun => done(Ok(0)),
                _ => done(Err(EISCONN)),
            },
            _ => done(Err(EISCONN)),
        }
    }

    /// Takes the error that the next call reports once.
    pub(crate) fn take_error(&mut self, fd: i64) -> Option<i32> {
        let id = self.stream(fd)?;
        let errno = match self.node.phase(id) {
            Phase::Failed(errno) => errno,
            _ => self.node.words(id).1.errno,
        };
        let descriptor = self.descriptors.get_mut(fd)?;
        let report = errno != 0 && !descriptor.told;
        descriptor.told |= report;
        report.then_some(errno)
    }

    fn receive(&mut self, fd: i64, len: Option<i64>, flags: i64, _: &[Value]) -> Outcome {
        if flags & !(c::MSG_DONTWAIT | 0x4000) != 0 {
            return Err(format!("receiving with flags {flags:#x}"));
        }
        let Some(id) = self.stream(fd) else { return done(Err(ENOTCONN)) };
        let Some(descriptor) = self.descriptors.get(fd) else { return done(Err(EBADF)) };
        let (nonblocking, read, urgent) =
            (descriptor.nonblocking || flags & c::MSG_DONTWAIT != 0, descriptor.read, descriptor.urgent);
        let first = descriptor.first.unwrap_or_else(|| self.first_received());
        let mut buffer = vec![0; len.unwrap_or(0).max(0) as usize];
        match self.node.recv(id, &mut buffer) {
            Ok(n) => {
                let right = urgent
                    || buffer[..n].iter().zip(0..).all(|(byte, i)| *byte == pattern(first.wrapping_add(read + i)));
                let _ = self.with(fd, |d| (d.read, d.first) = (d.read + n as u32, Some(first)));
                Ok(Some(if right { Ok(Ok(n as i64)) } else { Err("the wrong bytes were read".into()) }))
            }
            Err(_) if self.node.words(id).0.shut_rd => done(Ok(0)),
            Err(EAGAIN) if nonblocking => done(Err(EAGAIN)),
            Err(EAGAIN) => Ok(None),
            Err(ENOTCONN) => done(Err(ENOTCONN)),
            Err(_) => done(self.take_error(fd).map_or(Ok(0), Err)),
        }
    }

    fn transmit(&mut self, fd: i64, len: Option<i64>, flags: i64, progress: &mut Progress) -> Outcome {
        if flags & !(c::MSG_DONTWAIT | c::MSG_MORE | c::MSG_OOB | c::MSG_EOR | 0x4000) != 0 {
            return Err(format!("sending with flags {flags:#x}"));
        }
        let Some(id) = self.stream(fd) else { return done(Err(EPIPE)) };
        if let Some(errno) = self.take_error(fd) {
            return done(Err(errno));
        }
        let (update, view) = self.node.words(id);
        if update.shut_wr || view.tx_closed || view.errno != 0 {
            return done(Err(EPIPE));
        }
        let Some(descriptor) = self.descriptors.get(fd) else { return done(Err(EBADF)) };
        let (nonblocking, cork) = (descriptor.nonblocking || flags & c::MSG_DONTWAIT != 0, descriptor.cork);
        let len = len.unwrap_or(0).max(0) as usize;
        let first = update.tx_tail.wrapping_add(1);
        let bytes: Vec<u8> = (progress.written..len).zip(0..).map(|(_, i)| pattern(first.wrapping_add(i))).collect();
        if cork || flags & c::MSG_MORE != 0 || update.cork {
            self.node.tell(id, |update| update.cork = cork || flags & c::MSG_MORE != 0);
        }
        if flags & c::MSG_EOR != 0 {
            // Shown before the bytes, as the library does.
            let end = update.tx_tail.wrapping_add(bytes.len() as u32);
            self.node.tell(id, |update| update.marks.get_or_insert_default().record = Some(end));
        }
        match self.node.send(id, &bytes) {
            Ok(n) => {
                progress.written += n;
                if flags & c::MSG_OOB != 0 && progress.written == len {
                    self.node.tell(id, |update| update.marks.get_or_insert_default().urgent = Some(update.tx_tail));
                }
                if progress.written == len || nonblocking { done(Ok(progress.written as i64)) } else { Ok(None) }
            }
            Err(EAGAIN) if nonblocking => done(Err(EAGAIN)),
            Err(EAGAIN) => Ok(None),
            Err(ENOTCONN) => done(Err(EPIPE)),
            Err(errno) => done(Err(errno)),
        }
    }

    fn shutdown(&mut self, fd: i64, how: i64) -> Answer {
        let id = self.stream(fd).ok_or(ENOTCONN)?;
        if matches!(self.node.phase(id), Phase::Gone | Phase::Failed(_)) {
            return Err(ENOTCONN);
        }
        self.node.tell(id, |update| {
            update.shut_rd |= how != 1;
            update.shut_wr |= how != 0;
        });
        Ok(0)
    }

    fn close(&mut self, fd: i64) -> Answer {
        let descriptor = self.descriptors.close(fd).ok_or(EBADF)?;
        match descriptor.kind {
            DescriptorKind::Listener(id) => self.node.close(id, false),
            DescriptorKind::Stream(id) => self.node.close(id, descriptor.abort),
            DescriptorKind::Fresh | DescriptorKind::Epoll => {}
        }
        Ok(0)
    }

    fn fcntl(&mut self, fd: i64, call: &Call) -> Outcome {
        let flags = call.args.get(2).and_then(Value::number);
        let nonblocking = self.descriptors.get(fd).is_some_and(|d| d.nonblocking);
        match (call.args.get(1).and_then(Value::number), flags) {
            (Some(3), _) => done(Ok(2 | if nonblocking { c::O_NONBLOCK } else { 0 })),
            (Some(4), Some(flags)) => done(self.with(fd, |d| d.nonblocking = flags & c::O_NONBLOCK != 0)),
            _ => Err("this fcntl()".into()),
        }
    }

    fn ioctl(&mut self, fd: i64, call: &Call) -> Outcome {
        let Some(id) = self.stream(fd) else { return done(Err(EINVAL)) };
        let (update, view) = self.node.words(id);
        let value = match call.args.get(1).and_then(Value::number) {
            Some(c::FIONREAD) => view.rx_tail.wrapping_sub(update.rx_head),
            Some(c::SIOCOUTQ) => update.tx_tail.wrapping_sub(view.tx_head),
            _ => return Err("this ioctl()".into()),
        };
        Ok(Some(out_value(call.args.get(2), i64::from(value))))
    }
}

fn descriptor_nodelay(descriptor: Option<&Descriptor>) -> bool {
    descriptor.is_some_and(|d| d.nodelay)
}

/// Compares a call's output argument with the script's `[value]`.
pub(crate) fn out_value(wanted: Option<&Value>, value: i64) -> Result<Answer, String> {
    match wanted.and_then(Value::number) {
        Some(wanted) if wanted != value => Err(format!("the value is {value}, expected {wanted}")),
        _ => Ok(Ok(0)),
    }
}

/// Bytes of all buffers of a message: `{msg_iov(1)=[{..., 1000}]}` or `[{..., 1000}]`.
fn vector_bytes(message: &Value) -> Result<i64, String> {
    if let Some(control) = message.member("msg_control")
        && !matches!(control, Value::List(list) if list.is_empty())
    {
        return Err("control messages".into());
    }
    match message.member("msg_iov").unwrap_or(message) {
        Value::List(list) => {
            Ok(list.iter().filter_map(|b| b.member("len").or_else(|| b.member("iov_len"))?.number()).sum())
        }
        _ => Err("this message".into()),
    }
}
