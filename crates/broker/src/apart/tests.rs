//! Each test has a process of its own: the processes that it makes have copies of no other test's descriptors.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::alone::alone;
use crate::{Change, Held};
use rustix::fd::AsFd;
use rustix::process::{WaitId, WaitIdOptions, WaitStatus, waitid};
use std::net::IpAddr;

/// Nothing is asked for but what begins a process.
struct Nothing;

impl Privileges for Nothing {
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
        Err(libc::EPERM)
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
    fn start_stack(&self, _: u32) -> Result<(), String> {
        Err("x".repeat(2 * MOST_TEXT))
    }
    fn configuration(&mut self) -> Result<OwnedFd, i32> {
        Err(libc::EPERM)
    }
    fn configuration_taken(&mut self) {}
    fn configuration_in_force(&self) -> Option<String> {
        None
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
    fn worker_ended(&mut self, _: bool) {}
    fn module(&mut self, place: u32, object: &[u8]) -> Vec<u8> {
        [object, format!(" for {place}").as_bytes()].concat()
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A process that waits for a signal.
fn sleeper() -> Pid {
    // SAFETY: pause(2) takes nothing.
    fork().unwrap().unwrap_or_else(|| leave(|| unsafe { _ = libc::pause() }))
}

/// So many processes with this task, beside others.
fn with(apart: &mut Apart, count: usize, task: Task) {
    apart.running.extend((0..count).map(|_| (sleeper(), task)));
}

/// Ends what still waits. Its number stays its own until [`Apart::count`].
fn stop(process: Pid) {
    rustix::process::kill_process(process, Signal::USR1).unwrap();
    waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
}

/// Had it been ended before? SIGKILL comes before other signals.
fn was_ended(process: Pid) -> bool {
    stop(process);
    let (_, status) = waitpid(Some(process), WaitOptions::empty()).unwrap().unwrap();
    status.terminating_signal() == Some(Signal::KILL.as_raw())
}

fn exit_of(child: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the new process runs this function only, and ends.
    let process = match unsafe { libc::fork() } {
        // SAFETY: nothing of the tests is run any more.
        0 => unsafe { libc::_exit(child()) },
        process => Pid::from_raw(process).unwrap(),
    };
    waitpid(Some(process), WaitOptions::empty()).unwrap().and_then(|(_, status): (_, WaitStatus)| status.exit_status())
}

#[test]
fn a_socket_in_which_descriptors_wait_is_closed_by_another_process() {
    if !alone("apart::tests::a_socket_in_which_descriptors_wait_is_closed_by_another_process") {
        return;
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    for (shown, processes) in [(None, 0), (Some(file.as_fd()), 1)] {
        let (ours, theirs) = pair();
        for message in [None, shown] {
            channel::send(&theirs, &[7; REQUEST], message).unwrap();
        }
        let mut apart = Apart::default();
        apart.close(ours, &mut || {});
        assert_eq!(apart.running.len(), processes);
        assert!(channel::send(&theirs, &[7], None).is_err(), "it is closed");
    }
}

#[test]
fn processes_that_have_ended_are_forgotten() {
    if !alone("apart::tests::processes_that_have_ended_are_forgotten") {
        return;
    }
    let mut apart = Apart::default();
    assert!(apart.is_empty());
    with(&mut apart, 2, Task::Socket);
    assert!(!apart.is_empty());
    stop(apart.running[0].0);
    assert_eq!((apart.count(|_| true), apart.running.len()), (1, 1));
    stop(apart.running[0].0);
    assert!(apart.is_empty());
}

#[test]
fn proofs_are_begun_up_to_a_number_and_starts_of_stacks_do_not_count() {
    if !alone("apart::tests::proofs_are_begun_up_to_a_number_and_starts_of_stacks_do_not_count") {
        return;
    }
    let (ours, theirs) = pair();
    let mut apart = Apart::default();
    with(&mut apart, MOST_STARTS, Task::Start(1));
    with(&mut apart, MOST_PROOFS / 2, Task::Proof(1));
    with(&mut apart, MOST_PROOFS - MOST_PROOFS / 2 - 1, Task::Socket);
    let file = std::fs::File::open("/dev/null").unwrap();
    channel::send(&theirs, &[1; REQUEST], Some(file.as_fd())).unwrap();
    let answers = apart.prove(&ours, 5, &mut Nothing).unwrap().unwrap();
    let (last, task) = *apart.running.last().unwrap();
    assert_eq!((task, apart.waiting().count()), (Task::Socket, 1));
    // What is shown is no socket: it says so itself, and nothing else.
    let mut bytes = vec![0; crate::message::ANSWER];
    let (length, none) = channel::receive(&answers, &mut bytes).unwrap().unwrap();
    let answer = Answer::decode(&bytes[..length]).unwrap();
    assert_eq!((answer.number, answer.result, none.is_none()), (5, -libc::EINVAL, true));
    waitid(WaitId::Pid(last), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    with(&mut apart, 1, Task::Socket);
    channel::send(&theirs, &[1; REQUEST], Some(file.as_fd())).unwrap();
    channel::send(&theirs, &[2; REQUEST], None).unwrap();
    assert_eq!(apart.prove(&ours, 6, &mut Nothing).unwrap().unwrap_err(), -libc::EAGAIN);
    assert_eq!(channel::receive(&ours, &mut bytes).unwrap().unwrap().0, REQUEST, "the message is gone");
    assert_eq!(bytes[0], 2);
}

#[test]
fn stacks_are_started_up_to_a_number_each_once_at_a_time_and_proofs_do_not_count() {
    if !alone("apart::tests::stacks_are_started_up_to_a_number_each_once_at_a_time_and_proofs_do_not_count") {
        return;
    }
    let busy = |result: io::Result<OwnedFd>| result.map_err(|error| error.raw_os_error());
    let mut apart = Apart::default();
    with(&mut apart, MOST_STARTS, Task::Proof(1));
    with(&mut apart, 1, Task::Start(7));
    assert_eq!(busy(apart.start(&mut Nothing, 7)).unwrap_err(), Some(libc::EBUSY));
    with(&mut apart, MOST_STARTS - 2, Task::Start(8));
    let mut said = String::new();
    std::fs::File::from(apart.start(&mut Nothing, 9).unwrap()).read_to_string(&mut said).unwrap();
    assert_eq!(said, format!("-{}", "x".repeat(MOST_TEXT / 4)), "a reason of any length is cut off");
    let (started, task) = *apart.running.last().unwrap();
    assert_eq!(task, Task::Start(9));
    waitid(WaitId::Pid(started), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    with(&mut apart, 1, Task::Start(10));
    assert_eq!(busy(apart.start(&mut Nothing, 9)).unwrap_err(), Some(libc::EBUSY));
}

#[test]
fn joins_are_looked_for_up_to_a_number_and_hold_up_no_proof() {
    if !alone("apart::tests::joins_are_looked_for_up_to_a_number_and_hold_up_no_proof") {
        return;
    }
    let mut apart = Apart::default();
    with(&mut apart, MOST_JOINS - 1, Task::Join);
    with(&mut apart, MOST_PROOFS, Task::Proof(1));
    let ask = |apart: &mut Apart| apart.join(&mut Nothing, 9, (0, 1, IpAddr::from([192, 0, 2, 1])));
    let answers = ask(&mut apart).unwrap();
    let mut bytes = vec![0; crate::message::ANSWER];
    let (length, own) = channel::receive(&answers, &mut bytes).unwrap().unwrap();
    assert_eq!(Answer::decode(&bytes[..length]), Some(Answer::plain(9, libc::EPERM)));
    assert!(own.is_none());
    with(&mut apart, 1, Task::Join);
    assert_eq!(ask(&mut apart).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    // The others are at work, and a proof has its own places.
    stop(apart.running.iter().find(|(_, task)| *task == Task::Proof(1)).unwrap().0);
    let (ours, theirs) = pair();
    let file = std::fs::File::open("/dev/null").unwrap();
    channel::send(&theirs, &[1; REQUEST], Some(file.as_fd())).unwrap();
    assert!(apart.prove(&ours, 1, &mut Nothing).unwrap().is_ok());
    for (process, _) in apart.running.drain(..).collect::<Vec<_>>() {
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

#[test]
fn modules_are_judged_up_to_a_number_in_processes_of_their_own() {
    if !alone("apart::tests::modules_are_judged_up_to_a_number_in_processes_of_their_own") {
        return;
    }
    let mut apart = Apart::default();
    with(&mut apart, MOST_MODULES - 1, Task::Module);
    with(&mut apart, MOST_JOINS, Task::Join);
    let mut judge = std::os::unix::net::UnixStream::from(apart.module(&mut Nothing, 5).unwrap());
    assert_eq!(apart.running.last().map(|(_, task)| *task), Some(Task::Module));
    judge.write_all(b"object").unwrap();
    judge.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = Vec::new();
    judge.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"object for 5");
    with(&mut apart, 1, Task::Module);
    assert_eq!(apart.module(&mut Nothing, 5).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    for (process, _) in apart.running.drain(..).collect::<Vec<_>>() {
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

/// A process that has said so much about its socket, so long ago; the end at which it waits to go on.
fn asks(apart: &mut Apart, said: &[u8], since: Instant) -> (Pid, OwnedFd) {
    let (process, (ours, theirs)) = (sleeper(), pair());
    apart.running.push((process, Task::Socket));
    if !said.is_empty() {
        channel::send(&theirs, said, None).unwrap();
    }
    apart.asking.push(Asking { process, socket: ours, since });
    (process, theirs)
}

#[test]
fn a_process_that_says_whose_socket_it_has_goes_on_and_counts_for_that_user() {
    if !alone("apart::tests::a_process_that_says_whose_socket_it_has_goes_on_and_counts_for_that_user") {
        return;
    }
    let mut apart = Apart::default();
    with(&mut apart, MOST_OF_A_USER - 1, Task::Proof(1000));
    with(&mut apart, MOST_OF_A_USER, Task::Proof(1001));
    let (process, theirs) = asks(&mut apart, &1000u32.to_ne_bytes(), Instant::now());
    apart.hear();
    assert_eq!(channel::receive(&theirs, &mut [0; GO.len()]).unwrap().unwrap().0, GO.len());
    assert_eq!(apart.running.last(), Some(&(process, Task::Proof(1000))));
    assert_eq!((apart.waiting().count(), apart.count(|task| task == Task::Proof(1000))), (0, MOST_OF_A_USER));
    let (another, theirs) = asks(&mut apart, &1000u32.to_ne_bytes(), Instant::now());
    apart.hear();
    assert!(was_ended(another), "one more of this user");
    assert!(channel::peek(&theirs, &mut [0; GO.len()]).is_ok_and(|message| message.is_none()), "it may not go on");
    assert!(!was_ended(process));
}

#[test]
fn a_process_that_says_nothing_has_a_while_for_that() {
    if !alone("apart::tests::a_process_that_says_nothing_has_a_while_for_that") {
        return;
    }
    let (mut apart, now) = (Apart::default(), Instant::now());
    let (waits, _one) = asks(&mut apart, &[], now + LONGEST * 100);
    let (hangs, _two) = asks(&mut apart, &[], now.checked_sub(LONGEST).unwrap());
    let (errs, _three) = asks(&mut apart, &[1, 2, 3], now);
    apart.hear();
    assert_eq!(apart.asking.iter().map(|asking| asking.process).collect::<Vec<_>>(), [waits]);
    assert!(was_ended(hangs) && !was_ended(waits) && !was_ended(errs));
}

#[test]
fn only_a_process_of_its_own_is_ended() {
    if !alone("apart::tests::only_a_process_of_its_own_is_ended") {
        return;
    }
    let mut apart = Apart::default();
    let stranger = sleeper();
    apart.end(stranger);
    with(&mut apart, 1, Task::Socket);
    apart.end(stranger);
    assert!(!was_ended(stranger));
    let own = apart.running[0].0;
    apart.end(own);
    assert!(was_ended(own));
}

#[test]
fn a_process_ends_with_its_broker_and_at_once_if_that_has_gone() {
    if !alone("apart::tests::a_process_ends_with_its_broker_and_at_once_if_that_has_gone") {
        return;
    }
    let own = std::process::id();
    let signal = || rustix::process::parent_process_death_signal().unwrap().map_or(0, Signal::as_raw);
    let ends = exit_of(|| {
        end_with(own);
        signal()
    });
    assert_eq!(ends, Some(libc::SIGKILL), "the kernel ends it");
    let orphan = exit_of(|| {
        end_with(own + 1);
        7
    });
    assert_eq!(orphan, Some(1), "another process is its parent");
}

#[test]
fn a_panic_ends_the_process_and_nothing_else() {
    if !alone("apart::tests::a_panic_ends_the_process_and_nothing_else") {
        return;
    }
    let status = exit_of(|| leave(|| std::panic::resume_unwind(Box::new(()))));
    assert_eq!(status, Some(0));
}
