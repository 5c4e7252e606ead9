//! The `towpathd` binary: starting, refusing to start and ending, and cleaning up after killed clients.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Client, Daemon, Scratch, client, error_of, status, towpathd, until};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use towpath_service::api::{self, Hello, Status};

/// Environment variable with the socket, for the process that acts as a client (see `a_client_to_be_killed`).
const PLAY: &str = "TOWPATH_TEST_PLAY_CLIENT";

#[test]
fn ends_when_idle_and_removes_its_sockets() {
    let scratch = Scratch::new("idle");
    let mut daemon = Daemon::start(towpathd(&scratch).args(["--idle-exit", "4s"]));
    let client = Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
    std::thread::sleep(Duration::from_millis(4500));
    assert!(daemon.0.try_wait().unwrap().is_none(), "it has a client");
    drop(client);
    assert_eq!(daemon.end(), 0);
    assert!(!scratch.socket().exists() && !scratch.0.join("control.sock").exists());
}

#[test]
fn stays_for_a_program_that_has_no_socket_yet() {
    let scratch = Scratch::new("hold");
    let mut daemon = Daemon::start(towpathd(&scratch).args(["--idle-exit", "4s"]));
    // A client keeps it alive until the program has asked.
    let client = Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
    // The process asks as `towpath run` does, and then becomes another program.
    let script = "import socket,sys,os\n\
        s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);s.sendall(b'{\"command\":\"hello\",\"hold\":true}\\n')\n\
        s.recv(99);print('held',flush=True);os.execvp('sleep',['sleep','60'])";
    let mut program = Command::new("python3")
        .args(["-c", script])
        .arg(scratch.0.join("control.sock"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "held");
    drop(client);
    std::thread::sleep(Duration::from_millis(4500));
    assert!(daemon.0.try_wait().unwrap().is_none(), "the program still runs");
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(daemon.end(), 0);
}

#[test]
fn ends_on_signals_and_on_command() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let scratch = Scratch::new("signal");
        let mut daemon = Daemon::start(&mut towpathd(&scratch));
        let _client = Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
        daemon.signal(signal);
        assert_eq!(daemon.end(), 0);
        assert!(!scratch.socket().exists());
    }
    let scratch = Scratch::new("stop");
    let mut daemon = Daemon::start(&mut towpathd(&scratch));
    let hello: Hello = api::ask(&scratch.socket(), api::Command::Stop { drain_s: None }).unwrap();
    assert_eq!(hello.pid, daemon.0.id());
    assert_eq!(daemon.end(), 0);
}

#[test]
fn a_service_that_drains_ends_by_itself_when_nobody_tells_it() {
    let scratch = Scratch::new("drain");
    let mut daemon = Daemon::start(&mut towpathd(&scratch));
    let _client = Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
    let ask = |drain_s| api::ask::<api::Stopping>(&scratch.socket(), api::Command::Stop { drain_s });
    assert_eq!(ask(Some(3600)).unwrap().connections, 0);
    assert_eq!(ask(Some(0)).unwrap().pid, daemon.0.id(), "the last word counts");
    assert_eq!(daemon.end(), 0);
    assert!(!scratch.socket().exists());
}

#[test]
fn a_killed_service_is_replaced_and_a_living_one_is_not() {
    let scratch = Scratch::new("replace");
    let mut first = Daemon::start(&mut towpathd(&scratch));
    let second = towpathd(&scratch).output().unwrap();
    let expected = format!("towpathd: another service already listens on {}", scratch.socket().display());
    assert_eq!(error_of(&second), (3, expected));
    first.signal(rustix::process::Signal::KILL);
    first.end();
    assert!(scratch.socket().exists(), "killed services leave their socket");
    let third = Daemon::start(&mut towpathd(&scratch));
    assert_eq!(status(&scratch.socket()).pid, third.0.id());
}

#[test]
fn a_worker_that_dies_is_replaced_until_it_has_died_three_times_in_a_minute() {
    let scratch = Scratch::new("worker");
    let log = scratch.0.join("service.log");
    let mut daemon = Daemon::start(towpathd(&scratch).stderr(std::fs::File::create(&log).unwrap()));
    let kill = |worker| {
        rustix::process::kill_process(rustix::process::Pid::from_raw(worker).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    };
    for _ in 0..2 {
        let worker = daemon.worker();
        let client = Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
        kill(worker);
        until("another worker serves", || api::ask::<Status>(&scratch.socket(), api::Command::Status).is_ok());
        assert_ne!(daemon.worker(), worker);
        drop(client);
        Client::hello(client::connect(&scratch.socket()).unwrap(), 0).unwrap();
        assert_eq!(status(&scratch.socket()).pid, daemon.0.id(), "the service is the process that was started");
    }
    kill(daemon.worker());
    assert_eq!(daemon.end(), 1);
    assert!(!scratch.socket().exists() && !scratch.0.join("control.sock").exists(), "nothing is left");
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("is started again in").count(), 2, "{text}");
    assert!(text.contains("has died 3 times within a minute, so the service ends"), "{text}");
}

#[test]
fn a_signal_ends_the_service_also_between_two_workers() {
    let scratch = Scratch::new("between");
    let mut daemon = Daemon::start(&mut towpathd(&scratch));
    let worker = daemon.worker();
    rustix::process::kill_process(rustix::process::Pid::from_raw(worker).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.end(), 0);
    assert!(!scratch.socket().exists(), "nothing is left");
}

#[test]
fn the_worker_ends_with_a_broker_that_is_killed() {
    let scratch = Scratch::new("orphan");
    let mut daemon = Daemon::start(&mut towpathd(&scratch));
    let worker = daemon.worker();
    daemon.signal(rustix::process::Signal::KILL);
    daemon.end();
    until("the worker has ended", || !Path::new(&format!("/proc/{worker}/fd/0")).exists());
}

#[test]
fn a_service_without_a_sandbox_is_one_process_and_warns() {
    let scratch = Scratch::new("off");
    let log = scratch.0.join("service.log");
    let daemon =
        Daemon::start(towpathd(&scratch).args(["--sandbox", "off"]).stderr(std::fs::File::create(&log).unwrap()));
    let id = daemon.0.id();
    assert_eq!(std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap(), "");
    assert!(std::fs::read_to_string(&log).unwrap().contains("WARN"), "it is said");
    assert!(status(&scratch.socket()).sandbox.line().starts_with("OFF; missing: the configuration says"));
}

#[test]
fn a_file_is_told_when_clients_are_served() {
    let scratch = Scratch::new("ready");
    let ready = scratch.0.join("ready");
    let mut command = towpathd(&scratch);
    let child = command.args(["--ready-fd", "1"]).stdout(std::fs::File::create(&ready).unwrap()).spawn().unwrap();
    let _daemon = Daemon(child);
    until("a byte", || std::fs::read(&ready).unwrap() == b"\n");
}

#[test]
fn background_returns_when_it_serves() {
    let scratch = Scratch::new("background");
    let output = towpathd(&scratch).args(["--background", "--idle-exit", "300ms"]).output().unwrap();
    assert_eq!(error_of(&output), (0, String::new()));
    let pid = status(&scratch.socket()).pid;
    // It has its own session and none of our descriptors, and is not our child.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "session");
    assert_ne!(fields[1], std::process::id().to_string(), "parent");
    until("the idle service has gone", || !scratch.socket().exists());
    // A second try while one runs.
    let _daemon = Daemon::start(&mut towpathd(&scratch));
    let output = towpathd(&scratch).arg("--background").output().unwrap();
    assert_eq!(error_of(&output).0, 3);
}

#[test]
fn a_socket_that_cannot_be_made_is_explained() {
    for more in [&[][..], &["--background"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpathd"));
        let output = command.args(["--socket", "/nonexistent/a.sock"]).args(more).output().unwrap();
        let (code, text) = error_of(&output);
        assert_eq!(code, 1, "{text}");
        let cause = "the directory /nonexistent does not exist; make it (`mkdir -p /nonexistent`), or name another";
        assert!(text.starts_with("towpathd: /nonexistent/a.lo") && text.contains(cause), "{text}");
    }
    // A path that fits while the socket is being made, and is too long for clients.
    let scratch = Scratch::new("long");
    let long = scratch.0.join("a".repeat(100));
    let output = Command::new(env!("CARGO_BIN_EXE_towpathd")).arg("--socket").arg(long).output().unwrap();
    assert!(error_of(&output).1.contains("the path of a socket has at most 107 bytes"), "{output:?}");
}

#[test]
fn the_reason_of_a_failed_start_is_told_although_the_log_cannot_be_written() {
    let scratch = Scratch::new("full");
    std::fs::write(scratch.socket(), "not a socket").unwrap();
    // As on a full disk, no byte can be added to a file.
    let line = "trap '' XFSZ; ulimit -f 0; exec \"$0\" --background --socket \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, env!("CARGO_BIN_EXE_towpathd")]).arg(scratch.socket());
    let (code, text) = error_of(&command.output().unwrap());
    assert_eq!(code, 1, "{text}");
    assert!(
        text.starts_with("towpathd: ") && text.ends_with("there is something that is no socket; remove it"),
        "{text}"
    );
    assert_eq!(std::fs::metadata(scratch.0.join("towpath.log")).unwrap().len(), 0, "the log could be written");
}

#[test]
fn wrong_configurations_are_explained() {
    let scratch = Scratch::new("config");
    let file = scratch.0.join("towpath.toml");
    std::fs::write(&file, "cores = 1\nspinn = \"20us\"\n").unwrap();
    let output = towpathd(&scratch).arg("--config").arg(&file).output().unwrap();
    let expected = format!("towpathd: {}:2: unknown key \"spinn\"; did you mean \"spin\"?", file.display());
    assert_eq!(error_of(&output), (2, expected));
    let output = towpathd(&scratch).arg("--background").arg("--config").arg(&file).output().unwrap();
    assert_eq!(error_of(&output).0, 2, "{output:?}");
    let output = towpathd(&scratch).args(["--admit", "user:no-such-user"]).output().unwrap();
    let expected = "towpathd: admit: there is no user \"no-such-user\" on this machine (see `getent passwd`)";
    assert_eq!(error_of(&output), (2, expected.into()));
    let output = towpathd(&scratch).env("TOWPATH_LOG", "verbos").output().unwrap();
    let (code, text) = error_of(&output);
    assert!(
        code == 2 && text.starts_with("towpathd: TOWPATH_LOG: \"verbos\" selects no lines; write a level"),
        "{text}"
    );
    let output = towpathd(&scratch).args(["--cpus", "1023"]).output().unwrap();
    let (code, text) = error_of(&output);
    assert!(code == 2 && text.starts_with("towpathd: cpus: there is no CPU 1023 that this process may use"), "{text}");
    let output = towpathd(&scratch).args(["--interface", "no-such-if"]).output().unwrap();
    let (code, text) = error_of(&output);
    assert_eq!(code, 1);
    if rustix::process::geteuid().is_root() {
        assert_eq!(text, "towpathd: --interface no-such-if: there is no such interface; `ip -br link` lists them");
    } else {
        assert!(text.contains("needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF: run as root"), "{text}");
    }
    assert!(!scratch.socket().exists(), "nothing is left");
}

#[test]
fn what_clients_do_wrong_cannot_fill_the_log() {
    const WRONG: usize = 300;
    let scratch = Scratch::new("flood");
    let log = scratch.0.join("service.log");
    let _daemon = Daemon::start(towpathd(&scratch).stderr(std::fs::File::create(&log).unwrap()));
    let begun = Instant::now();
    for _ in 0..WRONG {
        assert!(Client::hello(client::connect(&scratch.socket()).unwrap(), 7).is_err(), "there is no such region");
    }
    let seconds = begun.elapsed().as_secs() as usize + 2;
    let text = std::fs::read_to_string(&log).unwrap();
    let lines = text.lines().filter(|line| line.contains("client refused: the region it wants to join")).count();
    assert!((1..=10 * seconds).contains(&lines) && lines < WRONG / 2, "{lines} lines in {seconds} s");
}

#[test]
fn the_control_interface_answers_and_survives_nonsense() {
    use std::io::Write;
    let scratch = Scratch::new("control");
    let _daemon = Daemon::start(&mut towpathd(&scratch));
    let connect = || std::os::unix::net::UnixStream::connect(scratch.0.join("control.sock")).unwrap();
    let mut stream = connect();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for (command, part) in [
        (r#"{"command":"hello"}"#, r#"{"version":"#),
        (r#"{"command":"sockets"}"#, r#"{"sockets":[]}"#),
        (r#"{"command":"status"}"#, r#""stages":{"pre":0,"protocol":0"#),
        (r#"{"command":"reboot"}"#, r#"{"error":"not a command: unknown variant `reboot`"#),
        ("nonsense", r#"{"error":"not a command"#),
    ] {
        writeln!(stream, "{command}").unwrap();
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains(part), "{command}: {line}");
    }
    // Endless lines and silent peers cost only their own connection.
    let mut long = connect();
    let _ = long.write_all(&[b'x'; 100_000]);
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    drop(silent);
    until("it still answers", || api::ask::<Hello>(&scratch.socket(), api::Command::Hello { hold: false }).is_ok());
}

/// Not a test by itself: with the variable set, this process registers, attaches sockets, and waits to be killed.
#[test]
fn a_client_to_be_killed() {
    let Some(socket) = std::env::var_os(PLAY) else { return };
    let client = Client::hello(client::connect(Path::new(&socket)).unwrap(), 0).unwrap();
    let _ends: Vec<_> = (0..10).map(|slot| client.attach(slot, 1)).collect();
    let _contexts: Vec<_> = (0..3).map(|_| client.context().unwrap()).collect();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    client
        .send(&towpath_ring::control::Request::Reserve { slot: 0, seq: 1, listens: true }, &[&listener.into()])
        .unwrap();
    println!("registered");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn two_hundred_killed_clients_leave_nothing_behind() {
    let scratch = Scratch::new("killed");
    let daemon = Daemon::start(&mut towpathd(&scratch));
    // After an answer it has closed the descriptors that it needed for starting.
    status(&scratch.socket());
    client::a_moment();
    let holds = || [daemon.entries("fd"), daemon.entries("task"), daemon.regions()];
    let before = holds();
    for _ in 0..10 {
        let mut children: Vec<_> = (0..20).map(|_| play(&scratch)).collect();
        for child in &mut children {
            let out = BufReader::new(child.stdout.take().unwrap());
            assert!(out.lines().any(|line| line.unwrap().contains("registered")));
        }
        // `towpath run` asks for this; it has no effect in a service without an idle exit.
        let _: Hello = api::ask(&scratch.socket(), api::Command::Hello { hold: true }).unwrap();
        assert!(status(&scratch.socket()).clients.len() >= 20);
        assert!(daemon.entries("task") >= 20 && daemon.regions() >= 20);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    until("all clients are gone", || status(&scratch.socket()).clients.is_empty());
    let mut after = holds();
    let end = Instant::now() + Duration::from_secs(60);
    while after.iter().zip(before).any(|(after, before)| *after > before) {
        assert!(Instant::now() < end, "descriptors, threads, regions: {before:?} before, {after:?} after");
        std::thread::sleep(Duration::from_millis(5));
        after = holds();
    }
}

fn play(scratch: &Scratch) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_client_to_be_killed", "--nocapture"])
        .env(PLAY, scratch.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
