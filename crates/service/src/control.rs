//! The answering side of the control interface (see [`crate::api`]).

use crate::acceptor::{self, Accepted, Acceptor};
use crate::admission::Admission;
use crate::answer_line::{error, good};
use crate::api::{self, CaptureRequest, Command, Hello, MAX_COMMAND_BYTES};
use crate::capture;
use crate::container;
use crate::conversation::Lines;
use crate::events;
use crate::log;
use crate::modules;
use crate::other_stacks::{OtherStack, OtherStacks};
use crate::policy::peer_process;
use crate::policy::request::PolicyTotals;
use crate::policy_requests;
use crate::port_proof;
use crate::privileged;
use crate::received;
use crate::reload;
use crate::stack_factory::states;
use crate::state::ServiceState;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendFlags, SocketFlags};
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};
use towpath_ring::command::not_ours;
use towpath_ring::layout::VERSION;
use towpath_runtime::{Movement, SocketStatus};

/// The answer to who comes when descriptors have run out.
const NO_DESCRIPTOR: &str = "the service has no free descriptor; raise its limit with `ulimit -Hn` or LimitNOFILE=";
/// The answer of a stack that does not know how its connections end.
const NO_ENDS: &str = "its connections are a kernel's, which does not tell how they have ended";

/// Accepts what waits on the control socket; each conversation has a thread. A user who is not admitted is told so and
/// gets no place.
pub fn accept(state: &Arc<ServiceState>, listener: &OwnedFd, acceptor: &mut Acceptor) {
    for _ in 0..acceptor::BATCH {
        match acceptor.accept(listener, SocketFlags::CLOEXEC) {
            Accepted::Connection(socket) => begin(state, socket),
            Accepted::ToRefuse(socket) => refuse(socket, NO_DESCRIPTOR.into()),
            Accepted::Nothing => return,
        }
    }
}

fn begin(state: &Arc<ServiceState>, socket: OwnedFd) {
    let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else { return };
    let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
    let admission = state.settings.live.admission();
    if let Err(why) = admission.check(uid, gid) {
        return refuse(socket, why);
    }
    let pid = credentials.pid.as_raw_nonzero().get();
    let place = place_of(state, socket.as_fd(), pid, peer_process::ticks_now());
    let asker = Asker { uid, gid, pid, place };
    // The close without an answer says that the service is busy: `towpath run` asks again.
    let Some(place) = state.conversations.take(asker.uid, asker.is_operator(&admission)) else {
        return received::finish_apart(socket.into());
    };
    let weak = Arc::downgrade(state);
    let talk = move || {
        let _ = converse(&weak, Lines::new(socket), asker);
        drop(place);
    };
    let _ = std::thread::Builder::new().name("control".into()).spawn(talk);
}

/// Sends the reason without waiting. The socket's buffer is empty, so it fits.
fn refuse(socket: OwnedFd, why: String) {
    let text = error(why) + "\n";
    let _ = rustix::net::send(&socket, text.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    received::finish_apart(socket.into());
}

/// The process at the other end of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Process.
    pub pid: i32,
    /// Where it stands.
    pub place: Place,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the service does.
    Here,
    /// In a container ([`container::stands_apart`]), on the network that the stack serves.
    Container,
    /// In a container with another network.
    OtherNetwork,
    /// It cannot be seen: it has ended, or what it is in hides it.
    Unseen,
}

/// The place of the process at the other end of a socket.
fn place_of(state: &ServiceState, socket: BorrowedFd<'_>, pid: i32, accepted: u64) -> Place {
    let served = state.stack.namespace();
    match container::stands_apart(socket, pid, accepted) {
        Some(false) => Place::Here,
        Some(true) if served.is_some() && port_proof::namespace(socket) == served => Place::Container,
        Some(true) => Place::OtherNetwork,
        None => Place::Unseen,
    }
}

impl Asker {
    /// May it see and do everything?
    fn is_operator(&self, admission: &Admission) -> bool {
        self.place == Place::Here && admission.is_operator(self.uid)
    }
    /// Does it see what belongs to this user? Users of another network have the same numbers.
    fn sees(&self, operator: bool, uid: u32) -> bool {
        operator || (self.uid == uid && matches!(self.place, Place::Here | Place::Container))
    }
    /// The answer to an order that only an operator gives.
    fn refused(&self, order: &str) -> String {
        let place = match self.place {
            Place::Here => "",
            Place::Container | Place::OtherNetwork => "; from a container nobody may",
            Place::Unseen => {
                "; the service cannot see your process in /proc (hidepid, ProtectProc=), so it may be in a container"
            }
        };
        error(format!("only the service's own user and root may {order}{place}"))
    }
}

fn converse(state: &Weak<ServiceState>, mut lines: Lines, asker: Asker) -> io::Result<()> {
    while let Some(line) = lines.next(MAX_COMMAND_BYTES as usize, Instant::now() + api::TIMEOUT)? {
        // The service may end while a conversation is open.
        let Some(state) = state.upgrade() else { return Ok(()) };
        if let Some(request) = capture_request(&state, &line, asker) {
            return capture::serve(state, lines.socket(), &request);
        }
        let mut text = answer(&state, &line, asker);
        drop(state);
        text.push('\n');
        lines.write(text.as_bytes(), Instant::now() + api::TIMEOUT)?;
        if !line.ends_with('\n') {
            return Ok(());
        }
    }
    Ok(())
}

/// The capture that an operator asks for by this line. It takes the conversation over.
fn capture_request(state: &ServiceState, line: &str, asker: Asker) -> Option<CaptureRequest> {
    match api::parse_command(line) {
        Ok(Command::Capture(request)) if asker.is_operator(&state.settings.live.admission()) => Some(request),
        _ => None,
    }
}

/// The answer to one command line, as JSON without a line feed.
pub fn answer(state: &ServiceState, line: &str, asker: Asker) -> String {
    let admission = state.settings.live.admission();
    let operator = asker.is_operator(&admission);
    if let Err(why) = admission.check(asker.uid, asker.gid) {
        return error(why);
    }
    match api::parse_command(line) {
        Err(why) => error(why),
        Ok(Command::Hello { hold }) => {
            if let Err(why) = admission.check_client(asker.uid, asker.gid) {
                return error(why);
            }
            state.used();
            if hold {
                state.hold(asker.pid);
            }
            good(&hello(state))
        }
        Ok(Command::Stop { drain_s }) if operator => stop(state, drain_s),
        Ok(Command::Stop { .. }) => asker.refused("stop it"),
        Ok(Command::Log { filter, reset }) if operator => {
            log::level(filter.as_deref(), reset).map_or_else(error, |level| good(&level))
        }
        Ok(Command::Log { .. }) => asker.refused("see and set what is logged"),
        Ok(Command::Reload) if operator => reload::reload(state).map_or_else(error, |reloaded| good(&reloaded)),
        Ok(Command::Reload) => asker.refused("have it read its configuration"),
        Ok(Command::Reset(which)) if operator => reset(state, &which),
        Ok(Command::Reset(_)) => asker.refused("end connections"),
        // An operator's is not answered here.
        Ok(Command::Capture(_)) => asker.refused("capture"),
        Ok(Command::Events) if operator => good(&events::all()),
        Ok(Command::Events) => asker.refused("see its events"),
        Ok(Command::Configuration) if operator => configuration(state),
        Ok(Command::Configuration) => asker.refused("see its configuration"),
        Ok(Command::Module(request)) if operator => modules::serve(&state.modules, &*state.stack, &request),
        Ok(Command::Module(_)) => asker.refused("see and change modules"),
        Ok(Command::Exec { program }) if operator => exec(state, &program),
        Ok(Command::Exec { .. }) => asker.refused("run programs in its kernel"),
        Ok(Command::Move { to }) if operator => move_to(state, &to),
        Ok(Command::Move { .. }) => asker.refused("move its clients"),
        Ok(Command::Cores { set: None }) => good(&state.threads.sizing(state.stack.name(), true)),
        Ok(Command::Cores { set: Some(set) }) if operator => set_cores(state, set),
        Ok(Command::Cores { .. }) => asker.refused("set how many workers run"),
        Ok(Command::Policy(request)) if operator => policy_requests::serve(state, &request),
        Ok(Command::Policy(_)) => asker.refused("see and change the policy"),
        Ok(Command::Stack { name, start }) => stack(state, &name, start),
        Ok(Command::Sockets) => {
            let seen = |c: &SocketStatus| asker.sees(operator, c.uid);
            let sockets = state.stack.connections().into_iter().filter(seen).collect();
            good(&api::Sockets { sockets })
        }
        Ok(Command::Ended) => match state.stack.ended() {
            Some(mut ended) => {
                ended.retain(|one| asker.sees(operator, one.uid));
                good(&api::Ended { ended })
            }
            None => error(NO_ENDS.into()),
        },
        Ok(Command::Status) => good(&status(state, operator, |uid| asker.sees(operator, uid))),
    }
}

fn reset(state: &ServiceState, which: &api::Reset) -> String {
    let chooses = match which.chooses() {
        Ok(chooses) => chooses,
        Err(why) => return error(why),
    };
    let connections = state.stack.connections();
    let chosen = connections.iter().filter(|c| c.state != "LISTEN" && chooses(c.local, c.peer));
    match state.stack.cut(chosen.map(|c| (c.local, c.peer)).collect()) {
        Ok(reset) => good(&api::ResetDone { reset }),
        Err(why) => error(why.to_string()),
    }
}

/// The configuration in force.
fn configuration(state: &ServiceState) -> String {
    let in_force = state.settings.source.in_force.lock().unwrap_or_else(PoisonError::into_inner);
    good(&api::ConfigurationInForce { file: in_force.file.clone(), keys: in_force.in_words() })
}

fn other_stack(stacks: &OtherStacks, number: usize) -> api::OtherStackStatus {
    let stack = &stacks.all()[number];
    let OtherStack { name, socket, kind, .. } = stack;
    let (running, failed) = (stack.answers(), stacks.failure(number));
    api::OtherStackStatus { name: name.clone(), kind: (*kind).into(), socket: socket.clone(), running, failed }
}

fn stack(state: &ServiceState, name: &str, start: bool) -> String {
    let stacks = state.settings.stacks.clone();
    let Some(number) = stacks.number(name) else {
        let known = if stacks.names().is_empty() { "none".into() } else { stacks.names().join(", ") };
        return error(format!("there is no stack {name:?}; the service's configuration names {known} ([stacks.NAME])"));
    };
    if start {
        stacks.forget_failure(number);
    }
    let answer = good(&other_stack(&stacks, number));
    if start {
        let begin = move || {
            // The log holds the reason of a failure, and the next answer has it.
            let _ = stacks.reach(number);
        };
        let _ = std::thread::Builder::new().name("start".into()).spawn(begin);
    }
    answer
}

fn exec(state: &ServiceState, program: &[String]) -> String {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match state.stack.execute(program) {
        Ok(done) => good(&api::Executed { code: done.code, out: text(done.out), err: text(done.err) }),
        Err(why) => error(format!("{}: {why}", program.first().map_or("", String::as_str))),
    }
}

fn move_to(state: &ServiceState, to: &str) -> String {
    match state.stack.move_to(to) {
        Ok(Movement { clients, connections, lost, took_us }) => {
            good(&api::Moved { clients, connections, lost, took_us })
        }
        Err(why) => error(format!("to {to}: {why}")),
    }
}

fn set_cores(state: &ServiceState, set: api::SetCores) -> String {
    let workers = match set {
        api::SetCores::Auto => None,
        api::SetCores::To(workers) => Some(workers),
    };
    state.threads.fix(&*state.stack, workers).map_or_else(error, |sizing| good(&sizing))
}

fn hello(state: &ServiceState) -> Hello {
    let auto = state.settings.auto.always;
    let (contract, features) = (VERSION, state.features());
    Hello { version: env!("CARGO_PKG_VERSION").into(), pid: privileged::service_process(), auto, contract, features }
}

/// Ends the service, or has it drain.
fn stop(state: &ServiceState, drain_s: Option<u32>) -> String {
    if let Some(seconds) = drain_s {
        state.drain(Duration::from_secs(seconds.into()));
    }
    let connections = state.stack.connections();
    let open = connections.iter().filter(|one| !matches!(&*one.state, "LISTEN" | "TIME-WAIT"));
    let (direct, others): (Vec<_>, Vec<_>) = open.partition(|one| one.direct);
    let connections = others.len() + direct.len().div_ceil(2);
    if drain_s.is_none() {
        state.request_stop();
    }
    let Hello { version, pid, .. } = hello(state);
    good(&api::Stopping { version, pid, connections })
}

/// What is shown to an operator, or to others: nothing of a policy and a configuration that they may not see.
fn status(state: &ServiceState, operator: bool, seen: impl Fn(u32) -> bool) -> api::Status {
    let status = state.stack.status();
    let names = state.settings.port_names();
    let name = |number: usize| names.get(number).cloned().unwrap_or_default();
    let flow_groups = status.flow_groups.into_iter().enumerate().map(|(flow_group, mut status)| {
        let ports = std::mem::take(&mut status.ports).into_iter().enumerate();
        let ports = ports.map(|(number, status)| api::NamedPort { name: name(number), status }).collect();
        api::NumberedFlowGroup { flow_group, status, ports }
    });
    let not_ours = not_ours::NAMES.into_iter().zip(status.not_ours);
    let (mut clients, stacks) = (status.clients, &*state.settings.stacks);
    clients.retain(|client| seen(client.uid));
    let ended = status.ended.into_iter().filter(|ended| seen(ended.uid)).collect();
    let (policy, configuration) = (state.settings.policy.totals(), state.settings.source.status());
    let others_policy = PolicyTotals { generation: None, hash: None, ..policy.clone() };
    api::Status {
        version: env!("CARGO_PKG_VERSION").into(),
        stack: state.stack.name().into(),
        pid: privileged::service_process(),
        uptime_us: state.started.elapsed().as_micros() as u64,
        socket: state.settings.socket.clone(),
        interfaces: states(&state.settings.interfaces),
        flow_groups: flow_groups.collect(),
        workers: status.workers,
        sizing: state.threads.sizing(state.stack.name(), false),
        slow: status.slow,
        kernel: not_ours.collect(),
        listeners: status.listeners,
        stacks: (0..stacks.all().len()).map(|number| other_stack(stacks, number)).collect(),
        policy: if operator { policy } else { others_policy },
        configuration: operator.then_some(configuration),
        auto: state.settings.auto.rows(seen),
        sandbox: state.settings.sandbox.status(),
        clients,
        ended,
    }
}
