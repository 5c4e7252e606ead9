//! A service whose sockets another process makes, as systemd does.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use towpath_system_tests::{Program, Scratch, Service, bin, until};

/// Makes the sockets, waits until somebody connects, starts the service with them, and begins again when that has ended.
const MANAGER: &str = r#"
import os, select, socket, sys
folder, times, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def listening(name, kind):
    s = socket.socket(socket.AF_UNIX, kind); s.bind(folder + "/" + name); s.listen(16); return s
sockets = [listening("control.sock", socket.SOCK_STREAM), listening("towpath.sock", socket.SOCK_SEQPACKET)]
print("listening", flush=True)
for _ in range(times):
    select.select(sockets, [], [])
    child = os.fork()
    if child == 0:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2")
        for at, s in enumerate([os.dup(s.fileno()) for s in sockets]):
            os.dup2(s, 13 + at)
        for at in range(2):
            os.dup2(13 + at, 3 + at); os.close(13 + at)
        os.execv(command[0], command)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"#;

#[test]
fn whoever_connects_first_starts_the_service_and_waits_for_the_next_one_when_it_ends() {
    let mut service = Service::embedded();
    service.running.stop();
    let folder = service.scratch.path("");
    let manager = Program::line("python3 -c").arg(MANAGER).arg(&folder).arg("2").arg(bin("towpathd"));
    let manager = manager.arg("--socket").arg(&service.socket).arg("--direct").arg("false").arg("--admit").arg("all");
    let mut manager = manager.start(service.scratch.path("manager.log"));
    manager.wait_for("listening", 30);
    let echo = "import socket\nl = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1)\n\
                c = socket.create_connection(l.getsockname()); s, _ = l.accept()\nc.sendall(b'bytes'); print(s.recv(9))";
    let stop = || Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(&service.socket).run(30).ok();
    let mode = || std::fs::metadata(&service.socket).unwrap().permissions().mode() & 0o777;
    let before = mode();
    assert_ne!(before, 0o666);
    for time in 1..=2 {
        // Nobody has started it.
        let said = service.accelerated("python3 -c").arg(echo).run(60).ok();
        assert_eq!(said, "b'bytes'\n", "{}", manager.output());
        assert_eq!(mode(), 0o666, "`admit` opens what was passed");
        let pid = service.status()["pid"].as_i64().unwrap();
        // A worker that dies is replaced, at the same sockets.
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let worker = children.split_whitespace().next().unwrap().parse().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(worker).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        until("another one serves", 60, || manager.output().matches("serving version=").count() == 2 * time);
        let said = service.accelerated("python3 -c").arg(echo).run(60).ok();
        assert_eq!(said, "b'bytes'\n", "{}", manager.output());
        stop();
        until("it has ended", 60, || manager.output().matches("ended 0").count() == time);
        assert_eq!(mode(), before, "the manager's permissions say who may start the next one");
        assert!(service.socket.exists() && folder.join("control.sock").exists(), "they are not the service's");
    }
}

/// The end of a service that was started with these descriptors from 3 on.
fn started_with(scratch: &Scratch, sockets: &str, count: &str) -> (i32, String) {
    let code = format!(
        "import os, socket, sys\nos.chdir(sys.argv[1])\n\
         def at(name, kind, listens=True):\n    s = socket.socket(socket.AF_UNIX, kind); s.bind(sys.argv[1] + '/' + name)\n    \
         if listens: s.listen(1)\n    return s\n\
         SEQ, STREAM, DGRAM = socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM\n\
         sockets = {sockets}\nnumbers = [os.dup2(s.fileno(), 40 + i) for i, s in enumerate(sockets)]\n\
         [os.dup2(n, 3 + i) for i, n in enumerate(numbers)]\n\
         os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='{count}')\n\
         os.execv(sys.argv[2], sys.argv[2:])"
    );
    let folder = scratch.path("");
    for name in ["towpath.sock", "control.sock"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
    let program = Program::line("python3 -c").arg(code).arg(&folder).arg(bin("towpathd"));
    let ended = program.arg("--socket").arg(folder.join("towpath.sock")).run(60);
    (ended.code, ended.err)
}

#[test]
fn sockets_of_the_wrong_kind_are_refused_with_the_reason_and_the_remedy() {
    let scratch = Scratch::new("activation");
    for (sockets, count, why) in [
        ("[at('towpath.sock', SEQ)]", "1", "there are 1 and not 2"),
        (
            "[at('towpath.sock', SEQ), at('control.sock', DGRAM, False)]",
            "2",
            "neither a stream nor a sequence of packets",
        ),
        ("[at('towpath.sock', SEQ), at('control.sock', STREAM, False)]", "2", "control.sock does not listen"),
        ("[at('towpath.sock', STREAM), at('control.sock', STREAM)]", "2", "both are of one kind"),
        ("[at('towpath.sock', SEQ), open('/dev/null')]", "2", "descriptor 4 is no socket"),
        ("[at('towpath.sock', SEQ), at('control.sock', STREAM)]", "many", "LISTEN_FDS=many is no number"),
        ("[at('x.sock', SEQ), at('x.control.sock', STREAM)]", "2", "make them one path"),
    ] {
        let _ = std::fs::remove_file(scratch.path("x.sock"));
        let _ = std::fs::remove_file(scratch.path("x.control.sock"));
        let (code, said) = started_with(&scratch, sockets, count);
        assert!(
            code == 2 && said.contains(why) && said.contains("as towpathd.socket does"),
            "{sockets}: {code} {said}"
        );
    }
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/towpathd.socket").exists());
}
