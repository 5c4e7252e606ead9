//! The firewall, VLAN and splicing modules have frames larger than an interface's MTU: over a veth and within the host.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::module::{count, json, module, object, spliced};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, require_program, until};

/// Counts all frames in one place, and in the next one those that no interface with an MTU of 1500 has in one piece.
const SIZES: &str = "
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } seen
    SEC(\".maps\");
static void add(__u32 place) {
    __u64 *frames = bpf_map_lookup_elem(&seen, &place);
    if (frames) __sync_fetch_and_add(frames, 1);
}
SEC(\"xdp\") int sizes(struct xdp_md *ctx)
{
    add(0);
    if (ctx->data_end - ctx->data > 14 + 4 + 1500) add(1);
    return XDP_PASS;
}";

const HOOKS: [&str; 2] = ["ingress", "egress"];

/// Bytes of a transfer, each way.
const BYTES: usize = 16 << 20;

/// Both ends send and receive at once, and say what. `serve DIRECTORY PORT`, or `ask DIRECTORY PORT ADDRESS`: once the file `go`
/// is there the client sends.
const EXCHANGE: &str = "
import hashlib, os, socket, sys, threading, time
what, directory, port, BYTES = sys.argv[1], sys.argv[2], int(sys.argv[3]), 16 << 20
def exchange(s):
    sent, received, count = hashlib.sha256(), hashlib.sha256(), 0
    block = os.urandom(1 << 20)
    def send():
        for _ in range(BYTES >> 20): s.sendall(block); sent.update(block)
        s.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send); sender.start()
    while more := s.recv(1 << 16): received.update(more); count += len(more)
    sender.join()
    print(what, count, sent.hexdigest(), received.hexdigest(), flush=True)
if what == 'serve':
    l = socket.create_server(('', port)); print('ready', flush=True)
    while True:
        c, _ = l.accept()
        assert c.recv(1) == b'?'
        c.sendall(b'!'); exchange(c); c.close()
s = socket.create_connection((sys.argv[4], port), 30); s.settimeout(None)
s.sendall(b'?'); assert s.recv(1) == b'!'
print('asked', flush=True)
while not os.path.exists(os.path.join(directory, 'go')): time.sleep(0.01)
exchange(s)";

/// Where the frames of a transfer pass a service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// The other end is a program of the kernel's.
    Veth,
    /// Both are programs of the service, over its memory port.
    Host,
}

/// A service and two programs that exchange bytes.
struct Stage {
    lab: Option<Lab>,
    service: Service,
    server: Running,
    client: Running,
    proxy: Option<Running>,
}

impl Stage {
    fn new(over: Over) -> Self {
        Self::with(over, false)
    }
    /// With a proxy between the two, which hands their connections over. Both ends are on the veth's other side then.
    fn with(over: Over, has_proxy: bool) -> Self {
        let lab = (over == Over::Veth).then(Lab::new);
        let service = lab.as_ref().map_or_else(Service::embedded, Service::on_interface);
        let sizes = object(&service.scratch, "sizes", Some(SIZES));
        for hook in HOOKS {
            let line = format!("add sizes-{hook} {} --hook {hook} --priority 5", sizes.display());
            module(&service, &line).run(60).ok();
        }
        let on = |is_accelerated: bool, program: Program| match &lab {
            Some(lab) if is_accelerated => lab.on_server(program),
            Some(lab) => lab.on_client(program),
            None => program,
        };
        let python = |what: &str, is_accelerated: bool, port: u16| {
            let program = match is_accelerated {
                true => service.accelerated("python3 -u -c"),
                false => Program::line("python3 -u -c"),
            };
            let program = program.arg(EXCHANGE).arg(what).arg(&service.scratch.0).arg(port.to_string());
            on(is_accelerated, program)
        };
        let is_host = over == Over::Host;
        let server = python("serve", is_host || !has_proxy, if has_proxy { 7001 } else { 7000 });
        let mut server = server.start(service.scratch.path("server.log"));
        server.wait_for("ready", 60);
        let proxy = has_proxy.then(|| {
            let splice = object(&service.scratch, "splice", None);
            // Behind those that count, so that it has the segments and not the kernel.
            module(&service, &format!("add splice {} --priority 9", splice.display())).run(60).ok();
            require_program("gcc", "gcc");
            let (source, program) = ("../../crates/preload/examples/splice-proxy.c", service.scratch.path("proxy"));
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
            Program::line("gcc -O1 -o").arg(&program).arg(source).run(60).ok();
            let to = if is_host { "127.0.0.1" } else { CLIENT };
            let proxy = service.accelerated(&format!("{} 7000 {to} 7001", program.display()));
            let mut proxy = on(true, proxy).start(service.scratch.path("proxy.log"));
            proxy.wait_for("ready", 60);
            proxy
        });
        let client = python("ask", is_host, 7000).arg(if is_host { "127.0.0.1" } else { SERVER });
        let mut client = client.start(service.scratch.path("client.log"));
        client.wait_for("asked", 60);
        Self { lab, service, server, client, proxy }
    }
    fn lab(&self) -> &Lab {
        self.lab.as_ref().unwrap()
    }
    fn object(&self, name: &str, text: Option<&str>) -> String {
        object(&self.service.scratch, name, text).display().to_string()
    }
    /// `towpath module add LINE`.
    fn add(&self, line: &str) {
        module(&self.service, &format!("add {line}")).run(60).ok();
    }
    /// Frames that passed a hook, and those of them that were large.
    fn seen(&self, hook: &str) -> [u64; 2] {
        let seen = json(&self.service, &format!("maps sizes-{hook} seen dump"));
        [0, 1].map(|place| seen["elements"][place]["numbers"][0].as_u64().unwrap())
    }
    fn go(&self) {
        std::fs::write(self.service.scratch.path("go"), "").unwrap();
    }
    /// Each end has what the other one has sent, and on these hooks there were many large frames.
    fn expect_whole(&mut self, hooks: &[&str]) {
        self.client.wait_end(120);
        until("the server's end", 60, || self.server.output().contains("serve"));
        let said = |running: &Running, who: &str| -> [String; 3] {
            let output = running.output();
            let line = output.lines().find_map(|line| line.strip_prefix(who)).unwrap_or_else(|| panic!("{output}"));
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            words.try_into().unwrap()
        };
        let [count, sent, received] = said(&self.client, "ask ");
        assert_eq!(said(&self.server, "serve "), [BYTES.to_string(), received, sent]);
        assert_eq!(count, BYTES.to_string());
        for hook in hooks {
            let seen = self.seen(hook);
            assert!(seen[1] > 50, "{hook}: {seen:?}");
        }
    }
}

/// While it blocks the port, the middle of the transfer is dropped, in large frames, too. Then all of it is sent again.
fn a_firewall_has_super_segments(mut stage: Stage) {
    let firewall = stage.object("firewall", None);
    for hook in HOOKS {
        stage.add(&format!("wall-{hook} {firewall} --hook {hook} --priority 1"));
    }
    stage.go();
    until("large frames", 60, || stage.seen("ingress")[1] > 0 && stage.seen("egress")[1] > 0);
    module(&stage.service, "maps wall-ingress blocked_ports set 7000 1").run(30).ok();
    until("what is dropped", 60, || count(&stage.service, "wall-ingress", "drop") > 0 || !stage.client.alive());
    module(&stage.service, "maps wall-ingress blocked_ports delete 7000").run(30).ok();
    stage.expect_whole(&HOOKS);
    for hook in HOOKS {
        assert!(count(&stage.service, &format!("wall-{hook}"), "pass") > 50);
        assert_eq!(count(&stage.service, &format!("wall-{hook}"), "aborted"), 0);
    }
}

#[test]
fn a_firewall_has_super_segments_of_a_veth() {
    a_firewall_has_super_segments(Stage::new(Over::Veth));
}

#[test]
fn a_firewall_has_super_segments_within_the_host() {
    a_firewall_has_super_segments(Stage::new(Over::Host));
}

/// A tag is put on what is sent, and taken off what is received before the stack has it.
#[test]
fn vlan_modules_have_super_segments_within_the_host() {
    let mut stage = Stage::new(Over::Host);
    let vlan = stage.object("vlan", None);
    stage.add(&format!("pop {vlan} --program vlan_pop --priority 9"));
    stage.add(&format!("push {vlan} --program vlan_push --hook egress --priority 1"));
    module(&stage.service, "maps push tag set 0 7").run(30).ok();
    stage.go();
    stage.expect_whole(&HOOKS);
    let moved = ["pop", "push"].map(|name| ["pass", "aborted"].map(|of| count(&stage.service, name, of)));
    assert!(moved.iter().all(|[pass, aborted]| *pass > 50 && *aborted == 0), "{moved:?}");
}

/// The stack has no tagged frames of a veth in one piece. So one module puts a tag on, and another takes it off again.
#[test]
fn vlan_modules_have_super_segments_that_a_veth_has_received() {
    let mut stage = Stage::new(Over::Veth);
    let [vlan, sizes] = [("vlan", None), ("sizes", Some(SIZES))].map(|(name, text)| stage.object(name, text));
    stage.add(&format!("push {vlan} --program vlan_push --priority 1"));
    stage.add(&format!("pop {vlan} --program vlan_pop --priority 9"));
    stage.add(&format!("sizes-bare {sizes} --priority 10"));
    module(&stage.service, "maps push tag set 0 7").run(30).ok();
    stage.go();
    // Between the two, and behind them.
    stage.expect_whole(&["ingress", "bare"]);
    let moved = ["push", "pop"].map(|name| ["pass", "aborted"].map(|of| count(&stage.service, name, of)));
    assert!(moved.iter().all(|[pass, aborted]| *pass > 50 && *aborted == 0), "{moved:?}");
}

/// Proxy, client and server are programs of the service, or the latter two of the kernel.
fn splicing_has_super_segments(over: Over) {
    let mut stage = Stage::with(over, true);
    stage.proxy.as_mut().unwrap().wait_for("spliced: 1\n", 60);
    stage.go();
    // What goes back over a port is seen at ingress alone.
    stage.expect_whole(&["ingress"]);
    let [module, kernel] = spliced_bytes(&stage.service);
    let went = count(&stage.service, "splice", "tx") + count(&stage.service, "splice", "redirect");
    assert!(went > 50 && kernel == 0, "{went} frames of the module, {module} bytes, {kernel} of the kernel");
}

#[test]
fn splicing_has_super_segments_of_a_veth() {
    splicing_has_super_segments(Over::Veth);
}

#[test]
fn splicing_has_super_segments_within_the_host() {
    splicing_has_super_segments(Over::Host);
}

/// Bytes that the module has sent on, and the kernel.
fn spliced_bytes(service: &Service) -> [u64; 2] {
    let all = spliced(service);
    [all.iter().map(|one| one.by_module).sum(), all.iter().map(|one| one.by_kernel).sum()]
}

/// Marks each frame of IPv4 as of a class, and corrects the header's sum by that.
const MARK: &str = "
SEC(\"xdp\") int mark(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data;
    if (frame + 34 > (__u8 *)(long)ctx->data_end || frame[12] != 8 || frame[13] != 0) return XDP_PASS;
    __u16 *ip = (void *)(frame + 14), before = ip[0];
    frame[15] = 46 << 2;
    __u32 sum = (__u16)~ip[5] + (__u16)~before + ip[0];
    sum = (sum & 0xffff) + (sum >> 16);
    ip[5] = ~((sum & 0xffff) + (sum >> 16));
    return XDP_PASS;
}";

/// Looks at each frame with payload that comes from the server, until the file `done` is there: its length, sums, mark and tag.
const LOOK: &str = "
import os, socket, struct, sys
directory, mark, tag = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20); s.setsockopt(263, 8, 1); s.bind(('eth1', 0)); s.settimeout(0.1)
def folded(data):
    n = sum(struct.unpack('>%dH' % (len(data) // 2), data[:len(data) & ~1])) + (data[-1] << 8 if len(data) & 1 else 0)
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return n
print('looks', flush=True)
count = longest = 0
while not os.path.exists(os.path.join(directory, 'done')):
    try: f, about, _, address = s.recvmsg(1 << 17, 100)
    except TimeoutError: continue
    if address[2] == 4 or f[12:14] != b'\\x08\\0' or f[23] != 6 or f[34:36] != (7000).to_bytes(2, 'big'): continue
    length = int.from_bytes(f[16:18], 'big')
    ip, tcp = f[14:34], f[34:14 + length]
    if len(tcp) == 4 * (tcp[12] >> 4): continue
    status, tci = struct.unpack_from('I', about[0][2])[0], struct.unpack_from('H', about[0][2], 16)[0]
    assert len(f) <= 1514, len(f)
    assert f[15] == mark, (count, f[15])
    assert (tci if status & 16 else 0) == tag, (count, status, tci)
    assert folded(ip) == 0xffff, (count, 'the sum of the IP header')
    assert folded(ip[12:] + bytes([0, 6]) + len(tcp).to_bytes(2, 'big') + tcp) == 0xffff, (count, 'the sum of the segment')
    count += 1; longest = max(longest, len(f))
print('looked at', count, longest, flush=True)";

/// Takes the tag off at the other end of the veth, as this machine's kernel may lack VLAN devices.
const UNTAG: &str = "
SEC(\"tc\") int untag(struct __sk_buff *skb)
{
    if (skb->vlan_present) bpf_skb_vlan_pop(skb);
    return 0;
}";

/// Each frame that the kernel makes of a super-segment has the header that a module has changed, and right sums.
fn each_frame_has_what_a_module_has_changed(mark: u8, tag: u16) {
    let mut stage = Stage::new(Over::Veth);
    // The sender's kernel cuts and sums, and the receiver's joins nothing.
    stage.lab().on_server(Program::line("ethtool -K eth1 tx off tso off")).run(30).ok();
    stage.lab().on_client(Program::line("ethtool -K eth1 gro off")).run(30).ok();
    if tag == 0 {
        let object = stage.object("mark", Some(MARK));
        stage.add(&format!("mark {object} --hook egress --priority 1"));
    } else {
        let untag = stage.object("untag", Some(UNTAG));
        let filter = format!("tc filter add dev eth1 ingress bpf da obj {untag} sec tc");
        for line in ["tc qdisc add dev eth1 clsact", &filter] {
            stage.lab().on_client(Program::line(line)).run(30).ok();
        }
        let vlan = stage.object("vlan", None);
        stage.add(&format!("push {vlan} --program vlan_push --hook egress --priority 1"));
        module(&stage.service, &format!("maps push tag set 0 {tag}")).run(30).ok();
    }
    let look = Program::line("python3 -u -c").arg(LOOK).arg(&stage.service.scratch.0);
    let look = stage.lab().on_client(look.arg(mark.to_string()).arg(tag.to_string()));
    let mut look = look.start(stage.service.scratch.path("look.log"));
    look.wait_for("looks", 30);
    stage.go();
    stage.expect_whole(&HOOKS);
    assert_eq!(count(&stage.service, if tag == 0 { "mark" } else { "push" }, "aborted"), 0);
    std::fs::write(stage.service.scratch.path("done"), "").unwrap();
    look.wait_for("looked at", 30);
    let said = look.output();
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] > 1000 && numbers[1] > 1400, "{said}");
}

#[test]
fn each_frame_that_a_super_segment_becomes_has_the_mark_that_a_module_has_set() {
    each_frame_has_what_a_module_has_changed(46 << 2, 0);
}

#[test]
fn each_frame_that_a_super_segment_becomes_has_the_tag_that_a_module_has_put_on() {
    each_frame_has_what_a_module_has_changed(0, 7);
}

/// Both ends are services with this VLAN, because this machine's kernel may lack VLAN devices. Their neighbours are permanent, because
/// the kernel's ARP requests have no tag. Between pop and push a firewall reads headers that it could not read otherwise.
#[test]
fn vlan_modules_take_the_tag_off_and_put_it_on_in_a_bulk_transfer_over_a_veth() {
    let lab = Lab::new();
    for (here, there, address) in [(&lab.server, &lab.client, CLIENT), (&lab.client, &lab.server, SERVER)] {
        let shown = Program::line(&format!("ip -n {there} -br link show dev eth1")).run(10).ok();
        let mac = shown.split_whitespace().nth(2).expect("a MAC address");
        Program::line(&format!("ip -n {here} neigh replace {address} lladdr {mac} dev eth1 nud permanent"))
            .run(10)
            .ok();
    }
    let files = Scratch::new("vlan");
    let file = files.path("vlan.toml");
    std::fs::write(&file, "interface = [\"eth1\"]\nvlan = 7\nport = \"xdp\"\nadmit = [\"all\"]\n").unwrap();
    let start = |on: &dyn Fn(Program) -> Program| Service::start(|program| on(program.arg("--config").arg(&file)));
    let service = start(&|program| lab.on_server(program));
    let other = start(&|program| lab.on_client(program));
    let python = |by: &Service, what: &str| {
        by.accelerated("python3 -u -c").arg(EXCHANGE).arg(what).arg(&service.scratch.0).arg("7000")
    };
    let mut server = lab.on_server(python(&service, "serve")).start(service.scratch.path("server.log"));
    server.wait_for("ready", 60);
    let client = lab.on_client(python(&other, "ask").arg(SERVER));
    let mut client = client.start(service.scratch.path("client.log"));
    client.wait_for("asked", 60);
    let mut stage = Stage { lab: Some(lab), service, server, client, proxy: None };
    let [vlan, firewall, sizes] =
        [("vlan", None), ("firewall", None), ("sizes", Some(SIZES))].map(|(name, text)| stage.object(name, text));
    for (name, hook, priority) in [("pop", "ingress", 1), ("pop", "egress", 1), ("push", "egress", 9)] {
        stage.add(&format!("{name}-{hook} {vlan} --program vlan_{name} --hook {hook} --priority {priority}"));
    }
    module(&stage.service, "maps push-egress tag set 0 7").run(30).ok();
    for hook in HOOKS {
        stage.add(&format!("wall-{hook} {firewall} --hook {hook} --priority 4"));
        stage.add(&format!("sizes-{hook} {sizes} --hook {hook} --priority 5"));
    }
    stage.go();
    // A port with a VLAN sends none that it would have to cut.
    stage.expect_whole(&[]);
    for name in ["pop-ingress", "pop-egress", "push-egress", "wall-ingress", "wall-egress"] {
        let [pass, aborted] = ["pass", "aborted"].map(|of| count(&stage.service, name, of));
        assert!(pass > 50 && aborted == 0, "{name}: {pass} {aborted}");
    }
}
