//! `towpath capture` on every path. The files are read by our own reader, and by tcpdump.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::PathBuf;
use towpath_capture::ends::ends;
use towpath_capture::pcapng::Packet;
use towpath_capture::pcapng::read::{File, read};
use towpath_system_tests::module::object;
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, require_program, until};

/// A running `towpath capture --json` into a file.
struct Capturing {
    running: Running,
    file: PathBuf,
    scratch: Scratch,
}

impl Capturing {
    /// Begins one with these options and this filter.
    fn begin(service: &Service, line: &str) -> Self {
        let scratch = Scratch::new("capture");
        let file = scratch.path("frames.pcapng");
        let program = command(service, line).arg("--json").arg("-w").arg(&file);
        let mut running = program.start(scratch.path("summary"));
        // The head of the file is written when the service captures.
        until("the capture", 30, || {
            assert!(running.alive(), "it has ended:\n{}", running.output());
            std::fs::metadata(&file).is_ok_and(|file| file.len() > 0)
        });
        Self { running, file, scratch }
    }
    /// Ends it, and reads the file and the summary.
    fn end(mut self) -> (File, Value) {
        if self.running.alive() {
            self.running.signal(libc::SIGINT);
        }
        self.running.wait_end(30);
        let file = read(&std::fs::read(&self.file).unwrap()).unwrap();
        let output = self.running.output();
        let line = output.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no summary:\n{output}"));
        let summary: Value = serde_json::from_str(line).unwrap();
        assert_eq!(summary["frames"].as_u64(), Some(file.packets.len() as u64), "{summary}");
        self.tcpdump_reads(file.packets.len());
        drop(self.scratch);
        (file, summary)
    }
    /// tcpdump finds as many frames in the file.
    fn tcpdump_reads(&self, frames: usize) {
        require_program("tcpdump", "tcpdump");
        let out = Program::line("tcpdump -n -t -r").arg(&self.file).run(30).ok();
        assert_eq!(out.lines().count(), frames, "{out}");
    }
}

fn command(service: &Service, line: &str) -> Program {
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = Program::new(&[bin("towpath")]).arg("capture").arg("--socket").arg(&service.socket);
    words.into_iter().fold(program, |program, word| program.arg(word))
}

/// TCP flags and payload. Our frames have an Ethernet header and an IPv4 header without options.
fn segment(packet: &Packet) -> (u8, &[u8]) {
    let total = usize::from(u16::from_be_bytes([packet.bytes[16], packet.bytes[17]]));
    let payload = 34 + usize::from(packet.bytes[46] >> 4) * 4;
    (packet.bytes[47], &packet.bytes[payload.min(packet.bytes.len())..(14 + total).min(packet.bytes.len())])
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The payload that goes to this port, in the order of the frames.
fn bytes_to(file: &File, port: u16) -> Vec<u8> {
    let to = file.packets.iter().filter(|packet| ends(&packet.bytes).unwrap()[1].port() == port);
    to.flat_map(|packet| segment(packet).1.to_vec()).collect()
}

/// The interfaces of all frames, each once.
fn places(file: &File) -> Vec<&str> {
    let mut names: Vec<&str> =
        file.packets.iter().map(|packet| file.interfaces[packet.interface as usize].name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A server on port 7000 and 7001 of an address. Each connection says something and gets an answer.
fn server(address: &str) -> String {
    format!(
        "import socket, threading
def serve(l):
    while True:
        c, _ = l.accept(); c.settimeout(60)
        while c.recv(100): c.sendall(b'answer')
        c.close()
ls = [socket.create_server(('{address}', port)) for port in (7000, 7001)]
print('ready', flush=True)
for l in ls: threading.Thread(target=serve, args=(l,)).start()"
    )
}

/// The server on 127.0.0.1 of the laboratory's server side, where its ports are free.
fn serve_within(lab: &Lab, service: &Service) -> Running {
    let program = service.accelerated("python3 -u -c").arg(server("127.0.0.1"));
    let mut running = lab.on_server(program).start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

fn client(address: &str, port: u16) -> String {
    format!(
        "import socket
s = socket.create_connection(('{address}', {port}), 60)
for i in range(3): s.sendall(b'question'); assert s.recv(100) == b'answer'
s.shutdown(1); assert s.recv(1) == b''"
    )
}

/// A connection to port 7000, whole and named, and nothing of the one to port 7001.
fn check_whole(file: &File, interface: &str, address: &str) {
    assert_eq!(places(file), [interface]);
    let flags: Vec<u8> = file.packets.iter().map(|packet| segment(packet).0).collect();
    assert_eq!((flags[0], flags[1]), (SYN, SYN | ACK), "{flags:?}");
    assert_eq!(flags.iter().filter(|flags| *flags & FIN != 0).count(), 2, "{flags:?}");
    assert_eq!(bytes_to(file, 7000), b"questionquestionquestion");
    let port = ends(&file.packets[0].bytes).unwrap()[0].port();
    assert_eq!(bytes_to(file, port), b"answeransweranswer");
    for Packet { comment, .. } in &file.packets {
        assert!(comment.contains("python3 (pid ") && comment.contains(&format!("{address}:7000")), "{comment}");
    }
}

/// Connections to two ports of a server under the service. The server lives as long as what is returned.
fn talk_over_the_interface(lab: &Lab, service: &Service) -> Running {
    let program = service.accelerated("python3 -u -c").arg(server("0.0.0.0"));
    let mut running = lab.on_server(program).start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    for port in [7001, 7000] {
        lab.on_client(Program::line("python3 -c").arg(client(SERVER, port))).run(60).ok();
    }
    assert!(service.segments() > 0, "the stack has carried nothing");
    running
}

#[test]
fn a_connection_over_an_interface_is_captured_both_ways() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let capture = Capturing::begin(&service, "tcp port 7000");
    let _server = talk_over_the_interface(&lab, &service);
    let (file, summary) = capture.end();
    check_whole(&file, "eth1", SERVER);
    for packet in &file.packets {
        let outgoing = ends(&packet.bytes).unwrap()[0].port() == 7000;
        assert_eq!(packet.outgoing, Some(outgoing), "{}", packet.comment);
        let mark = if outgoing { format!(") {SERVER}:7000 > {CLIENT}:") } else { format!(" > {SERVER}:7000 python3") };
        assert!(packet.comment.contains(&mark), "{}", packet.comment);
    }
    assert!(file.packets.is_sorted_by_key(|packet| packet.time_ns));
    assert_eq!((summary["dropped"].as_u64(), file.interfaces[0].filter.as_str()), (Some(0), "tcp port 7000"));
}

/// The module has copies: what it writes is neither in the file nor on the wire.
#[test]
fn a_module_says_which_frames_are_captured_and_changes_none() {
    const PICK: &str = "
        struct { __uint(type, BPF_MAP_TYPE_PERCPU_HASH); __uint(max_entries, 8); __type(key, __u16); __type(value, __u64); }
            seen SEC(\".maps\");
        static int is_chosen(__u16 port) {
            __u64 one = 1, *count = bpf_map_lookup_elem(&seen, &port);
            if (count) *count += 1;
            else bpf_map_update_elem(&seen, &port, &one, BPF_ANY);
            return port == __builtin_bswap16(7000);
        }
        SEC(\"xdp\") int pick(struct xdp_md *ctx) {
            __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
            if (data + 54 > end) return XDP_DROP;
            struct { __u32 bytes; __u16 gso; __u8 egress, unused; __u32 port, flow_group; } *about =
                (void *)(long)ctx->data_meta;
            if ((void *)(about + 1) > (void *)data || about->port != 1) return XDP_DROP;
            __u16 from = *(__u16 *)(data + 34), to = *(__u16 *)(data + 36);
            if (about->egress != (from == __builtin_bswap16(7000) || from == __builtin_bswap16(7001))) return XDP_DROP;
            __builtin_memset(data, 0xff, 54);
            bpf_xdp_adjust_tail(ctx, -20);
            return is_chosen(from) || is_chosen(to) ? XDP_PASS : XDP_DROP;
        }
        SEC(\"xdp\") int none(struct xdp_md *ctx) { return XDP_TX; }";
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let pick = object(&service.scratch, "pick", Some(PICK));
    let capture = Capturing::begin(&service, &format!("--program pick --module {}", pick.display()));
    let _server = talk_over_the_interface(&lab, &service);
    let (file, summary) = capture.end();
    check_whole(&file, "eth1", SERVER);
    assert!(file.packets.iter().all(|packet| ends(&packet.bytes).unwrap().iter().any(|end| end.port() == 7000)));
    let shown = format!("module {} pick", pick.display());
    assert_eq!((summary["dropped"].as_u64(), &file.interfaces[0].filter), (Some(0), &shown));
    // What is no filter is refused, and the next one is taken.
    let refused = |line: &str, code: i32, why: &str| {
        let done = command(&service, line).arg("-w").arg(service.scratch.path("none.pcapng")).run(60);
        assert!(done.code == code && done.err.contains(why), "{line}: {} {}", done.code, done.err);
    };
    refused(&format!("--module {}", pick.display()), 3, "this object has the programs pick, none: choose one");
    refused("--module /nonexistent/x", 2, "towpath: --module: /nonexistent/x: No such file or directory");
    refused("--module /proc/self/comm", 2, "this is no ELF object");
    refused(&format!("--module {} tcp port 80", pick.display()), 2, "cannot be used with");
    let (file, _) = Capturing::begin(&service, &format!("--program none --module {}", pick.display())).end();
    assert!(file.packets.is_empty());
}

#[test]
fn the_first_frames_of_each_connection_are_captured_and_no_others() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let first = object(&service.scratch, "first", None);
    let capture = Capturing::begin(&service, &format!("--module {}", first.display()));
    let _server = talk_over_the_interface(&lab, &service);
    let (file, _) = capture.end();
    for port in [7000, 7001] {
        let is_of = |packet: &&Packet| ends(&packet.bytes).unwrap().iter().any(|end| end.port() == port);
        let kept: Vec<&Packet> = file.packets.iter().filter(is_of).collect();
        // It has far more.
        assert_eq!(kept.len(), 10, "of port {port}");
        assert_eq!(kept[0].bytes[47] & 0x3f, 2, "the first one is the SYN");
    }
    assert_eq!(file.packets.len(), 20);
}

#[test]
fn a_direct_connection_is_captured_as_frames_made_for_it() {
    let lab = Lab::new();
    let service = Service::start(|program| lab.on_server(program));
    let capture = Capturing::begin(&service, "tcp port 7000");
    let _server = serve_within(&lab, &service);
    for port in [7001, 7000] {
        lab.on_server(service.accelerated("python3 -c").arg(client("127.0.0.1", port))).run(60).ok();
    }
    assert_eq!(service.segments(), 0, "the stack has carried it");
    // A viewer that reads along sees them while the capture runs.
    until("the frames", 30, || !read(&std::fs::read(&capture.file).unwrap()).unwrap().packets.is_empty());
    let (file, _) = capture.end();
    check_whole(&file, "direct", "127.0.0.1");
    let both = file.packets.iter().all(|packet| packet.comment.matches("python3 (pid ").count() == 2);
    assert!(both, "both programs are named: {}", file.packets[0].comment);
}

#[test]
fn a_connection_within_the_host_is_captured_once_and_cut() {
    let lab = Lab::new();
    let service = Service::start(|program| lab.on_server(program.arg("--direct").arg("false")));
    let code = service.scratch.path("code");
    // 70 bytes of every frame.
    std::fs::write(&code, "1\n6 0 0 70\n").unwrap();
    let capture = Capturing::begin(&service, &format!("-s 60 -c 5 --bytecode @{}", code.display()));
    let _server = serve_within(&lab, &service);
    lab.on_server(service.accelerated("python3 -c").arg(client("127.0.0.1", 7000))).run(60).ok();
    // It ends by itself.
    let (file, _) = capture.end();
    assert_eq!((places(&file), file.packets.len()), (vec!["memory"], 5));
    let flags: Vec<u8> = file.packets.iter().map(|packet| segment(packet).0 & (SYN | ACK)).collect();
    assert_eq!(flags, [SYN, SYN | ACK, ACK, ACK, ACK]);
    assert!(file.packets.iter().all(|packet| packet.bytes.len() == 60 && packet.length > 60), "cut to 60 bytes");
}

#[test]
fn frames_for_which_there_is_no_room_are_dropped_and_counted() {
    let service = Service::embedded();
    let capture = Capturing::begin(&service, "--buffer 1MiB");
    // It does not read while 20 MB pass.
    capture.running.signal(libc::SIGSTOP);
    let script = "
import socket, threading
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
threading.Thread(target=lambda: (c.sendall(bytes(20_000_000)), c.shutdown(1))).start()
while s.recv(1 << 20): pass";
    service.accelerated("python3 -c").arg(script).run(120).ok();
    capture.running.signal(libc::SIGCONT);
    let (file, summary) = capture.end();
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert!(count("dropped") > 0 && count("frames") > 0, "{summary}");
    assert_eq!(count("frames") + count("dropped"), count("matched"), "{summary}");
    assert_eq!(file.statistics, [(0, count("matched"), count("dropped"))]);
}

#[test]
fn only_the_operator_may_capture_and_one_at_a_time() {
    let service = Service::start(|program| program.arg("--admit").arg("all"));
    let file = service.scratch.path("refused.pcapng");
    let refused = command(&service, "--json").arg("-w").arg(&file).user(65534).run(20);
    let why = "only the service's own user and root may capture";
    assert_eq!((refused.code, refused.err.as_str()), (3, format!("towpath: {why}\n").as_str()));
    let said: serde_json::Value = serde_json::from_str(&refused.out).expect("a JSON line");
    assert_eq!(said, serde_json::json!({ "schema": 1, "error": why }));
    assert!(!file.exists(), "a refused capture makes no file");
    let first = Capturing::begin(&service, "");
    let second = command(&service, "").arg("-w").arg(&file).run(20);
    assert_eq!((second.code, second.err.as_str()), (3, "towpath: a capture of this service runs already\n"));
    first.end();
    Capturing::begin(&service, "").end();
    let wrong = command(&service, "").arg("-w").arg(&file).arg("foo").arg("bar").run(20);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.starts_with("towpath: tcpdump: "), "{}", wrong.err);
}

#[test]
fn a_kernel_stack_without_the_right_to_see_frames_says_so() {
    let service = Service::start(|program| program.arg("--stack").arg("kernel").user(65534));
    let refused = command(&service, "").arg("-w").arg(service.scratch.path("none")).run(20);
    let why = "towpath: the frames of this stack are the kernel's, and the service needs CAP_NET_RAW for them; run \
               tcpdump beside it\n";
    assert_eq!((refused.code, refused.err.as_str()), (3, why));
}

#[test]
fn a_capture_that_is_killed_leaves_nothing_behind() {
    let service = Service::direct();
    let left = |what: &str| {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", service.running.worker())).unwrap().flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let open = links.filter(|link| link.to_string_lossy().contains(what)).count();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", service.running.worker())).unwrap();
        open + maps.matches(what).count()
    };
    let mut capture = Capturing::begin(&service, "");
    assert!(left("towpath-capture") > 0);
    capture.running.signal(libc::SIGKILL);
    capture.running.wait_end(30);
    until("the end of the capture", 30, || left("towpath-capture") == 0);
    Capturing::begin(&service, "").end();
    until("the end of the next capture", 30, || left("towpath-capture") == 0);
}

#[test]
fn a_service_that_ends_ends_the_capture_and_the_file_is_whole() {
    let mut service = Service::direct();
    let capture = Capturing::begin(&service, "");
    service.running.stop();
    let mut capture = capture;
    capture.running.wait_end(30);
    assert!(capture.running.output().contains("the service has ended the capture"), "{}", capture.running.output());
    let (file, _) = capture.end();
    assert_eq!((file.packets.len(), file.statistics.len()), (0, 1));
}

#[test]
fn a_kernel_stacks_connection_is_captured_from_the_kernel() {
    let lab = Lab::new();
    let service = Service::start(|program| lab.on_server(program.arg("--stack").arg("kernel")));
    let capture = Capturing::begin(&service, "tcp port 7000");
    let _server = serve_within(&lab, &service);
    lab.on_server(service.accelerated("python3 -c").arg(client("127.0.0.1", 7000))).run(60).ok();
    let (file, _) = capture.end();
    check_whole(&file, "kernel", "127.0.0.1");
}
