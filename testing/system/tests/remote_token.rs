//! A server of a remote stack believes those who are entitled to it, and nobody else: UNIX sockets by the kernel's
//! credentials, TCP by a token with which everything is encrypted.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use towpath_ring::Geometry;
use towpath_ring::layout::VERSION;
use towpath_system_tests::program::{Finished, Running};
use towpath_system_tests::{Program, Scratch, Service, bin, own_network, require_program, require_root, until};

/// A user who is nobody's friend.
const OTHER: u32 = 23_452;

fn kernel_stack() -> Program {
    Program::new(&[bin("towpath")]).arg("kernel-stack")
}

fn make_token(file: &Path) -> PathBuf {
    kernel_stack().arg("--make-token").arg(file).run(20).ok();
    file.into()
}

/// A server at a port of this host.
struct Server {
    running: Running,
    port: u16,
    scratch: Scratch,
}

impl Server {
    /// `complete` says how it is protected.
    fn start(complete: impl FnOnce(Program, &Scratch) -> Program) -> Self {
        own_network();
        let scratch = Scratch::new("remote-token");
        let program = complete(kernel_stack().arg("--listen").arg("tcp:127.0.0.1:0"), &scratch);
        let mut running = program.start(scratch.path("server.log"));
        running.wait_for("serving", 20);
        let log = running.output();
        let port = log.split("address=tcp:127.0.0.1:").nth(1).expect("its port in the log");
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        Self { running, port: port.parse().unwrap(), scratch }
    }
    fn with_token() -> Self {
        Self::start(|program, scratch| program.arg("--token").arg(make_token(&scratch.path("token"))))
    }
    fn trusting() -> Self {
        Self::start(|program, _| program.arg("--trust-network"))
    }
    fn token(&self) -> PathBuf {
        self.scratch.path("token")
    }
    /// A service of a server at a port.
    fn service(&self, port: u16, complete: impl FnOnce(Program) -> Program) -> Service {
        let address = format!("tcp:127.0.0.1:{port}");
        Service::start(|program| complete(program.arg("--stack").arg("remote").arg("--remote").arg(&address)))
    }
    /// A service that is not served.
    fn refuses(&self, complete: impl FnOnce(Program) -> Program) -> Finished {
        let address = format!("tcp:127.0.0.1:{}", self.port);
        let socket = self.scratch.path("refused.sock");
        let ended = complete(kernel_stack().arg("--socket").arg(socket).arg("--connect").arg(address)).run(60);
        assert_eq!(ended.code, 1, "{}", ended.err);
        ended
    }
}

/// A host that asks a server to serve a program of root's, and says whether the server answers.
const CLAIM: &str = "import socket, sys
kind, at, asks = sys.argv[1:]
s = socket.socket(socket.AF_UNIX) if kind == 'unix' else socket.socket()
s.connect(at if kind == 'unix' else ('127.0.0.1', int(at)))
got = b''
try:
    s.sendall(bytes.fromhex(asks))
    # More than a greeting.
    while len(got) < 100 and (part := s.recv(65536)): got += part
except OSError: pass
print('served' if len(got) >= 100 and got[:1] in b'IW' else 'refused')";

/// A greeting and a client of uid 0, as an honest host sends them in the clear.
fn claim() -> String {
    let Geometry { slots, app_slots, tx_bytes, rx_bytes, tx_most, rx_most, contexts, flow_groups } = Geometry::DEFAULT;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let greeting =
        [vec![1], words(&[VERSION, slots, app_slots, tx_bytes, rx_bytes, tx_most, rx_most, contexts, flow_groups])]
            .concat();
    // Request 1: client 0, of uid 0 and process 1, without a name.
    let message = [words(&[1]), vec![1], words(&[0, 0, 1, 0])].concat();
    let add = [vec![2, 1], words(&[message.len() as u32]), message].concat();
    let (mut bytes, mut at) = (Vec::new(), 0);
    for (number, record) in (0..).zip([greeting, add]) {
        let entry = [words(&[record.len() as u32]), record].concat();
        let length = entry.len() as u32;
        bytes.extend([b'I', 0, 0, 0]);
        bytes.extend(words(&[number, 0, length, at, 0, length]));
        bytes.extend(entry);
        at += length;
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn claims(kind: &str, at: &str) -> String {
    let program = Program::line("/usr/bin/python3 -c").arg(CLAIM).arg(kind).arg(at).arg(claim());
    program.user(OTHER).run(60).ok().trim().to_owned()
}

#[test]
fn a_user_without_rights_is_not_root_for_a_server_of_roots() {
    require_root();
    require_program("setpriv", "util-linux");
    let server = Server::with_token();
    assert_eq!(claims("tcp", &server.port.to_string()), "refused");
    until("the server says why", 10, || server.running.output().contains("does not speak TLS"));
    // The same bytes where everybody is believed, as the operator has said.
    assert_eq!(claims("tcp", &Server::trusting().port.to_string()), "served");
    // He cannot read the token either, and one of his own does not help.
    let address = format!("tcp:127.0.0.1:{}", server.port);
    let folder = Scratch::new("remote-other");
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&server.scratch.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let own = folder.path("token");
    kernel_stack().arg("--make-token").arg(&own).user(OTHER).run(20).ok();
    for (token, why) in [(server.token(), "Permission denied"), (own, "another token")] {
        let program = kernel_stack().arg("--socket").arg(folder.path("s")).arg("--connect").arg(&address);
        let ended = program.arg("--token").arg(&token).user(OTHER).run(60);
        assert!(ended.code == 1 && ended.err.contains(why), "{}", ended.err);
    }
}

#[test]
fn a_unix_socket_serves_its_own_user_and_root_whatever_its_mode_is() {
    require_root();
    require_program("setpriv", "util-linux");
    let scratch = Scratch::new("remote-unix");
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let listen = |name: &str| {
        let socket = scratch.path(name);
        let program = kernel_stack().arg("--listen").arg(format!("unix:{}", socket.display()));
        (program, socket.display().to_string())
    };
    let (program, socket) = listen("roots.sock");
    let mut server = program.start(scratch.path("server.log"));
    server.wait_for("serving", 20);
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(claims("unix", &socket), "refused");
    until("the server says why", 10, || server.output().contains("somebody else's connection is refused"));
    // A server of that user's own believes him; root does not believe that server.
    let (program, socket) = listen("others.sock");
    let mut own = program.user(OTHER).start(scratch.path("own.log"));
    own.wait_for("serving", 20);
    assert_eq!(claims("unix", &socket), "served");
    let connect = kernel_stack().arg("--socket").arg(scratch.path("s")).arg("--connect");
    let ended = connect.arg(format!("unix:{socket}")).run(60);
    assert!(ended.code == 1 && ended.err.contains(&format!("uid {OTHER} listens there")), "{}", ended.err);
}

/// Stands between a service and its server, and keeps all that goes by.
fn eavesdrop(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (mut from, mut to) in ways {
                let hears = Arc::clone(&hears);
                std::thread::spawn(move || {
                    let mut bytes = [0; 65_536];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        hears.lock().unwrap().extend(&bytes[..count]);
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (own, heard)
}

const SECRETS: &str = "import socket
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
for one, other in [(a, c), (c, a)]:
    for n in range(200):
        one.sendall(b'nobody may read this' * 10); got = b''
        while len(got) < 200: got += other.recv(200 - len(got))
print('whole')";

#[test]
fn over_tcp_with_a_token_nothing_can_be_read_on_the_way() {
    for encrypted in [true, false] {
        let server = if encrypted { Server::with_token() } else { Server::trusting() };
        let (port, heard) = eavesdrop(server.port);
        let service = server.service(port, |program| match encrypted {
            true => program.arg("--token").arg(server.token()),
            false => program.arg("--trust-network"),
        });
        let out = service.accelerated("/usr/bin/python3 -c").arg(SECRETS).run(60).ok();
        assert_eq!(out.trim(), "whole");
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 2 * 200 * 200, "everything went by");
        // The payload, and the name of the program.
        for secret in [&b"nobody may read"[..], b"python3"] {
            let read = heard.windows(secret.len()).any(|window| window == secret);
            assert_eq!(read, !encrypted, "{}", String::from_utf8_lossy(secret));
        }
    }
}

#[test]
fn a_token_that_is_wrong_missing_or_on_one_side_only_is_named_with_the_remedy() {
    let server = Server::with_token();
    let other = make_token(&server.scratch.path("other"));
    let wrong = server.refuses(|program| program.arg("--token").arg(&other)).err;
    assert!(wrong.contains("another token") && wrong.contains("give both a copy of one file"), "{wrong}");
    until("the server says it too", 10, || server.running.output().contains("the other side has another token"));
    let none = server.refuses(|program| program.arg("--trust-network")).err;
    assert!(none.contains("the other side has a token and this one has none"), "{none}");
    until("the server says it too", 10, || server.running.output().contains("give it a copy of this side's token"));
    let unset = server.refuses(|program| program).err;
    assert!(unset.contains("--make-token") && unset.contains("--trust-network"), "{unset}");
    let both = kernel_stack().arg("--listen").arg("tcp:127.0.0.1:0").arg("--trust-network").arg("--token");
    let both = both.arg(server.token()).run(20);
    assert!(both.code == 2 && both.err.contains("leave one of the two out"), "{}", both.err);
    let trusting = Server::trusting();
    let plain = trusting.refuses(|program| program.arg("--token").arg(&other)).err;
    assert!(plain.contains("no kernel stack with --token"), "{plain}");
    until("the server says it too", 10, || trusting.running.output().contains("this one has none"));
    let listens = |file: &Path| {
        let ended = kernel_stack().arg("--listen").arg("tcp:127.0.0.1:0").arg("--token").arg(file).run(20);
        assert_eq!(ended.code, 1, "{}", ended.err);
        ended.err
    };
    let file = server.scratch.path("nowhere");
    assert!(listens(&file).contains("--make-token"), "a server without the file");
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o640)).unwrap();
    let why = listens(&other);
    assert!(why.contains("0640") && why.contains("chmod 600"), "{why}");
    let why = server.refuses(|program| program.arg("--token").arg(&other)).err;
    assert!(why.contains("0640") && why.contains("chmod 600"), "{why}");
    let again = kernel_stack().arg("--make-token").arg(&other).run(20);
    assert!(again.code == 1 && again.err.contains("a token replaces none"), "{}", again.err);
    let unprotected = kernel_stack().arg("--listen").arg("tcp:127.0.0.1:0").run(20);
    assert!(unprotected.code == 1 && unprotected.err.contains("--make-token"), "{}", unprotected.err);
}

/// True if the server has ended this connection.
fn is_ended(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(0) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(_) => true,
        Ok(_) => panic!("the server speaks first"),
    }
}

#[test]
fn hosts_that_are_slow_to_show_a_token_lock_nobody_out() {
    let server = Server::with_token();
    let threads = || std::fs::read_dir(format!("/proc/{}/task", server.running.pid())).unwrap().count();
    // Half say nothing, half begin a handshake and stop.
    let slow: Vec<_> = (0..300)
        .map(|n| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            if n % 2 == 0 {
                stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).unwrap();
            }
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let service = server.service(server.port, |program| program.arg("--token").arg(server.token()));
    let out = service.accelerated("/usr/bin/python3 -c").arg(SECRETS).run(60).ok();
    assert_eq!(out.trim(), "whole");
    // Only so many wait at a time, and each only for so long.
    until("most had to go", 20, || slow.iter().filter(|stream| is_ended(stream)).count() >= 200);
    until("all had to go", 60, || slow.iter().all(is_ended));
    until("their threads have ended", 20, || threads() < 32);
    assert_eq!(service.accelerated("/usr/bin/python3 -c").arg(SECRETS).run(60).ok().trim(), "whole");
}
