//! `towpath doctor` counts sockets that were left to the kernel, with a reason and a remedy. It also counts calls that
//! were refused.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use towpath_system_tests::{Finished, Program, Scratch, Service, bin, require_program, require_root};

const PYTHON: &str = "/usr/bin/python3";
/// Columns of a terminal.
const WIDTH: usize = 80;

/// Runs `towpath doctor OPTIONS --json -o FILE -- PROGRAM`. Returns how it ended, and the report.
fn doctor(socket: &Path, options: &str, program: &[impl AsRef<OsStr>]) -> (Finished, Value) {
    let scratch = Scratch::new("report");
    let file = scratch.path("report.json");
    let line = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(socket);
    let line = options.split_whitespace().fold(line, Program::arg).arg("--json").arg("-o").arg(&file).arg("--");
    let finished = program.iter().fold(line, Program::arg).run(60);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("no report: {e}: {finished:?}"));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    follows_the_schema(&report);
    (finished, report)
}

fn python(socket: &Path, text: &str) -> (Finished, Value) {
    let prelude = "import socket, os, sys, signal, errno, subprocess\n";
    doctor(socket, "", &[PYTHON, "-c", &format!("{prelude}{text}")])
}

/// Checks every key of the report and its type.
fn follows_the_schema(report: &Value) {
    let keys = |value: &Value| {
        let mut keys: Vec<_> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys.join(" ")
    };
    assert_eq!(keys(report), "exit host left_out ok programs recorded schema version");
    assert_eq!(keys(&report["exit"]), "code signal");
    assert!(report["ok"].is_boolean() && report["left_out"].is_u64() && report["version"].is_string());
    for check in report["host"].as_array().expect("checks") {
        let state = check["state"].as_str().expect("a state");
        let expected = if state == "ok" { "check found state" } else { "check found remedy state" };
        assert_eq!(keys(check), expected);
        assert!(["ok", "warn", "fail"].contains(&state), "{check}");
    }
    for program in report["programs"].as_array().expect("programs") {
        assert_eq!(keys(program), "accelerated hook kernel parent pid program refused used why");
        assert!(["preload", "inject", "none"].contains(&program["hook"].as_str().expect("a hook")), "{program}");
        let accelerated = &program["accelerated"];
        assert_eq!(keys(accelerated), "accepted connected listening");
        assert_eq!(keys(&accelerated["accepted"]), "direct stack");
        assert_eq!(keys(&accelerated["connected"]), "direct stack");
        for entry in ["kernel", "used"].iter().flat_map(|part| program[part].as_array().expect("a list")) {
            assert_eq!(keys(entry), "count hint reason what");
            assert!(
                !entry["hint"].as_str().expect("a hint").is_empty() && entry["count"].as_u64() > Some(0),
                "{entry}"
            );
        }
        for refused in program["refused"].as_array().expect("refusals") {
            assert_eq!(keys(refused), "call count option");
        }
    }
}

/// How often the report has this reason for a program.
fn times(program: &Value, part: &str, reason: &str) -> u64 {
    let found = program[part].as_array().expect("a list").iter().find(|entry| entry["reason"] == reason);
    found.map_or(0, |entry| entry["count"].as_u64().expect("a count"))
}

/// The only program whose command line contains `text`.
fn named<'a>(report: &'a Value, text: &str) -> &'a Value {
    let programs = report["programs"].as_array().expect("programs");
    let found: Vec<_> = programs.iter().filter(|program| program["program"].as_str().unwrap().contains(text)).collect();
    assert_eq!(found.len(), 1, "{text} in {report:#}");
    found[0]
}

#[test]
fn the_host_is_looked_at_and_what_is_missing_has_a_remedy() {
    let service = Service::embedded();
    let look = |socket: &Path, flag: &str| {
        let line = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(socket);
        flag.split_whitespace().fold(line, Program::arg).run(20)
    };
    let out = look(&service.socket, "");
    assert!(out.code == 0 && out.out.contains("ok    service     "), "{out:?}");
    let out = look(Path::new("/nonexistent/towpath.sock"), "");
    assert!(out.code == 1 && out.out.contains("FAIL  service     no Towpath service at"), "{out:?}");
    assert!(out.out.contains("start it with `towpath serve`"), "{out:?}");
    assert!(out.out.lines().all(|line| line.chars().count() <= WIDTH), "{out:?}");
    let out = look(Path::new("/nonexistent/towpath.sock"), "--json");
    let report: Value = serde_json::from_str(&out.out).expect("JSON");
    assert_eq!((out.code, &report["ok"]), (1, &Value::Bool(false)));
    let checks: Vec<_> = report["host"].as_array().unwrap().iter().map(|c| c["check"].as_str().unwrap()).collect();
    let expected = "kernel inject library loader service rights AF_XDP memlock hugepages nofile processors pinned";
    assert_eq!(checks.join(" "), expected);
}

#[test]
fn sockets_are_counted_by_who_carries_them_with_the_reason() {
    let service = Service::direct();
    let kernel = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener of the kernel");
    let port = kernel.local_addr().unwrap().port();
    let (out, report) = python(
        &service.socket,
        &format!(
            "
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
a, _ = l.accept()
socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.socket(socket.AF_UNIX)
socket.create_connection(('127.0.0.1', {port}))
elsewhere = socket.socket()
elsewhere.setblocking(False)
elsewhere.connect_ex(('192.0.2.1', 9))
for option in (26, 26, 25):
    try:
        c.setsockopt(socket.SOL_SOCKET, option, b'0' * 16)
    except OSError as error:
        assert error.errno == errno.ENOPROTOOPT
try:
    c.getsockopt(socket.IPPROTO_TCP, 35)
except OSError as error:
    assert error.errno == errno.ENOPROTOOPT
sys.exit(7)
"
        ),
    );
    assert_eq!(out.code, 7, "{out:?}");
    assert_eq!(report["exit"]["code"], 7);
    let program = named(&report, PYTHON);
    assert_eq!(program["hook"], "preload");
    let accelerated = &program["accelerated"];
    assert_eq!((&accelerated["connected"]["direct"], &accelerated["connected"]["stack"]), (&1.into(), &0.into()));
    assert_eq!((&accelerated["accepted"]["direct"], &accelerated["listening"]), (&1.into(), &1.into()));
    let kernel = ["udp", "unix", "no_listener", "elsewhere"].map(|reason| times(program, "kernel", reason));
    assert_eq!(kernel, [1, 1, 1, 1], "{program:#}");
    let refused: Vec<_> = program["refused"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        refused,
        [
            r#"{"call":"setsockopt","count":2,"option":"SOL_SOCKET/SO_ATTACH_FILTER"}"#,
            r#"{"call":"setsockopt","count":1,"option":"SOL_SOCKET/SO_BINDTODEVICE"}"#,
            r#"{"call":"getsockopt","count":1,"option":"IPPROTO_TCP/TCP_ZEROCOPY_RECEIVE"}"#,
        ]
    );
}

#[test]
fn what_the_stack_carries_is_told_from_what_is_direct_and_from_policy() {
    let service = Service::embedded();
    let policy = |line: &str| {
        let command = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
        line.split_whitespace().fold(command, Program::arg).run(20).ok()
    };
    let text = "
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
l.accept()";
    let (out, report) = python(&service.socket, text);
    let accelerated = &named(&report, PYTHON)["accelerated"];
    assert_eq!(
        (out.code, &accelerated["connected"]["stack"], &accelerated["accepted"]["stack"]),
        (0, &1.into(), &1.into())
    );
    policy("add kernel listen on 127.0.0.0/8");
    let (out, report) = python(&service.socket, text);
    let program = named(&report, PYTHON);
    assert_eq!((out.code, times(program, "kernel", "policy"), times(program, "kernel", "no_listener")), (0, 1, 1));
    let kernel = &service.status()["kernel"];
    assert_eq!((&kernel["policy"], &kernel["no_listener"], &kernel["elsewhere"]), (&1.into(), &1.into(), &0.into()));
}

#[test]
fn without_a_service_the_kernel_has_it_all_and_the_report_says_so() {
    let nowhere = Path::new("/nonexistent/towpath.sock");
    let text = "import socket; socket.create_server(('127.0.0.1', 0)); raise SystemExit(3)";
    let (out, report) = doctor(nowhere, "", &[PYTHON, "-c", text]);
    assert!(out.code == 3 && out.err.contains("it runs on the kernel's TCP"), "{out:?}");
    let program = named(&report, "python3");
    assert!(program["hook"] == "none" && program["why"].as_str().unwrap().contains("no Towpath service"), "{program}");
    assert_eq!(report["ok"], false);
    let (out, report) = doctor(nowhere, "--require", &[PYTHON, "-c", text]);
    assert!(out.code == 125 && out.err.contains("no Towpath service"), "{out:?}");
    assert!(named(&report, "python3")["why"].as_str().unwrap().contains("no Towpath service"));
}

#[test]
fn a_user_who_is_not_admitted_and_a_client_too_many_get_the_reason() {
    require_root();
    let scratch = Scratch::new("full");
    let config = scratch.path("towpath.toml");
    std::fs::write(&config, "clients_per_user = 1\n").unwrap();
    let service = Service::start(|program| program.arg("--config").arg(&config));
    // No other user may ask about this user's service.
    let (out, report) = python(
        &service.socket,
        "
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
socket.create_server(('127.0.0.1', 0))",
    );
    assert_eq!((out.code, times(named(&report, PYTHON), "kernel", "not_admitted")), (0, 1), "{report:#}");
    // The second client of the same user, while the first one still runs.
    let second = format!("'{PYTHON}', '-c', 'import socket; socket.create_server((\"127.0.0.1\", 0)) #second'");
    let (out, report) = python(
        &service.socket,
        &format!("l = socket.create_server(('127.0.0.1', 0))\nsubprocess.run([{second}], check=True)"),
    );
    assert_eq!(out.code, 0, "{out:?}");
    let found = report["programs"].as_array().unwrap().iter().map(|program| times(program, "kernel", "service_full"));
    assert_eq!(found.sum::<u64>(), 1, "{report:#}");
}

#[test]
fn a_busy_service_is_waited_for() {
    let service = Service::embedded();
    let control = service.socket.with_file_name("control.sock");
    // More conversations than it has at one time. Those beyond are closed at once.
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&control).expect("a conversation")).collect();
    let said = service.scratch.path("said");
    let mut program = service.accelerated("echo it runs").start(&said);
    program.wait_for("is busy; trying again for 5s", 20);
    drop(silent);
    program.wait_for("it runs", 20);
    let said = program.output();
    assert!(!said.contains("without it") && !said.contains("kernel"), "{said}");
}

#[test]
fn a_limit_of_the_program_itself_is_no_other_version() {
    let service = Service::embedded();
    let limited = |limit: &str| {
        let line = format!("ulimit {limit} && exec {PYTHON} -Sc 'import socket; socket.socket()'");
        let (out, report) = doctor(&service.socket, "", &["/bin/sh", "-c", &line]);
        assert_eq!(out.code, 0, "{out:?}");
        report
    };
    let report = limited("-v 2000000");
    assert_eq!(times(named(&report, PYTHON), "kernel", "no_memory"), 1, "{report:#}");
    // Four are in use while it registers: the standard streams and the connection.
    let report = limited("-n 5");
    assert_eq!(times(named(&report, PYTHON), "kernel", "no_descriptor"), 1, "{report:#}");
}

#[test]
fn exhausted_resources_are_reported_and_so_are_addresses_and_options_of_the_kernel() {
    let scratch = Scratch::new("short");
    let config = scratch.path("towpath.toml");
    std::fs::write(&config, "sockets_per_client = 64\n").unwrap();
    let mut service = Service::start(|program| program.arg("--config").arg(&config));
    let (out, report) = python(
        &service.socket,
        "
import select
first = socket.create_server(('127.0.0.1', 0))
polls = [select.epoll() for _ in range(90)]
for poll in polls:
    poll.register(first, select.EPOLLIN)
    poll.poll(0)
with_options = socket.socket()
with_options.setsockopt(socket.IPPROTO_IP, 4, b'\\1\\1\\1\\1')
with_range = socket.socket()
with_range.setsockopt(socket.IPPROTO_IP, 51, (45003 << 16 | 45000).to_bytes(4, 'little'))
unbound = socket.socket()
unbound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'')
local = socket.socket(socket.AF_INET6)
local.setblocking(False)
local.connect_ex(('fe80::1', 9, 0, 1))
# Half of the slots are for accepted connections.
more = [socket.create_server(('127.0.0.1', 0)) for _ in range(40)]",
    );
    let program = named(&report, PYTHON);
    let found = ["no_slot", "ip_options", "kernel_option", "address"].map(|reason| times(program, "kernel", reason));
    assert_eq!((out.code, found), (0, [9, 1, 1, 1]), "{out:?} {program:#}");
    assert_eq!((&program["accelerated"]["listening"], times(program, "used", "no_context")), (&32.into(), 1));
    // The service dies while the program runs.
    let text = format!(
        "
import time
socket.create_server(('127.0.0.1', 0))
SERVICE = {}
os.kill(SERVICE, signal.SIGKILL)
# When its state is that of the dead, its descriptors are closed.
def ended(pid):
    try: return open(f'/proc/{{pid}}/stat').read().rsplit(')')[1].split()[0] == 'Z' and len(os.listdir(f'/proc/{{pid}}/task')) == 1
    except OSError: return True
while not (ended(SERVICE) and ended({})): time.sleep(0.01)
for _ in range(21):
    socket.create_server(('127.0.0.1', 0))",
        service.running.pid(),
        service.running.worker()
    );
    let (out, report) = python(&service.socket, &text);
    let program = named(&report, PYTHON);
    assert_eq!((out.code, times(program, "kernel", "service_gone")), (0, 21), "{out:?} {program:#}");
    service.running.stop();
}

#[test]
fn a_tree_of_processes_is_reported_with_those_that_were_killed_and_those_left_alone() {
    require_root();
    let (service, scratch) = (Service::embedded(), Scratch::new("tree"));
    let alone = scratch.path("setgid-true");
    std::fs::copy("/bin/true", &alone).expect("a program");
    std::fs::set_permissions(&alone, std::fs::Permissions::from_mode(0o2755)).unwrap();
    let (out, report) = python(
        &service.socket,
        &format!(
            "
subprocess.run(['/bin/sh', '-c', '{}; exec env -i /bin/true'], check=True)
child = os.fork()
if child == 0:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
subprocess.run(['{PYTHON}', '-c', 'import socket; socket.create_server((\"127.0.0.1\", 0)) # executed'], check=True)
",
            alone.display()
        ),
    );
    assert_eq!(out.code, 0, "{out:?}");
    let programs = report["programs"].as_array().unwrap();
    let first = programs[0]["pid"].as_u64().unwrap();
    let killed = programs.iter().find(|program| times(program, "kernel", "udp") == 1).expect("the killed child");
    assert_eq!(killed["parent"].as_u64(), Some(first), "{report:#}");
    assert!(programs.iter().any(|program| program["pid"] != first && program["accelerated"]["listening"] == 1));
    let left: Vec<_> = programs.iter().filter(|program| program["hook"] == "none").collect();
    let left: Vec<_> =
        left.iter().map(|one| (one["program"].as_str().unwrap(), one["why"].as_str().unwrap())).collect();
    let expected = [
        (alone.to_str().unwrap(), "is setuid or setgid and left alone"),
        ("/bin/true", "its environment lacks TOWPATH_SOCKET"),
    ];
    assert_eq!(left, expected, "{report:#}");
}

#[test]
fn a_library_that_is_loaded_later_and_waits_by_itself_is_named() {
    require_program("gcc", "gcc");
    let (service, scratch) = (Service::embedded(), Scratch::new("later"));
    let (library, source) = (scratch.path("libown.so"), concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/own.c"));
    let built = Command::new("gcc").args(["-DLIBRARY", "-shared", "-fPIC", source, "-o"]).arg(&library).status();
    assert!(built.expect("gcc").success());
    let text = format!("s = socket.create_server(('127.0.0.1', 0))\nimport ctypes\nctypes.CDLL({library:?})\n");
    let (out, report) = python(&service.socket, &text);
    let program = named(&report, "python3");
    assert_eq!((out.code, times(program, "used", "own_calls")), (0, 1), "{report:#}");
    assert_eq!(program["why"], "libown.so makes system calls itself", "seen when the program ends");
}

#[test]
fn a_script_is_its_interpreter_and_a_static_program_is_named_with_the_reason() {
    require_program("gcc", "gcc");
    let (service, scratch) = (Service::embedded(), Scratch::new("chain"));
    let script = scratch.path("script");
    let text = format!("#!{PYTHON}\nimport socket\nsocket.create_server(('127.0.0.1', 0))\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (out, report) = doctor(&service.socket, "", &[&script]);
    assert_eq!((out.code, &named(&report, "script")["accelerated"]["listening"]), (0, &1.into()), "{report:#}");
    let program = uring(&scratch, "static", &["-static"]);
    let (out, report) = doctor(&service.socket, "", &[program.as_os_str(), "raw".as_ref()]);
    let program = named(&report, "raw");
    assert_eq!((out.code, &program["hook"], &program["why"]), (0, &"inject".into(), &"is statically linked".into()));
}

#[test]
fn signals_are_passed_on_and_the_page_fits_a_terminal() {
    let service = Service::embedded();
    let text = "
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print('ready', flush=True)
signal.pause()";
    let mut doctor = Command::new(bin("towpath"))
        .args(["doctor", "--socket"])
        .arg(&service.socket)
        .args(["--", PYTHON, "-c", text, &"long ".repeat(50)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("doctor");
    let mut ready = [0; 6];
    std::io::Read::read_exact(doctor.stdout.as_mut().unwrap(), &mut ready).expect("the program is ready");
    // SAFETY: it is a child of this process that has not been waited for, so the number is still its own.
    unsafe { libc::kill(doctor.id() as i32, libc::SIGTERM) };
    let out = doctor.wait_with_output().expect("the end");
    let page = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(42), "{page}");
    assert!(page.contains("Pid     Hook     Towpath  Kernel  Refused  Program\n"), "{page}");
    assert!(page.contains("kernel: 1 UDP\n          Towpath carries TCP; nothing to do\n"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
    // A signal ends the program.
    let (out, report) = python(&service.socket, "os.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!((out.code, &report["exit"]["signal"]), (128 + 9, &9.into()));
}

#[test]
fn a_program_whose_service_is_not_there_fails_if_one_is_required() {
    require_root();
    let scratch = Scratch::new("require");
    let config = scratch.path("towpath.toml");
    std::fs::write(&config, "clients_per_user = 1\n").unwrap();
    let mut service = Service::start(|program| program.arg("--config").arg(&config));
    let run = |socket: &Path| {
        let line = Program::new(&[bin("towpath")]).arg("run").arg("--require").arg("--socket").arg(socket).arg("--");
        line.arg(PYTHON).arg("-c")
    };
    // The service is absent, or does not admit the user: this is known before the program starts.
    let out = run(Path::new("/nonexistent/s")).arg("print('started')").run(20);
    assert!(out.code == 125 && out.err.contains("no Towpath service") && out.out.is_empty(), "{out:?}");
    let out = run(&service.socket).arg("print('started')").user(65534).run(20);
    assert!(out.code == 125 && out.err.contains("does not admit uid 65534") && out.out.is_empty(), "{out:?}");
    // The service no longer admits the user, or has one client too many: this is known at the first socket.
    let attempt = "
try:
    socket.socket()
except OSError as error:
    sys.exit(error.errno)";
    let prelude = "import os, signal, socket, subprocess, sys, time\n";
    let user = format!("{prelude}os.setgroups([])\nos.setgid(65534)\nos.setuid(65534){attempt}");
    let out = run(&service.socket).arg(user).run(20);
    assert!(out.code == libc::ENETDOWN && out.err.contains("towpath: no service ("), "{out:?}");
    let second = format!("{prelude}{attempt}");
    let first = format!(
        "{prelude}s = socket.create_server(('127.0.0.1', 0))\nsys.exit(subprocess.run([sys.executable, '-c', {second:?}]).returncode)"
    );
    let out = run(&service.socket).arg(first).run(20);
    assert!(out.code == libc::ENETDOWN && out.err.contains("towpath: no service ("), "{out:?}");
    // The service has died: this is known at the next socket, listener and connection.
    let gone = format!(
        "{prelude}
before = socket.create_server(('127.0.0.1', 0))
pending = socket.socket()
os.kill({}, signal.SIGKILL)
errors = []
deadline = time.time() + 60
while time.time() < deadline and 100 not in errors:
    try:
        socket.socket().connect(('127.0.0.1', 9))
    except OSError as error:
        errors.append(error.errno)
    time.sleep(0.05)
for call in (lambda: pending.listen(), lambda: socket.socket()):
    try:
        call()
        errors.append(0)
    except OSError as error:
        errors.append(error.errno)
assert errors[-3:] == [100, 100, 100], errors
",
        service.running.pid()
    );
    run(&service.socket).arg(gone).run(60).ok();
    service.running.stop();
}

/// Builds `uring.c`.
fn uring(scratch: &Scratch, name: &str, flags: &[&str]) -> std::path::PathBuf {
    let path = scratch.path(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/uring.c");
    let line = Program::new(&["gcc", "-O1", "-o"]).arg(&path).arg(source);
    flags.iter().fold(line, Program::arg).run(60).ok();
    path
}

#[test]
fn io_uring_is_carried_where_its_calls_are_seen_and_aio_on_sockets_is_refused() {
    require_program("gcc", "gcc");
    let (service, scratch) = (Service::embedded(), Scratch::new("uring"));
    for package in ["liburing.h", "libaio.h"] {
        let there = Path::new("/usr/include").join(package).exists();
        assert!(there, "{package} is missing: apt-get install -y liburing-dev libaio-dev (or run scripts/setup)");
    }
    let dynamic = uring(&scratch, "dynamic", &["-DLIBRARIES", "-luring", "-laio"]);
    let fixed = uring(&scratch, "static", &["-static"]);
    // A ring. A request on the socket gives EINVAL; those before it are carried out.
    let plain = "ring 0\nsubmit -22 1\nping\n";
    let ways = [
        (&dynamic, "preload", "syscall", plain),
        (&dynamic, "preload", "libaio", plain),
        (&dynamic, "preload", "liburing", "ring -38 -38\nping\n"),
        (&dynamic, "preload", "posix", "aio_read 38 0\nread 4\nping\n"),
        // Calls of a program that needs liburing are caught by injection.
        (&dynamic, "auto", "liburing", "ring 0 0\nping\n"),
        (&fixed, "auto", "syscall", plain),
        (&fixed, "auto", "raw", plain),
    ];
    for (program, hook, way, expected) in ways {
        let (out, report) = doctor(&service.socket, &format!("--hook {hook}"), &[program.as_os_str(), way.as_ref()]);
        assert_eq!((out.code, out.out.as_str()), (0, expected), "{way}: {out:?}");
        let program = named(&report, way);
        // liburing makes its later system calls itself, which the preloaded library does not see.
        let (refused, carried) = match (hook, way) {
            ("preload", "liburing") => (2, 0),
            (_, "liburing") => (0, 2),
            (_, "posix") => (0, 0),
            _ => (0, 1),
        };
        assert_eq!(times(program, "used", "io_uring_refused"), refused, "{way}: {program:#}");
        assert_eq!(times(program, "used", "io_uring_carried"), carried, "{way}: {program:#}");
    }
    let line = [bin("towpath").as_os_str().to_owned(), "run".into(), "--require".into(), "--socket".into()];
    let line: Vec<_> = line.into_iter().chain([service.socket.clone().into_os_string(), "--".into()]).collect();
    let chosen = |way: &str, what: &str| {
        let program = Program::new(&[&fixed]).arg(way).env("TOWPATH_IO_URING", what);
        program.under(&line).run(20).ok()
    };
    assert_eq!(chosen("raw", "off"), "ring -38\nsubmit -22 1\nping\n");
    assert_eq!(chosen("raw", "kernel"), plain);
}

#[test]
fn the_documentation_has_every_environment_variable() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let page = std::fs::read_to_string(crates.join("../docs/reference/configuration.md")).expect("the page");
    let list = Program::new(&["grep", "-rhoE", "\"TOWPATH_[A-Z_]+\""]).arg("--include=*.rs").arg("--exclude-dir=tests");
    let found = list.arg("--exclude-dir=examples").arg(crates).run(20).ok();
    let names: std::collections::BTreeSet<_> = found.lines().map(|name| name.trim_matches('"')).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/reference/configuration.md");
    }
}
