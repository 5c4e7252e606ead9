//! Towpath on a real interface (a veth), with a plain Linux peer in another namespace, in both directions. All that is
//! not accelerated stays with the kernel on the same address.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, Service, bin, require_program, until};

const NOBODY: u32 = 65534;

fn redis(lab: &Lab, service: &Service, port: u16) -> towpath_system_tests::program::Running {
    let line = format!("redis-server --bind {SERVER} --port {port} --save --appendonly no --protected-mode no");
    let mut server =
        lab.on_server(service.accelerated(&line).dir(&service.scratch.0)).start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    server
}

#[test]
fn linux_client_to_accelerated_redis_with_kernel_tcp_dropped() {
    require_program("redis-server", "redis-server");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = redis(&lab, &service, 6401);
    lab.drop_kernel_tcp();
    let before = service.segments();
    let line = format!("redis-benchmark -h {SERVER} -p 6401 -t get,set -n 20000 -c 20 -q");
    let out = lab.on_client(Program::line(&line)).run(90).ok();
    assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    // At least one request segment each for 20,000 GETs and 20,000 SETs.
    assert!(service.segments() - before >= 40_000);
    let large = "x".repeat(400_000);
    let line = format!("redis-cli -h {SERVER} -p 6401 -x set large");
    let file = service.scratch.path("large");
    std::fs::write(&file, &large).expect("file");
    let shell = format!("{line} < {}", file.display());
    assert_eq!(lab.on_client(Program::new(&["sh", "-c", &shell])).run(20).ok().trim(), "OK");
    let line = format!("redis-cli -h {SERVER} -p 6401 get large");
    assert!(lab.on_client(Program::line(&line)).run(20).ok().trim_end() == large);
}

#[test]
fn every_queue_of_the_interface_is_served() {
    require_program("redis-server", "redis-server");
    let lab = Lab::with_queues(4);
    for cores in ["1", "2"] {
        let service =
            Service::start(|program| lab.on_server(program.arg("--interface").arg("eth1").arg("--cores").arg(cores)));
        let _server = redis(&lab, &service, 6406);
        let line = format!("redis-benchmark -h {SERVER} -p 6406 -t set -n 5000 -c 40 -q");
        let out = lab.on_client(Program::line(&line)).run(60).ok();
        assert!(out.contains("SET:"), "{out}");
        let ports: Vec<u64> = service.status()["flow_groups"]
            .as_array()
            .expect("flow groups")
            .iter()
            .flat_map(|core| core["ports"].as_array().expect("ports").iter().skip(1))
            .map(|port| port["rx_frames"].as_u64().expect("rx_frames"))
            .collect();
        assert_eq!(ports.len(), 4, "{ports:?}");
        assert!(ports.iter().filter(|&&frames| frames > 0).count() >= 2, "only one queue was used: {ports:?}");
    }
}

#[test]
fn linux_client_to_accelerated_memcached() {
    require_program("memcached", "memcached");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut server = lab
        .on_server(service.accelerated(&format!("memcached -l {SERVER} -p 11401 -U 0 -t 2 -u nobody")))
        .start(service.scratch.path("memcached.log"));
    let script = format!(
        "import socket\ns=socket.create_connection(('{SERVER}',11401),60);f=s.makefile('rwb')\n\
         for i in range(2000):\n f.write(b'set k 0 0 5\\r\\nhello\\r\\n');f.flush();assert f.readline()==b'STORED\\r\\n'\n\
         print('done')"
    );
    lab.drop_kernel_tcp();
    let client = lab.on_client(Program::new(&["python3", "-c", &script]));
    until("memcached answers", 15, || {
        assert!(server.alive(), "{}", server.output());
        client.run(30).code == 0
    });
}

#[test]
fn accelerated_client_to_linux_servers() {
    require_program("redis-server", "redis-server");
    require_program("curl", "curl");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut server = lab
        .on_client(Program::line(&format!("redis-server --bind {CLIENT} --port 6402 --save --protected-mode no")))
        .start(service.scratch.path("linux-redis.log"));
    server.wait_for("Ready to accept connections", 20);
    let body: Vec<u8> = (0..2_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    std::fs::write(service.scratch.path("body.bin"), &body).expect("body");
    let mut web = lab
        .on_client(Program::line(&format!("python3 -u -m http.server 8001 --bind {CLIENT}")).dir(&service.scratch.0))
        .start(service.scratch.path("linux-http.log"));
    web.wait_for("Serving HTTP", 20);
    lab.drop_kernel_tcp();
    let before = service.segments();
    let line = format!("redis-benchmark -h {CLIENT} -p 6402 -t get,set -n 10000 -c 10 -q");
    let out = lab.on_server(service.accelerated(&line)).run(90).ok();
    assert!(out.contains("GET:"), "{out}");
    assert!(service.segments() - before >= 20_000);
    let to = service.scratch.path("got.bin");
    let line = format!("curl -sS --max-time 80 http://{CLIENT}:8001/body.bin -o");
    lab.on_server(service.accelerated(&line).arg(&to)).run(40).ok();
    assert!(std::fs::read(&to).expect("downloaded") == body, "the file differs");
}

/// The kernel believes that ports are free whose last connection the stack holds in TIME-WAIT. With 20 ports nearly
/// each `bind` after the first 20 chooses one of these.
#[test]
fn a_program_that_binds_to_any_port_connects_again_and_again() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let code = format!(
        "import socket\nl=socket.create_server(('{CLIENT}',8003),backlog=200)\nprint('listens',flush=True)\n\
         while True:\n s,_=l.accept();s.recv(1);s.close()"
    );
    let mut server =
        lab.on_client(Program::new(&["python3", "-c", &code])).start(service.scratch.path("linux-server.log"));
    server.wait_for("listens", 20);
    let narrow = "net.ipv4.ip_local_port_range=40000 40019";
    lab.on_server(Program::new(&["sysctl", "-qw", narrow])).run(10).ok();
    let script = format!(
        "import socket\nports=set()\nfor i in range(150):\n s=socket.socket();s.bind(('{SERVER}',0))\n \
         s.getsockname();s.connect(('{CLIENT}',8003));ports.add(s.getsockname()[1]);s.close()\nprint(len(ports))"
    );
    let used = lab.on_server(service.accelerated("python3 -c").arg(script)).run(60).ok();
    assert!(used.trim().parse::<u32>().expect("a number") > 100, "{used}: each has its own TIME-WAIT");
}

#[test]
fn refused_and_unreachable_give_the_errors_of_linux() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    lab.drop_kernel_tcp();
    let script = |address: &str| {
        let code = format!(
            "import socket\ns=socket.socket();s.settimeout(60)\ntry:\n s.connect(('{address}',9))\nexcept OSError as e:\n print(e.errno)"
        );
        lab.on_server(service.accelerated("python3 -c").arg(code)).run(20).ok().trim().to_owned()
    };
    assert_eq!(script(CLIENT), "111");
    assert_eq!(script("10.77.0.99"), "113");
}

#[test]
fn the_kernel_keeps_everything_else() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = redis(&lab, &service, 6403);
    lab.on_client(Program::line(&format!("ping -c 2 -i 0.2 -W 2 {SERVER}"))).run(10).ok();
    std::fs::write(service.scratch.path("index.html"), "kernel").expect("body");
    let mut web = lab
        .on_server(Program::line(&format!("python3 -u -m http.server 8002 --bind {SERVER}")).dir(&service.scratch.0))
        .start(service.scratch.path("http.log"));
    web.wait_for("Serving HTTP", 20);
    let line = format!("curl -sS --max-time 80 http://{SERVER}:8002/index.html");
    assert_eq!(lab.on_client(Program::line(&line)).run(20).ok(), "kernel");
    // A port without a listener: the kernel answers with a RST at once.
    let out = lab.on_client(Program::line(&format!("curl -sS --max-time 80 http://{SERVER}:8003/"))).run(20);
    assert_eq!(out.code, 7, "{out:?}");
    // UDP.
    let echo = format!(
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(('{SERVER}',7007));print('up',flush=True)\n\
         d,a=s.recvfrom(99);s.sendto(d,a)"
    );
    let mut udp = lab.on_server(service.accelerated("python3 -c").arg(echo)).start(service.scratch.path("udp.log"));
    udp.wait_for("up", 10);
    let ask = format!(
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.settimeout(60)\n\
         s.sendto(b'hi',('{SERVER}',7007));print(s.recv(9).decode())"
    );
    assert_eq!(lab.on_client(Program::new(&["python3", "-c", &ask])).run(10).ok().trim(), "hi");
    // The accelerated port is reserved: no kernel program can take it.
    let bind = format!("import socket\ns=socket.socket();s.bind(('{SERVER}',6403))");
    let out = lab.on_server(Program::new(&["python3", "-c", &bind])).run(10);
    assert!(out.err.contains("Address already in use"), "{out:?}");
}

#[test]
fn an_ordinary_user_may_attach_if_admitted() {
    require_program("redis-cli", "redis-tools");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = redis(&lab, &service, 6404);
    let ping = service.accelerated(&format!("redis-cli -h {SERVER} -p 6404 ping")).user(NOBODY);
    assert_eq!(lab.on_server(ping).run(20).ok().trim(), "PONG");
    let strict = Service::start(|program| program);
    let out = strict.accelerated("redis-cli -p 1 ping").user(NOBODY).run(20);
    assert_ne!(out.code, 0);
    assert!(out.err.contains("admit"), "the refusal must say why: {out:?}");
}

#[test]
fn a_capture_on_the_peer_shows_a_clean_handshake_transfer_and_close() {
    require_program("tcpdump", "tcpdump");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = redis(&lab, &service, 6405);
    lab.drop_kernel_tcp();
    let mut capture = lab
        .on_client(Program::line("tcpdump -l -n -S -v -i eth1 --immediate-mode tcp port 6405"))
        .start(service.scratch.path("tcpdump.log"));
    capture.wait_for("listening on", 10);
    let line = format!("redis-cli -h {SERVER} -p 6405 ping");
    assert_eq!(lab.on_client(Program::line(&line)).run(10).ok().trim(), "PONG");
    until("both FINs are captured", 5, || capture.output().matches("Flags [F").count() >= 2);
    capture.stop();
    let text = capture.output();
    let from_us: Vec<&str> = text.lines().filter(|l| l.contains(&format!("{SERVER}.6405 >"))).collect();
    assert!(from_us[0].contains("Flags [S.]"), "{text}");
    assert!(
        from_us[0].contains("mss 1460") && from_us[0].contains("wscale") && from_us[0].contains("TS val"),
        "{text}"
    );
    assert!(from_us.iter().any(|l| l.contains("Flags [P.]") && !l.contains("length 0")), "{text}");
    assert!(from_us.iter().any(|l| l.contains("Flags [F.]")), "{text}");
    assert!(from_us.iter().all(|l| l.contains("(correct)")), "a wrong checksum:\n{text}");
    assert!(!text.contains("Flags [R"), "a reset:\n{text}");
    // One SYN each, and no segment twice: nothing was retransmitted.
    assert_eq!(text.matches("Flags [S]").count() + text.matches("Flags [S.]").count(), 2, "{text}");
}

#[test]
fn the_interface_is_given_back() {
    let lab = Lab::new();
    for port in ["xdp", "packet"] {
        let mut service = Service::on_interface_by(&lab, port);
        assert_eq!(service.status()["interfaces"][0]["mode"], port);
        until("eth1 is served", 5, || lab.is_served());
        service.running.stop();
        assert!(!lab.is_served(), "{port}");
        let mut killed = Service::on_interface_by(&lab, port);
        until("eth1 is served", 5, || lab.is_served());
        killed.running.signal(libc::SIGKILL);
        killed.running.wait_end(5);
        until("the kernel has given it back", 5, || !lab.is_served());
    }
}

#[test]
fn a_second_service_on_the_interface_is_told_who_has_it() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let (pid, socket) = (service.status()["pid"].as_u64().expect("a pid"), service.socket.display());
    let second = service.scratch.path("second.sock");
    let line = format!("{} serve --interface eth1 --socket {}", bin("towpath").display(), second.display());
    let out = lab.on_server(Program::line(&line)).run(20);
    assert_eq!(out.code, 3, "{out:?}");
    let expected = format!(
        "towpathd: --interface eth1: the Towpath service with process {pid} serves it already; use that one \
         --socket {socket}, end it (`towpath stop --socket {socket}`), or serve another interface"
    );
    assert!(out.err.contains(&expected), "{out:?}");
}

#[test]
fn without_privileges_the_error_says_what_to_do() {
    let lab = Lab::new();
    let program = Program::new(&[towpath_system_tests::bin("towpath")])
        .arg("serve")
        .arg("--interface")
        .arg("eth1")
        .arg("--socket")
        .arg("/tmp/towpath-test-unprivileged.sock")
        .user(NOBODY);
    let out = lab.on_server(program).run(10);
    assert_ne!(out.code, 0);
    assert!(out.err.contains("CAP_NET_ADMIN") && out.err.contains("without"), "{out:?}");
    let missing = Program::new(&[towpath_system_tests::bin("towpath")])
        .arg("serve")
        .arg("--interface")
        .arg("nope0")
        .arg("--socket")
        .arg("/tmp/towpath-test-missing.sock");
    let out = lab.on_server(missing).run(10);
    assert_ne!(out.code, 0);
    assert!(out.err.contains("nope0"), "{out:?}");
}

/// An asyncio server that answers each line with its length and the reversed line.
const ASYNCIO_SERVER: &str = r#"
import asyncio, sys
async def serve(reader, writer):
    while line := await reader.readline():
        text = line.strip()
        writer.write(b"%d " % len(text) + text[::-1] + b"\n")
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, sys.argv[1], 6407, limit=1 << 20)
    print("up", flush=True)
    await server.serve_forever()
asyncio.run(main())
"#;

/// Fifty connections at a time with lines of many lengths. Checks every answer.
const ASYNCIO_CLIENT: &str = r#"
import asyncio, sys
async def one(n):
    reader, writer = await asyncio.open_connection(sys.argv[1], 6407, limit=1 << 20)
    for i in range(20):
        text = bytes(97 + (n + i + k) % 26 for k in range((n * 977 + i * 4001) % 70000))
        writer.write(text + b"\n")
        await writer.drain()
        got = await reader.readline()
        assert got == b"%d " % len(text) + text[::-1] + b"\n", (n, i, len(text), len(got))
    writer.close()
    await writer.wait_closed()
async def main():
    await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(50))), 80)
    print("done")
asyncio.run(main())
"#;

#[test]
fn asyncio_both_ways() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let server = |address: &str| Program::line("python3 -c").arg(ASYNCIO_SERVER).arg(address);
    let client = |address: &str| Program::line("python3 -c").arg(ASYNCIO_CLIENT).arg(address);
    let accelerated = |args: &str, address: &str| service.accelerated("python3 -c").arg(args).arg(address);
    let mut ours =
        lab.on_server(accelerated(ASYNCIO_SERVER, SERVER)).start(service.scratch.path("accelerated-asyncio.log"));
    let mut theirs = lab.on_client(server(CLIENT)).start(service.scratch.path("linux-asyncio.log"));
    ours.wait_for("up", 20);
    theirs.wait_for("up", 20);
    lab.drop_kernel_tcp();
    assert_eq!(lab.on_client(client(SERVER)).run(90).ok().trim(), "done");
    assert_eq!(lab.on_server(accelerated(ASYNCIO_CLIENT, CLIENT)).run(90).ok().trim(), "done");
}

#[test]
fn wrk_from_a_linux_host_to_accelerated_nginx() {
    require_program("nginx", "nginx-light");
    require_program("wrk", "wrk");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let dir = &service.scratch.0;
    std::fs::write(dir.join("index.html"), "towpath ".repeat(1000)).expect("body");
    let config = format!(
        "user root; worker_processes 1; daemon off; pid {d}/nginx.pid; error_log {d}/error.log notice;
         events {{ worker_connections 256; }}
         http {{ access_log off; client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f;
                uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
                server {{ listen {SERVER}:6408; root {d}; }} }}",
        d = dir.display()
    );
    std::fs::write(dir.join("nginx.conf"), config).expect("config");
    let line = service.accelerated("nginx -c").arg(dir.join("nginx.conf"));
    let mut server = lab.on_server(line).start(service.scratch.path("nginx.log"));
    lab.drop_kernel_tcp();
    let probe = lab.on_client(Program::line(&format!("curl -sS --max-time 5 -o /dev/null http://{SERVER}:6408/")));
    until("nginx answers", 20, || {
        assert!(server.alive(), "{}", server.output());
        probe.run(10).code == 0
    });
    let out =
        lab.on_client(Program::line(&format!("wrk -t 2 -c 32 -d 2s --timeout 60s http://{SERVER}:6408/"))).run(30).ok();
    assert!(!out.contains("Socket errors") && !out.contains("Non-2xx"), "{out}");
    let answered = out.lines().find_map(|l| l.split_once(" requests in ")).expect("how many");
    assert!(answered.0.trim().parse::<u32>().expect("a number") > 32, "each connection has its answers: {out}");
}

/// The MAC address of `eth1` in a namespace.
fn mac(namespace: &str) -> String {
    let shown = Program::line(&format!("ip -n {namespace} -br link show dev eth1")).run(10).ok();
    shown.split_whitespace().nth(2).expect("a MAC address").to_owned()
}

const ECHO: &str = "import socket, sys\ns = socket.create_server((sys.argv[1], int(sys.argv[2])))\nprint('up', flush=True)\n\
while True:\n c, _ = s.accept()\n while d := c.recv(65536): c.sendall(d)\n c.close()";
const ASK: &str = "import socket, sys, threading\ntry:\n s = socket.create_connection((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]))\n\
except OSError as e:\n print(type(e).__name__); sys.exit()\n\
d = bytes(range(256)) * 8000\nt = threading.Thread(target=lambda: (s.sendall(d), s.shutdown(socket.SHUT_WR)))\nt.start()\n\
g = b''\nwhile b := s.recv(65536): g += b\nt.join()\nprint('same' if g == d else len(g))";

/// Both ends are served, because this machine's kernel may lack VLAN devices. Their neighbours are permanent, because
/// the kernel's ARP requests have no tag.
#[test]
fn programs_talk_over_a_vlan_and_other_frames_stay_with_the_kernel() {
    let lab = Lab::new();
    for (here, there, address) in [(&lab.server, &lab.client, CLIENT), (&lab.client, &lab.server, SERVER)] {
        let line = format!("ip -n {here} neigh replace {address} lladdr {} dev eth1 nud permanent", mac(there));
        Program::line(&line).run(10).ok();
    }
    let files = towpath_system_tests::Scratch::new("vlan");
    // The server's program runs in the kernel's receive path, the clients' in the driver.
    let config = |vlan: u16, port: &str| {
        let file = files.path(&format!("{vlan}-{port}.toml"));
        let text = format!("interface = \"eth1\"\nvlan = {vlan}\nport = {port:?}\n");
        std::fs::write(&file, text).expect("configuration");
        file
    };
    let python = |service: &Service, script: &str, seconds: &str| {
        service.accelerated("python3 -u -c").arg(script).arg(SERVER).arg("6431").arg(seconds)
    };
    let server = Service::start(|program| lab.on_server(program.arg("--config").arg(config(7, "xdp-generic"))));
    let mut echo = lab.on_server(python(&server, ECHO, "0")).start(files.path("echo.log"));
    echo.wait_for("up", 20);
    let plain = |port: u16| Program::line("python3 -u -c").arg(ASK).arg(SERVER).arg(port.to_string()).arg("60");
    {
        let client = Service::start(|program| lab.on_client(program.arg("--config").arg(config(7, "auto"))));
        assert_eq!(lab.on_client(python(&client, ASK, "60")).run(60).ok().trim(), "same");
        // 2 MB each way in segments of 1,500 bytes.
        assert!(server.segments() > 1000 && client.segments() > 1000);
        // Without a tag the kernel carries the connection to the same listener.
        let before = server.segments();
        assert_eq!(lab.on_client(plain(6431)).run(60).ok().trim(), "same");
        assert_eq!(server.segments(), before);
        let mut kernel = lab
            .on_server(Program::line("python3 -u -c").arg(ECHO).arg(SERVER).arg("6432"))
            .start(files.path("kernel.log"));
        kernel.wait_for("up", 20);
        assert_eq!(lab.on_client(plain(6432)).run(60).ok().trim(), "same");
    }
    let other = Service::start(|program| lab.on_client(program.arg("--config").arg(config(8, "xdp"))));
    assert_eq!(lab.on_client(python(&other, ASK, "3")).run(30).ok().trim(), "TimeoutError", "another VLAN");
}

/// RFC 9293 SHLD-9, as a program sees it: the peer falls silent, the program gets an error once, and the connection
/// survives.
#[test]
fn a_program_that_wants_to_know_is_told_that_its_peer_is_silent() {
    towpath_system_tests::require_program("nft", "nftables");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let mut echo = lab
        .on_client(Program::line("python3 -u -c").arg(ECHO).arg(CLIENT).arg("6433"))
        .start(service.scratch.path("echo.log"));
    echo.wait_for("up", 20);
    let script = format!(
        "import errno, select, socket\ns = socket.create_connection(('{CLIENT}', 6433), 60); s.settimeout(60)\n\
         s.setsockopt(socket.IPPROTO_IP, 11, 1)\ns.sendall(b'a'); assert s.recv(1) == b'a'\n\
         print('talking', flush=True); input()\ns.sendall(b'b')\n\
         try: print(s.recv(1))\nexcept OSError as e: print(errno.errorcode[e.errno], flush=True)\n\
         print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[2] >= 3, flush=True)\n\
         print(s.recv(1), flush=True)"
    );
    let silent = service.scratch.path("silent");
    let shell = format!("(until [ -e {} ]; do sleep 0.05; done; echo) | python3 -u -c \"{script}\"", silent.display());
    let program = service.scratch.path("ask.sh");
    std::fs::write(&program, shell).expect("script");
    let line = service.accelerated("sh").arg(&program);
    let mut asks = lab.on_server(line).start(service.scratch.path("ask.log"));
    asks.wait_for("talking", 20);
    let nft = |rules: &str| lab.on_client(Program::new(&["nft", rules])).run(10).ok();
    nft("add table inet silence; add chain inet silence in { type filter hook input priority -300; };
         add rule inet silence in meta l4proto tcp drop;");
    std::fs::write(&silent, "").expect("file");
    asks.wait_for("ETIMEDOUT", 20);
    let shown =
        Program::new(&[towpath_system_tests::bin("towpath")]).arg("sockets").arg("--socket").arg(&service.socket);
    let shown = shown.run(20).ok();
    assert!(shown.contains("backoff:"), "{shown}");
    nft("delete table inet silence");
    asks.wait_for("b'b'", 30);
    assert!(asks.output().contains("True"), "{}", asks.output());
}

#[test]
fn a_socket_that_connects_has_its_name_at_once() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    // The peer answers nothing, so the handshake does not end.
    let rules =
        "add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in tcp dport 7 drop";
    lab.on_client(Program::new(&["nft", rules])).run(10).ok();
    let script = format!(
        "import socket,errno\ns=socket.socket();s.setblocking(False)\n\
         print(s.connect_ex(('{CLIENT}',7))==errno.EINPROGRESS,*s.getsockname())"
    );
    let name = |program: Program| {
        let out = lab.on_server(program).run(20).ok();
        let [begun, address, port] = out.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{out}") };
        (begun.to_owned(), address.to_owned(), port != "0")
    };
    let linux = name(Program::new(&["python3", "-c", &script]));
    assert_eq!(linux, ("True".into(), SERVER.into(), true));
    assert_eq!(name(service.accelerated("python3 -c").arg(&script)), linux);
}
