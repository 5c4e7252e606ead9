//! Workers that end in every way, and what becomes of the service. Each test is a broker in a process of its own.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::alone::alone;
use crate::{Change, Held, channel};
use rustix::fd::AsFd;
use rustix::process::{Signal as Sent, getpid, getppid, kill_process};
use std::cell::RefCell;
use std::net::IpAddr;

/// The number of a stack whose start takes as long as the test.
const LONG: u32 = 7;

/// Notes the ends of workers.
#[derive(Default)]
struct Life {
    /// For each: was it the last?
    ended: Vec<bool>,
    /// A signal for the broker when a worker has ended that is not the last.
    then: Option<Sent>,
}

impl Privileges for Life {
    fn owner(&self, _: &OwnedFd) -> Option<u32> {
        None
    }
    fn prove(&mut self, _: OwnedFd) -> Result<(OwnedFd, Held), i32> {
        Err(libc::EPERM)
    }
    fn neighbour(&mut self, _: u32, _: IpAddr, _: Change) -> Result<(), i32> {
        Err(libc::EPERM)
    }
    fn program(&mut self, _: i32) -> Result<Vec<u8>, i32> {
        Ok(b"/bin/it".into())
    }
    fn shares_network(&mut self, _: i32) -> Result<bool, i32> {
        Err(libc::EPERM)
    }
    fn reserve_ports(&mut self) -> Result<(), i32> {
        Err(libc::EPERM)
    }
    fn reserved_cpus(&mut self) -> Result<Vec<u8>, i32> {
        Err(libc::EPERM)
    }
    fn start_stack(&self, number: u32) -> Result<(), String> {
        if number == LONG {
            // SAFETY: pause(2) takes nothing.
            unsafe { libc::pause() };
        }
        Ok(())
    }
    fn configuration(&mut self) -> Result<OwnedFd, i32> {
        Err(libc::EPERM)
    }
    fn configuration_taken(&mut self) {}
    fn configuration_in_force(&self) -> Option<String> {
        (!self.ended.is_empty()).then(|| "another".to_owned())
    }
    fn open_sockets(&mut self, _: bool) -> Result<(), i32> {
        Err(libc::EPERM)
    }
    fn open_port(&mut self, _: u32, _: u32) -> Result<String, (i32, String)> {
        Err((libc::EPERM, String::new()))
    }
    fn port_part(&mut self, _: u32, _: u32) -> Result<OwnedFd, i32> {
        Err(libc::EPERM)
    }
    fn renew_port(&mut self, _: u32) -> Result<(), i32> {
        Err(libc::EPERM)
    }
    fn join(&mut self, _: u32, _: i32, _: IpAddr) -> Result<(OwnedFd, Held, u32), i32> {
        Err(libc::EPERM)
    }
    fn forget(&mut self) {}
    fn first_syns(&mut self, _: u32, _: bool) -> Result<OwnedFd, i32> {
        Err(libc::EPERM)
    }
    fn worker_ended(&mut self, last: bool) {
        self.ended.push(last);
        if let Some(signal) = self.then.take_if(|_| !last) {
            kill_process(getpid(), signal).unwrap();
        }
    }
}

/// The exit code of a service of such workers, and for each worker that ended whether it was the last.
fn service(worker: impl Fn(Beginning) -> u8) -> (u8, Vec<bool>) {
    service_with(None, worker)
}

fn service_with(then: Option<Sent>, worker: impl Fn(Beginning) -> u8) -> (u8, Vec<bool>) {
    let mut life = Life { then, ..Life::default() };
    let code = supervise(&mut life, &|_| Ok(()), &worker).unwrap();
    (code, life.ended)
}

fn dies() -> u8 {
    kill_process(getpid(), Sent::KILL).unwrap();
    unreachable!("it is dead");
}

/// Gives the broker a signal, and waits until it comes from there.
fn hears(signal: Sent) {
    kill_process(getppid().unwrap(), signal).unwrap();
    let all: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    assert_eq!(all.wait().unwrap() as i32, signal.as_raw());
}

#[test]
fn workers_alone_inherit_what_is_theirs() {
    if !alone("supervise::tests::workers_alone_inherit_what_is_theirs") {
        return;
    }
    let said = RefCell::new(Vec::new());
    let inherit = |yes| {
        said.borrow_mut().push(yes);
        Ok(())
    };
    let worker = |Beginning { broker, first, .. }: Beginning| {
        assert_eq!(said.borrow().last(), Some(&true));
        broker.serving().unwrap();
        if first { dies() } else { 0 }
    };
    assert_eq!(supervise(&mut Life::default(), &inherit, &worker).unwrap(), 0);
    assert_eq!(said.into_inner(), [true, false, true, false]);
}

#[test]
fn a_worker_that_has_never_served_is_the_last_however_it_ends() {
    if alone("supervise::tests::a_worker_that_has_never_served_is_the_last_however_it_ends") {
        assert_eq!(service(|_| 0), (0, vec![true]));
        assert_eq!(service(|_| 7), (7, vec![true]), "it has said why");
        assert_eq!(service(|_| dies()), (1, vec![true]));
        assert_eq!(service(|_| PANIC as u8), (1, vec![true]), "a panic is a death");
    }
}

#[test]
fn a_worker_that_has_served_is_replaced_when_it_fails_and_not_when_it_ends_well() {
    if alone("supervise::tests::a_worker_that_has_served_is_replaced_when_it_fails_and_not_when_it_ends_well") {
        let ends: [fn() -> u8; 3] = [dies, || 5, || PANIC as u8];
        for end in ends {
            let ended = service(|Beginning { broker, first, configuration, .. }| {
                assert_eq!((first, configuration.is_none()), (first, first), "it begins with what is in force");
                broker.serving().unwrap();
                if first { end() } else { 0 }
            });
            assert_eq!(ended, (0, vec![false, true]));
        }
        let well = service(|Beginning { broker, .. }| {
            broker.serving().unwrap();
            0
        });
        assert_eq!(well, (0, vec![true]));
    }
}

#[test]
fn three_workers_that_die_soon_are_the_end_though_the_later_ones_have_not_served() {
    if alone("supervise::tests::three_workers_that_die_soon_are_the_end_though_the_later_ones_have_not_served") {
        let ended = service(|Beginning { broker, first, .. }| {
            if first {
                broker.serving().unwrap();
            }
            dies()
        });
        assert_eq!(ended, (1, vec![false, false, true]));
    }
}

#[test]
fn a_signal_that_ends_the_service_is_given_to_the_worker_whose_end_is_the_services() {
    if alone("supervise::tests::a_signal_that_ends_the_service_is_given_to_the_worker_whose_end_is_the_services") {
        for signal in [Sent::TERM, Sent::INT] {
            for serves in [true, false] {
                let told = |end: fn() -> u8| {
                    service(move |Beginning { broker, .. }| {
                        if serves {
                            broker.serving().unwrap();
                        }
                        hears(signal);
                        end()
                    })
                };
                assert_eq!(told(|| 3), (3, vec![true]));
                assert_eq!(told(dies), (0, vec![true]), "no other follows one that dies while it ends");
            }
        }
    }
}

#[test]
fn a_hangup_is_given_to_the_worker_and_ends_nothing() {
    if alone("supervise::tests::a_hangup_is_given_to_the_worker_and_ends_nothing") {
        let ended = service(|Beginning { broker, first, .. }| {
            broker.serving().unwrap();
            hears(Sent::HUP);
            if first { dies() } else { 0 }
        });
        assert_eq!(ended, (0, vec![false, true]), "the death is one like any other");
    }
}

#[test]
fn between_two_workers_a_signal_ends_the_service_and_a_hangup_does_not() {
    if alone("supervise::tests::between_two_workers_a_signal_ends_the_service_and_a_hangup_does_not") {
        // Another worker would say so.
        let once = |signal, another: u8| {
            service_with(Some(signal), move |Beginning { broker, first, .. }| {
                broker.serving().unwrap();
                if first { dies() } else { another }
            })
        };
        assert_eq!(once(Sent::TERM, 9), (0, vec![false, true]));
        assert_eq!(once(Sent::INT, 9), (0, vec![false, true]));
        // The next worker says that it runs.
        let (says, said) = rustix::pipe::pipe().map(|(reading, writing)| (writing, reading)).unwrap();
        let ended = service_with(Some(Sent::HUP), |Beginning { broker, first, .. }| {
            broker.serving().unwrap();
            if first { dies() } else { u8::from(rustix::io::write(&says, b"x") != Ok(1)) }
        });
        drop(says);
        assert_eq!((ended, rustix::io::read(&said, &mut [0; 2])), ((0, vec![false, true]), Ok(1)));
    }
}

/// The pause between two workers is not cut short, so that one that dies at once takes no CPU.
#[test]
fn the_pause_between_two_workers_is_kept_unless_a_signal_ends_the_service() {
    if alone("supervise::tests::the_pause_between_two_workers_is_kept_unless_a_signal_ends_the_service") {
        let all: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).unwrap();
        let (pause, begun) = (Duration::from_millis(20), Instant::now());
        assert!(!wait_for_signal(&signals, pause) && begun.elapsed() >= pause);
        kill_process(getpid(), Sent::HUP).unwrap();
        assert!(!wait_for_signal(&signals, pause) && begun.elapsed() >= 2 * pause);
        kill_process(getpid(), Sent::TERM).unwrap();
        assert!(wait_for_signal(&signals, Duration::from_secs(1000)));
    }
}

/// The broker runs other programs, which must not take its signals.
#[test]
fn no_other_program_inherits_the_brokers_signals_and_no_read_of_them_waits() {
    if alone("supervise::tests::no_other_program_inherits_the_brokers_signals_and_no_read_of_them_waits") {
        let ended = service(|_| {
            let broker = getppid().unwrap().as_raw_nonzero();
            let files = std::fs::read_dir(format!("/proc/{broker}/fdinfo")).unwrap();
            let infos = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
            let info = infos.into_iter().find(|info| info.contains("sigmask:")).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            assert_eq!(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK), libc::O_CLOEXEC | libc::O_NONBLOCK);
            0
        });
        assert_eq!(ended, (0, vec![true]));
    }
}

/// A broker that kept it would wake for its end without a pause.
#[test]
fn a_workers_way_to_the_broker_is_closed_once() {
    if alone("supervise::tests::a_workers_way_to_the_broker_is_closed_once") {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut worker = Worker { socket: Some(ours), ..sleeper() };
        for _ in 0..2 {
            worker.close(&mut Apart::default(), &mut Life::default());
            assert!(worker.socket.is_none());
            assert!(channel::receive(&theirs, &mut [0; 1]).unwrap().is_none());
        }
        assert!(worker.kill());
    }
}

#[test]
fn a_broker_without_modules_and_namespaces_says_so() {
    let mut life = Life::default();
    assert_eq!(life.module(0, b"an object"), b"");
    assert_eq!(life.namespaces(), Err(libc::ENOSYS));
    assert_eq!(life.code_area().err().zip(life.successor_memory().err()), Some((libc::ENOSYS, libc::ENOSYS)));
}

#[test]
fn a_worker_that_breaks_the_protocol_is_killed() {
    if alone("supervise::tests::a_worker_that_breaks_the_protocol_is_killed") {
        let breaks = |broker: &Broker| {
            channel::send(broker.as_fd(), &[9; 3], None).unwrap();
            SigSet::empty().wait().map_or(0, |_| 0)
        };
        let ended = service(|Beginning { broker, first, .. }| {
            broker.serving().unwrap();
            if first { breaks(&broker) } else { 0 }
        });
        assert_eq!(ended, (0, vec![false, true]));
        assert_eq!(service(|Beginning { broker, .. }| breaks(&broker)), (1, vec![true]));
    }
}

#[test]
fn a_worker_may_close_its_way_to_the_broker_and_ask_while_it_is_there() {
    if alone("supervise::tests::a_worker_may_close_its_way_to_the_broker_and_ask_while_it_is_there") {
        let ended = service(|Beginning { broker, pulse, .. }| {
            assert_eq!(broker.program(7).unwrap(), b"/bin/it");
            assert_eq!(broker.start_stack(1), Ok(()));
            broker.serving().unwrap();
            pulse.beat();
            drop(broker);
            hears(Sent::HUP);
            hears(Sent::TERM);
            6
        });
        assert_eq!(ended, (6, vec![true]));
    }
}

/// A worker that waits for a signal.
fn sleeper() -> Worker {
    // SAFETY: the new process makes system calls only.
    let child = match unsafe { libc::fork() } {
        0 => {
            end_with(getppid().unwrap().as_raw_nonzero().get().cast_unsigned());
            // SAFETY: neither call takes a pointer.
            unsafe {
                libc::pause();
                libc::_exit(0)
            }
        }
        child => Pid::from_raw(child).unwrap(),
    };
    let process = rustix::process::pidfd_open(child, PidfdFlags::empty()).unwrap();
    let pulse = Pulse::new().unwrap();
    Worker { child, process, socket: None, told: None, killed: false, pulse, watch: None, noticed: Instant::now() }
}

#[test]
fn a_worker_that_does_not_run_is_killed_and_one_that_ends_is_given_its_time() {
    if !alone("supervise::tests::a_worker_that_does_not_run_is_killed_and_one_that_ends_is_given_its_time") {
        return;
    }
    let (mut worker, start) = (sleeper(), Instant::now());
    let late = start + Watch::limit();
    let looks = |worker: &mut Worker| (0..=12).for_each(|look| worker.look(late + Watch::limit() / 12 * look));
    looks(&mut worker);
    assert!(!worker.killed, "it does not serve yet");
    worker.watch = Some(Watch::new(worker.pulse, start));
    worker.told = Some(start);
    looks(&mut worker);
    assert!(!worker.killed, "it is told to end");
    worker.told = None;
    looks(&mut worker);
    assert!(worker.killed);
    assert_eq!(worker.ending().unwrap(), Ended::Death);
}

#[test]
fn a_worker_that_is_told_to_end_is_overdue_after_a_while_until_it_is_killed() {
    if !alone("supervise::tests::a_worker_that_is_told_to_end_is_overdue_after_a_while_until_it_is_killed") {
        return;
    }
    let (mut worker, now) = (sleeper(), Instant::now());
    assert!(!worker.is_overdue(now + LONGEST_END * 9));
    worker.told = Some(now);
    assert!(!worker.is_overdue(now + LONGEST_END) && worker.is_overdue(now + LONGEST_END + Duration::from_nanos(1)));
    assert!(worker.kill());
    worker.killed = true;
    assert!(!worker.is_overdue(now + LONGEST_END * 9));
    assert_eq!(worker.ending().unwrap(), Ended::Death);
    assert!(!worker.kill(), "there is none any more");
}

#[test]
fn an_exit_code_counts_unless_the_worker_was_killed_for_what_it_did() {
    if !alone("supervise::tests::an_exit_code_counts_unless_the_worker_was_killed_for_what_it_did") {
        return;
    }
    for (code, killed, ended) in [(5, false, Ended::Exit(5)), (5, true, Ended::Death), (PANIC, false, Ended::Death)] {
        let mut worker = sleeper();
        assert!(worker.kill());
        worker.ending().unwrap();
        // SAFETY: the new process ends at once.
        worker.child = match unsafe { libc::fork() } {
            // SAFETY: nothing of the tests is run any more.
            0 => unsafe { libc::_exit(code) },
            child => Pid::from_raw(child).unwrap(),
        };
        worker.killed = killed;
        assert_eq!(worker.ending().unwrap(), ended);
    }
}

#[test]
fn nothing_is_looked_at_before_its_time() {
    if !alone("supervise::tests::nothing_is_looked_at_before_its_time") {
        return;
    }
    let (mut worker, now) = (sleeper(), Instant::now());
    let little = Duration::from_micros(1);
    let (mut none, mut works) = (Apart::default(), Apart::default());
    let _pipe = works.start(&mut Life::default(), LONG).unwrap();
    assert_eq!((worker.idle_time(&mut none, now, false), worker.idle_time(&mut works, now, false)), (None, Some(TICK)));
    // Once a worker has served, it is said now and then that the broker runs, also while the next one begins.
    worker.noticed = now;
    assert_eq!(worker.idle_time(&mut none, now, true), Some(BEAT + little));
    assert_eq!(worker.idle_time(&mut none, now + BEAT / 2, true), Some(BEAT / 2 + little));
    worker.watch = Some(Watch::new(worker.pulse, now));
    let between = Watch::limit() / 12;
    // Whole seconds and a little are a time that the kernel takes.
    assert_eq!(worker.idle_time(&mut none, now, true), Some(between + little));
    assert_eq!(worker.idle_time(&mut none, now + between, true), Some(little));
    assert_eq!(worker.idle_time(&mut works, now, true), Some(TICK));
    worker.told = Some(now);
    assert_eq!(worker.idle_time(&mut none, now, true), Some(TICK));
    assert!(worker.kill());
    worker.ending().unwrap();
}

#[test]
fn pauses_grow_and_three_deaths_in_a_minute_are_the_end() {
    let (mut deaths, start) = (Deaths::default(), Instant::now());
    assert_eq!(deaths.one_more(start), Some(PAUSE));
    assert_eq!(deaths.one_more(start + Duration::from_secs(30)), Some(PAUSE * 4));
    // The first is forgotten.
    assert_eq!(deaths.one_more(start + WITHIN), Some(PAUSE * 4));
    assert_eq!(deaths.one_more(start + Duration::from_secs(62)), None);
}
