//! The example programs of the native API in Rust and C: against sockets under the library, against Linux over a veth,
//! and killed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::PathBuf;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, bin_dir, require_program, require_root};

/// A client that sends, half-closes, and compares the echo.
const CLIENT: &str = r#"
import socket, sys, threading, os
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data, got = os.urandom(int(sys.argv[3])), b""
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
while True:
    more = s.recv(65536)
    if not more: break
    got += more
print(got == data)
"#;

fn rust_echo() -> PathBuf {
    let path = bin_dir().join("examples/echo");
    assert!(
        path.exists(),
        "{} is missing: cargo build -p towpath-native --examples (or run `make test`)",
        path.display()
    );
    path
}

/// Builds the C example as a user's program would be built.
fn c_echo(scratch: &Scratch, archive: bool) -> PathBuf {
    require_program("gcc", "gcc");
    let native = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/native");
    let program = scratch.path(if archive { "echo-archive" } else { "echo-library" });
    let mut gcc =
        Program::line("gcc -std=c11 -Wall -Wextra -Werror -pedantic -D_GNU_SOURCE -I").arg(native.join("include"));
    gcc = gcc.arg("-o").arg(&program).arg(native.join("examples/echo.c"));
    if archive {
        gcc = gcc.arg(bin_dir().join("libtowpath_native.a")).arg("-lm");
    } else {
        gcc = gcc.arg("-L").arg(bin_dir()).arg("-ltowpath_native").arg(format!("-Wl,-rpath,{}", bin_dir().display()));
    }
    gcc.run(60).ok();
    program
}

fn started(program: Program, scratch: &Scratch, name: &str) -> (Running, String) {
    let mut running = program.start(scratch.path(name));
    running.wait_for("ready on ", 30);
    let output = running.output();
    let port = output.trim().rsplit(':').next().expect("a port").to_owned();
    (running, port)
}

#[test]
fn c_programs_are_served_over_the_stack_and_directly() {
    let scratch = Scratch::new("native");
    for archive in [false, true] {
        let program = c_echo(&scratch, archive);
        for (service, direct) in [(Service::embedded(), false), (Service::direct(), true)] {
            let echo = Program::new(&[&program]).arg("127.0.0.1").arg("0").env("TOWPATH_SOCKET", &service.socket);
            let (_echo, port) = started(echo, &scratch, "echo.log");
            let client = service.accelerated("python3 -c").arg(CLIENT).arg("127.0.0.1").arg(port).arg("2000000");
            assert_eq!(client.run(120).ok().trim(), "True");
            assert_eq!(service.segments() == 0, direct, "the segments do not fit the way");
        }
    }
}

#[test]
fn the_header_is_complete_by_itself() {
    require_program("gcc", "gcc");
    let scratch = Scratch::new("native");
    let include = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/native/include");
    let source = scratch.path("include.c");
    std::fs::write(&source, "#include \"towpath.h\"\nint main(void) { return 0; }\n").expect("source");
    let line = Program::line("gcc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -I");
    line.arg(&include).arg(source).run(60).ok();
}

/// Every function that the header declares is in the library, and the library exports no other.
#[test]
fn the_library_has_what_the_header_says() {
    require_program("nm", "binutils");
    let header = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/native/include/towpath.h");
    let header = std::fs::read_to_string(header).unwrap();
    let library = bin_dir().join("libtowpath_native.so");
    let names = Program::line("nm -D --defined-only").arg(library).run(20).ok();
    let names: Vec<&str> = names.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    for name in &names {
        assert!(
            header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}(")),
            "{name} is not declared"
        );
    }
    let code: String = header.lines().map(|line| line.split("/*").next().unwrap_or("").to_owned() + "\n").collect();
    let declared = code.split("towpath_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_')?;
        rest[end..].starts_with('(').then(|| format!("towpath_{}", &rest[..end]))
    });
    let declared: Vec<String> = declared.collect();
    assert!(declared.len() > 20, "the test does not understand the header: {declared:?}");
    for name in declared {
        assert!(names.contains(&name.as_str()), "{name} is declared, and the library does not have it");
    }
}

#[test]
fn a_killed_native_program_closes_its_connections() {
    const PEER: &str = r#"
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"x"); assert s.recv(1) == b"x"
print("connected", flush=True)
s.settimeout(60)
try: print("end", s.recv(1))
except ConnectionResetError: print("reset")
"#;
    let scratch = Scratch::new("native");
    for (service, log) in [(Service::embedded(), "stack.log"), (Service::direct(), "direct.log")] {
        let echo = Program::new(&[rust_echo()]).arg("127.0.0.1:0").env("TOWPATH_SOCKET", &service.socket);
        let (echo, port) = started(echo, &scratch, "echo.log");
        let mut peer = service.accelerated("python3 -c").arg(PEER).arg(port).start(scratch.path(log));
        peer.wait_for("connected", 30);
        echo.signal(libc::SIGKILL);
        peer.wait_end(60);
        let output = peer.output();
        assert!(output.contains("reset") || output.contains("end b''"), "{output}");
    }
}

#[test]
fn a_native_server_on_an_interface_serves_linux() {
    require_root();
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let scratch = Scratch::new("native");
    let echo = Program::new(&[rust_echo()]).arg(format!("{SERVER}:6420")).env("TOWPATH_SOCKET", &service.socket);
    let (_echo, port) = started(lab.on_server(echo), &scratch, "echo.log");
    lab.drop_kernel_tcp();
    let client = Program::line("python3 -c").arg(CLIENT).arg(SERVER).arg(port).arg("2000000");
    assert_eq!(lab.on_client(client).run(120).ok().trim(), "True");
    // Two million bytes come in super-segments of up to 64 KiB.
    let segments = service.segments();
    assert!(segments >= 2_000_000 / 65_536, "the stack has carried {segments} segments only");
}
