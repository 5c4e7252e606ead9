//! Serves one request of the worker.

use crate::Privileges;
use crate::apart::Apart;
use crate::channel;
use crate::message::{Answer, Numbered, REQUEST, Request};
use rustix::fd::OwnedFd;
use std::io;

/// What the worker's request was.
#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    /// It is answered.
    Answered,
    /// It is answered: clients are served now.
    Serving,
    /// The worker has closed its end.
    Ended,
}

/// Receives a request and answers it, without waiting for the worker or a client. An error: the worker broke the protocol,
/// or does not take its answers.
pub fn serve(socket: &OwnedFd, privileges: &mut dyn Privileges, apart: &mut Apart) -> io::Result<Served> {
    let mut bytes = [0; REQUEST];
    let Some((length, shown)) = channel::peek(socket, &mut bytes)? else { return Ok(Served::Ended) };
    let request = Numbered::decode(&bytes[..length]).filter(|all| all.request.descriptors() == usize::from(shown));
    let Numbered { number, request } = request.ok_or(io::ErrorKind::InvalidData)?;
    if request != Request::Prove {
        channel::skip(socket)?;
    }
    let plain = |result: Result<(), i32>| Answer::plain(number, result.err().unwrap_or(0));
    let text = |result: Result<Vec<u8>, i32>| match result {
        Ok(text) => Answer { text, ..Answer::plain(number, 0) },
        Err(error) => Answer::plain(number, error),
    };
    let (mut served, mut sent) = (Served::Answered, None);
    let mut descriptor = |result: Result<OwnedFd, i32>| match result {
        Ok(descriptor) => {
            sent = Some(descriptor);
            Answer::plain(number, 0)
        }
        Err(error) => Answer::plain(number, error),
    };
    let apart_errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EAGAIN);
    let answer = match request {
        Request::Prove => descriptor(apart.prove(socket, number, privileges)?),
        Request::Join { namespace, process, remote } => {
            descriptor(apart.join(privileges, number, (namespace, process, remote)).map_err(apart_errno))
        }
        Request::Neighbour { device, address, change } => plain(privileges.neighbour(device, address, change)),
        Request::Program { process } => text(privileges.program(process)),
        Request::SharesNetwork { process } => match privileges.shares_network(process) {
            Ok(yes) => Answer { yes, ..Answer::plain(number, 0) },
            Err(error) => Answer::plain(number, error),
        },
        Request::ReservePorts => plain(privileges.reserve_ports()),
        Request::Namespaces => text(privileges.namespaces()),
        Request::ReservedCpus => text(privileges.reserved_cpus()),
        Request::StartStack { number: stack } => descriptor(apart.start(privileges, stack).map_err(apart_errno)),
        Request::Configuration => descriptor(privileges.configuration()),
        Request::CodeArea => descriptor(privileges.code_area()),
        Request::SuccessorMemory => descriptor(privileges.successor_memory()),
        Request::Module { place } => descriptor(apart.module(privileges, place).map_err(apart_errno)),
        Request::FirstSyns { number: interface, v6 } => descriptor(privileges.first_syns(interface, v6)),
        Request::ConfigurationTaken => {
            privileges.configuration_taken();
            Answer::plain(number, 0)
        }
        Request::OpenSockets { open } => plain(privileges.open_sockets(open)),
        Request::OpenPort { number: port, queues } => match privileges.open_port(port, queues) {
            Ok(text) => Answer { text: text.into(), ..Answer::plain(number, 0) },
            Err((error, why)) => Answer { text: why.into(), ..Answer::plain(number, error) },
        },
        Request::PortPart { number: port, part } => descriptor(privileges.port_part(port, part)),
        Request::RenewPort { number: port } => plain(privileges.renew_port(port)),
        Request::Serving => {
            served = Served::Serving;
            Answer::plain(number, 0)
        }
    };
    channel::answer(socket, &answer, sent)?;
    Ok(served)
}

#[cfg(test)]
mod tests;
