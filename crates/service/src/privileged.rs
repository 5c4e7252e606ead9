//! What the service cannot do without privilege. A worker asks its broker; a service without one does it itself.

use crate::namespace_cookies::{Found, Names, decode};
use crate::successor_memory::SuccessorMemory;
use crate::{config_text, paths, port_proof, proc_links};
use rustix::fd::{AsFd, OwnedFd};
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use towpath_broker::{Broker, Held};
use towpath_modules::code::{Area, Code};
use towpath_modules::compiled::{Compiled, answered};
use towpath_modules::{LoadError, Object};
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::Grant;
use towpath_rxcpus::{CpuSet, Tree, state_place};

/// The broker of this process. It is set once, before the first thread.
static BROKER: OnceLock<Broker> = OnceLock::new();

/// From now on this process asks its broker.
pub fn set_broker(broker: Broker) {
    let _ = BROKER.set(broker);
}

/// The broker, if this process has one.
pub fn broker() -> Option<&'static Broker> {
    BROKER.get()
}

/// The process that stands for the service: the one that was started.
pub fn service_process() -> u32 {
    let parent = || rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned());
    broker().and_then(|_| parent()).unwrap_or_else(std::process::id)
}

/// [`port_proof::prove`].
pub fn prove(shown: &OwnedFd, home: Option<u64>) -> Result<(OwnedFd, Grant), i32> {
    let Some(broker) = broker() else { return port_proof::prove(shown, home) };
    // Another descriptor's close may wait. So it stays in this thread, which is its client's.
    if port_proof::owner(shown).is_none() {
        return Err(-libc::EINVAL);
    }
    let (own, Held { addr, port, dual }) = broker.prove(shown.as_fd()).map_err(|answer| match answer {
        // The client's own socket can use it.
        answer if answer == -libc::EAGAIN => NOT_OURS + not_ours::ELSEWHERE as i32,
        answer => answer,
    })?;
    Ok((own, Grant { addr, port, dual }))
}

/// Memory for the code of modules, or why there is none. A confined process maps it before it gives up the right to.
static CODE: OnceLock<io::Result<Arc<Area>>> = OnceLock::new();

/// Maps the memory that the broker writes the code of modules to. Without it modules are interpreted; who adds one is told.
pub fn map_code() {
    if let Some(broker) = broker() {
        let _ = CODE.set(broker.code_area().and_then(|memory| Area::map(memory.as_fd())));
    }
}

/// Memory that the next worker process reads. `None`: this process has no broker, so no other follows it.
pub fn successor_memory() -> Option<io::Result<SuccessorMemory>> {
    broker().map(|broker| broker.successor_memory().map(SuccessorMemory::new))
}

/// Has the kernel's verifier judge a module, and compiles it. `None`: it is to be interpreted.
pub type Prepare = fn(&Object) -> Result<Option<Compiled>, LoadError>;

static PREPARE: OnceLock<Prepare> = OnceLock::new();

/// What this process does itself if it has no broker.
pub fn set_prepare(prepare: Prepare) {
    let _ = PREPARE.set(prepare);
}

/// Has a module judged and compiled. Returns its code and the offsets of its functions. `None`: it is to be interpreted.
pub fn prepare_module(file: &[u8], object: &Object) -> Result<Option<(Code, Vec<u32>)>, String> {
    let Some(broker) = broker() else {
        let prepared = PREPARE.get().map_or(Ok(None), |prepare| prepare(object));
        let Some(compiled) = prepared.map_err(|why| why.to_string())? else { return Ok(None) };
        let code = Code::new(&compiled.code).map_err(|why| format!("no memory for its code: {why}"))?;
        return Ok(Some((code, compiled.functions)));
    };
    let area = match CODE.get() {
        Some(Ok(area)) => area,
        Some(Err(error)) => {
            tracing::warn!(%error, "the module is interpreted: there is no memory for its code");
            return Ok(None);
        }
        None => return Ok(None),
    };
    let place = area.place().ok_or("there is no place for another module's code: 64 are there")?;
    let said = broker.module(place.number(), file).map_err(|why| format!("the broker does not answer: {why}"))?;
    Ok(answered(&said)?.map(|functions| (Code::at_place(place), functions)))
}

/// [`towpath_broker::Privileges::join`]. Only a service with a broker joins programs of several namespaces.
pub fn join(namespace: u32, process: i32, remote: IpAddr) -> io::Result<(OwnedFd, SocketAddr, u32)> {
    let broker = broker().ok_or(io::ErrorKind::Unsupported)?;
    let (own, held, device) = broker.join(namespace, process, remote)?;
    Ok((own, SocketAddr::new(held.addr, held.port), device))
}

/// The text of the configuration file as it is now.
pub fn configuration(file: &Path) -> io::Result<String> {
    let Some(broker) = broker() else { return config_text::read(file) };
    let (memory, mut bytes) = (broker.configuration()?, vec![0; config_text::MOST_TEXT as usize]);
    // The position of the descriptor is the broker's, at the end.
    let length = rustix::io::pread(&memory, &mut bytes, 0)?;
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The configuration that was read last is in force: the next worker begins with it.
pub fn configuration_taken() -> io::Result<()> {
    broker().map_or(Ok(()), Broker::configuration_taken)
}

/// [`paths::set_socket_modes`].
pub fn open_sockets(socket: &Path, open: bool) -> io::Result<()> {
    match broker() {
        Some(broker) => broker.open_sockets(open),
        None => paths::set_socket_modes(socket, open),
    }
}

/// [`proc_links::program_of`].
pub fn program(process: i32) -> Option<PathBuf> {
    let executable = match broker() {
        Some(broker) => broker.program(process).ok().map(|path| OsString::from_vec(path).into()),
        None => proc_links::executable_of(process),
    };
    executable.map(|executable| proc_links::program_of(process, executable))
}

/// The CPUs that `towpath cores enforce` has reserved. `None`: the broker does not answer.
pub fn reserved_cpus() -> Option<CpuSet> {
    match broker() {
        Some(broker) => CpuSet::of_list(std::str::from_utf8(&broker.reserved_cpus().ok()?).ok()?),
        None => Some(towpath_rxcpus::reserved(&state_place(), &Tree::default())),
    }
}

/// What the names of a configuration lead to.
pub fn namespaces(names: &Names) -> io::Result<Vec<Found>> {
    match broker() {
        Some(broker) => decode(&broker.namespaces()?).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        None => Ok(names.ask()),
    }
}

/// [`proc_links::shares_network`].
pub fn shares_network(process: i32) -> Option<bool> {
    match broker() {
        Some(broker) => broker.shares_network(process).ok(),
        None => proc_links::shares_network(process),
    }
}
