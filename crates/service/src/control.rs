//! The service's side of the control interface (see [`crate::api`]).

use crate::api::{self, Answer, Command, Hello, MAX_COMMAND_BYTES};
use crate::policy::Request;
use crate::shared::Shared;
use crate::stacks::OtherStack;
use rustix::fd::OwnedFd;
use rustix::net::SocketFlags;
use serde::Serialize;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use towpath_stack::{Connection, Movement};

/// Conversations at one time; more are turned away.
const MAX_CONVERSATIONS: usize = 32;

/// Accepts what waits on the control socket; each conversation has a thread.
pub fn accept(shared: &Arc<Shared>, listener: &OwnedFd) {
    while let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
        let asker = Asker {
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
            pid: credentials.pid.as_raw_nonzero().get(),
        };
        let conversation = shared.conversations.clone();
        if Arc::strong_count(&conversation) > MAX_CONVERSATIONS {
            continue;
        }
        let weak = Arc::downgrade(shared);
        let talk = move || {
            let _ = converse(&weak, UnixStream::from(socket), asker);
            drop(conversation);
        };
        let _ = std::thread::Builder::new().name("control".into()).spawn(talk);
    }
}

/// Who is on the other end.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Process.
    pub pid: i32,
}

fn converse(shared: &Weak<Shared>, stream: UnixStream, asker: Asker) -> io::Result<()> {
    stream.set_read_timeout(Some(api::TIMEOUT))?;
    stream.set_write_timeout(Some(api::TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.by_ref().take(MAX_COMMAND_BYTES).read_line(&mut line)? == 0 {
            return Ok(());
        }
        // The service may end while a conversation is open.
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let mut text = answer(&shared, &line, asker);
        drop(shared);
        text.push('\n');
        writer.write_all(text.as_bytes())?;
        if !line.ends_with('\n') {
            return Ok(());
        }
    }
}

/// The answer to one command line, as JSON without a line feed.
pub fn answer(shared: &Shared, line: &str, asker: Asker) -> String {
    let admission = &shared.settings.admission;
    let operator = admission.is_operator(asker.uid);
    if let Err(why) = admission.check(asker.uid, asker.gid) {
        return error(why);
    }
    match api::parse_command(line) {
        Err(why) => error(why),
        Ok(Command::Hello { hold }) => {
            shared.used();
            if hold {
                shared.hold(asker.pid);
            }
            good(&hello(shared))
        }
        Ok(Command::Stop) if operator => {
            shared.request_stop();
            good(&hello(shared))
        }
        Ok(Command::Stop) => error("only the service's own user and root may stop it".into()),
        Ok(Command::Exec { program }) if operator => exec(shared, &program),
        Ok(Command::Exec { .. }) => error("only the service's own user and root may run programs in its kernel".into()),
        Ok(Command::Move { to }) if operator => move_to(shared, &to),
        Ok(Command::Move { .. }) => error("only the service's own user and root may move its clients".into()),
        Ok(Command::Cores { set: None }) => good(&shared.cores.sizing(shared.stack.name(), true)),
        Ok(Command::Cores { set: Some(set) }) if operator => set_cores(shared, set),
        Ok(Command::Cores { .. }) => error("only the service's own user and root may set its cores".into()),
        Ok(Command::Policy(request)) if operator => policy(shared, &request),
        Ok(Command::Policy(_)) => error("only the service's own user and root may see and change the policy".into()),
        Ok(Command::Stack { name, start }) => stack(shared, &name, start),
        Ok(Command::Sockets) => {
            let seen = |c: &Connection| operator || c.uid == asker.uid;
            let sockets = shared.stack.connections().iter().filter(|c| seen(c)).map(socket).collect();
            good(&api::Sockets { sockets })
        }
        Ok(Command::Status) => good(&status(shared, operator, asker.uid)),
    }
}

fn other_stack(stack: &OtherStack) -> api::OtherStack {
    let OtherStack { name, socket, kind, .. } = stack;
    api::OtherStack { name: name.clone(), kind: (*kind).into(), socket: socket.clone(), running: stack.answers() }
}

fn stack(shared: &Shared, name: &str, start: bool) -> String {
    let stacks = shared.settings.stacks.clone();
    let Some(number) = stacks.number(name) else {
        let known = if stacks.names().is_empty() { "none".into() } else { stacks.names().join(", ") };
        return error(format!("there is no stack {name:?}; the service's configuration names {known} ([stacks.NAME])"));
    };
    let answer = good(&other_stack(&stacks.all()[number]));
    if start {
        let begin = move || {
            // Why it cannot be had stands in the log.
            let _ = stacks.reach(&stacks.all()[number]);
        };
        let _ = std::thread::Builder::new().name("start".into()).spawn(begin);
    }
    answer
}

fn exec(shared: &Shared, program: &[String]) -> String {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match shared.stack.execute(program) {
        Ok(done) => good(&api::Executed { code: done.code, out: text(done.out), err: text(done.err) }),
        Err(why) => error(format!("{}: {why}", program.first().map_or("", String::as_str))),
    }
}

fn move_to(shared: &Shared, to: &str) -> String {
    match shared.stack.move_to(to) {
        Ok(Movement { clients, connections, lost, took_us }) => {
            good(&api::Moved { clients, connections, lost, took_us })
        }
        Err(why) => error(format!("to {to}: {why}")),
    }
}

fn set_cores(shared: &Shared, set: api::SetCores) -> String {
    let cores = match set {
        api::SetCores::Auto => None,
        api::SetCores::To(cores) => Some(cores),
    };
    shared.cores.say(&*shared.stack, cores).map_or_else(error, |sizing| good(&sizing))
}

fn policy(shared: &Shared, request: &Request) -> String {
    let policy = &shared.settings.policy;
    if let Request::Test { question } = request {
        return policy.test(question).map_or_else(error, |tested| good(&tested));
    }
    match policy.change(request) {
        Err(why) => return error(why),
        Ok(true) => {
            shared.stack.policy_changed();
            tracing::info!(rules = policy.totals().rules, "policy changed: {}", request.words());
        }
        Ok(false) => {}
    }
    good(&policy.listing())
}

fn good<T: Serialize>(answer: &T) -> String {
    serde_json::to_string(answer).unwrap_or_else(|why| error(why.to_string()))
}

fn error(error: String) -> String {
    serde_json::to_string(&Answer::<()>::Error { error }).unwrap_or_default()
}

fn hello(shared: &Shared) -> Hello {
    let auto = shared.settings.auto.always;
    Hello { version: env!("CARGO_PKG_VERSION").into(), pid: std::process::id(), auto }
}

fn socket(c: &Connection) -> api::Socket {
    api::Socket {
        state: c.state.into(),
        recv_q: c.rx_queue,
        send_q: c.tx_queue,
        local: c.local,
        peer: c.remote,
        program: c.program.clone(),
        pid: c.pid,
        uid: c.uid,
        slot: c.slot,
        core: c.core,
        direct: c.direct,
        tcp: c.tcp,
    }
}

fn status(shared: &Shared, operator: bool, uid: u32) -> api::Status {
    let status = shared.stack.status();
    let name = |number: usize| shared.settings.ports.get(number).cloned().unwrap_or_default();
    let cores = status.cores.iter().enumerate().map(|(number, core)| api::Core {
        core: number,
        flows: core.flows,
        busy_us: core.busy_us,
        idle_us: core.idle_us,
        turns: core.turns,
        sleeps: core.sleeps,
        tally: (&core.tally).into(),
        ports: core
            .ports
            .iter()
            .enumerate()
            .map(|(port, counters)| api::Port {
                name: name(port),
                rx_frames: counters.rx_frames,
                tx_frames: counters.tx_frames,
                rx_dropped: counters.rx_dropped,
                tx_dropped: counters.tx_dropped,
            })
            .collect(),
    });
    let threads = status.threads.iter().map(|thread| api::Thread {
        groups: thread.groups.clone(),
        turns: thread.turns,
        busy_us: thread.busy_us,
        idle_us: thread.idle_us,
        sleeps: thread.sleeps,
    });
    let clients = status.clients.iter().filter(|c| operator || c.uid == uid).map(|c| api::Client {
        id: c.id.0,
        uid: c.uid,
        pid: c.pid,
        program: c.name.clone(),
        slots: c.slots,
        lies: c.lies,
        leaving: c.leaving,
    });
    api::Status {
        version: env!("CARGO_PKG_VERSION").into(),
        stack: shared.stack.name().into(),
        pid: std::process::id(),
        uptime_us: shared.started.elapsed().as_micros() as u64,
        socket: shared.settings.socket.clone(),
        interface: shared.settings.interface.clone(),
        cores: cores.collect(),
        threads: threads.collect(),
        sizing: shared.cores.sizing(shared.stack.name(), false),
        slow: (&status.slow).into(),
        kernel: (&status.not_ours).into(),
        stacks: shared.settings.stacks.all().iter().map(other_stack).collect(),
        policy: shared.settings.policy.totals(),
        auto: shared.settings.auto.rows(|owner| operator || owner == uid),
        clients: clients.collect(),
    }
}
