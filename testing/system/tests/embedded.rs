//! Unmodified programs over an embedded service: no interface, no privileges, packets through the in-memory port.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Scratch, Service, bin, own_network, require_program, until};

/// An ordinary user's id; the tests themselves may run as root.
const NOBODY: u32 = 65534;

/// Runs `check` and asserts that it moved segments through the stack.
fn carried(service: &Service, segments_min: u64, check: impl FnOnce()) {
    let before = service.segments();
    check();
    let moved = service.segments() - before;
    assert!(moved >= segments_min, "the stack carried only {moved} segments, expected {segments_min}");
}

#[test]
fn redis_and_its_benchmark() {
    require_program("redis-server", "redis-server");
    let service = Service::embedded();
    let mut server = service
        .accelerated("redis-server --port 7101 --save --appendonly no --daemonize no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    carried(&service, 20_000, || {
        let out = service.accelerated("redis-benchmark -p 7101 -t get,set -n 10000 -c 20 -q").run(60).ok();
        assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
        let out = service.accelerated("redis-cli -p 7101 set colour green").run(10).ok();
        assert_eq!(out.trim(), "OK");
        let out = service.accelerated("redis-cli -p 7101 get colour").run(10).ok();
        assert_eq!(out.trim(), "green");
    });
    let listed = service.sockets();
    let listening = listed["sockets"].as_array().expect("sockets").iter().any(|s| s["state"] == "LISTEN");
    assert!(listening, "{listed}");
}

#[test]
fn redis_benchmark_pipelined() {
    require_program("redis-server", "redis-server");
    let service = Service::embedded();
    let mut server = service
        .accelerated("redis-server --port 7102 --save --appendonly no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    carried(&service, 1_000, || {
        let out = service.accelerated("redis-benchmark -p 7102 -t get,set -n 50000 -c 50 -P 16 -q").run(60).ok();
        assert!(out.contains("GET:"), "{out}");
    });
}

#[test]
fn memcached_with_threads() {
    require_program("memcached", "memcached");
    let service = Service::embedded();
    let user = if rustix::process::geteuid().is_root() { " -u root" } else { "" };
    let mut server = service
        .accelerated(&format!("memcached -l 127.0.0.1 -p 7103 -U 0 -t 4{user}"))
        .start(service.scratch.path("memcached.log"));
    let script = service.scratch.path("client.py");
    std::fs::write(&script, MEMCACHED_CLIENT).expect("script");
    until("memcached answers", 10, || {
        assert!(server.alive(), "{}", server.output());
        service.accelerated("python3").arg(&script).arg("1").run(20).code == 0
    });
    carried(&service, 500, || {
        let out = service.accelerated("python3").arg(&script).arg("500").run(60).ok();
        assert_eq!(out.trim(), "done 500");
    });
}

const MEMCACHED_CLIENT: &str = r#"
import socket, sys
count = int(sys.argv[1])
socks = [socket.create_connection(("127.0.0.1", 7103), 60) for _ in range(8)]
files = [s.makefile("rwb") for s in socks]
for i in range(count):
    f = files[i % 8]
    value = bytes(str(i), "ascii") * 50
    f.write(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(value), value)); f.flush()
    assert f.readline() == b"STORED\r\n"
    f.write(b"get k%d\r\n" % i); f.flush()
    assert f.readline() == b"VALUE k%d 0 %d\r\n" % (i, len(value))
    assert f.readline() == value + b"\r\n"
    assert f.readline() == b"END\r\n"
print("done", count)
"#;

#[test]
fn python_http_server_and_curl() {
    require_program("curl", "curl");
    let service = Service::embedded();
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(service.scratch.path("body.bin"), &body).expect("body");
    let mut server = service
        .accelerated("python3 -u -m http.server 7104 --bind 127.0.0.1")
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    carried(&service, 20, || {
        let to = service.scratch.path("got.bin");
        service.accelerated("curl -sS --max-time 80 http://127.0.0.1:7104/body.bin -o").arg(&to).run(40).ok();
        assert!(std::fs::read(&to).expect("downloaded") == body, "the file differs");
    });
}

#[test]
fn nginx_with_one_worker() {
    require_program("nginx", "nginx-light");
    require_program("curl", "curl");
    let service = Service::embedded();
    let dir = &service.scratch.0;
    let body = "towpath ".repeat(40_000);
    std::fs::write(dir.join("index.html"), &body).expect("body");
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 1; daemon off; pid {d}/nginx.pid; error_log {d}/error.log notice;
         events {{ worker_connections 256; }}
         http {{ access_log off; client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f;
                uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
                server {{ listen 127.0.0.1:7105; root {d}; }} }}",
        d = dir.display()
    );
    std::fs::write(dir.join("nginx.conf"), config).expect("config");
    let mut server =
        service.accelerated("nginx -c").arg(dir.join("nginx.conf")).start(service.scratch.path("nginx.log"));
    until("nginx answers", 15, || {
        assert!(server.alive(), "{}", server.output());
        service.accelerated("curl -sS --max-time 5 http://127.0.0.1:7105/").run(10).code == 0
    });
    carried(&service, 30, || {
        for _ in 0..5 {
            let out = service.accelerated("curl -sS --max-time 80 http://127.0.0.1:7105/").run(30).ok();
            assert!(out == body, "{} bytes of {}", out.len(), body.len());
        }
    });
}

#[test]
fn iperf3_both_ways() {
    require_program("iperf3", "iperf3");
    let service = Service::embedded();
    let mut server =
        service.accelerated("iperf3 -s -4 -B 127.0.0.1 -p 7106 --forceflush").start(service.scratch.path("iperf3.log"));
    server.wait_for("Server listening", 10);
    for direction in ["", " -R"] {
        carried(&service, 100, || {
            let line = format!("iperf3 -4 -c 127.0.0.1 -p 7106 -n 20M -J{direction}");
            let out = service.accelerated(&line).run(30).ok();
            let report: serde_json::Value = serde_json::from_str(&out).expect("iperf3's JSON");
            let received = report["end"]["sum_received"]["bytes"].as_u64().expect("bytes");
            assert!(received > 10_000_000, "only {received} bytes{direction}");
        });
        // The server runs one test at a time and needs a moment in between.
        until("iperf3 is ready again", 10, || {
            server.output().matches("Server listening").count() >= 2 || direction == " -R"
        });
    }
}

#[test]
fn a_closed_listener_gives_its_port_back_at_once() {
    let service = Service::embedded();
    // Without SO_REUSEADDR. socket.create_server and most servers set it.
    let script = "import socket,time\ntook=[]\n\
                  for i in range(200):\n\
                  \x20start=time.monotonic()\n\
                  \x20s=socket.socket();s.bind(('127.0.0.1',7109));s.listen(5)\n\
                  \x20if i%20==0:\n\
                  \x20\x20c=socket.create_connection(('127.0.0.1',7109),60);a,_=s.accept();c.close();a.close()\n\
                  \x20s.close();took.append(time.monotonic()-start)\n\
                  print('done',sorted(took)[100])";
    carried(&service, 10, || {
        let out = service.accelerated("python3 -c").arg(script).run(60).ok();
        let seconds: f64 = out.trim().strip_prefix("done ").expect("done").parse().expect("seconds");
        // Each wait that fails would take 100 ms. A busy machine may hold up some listeners as long, but not half of them.
        assert!(seconds < 0.1, "{seconds} s for the one in the middle");
    });
}

#[test]
fn service_starts_by_itself_and_goes_when_idle() {
    require_program("redis-cli", "redis-tools");
    own_network();
    let scratch = Scratch::new("auto");
    let as_user = |program: Program| if rustix::process::geteuid().is_root() { program.user(NOBODY) } else { program };
    let runtime = scratch.path("runtime");
    as_user(Program::line("mkdir -m 700").arg(&runtime)).run(5).ok();
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let prefix = [bin("towpath").into_os_string(), "run".into(), "--require".into(), "--".into()];
        as_user(Program::new(&words).under(&prefix).env("XDG_RUNTIME_DIR", &runtime).env("TOWPATH_IDLE_EXIT", "1s"))
    };
    let mut server =
        run("redis-server --port 7107 --save --appendonly no").dir(&scratch.0).start(scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    assert_eq!(run("redis-cli -p 7107 ping").run(20).ok().trim(), "PONG");
    let socket = runtime.join("towpath").join("towpath.sock");
    assert!(socket.exists(), "no service socket at {}", socket.display());
    server.stop();
    until("the idle service has gone", 15, || !socket.exists());
}

#[test]
fn a_service_that_is_just_ending_is_waited_for() {
    require_program("flock", "util-linux");
    let scratch = Scratch::new("ending");
    let as_user = |program: Program| if rustix::process::geteuid().is_root() { program.user(NOBODY) } else { program };
    let (runtime, directory) = (scratch.path("runtime"), scratch.path("runtime/towpath"));
    as_user(Program::line("mkdir -m 700").arg(&runtime).arg(&directory)).run(5).ok();
    // A service that is about to end still has the lock, but no sockets any more.
    let lock = directory.join("towpath.lock");
    let ending = Program::line("flock").arg(&lock).arg("sh").arg("-c").arg("echo held; sleep 1");
    let mut ending = as_user(ending).start(scratch.path("ending.log"));
    ending.wait_for("held", 20);
    let prefix = [bin("towpath").into_os_string(), "run".into(), "--require".into(), "--".into()];
    let program = Program::line("python3 -c").arg("print('ran')").under(&prefix);
    let out = as_user(program.env("XDG_RUNTIME_DIR", &runtime).env("TOWPATH_IDLE_EXIT", "1s")).run(30);
    assert_eq!((out.code, out.out.trim()), (0, "ran"), "{out:?}");
    ending.stop();
}

#[test]
fn static_and_absent_programs_are_left_whole() {
    let service = Service::embedded();
    let out = service.accelerated("/no/such/program").run(10);
    assert_eq!(out.code, 127, "{out:?}");
    assert!(out.err.contains("/no/such/program"), "{out:?}");
    // Debian's ldconfig is linked statically. If nothing may be injected into it, it runs without acceleration. It is
    // refused only if acceleration is required.
    let towpath = bin("towpath");
    let run = |required: &str| {
        let line = Program::new(&[&towpath]).arg("run").arg(required).arg("--hook").arg("preload");
        line.arg("--socket").arg(&service.socket).arg("--").arg("/sbin/ldconfig").arg("--version").run(10)
    };
    let out = run("-v");
    assert!(out.code == 0 && out.out.contains("ldconfig"), "{out:?}");
    assert!(out.err.contains("static"), "the message must tell what was done: {out:?}");
    let out = run("--require");
    assert_eq!((out.code, out.out.as_str()), (125, ""), "{out:?}");
}

#[test]
fn a_kernel_server_stays_reachable() {
    require_program("curl", "curl");
    let service = Service::embedded();
    std::fs::write(service.scratch.path("index.html"), "kernel").expect("body");
    let mut server = Program::line("python3 -u -m http.server 7108 --bind 127.0.0.1")
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    let out = service.accelerated("curl -sS --max-time 80 http://127.0.0.1:7108/index.html").run(20).ok();
    assert_eq!(out, "kernel");
}

#[test]
fn without_a_service_programs_run_on_the_kernel_or_fail_if_required() {
    let scratch = Scratch::new("absent");
    let socket = scratch.path("nobody-listens.sock");
    let run = |require: &[&str]| {
        let mut prefix = vec![bin("towpath").into_os_string(), "run".into()];
        prefix.extend(require.iter().map(|r| r.into()));
        prefix.extend(["--socket".into(), socket.clone().into_os_string(), "--".into()]);
        Program::line("python3 -c").arg("import socket; socket.socket().close(); print('ran')").under(&prefix).run(20)
    };
    let free = run(&[]);
    assert_eq!((free.code, free.out.trim()), (0, "ran"), "{free:?}");
    let required = run(&["--require"]);
    assert_ne!(required.code, 0, "{required:?}");
    assert!(required.err.contains("nobody-listens.sock"), "{required:?}");
}

/// Each round resets a connection of the same host by `close`, then asks the peer's socket whether it is connected.
const RESETS: &str = r#"
import errno, socket, struct
late, listener = 0, socket.create_server(("127.0.0.1", 18_133))
for _ in range(200):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.send(b"unread"); client.close()
    try: server.getpeername(); late += 1
    except OSError as error: assert error.errno == errno.ENOTCONN
    server.close()
print(late)
"#;

#[test]
fn a_peer_on_the_same_host_has_seen_the_reset_when_close_returns() {
    let service = Service::embedded();
    let out = service.accelerated("python3 -c").arg(RESETS).run(120).ok();
    // The library waits for 100 ms at most, in which a busy machine may not run the service.
    assert!(out.trim().parse::<u32>().unwrap() < 20, "{out}");
}
