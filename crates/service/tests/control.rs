//! Hostile users of the control socket. The operator is answered all the same.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Service;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use towpath_service::admission::{Admission, Admit};
use towpath_service::api::{self, AskError, Command};
use towpath_service::paths;

/// A user that does not run the tests.
const STRANGER: u32 = 65_534;

/// A service that belongs to the tests' user, with its control socket open to all.
fn open_service(name: &str, admit: &[Admit]) -> Service {
    let own = rustix::process::geteuid().as_raw();
    let service = Service::with(name, |settings| {
        settings.live.change(|live| live.admission = Admission::new(own, admit).unwrap().into())
    });
    paths::set_socket_mode(&paths::control_socket(&service.scratch.socket()), true).unwrap();
    service
}

/// Does this as another user.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let body = || {
            // Only this thread changes its user, and it ends here.
            let stranger = rustix::process::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
            work()
        };
        scope.spawn(body).join().unwrap()
    })
}

fn silent(control: &Path, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(control).unwrap()).collect()
}

fn operator_is_answered(service: &Service) {
    let status: api::Status = api::ask(&service.scratch.socket(), Command::Status).unwrap();
    assert_eq!(status.pid, std::process::id());
}

#[test]
fn silent_strangers_are_told_at_once_and_the_operator_is_answered() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let service = open_service("strangers", &[]);
    let control = paths::control_socket(&service.scratch.socket());
    let mut strangers = as_stranger(|| silent(&control, 40));
    operator_is_answered(&service);
    for stranger in &mut strangers {
        let mut told = String::new();
        // It ends without a word from the stranger: no place is kept for him.
        stranger.read_to_string(&mut told).unwrap();
        assert!(told.contains("add \\\"uid:65534\\\" to `admit`"), "{told}");
    }
    let asked = as_stranger(|| api::ask::<api::Hello>(&service.scratch.socket(), Command::Hello { hold: false }));
    assert!(matches!(&asked, Err(AskError::Refused(why)) if why.contains("admit")), "{asked:?}");
}

#[test]
fn an_admitted_user_has_a_share_of_the_conversations_and_the_operator_a_place() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let service = open_service("share", &[Admit::Uid(STRANGER)]);
    let control = paths::control_socket(&service.scratch.socket());
    let mut kept = as_stranger(|| silent(&control, 100));
    operator_is_answered(&service);
    // Those beyond the share are closed without an answer, as by a busy service.
    let mut last = kept.pop().unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap(), 0);
    drop((kept, last));
    common::client::until("the user has a place again", || {
        as_stranger(|| api::ask::<api::Hello>(&service.scratch.socket(), Command::Hello { hold: false })).is_ok()
    });
}

#[test]
fn a_conversation_may_have_many_commands_and_a_last_one_without_an_end() {
    let service = Service::start("talk");
    let mut stream = UnixStream::connect(paths::control_socket(&service.scratch.socket())).unwrap();
    stream.write_all(b"{\"command\":\"hello\"}\n{\"command\":\"sock").unwrap();
    stream.write_all(b"ets\"}\n\n{\"command\":\"hello\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert!(answers[0].contains("version") && answers[1].contains("sockets"), "{answers:?}");
    assert!(answers[2].contains("not a command") && answers[3].contains("version"), "{answers:?}");
}
