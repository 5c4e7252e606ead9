//! Interoperation with Linux: every combination of handshake options, opened from both sides, over IPv4 and IPv6. Both
//! sides list the options that they have agreed on, which must follow from the two configurations.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use towpath_system_tests::namespace::{CLIENT, CLIENT6, SERVER, SERVER6};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, require_program, until};

/// The options of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    timestamps: bool,
    sack: bool,
    window_scaling: bool,
    /// The values of `net.ipv4.tcp_ecn`: 0 never, 1 requested and accepted, 2 accepted.
    ecn: u8,
}

/// The defaults of Linux and of Towpath.
const DEFAULT: Options = Options { timestamps: true, sack: true, window_scaling: true, ecn: 2 };

impl Options {
    /// All 16 combinations of on and off.
    fn all() -> impl Iterator<Item = Self> {
        (0..16).map(|bits: u8| Self {
            timestamps: bits & 1 == 0,
            sack: bits & 2 == 0,
            window_scaling: bits & 4 == 0,
            ecn: u8::from(bits & 8 == 0),
        })
    }
    /// As lines of the service's configuration.
    fn config(self) -> String {
        let Self { timestamps, sack, window_scaling, ecn } = self;
        format!("timestamps = {timestamps}\nsack = {sack}\nwindow_scaling = {window_scaling}\necn = {ecn}\n")
    }
    /// Sets them in the client's namespace.
    fn set_on_linux(self, lab: &Lab) {
        let sysctls = [
            ("timestamps", u8::from(self.timestamps)),
            ("sack", u8::from(self.sack)),
            ("window_scaling", u8::from(self.window_scaling)),
            ("ecn", self.ecn),
        ];
        let words = sysctls.map(|(name, value)| format!("net.ipv4.tcp_{name}={value}"));
        lab.on_client(Program::line(&format!("sysctl -q -w {}", words.join(" ")))).run(10).ok();
    }
}

/// The options of a connection: timestamps, SACK, window scaling, ECN.
type Agreed = [bool; 4];

/// The options that both ends agree on: those that both have. ECN needs an opener that asks, and a listener that
/// accepts.
fn agreed(opener: Options, listener: Options) -> Agreed {
    [
        opener.timestamps && listener.timestamps,
        opener.sack && listener.sack,
        opener.window_scaling && listener.window_scaling,
        opener.ecn == 1 && listener.ecn != 0,
    ]
}

/// Echoes while it receives, and sends the hash of all bytes after the end. Closes when the file named in the first
/// line exists.
const ECHO: &str = r#"
import hashlib, os, socket, sys, threading, time
def serve(c):
    c.settimeout(60)
    first, total = b"", hashlib.sha256()
    while d := c.recv(65536):
        first += d[:4096] if b"\n" not in first else b""
        total.update(d)
        c.sendall(d)
    c.sendall(total.digest())
    while not os.path.exists(first.split(b"\n")[0]):
        time.sleep(0.005)
    c.close()
def listen(address):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, int(sys.argv[1])))
    s.listen()
    sys.stdout.write(f"up {address}\n")
    while True:
        threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
for a in sys.argv[2:]:
    threading.Thread(target=listen, args=(a,)).start()
"#;

/// One connection to each address: 300 kB there and back at the same time, half-close, the hash of all bytes, the end.
const TALK: &str = r#"
import hashlib, os, random, socket, sys, threading, traceback
def talk(address):
    data = sys.argv[2].encode() + b"\n" + random.Random(address).randbytes(300_000)
    s = socket.create_connection((address, int(sys.argv[1])), 60)
    s.settimeout(60)
    def send():
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
    threading.Thread(target=send).start()
    expected, got = data + hashlib.sha256(data).digest(), b""
    while len(got) < len(expected):
        d = s.recv(65536)
        assert d, ("the end came too early", address, len(got))
        got += d
    assert got == expected, ("other bytes", address)
    sys.stdout.write(f"held {address} {s.getsockname()[1]}\n")
    assert s.recv(1) == b"", "more bytes than were sent"
    s.close()
    sys.stdout.write(f"done {address}\n")
def guarded(address):
    try:
        talk(address)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
for a in sys.argv[3:]:
    threading.Thread(target=guarded, args=(a,)).start()
"#;

const PORT_OF_OURS: u16 = 6601;
const PORT_OF_LINUX: u16 = 6602;
const OURS: [&str; 2] = [SERVER, SERVER6];
const LINUX: [&str; 2] = [CLIENT, CLIENT6];

/// A laboratory with a service and an echo server on each side.
struct Table<'a> {
    lab: &'a Lab,
    service: Service,
    _servers: [Running; 2],
    rounds: std::cell::Cell<u32>,
}

impl<'a> Table<'a> {
    fn lay(lab: &'a Lab, ours: Options) -> Self {
        let scratch = towpath_system_tests::Scratch::new("interop");
        let config = scratch.path("towpath.toml");
        std::fs::write(&config, ours.config()).expect("configuration");
        let service = Service::start(|program| {
            let program = program.arg("--interface").arg("eth1").arg("--admit").arg("all").arg("--config").arg(&config);
            lab.on_server(program)
        });
        let echo = |port: u16, addresses: [&str; 2]| {
            ["-u", "-c", ECHO, &port.to_string(), addresses[0], addresses[1]].map(str::to_owned)
        };
        let python =
            |program: Program, words: [String; 6]| words.iter().fold(program, |program, word| program.arg(word));
        let here = lab.on_server(python(service.accelerated("python3"), echo(PORT_OF_OURS, OURS)));
        let there = lab.on_client(python(Program::line("python3"), echo(PORT_OF_LINUX, LINUX)));
        let mut servers =
            [here.start(service.scratch.path("ours.log")), there.start(service.scratch.path("linux.log"))];
        for (server, addresses) in servers.iter_mut().zip([OURS, LINUX]) {
            for address in addresses {
                server.wait_for(&format!("up {address}\n"), 20);
            }
        }
        Self { lab, service, _servers: servers, rounds: 0.into() }
    }

    fn talk(&self, program: Program, name: &str, port: u16, go: &Path, to: [&str; 2]) -> Running {
        let program = program.arg("-u").arg("-c").arg(TALK).arg(port.to_string()).arg(go).arg(to[0]).arg(to[1]);
        let on = if to == OURS { self.lab.on_client(program) } else { self.lab.on_server(program) };
        on.start(self.service.scratch.path(name))
    }

    /// Four connections: opened from both sides, over both address families. Both sides must list the agreed options.
    fn round(&self, ours: Options, linux: Options) {
        self.rounds.set(self.rounds.get() + 1);
        let go: PathBuf = self.service.scratch.path(&format!("go-{}", self.rounds.get()));
        let mut to_ours = self.talk(Program::line("python3"), "to-ours.log", PORT_OF_OURS, &go, OURS);
        let mut to_linux = self.talk(self.service.accelerated("python3"), "to-linux.log", PORT_OF_LINUX, &go, LINUX);
        let mut expected = Vec::new();
        for (running, to, port, agreed) in [
            (&mut to_ours, OURS, PORT_OF_OURS, agreed(linux, ours)),
            (&mut to_linux, LINUX, PORT_OF_LINUX, agreed(ours, linux)),
        ] {
            for (family, address) in to.into_iter().enumerate() {
                running.wait_for(&format!("held {address} "), 40);
                let output = running.output();
                let line = output.lines().find(|line| line.starts_with(&format!("held {address} "))).expect("line");
                let own: u16 = line.rsplit(' ').next().and_then(|port| port.parse().ok()).expect("port");
                // The ports from our side: ours first, then Linux's.
                let ports = if to == OURS { (port, own) } else { (own, port) };
                let name =
                    |ip: &str, port| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
                expected.push((name(OURS[family], ports.0), name(LINUX[family], ports.1), agreed));
            }
        }
        let (listed, ss) =
            (self.service.sockets(), self.lab.on_client(Program::line("ss -t -i -o -n -H")).run(10).ok());
        for (local, peer, agreed) in &expected {
            assert_eq!(
                &listed_by_us(&listed, local, peer),
                agreed,
                "{local} {peer}, ours {ours:?}, Linux {linux:?}: {listed}"
            );
            assert_eq!(
                &listed_by_linux(&ss, peer, local),
                agreed,
                "{peer} {local}, ours {ours:?}, Linux {linux:?}: {ss}"
            );
        }
        std::fs::write(&go, "").expect("file");
        for running in [&mut to_ours, &mut to_linux] {
            running.wait_end(30);
            assert_eq!(running.output().matches("done").count(), 2, "{}", running.output());
        }
    }
}

fn listed_by_us(listed: &serde_json::Value, local: &str, peer: &str) -> Agreed {
    let sockets = listed["sockets"].as_array().expect("sockets");
    let socket = sockets.iter().find(|s| s["local"] == local && s["peer"] == peer);
    let tcp = &socket.unwrap_or_else(|| panic!("{local} {peer} is not in {listed}"))["tcp"];
    ["timestamps", "sack", "wscale", "ecn"].map(|name| tcp[name].as_bool().expect(name))
}

fn listed_by_linux(ss: &str, local: &str, peer: &str) -> Agreed {
    let mut lines = ss.lines().skip_while(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        !(words.contains(&local) && words.contains(&peer))
    });
    let details = lines.nth(1).unwrap_or_else(|| panic!("{local} {peer} is not in {ss}"));
    let has = |name: &str| details.split_whitespace().any(|word| word == name);
    [has("ts"), has("sack"), details.contains(" wscale:"), has("ecn")]
}

#[test]
fn linux_with_every_combination_of_options_agrees_with_us_in_both_directions() {
    let lab = Lab::new();
    lab.add_ipv6();
    let table = Table::lay(&lab, DEFAULT);
    lab.drop_kernel_tcp();
    for linux in Options::all() {
        linux.set_on_linux(&lab);
        table.round(DEFAULT, linux);
    }
}

#[test]
fn we_with_every_combination_of_options_agree_with_linux_in_both_directions() {
    let lab = Lab::new();
    lab.add_ipv6();
    lab.drop_kernel_tcp();
    DEFAULT.set_on_linux(&lab);
    for ours in Options::all() {
        let table = Table::lay(&lab, ours);
        table.round(ours, DEFAULT);
    }
}

/// The remarks of Wireshark's experts on our frames during `scene`, captured at Linux's end.
fn remarks(table: &Table, scene: impl FnOnce()) -> BTreeSet<String> {
    let file = table.service.scratch.path("capture.pcap");
    let line = "tcpdump -i eth1 --immediate-mode -U -n -Z root -s 0 -B 65536 -w";
    let log = table.service.scratch.path("tcpdump.log");
    let mut capture = table.lab.on_client(Program::line(line).arg(&file).arg("tcp")).start(log);
    capture.wait_for("listening on", 10);
    scene();
    let size = || std::fs::metadata(&file).map_or(0, |data| data.len());
    let mut before = 0;
    until("the capture is quiet", 20, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::mem::replace(&mut before, size()) == size()
    });
    capture.stop();
    let output = capture.output();
    assert!(output.contains("0 packets dropped by kernel") && size() > 2_000_000, "{} bytes: {output}", size());
    let ours = format!("expert,note,ip.src=={SERVER}||ipv6.src=={SERVER6}");
    let line = "tshark -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -q -r";
    let out = Program::line(line).arg(&file).arg("-z").arg(ours).run(60).ok();
    let remark = |line: &str| {
        let mut words = line.split_whitespace();
        words.next()?.parse::<u32>().ok()?;
        let summary = words.skip(2).collect::<Vec<_>>().join(" ");
        let summary = summary.split(" (#").next()?.to_owned();
        (!summary.ends_with("the connection closing")).then_some(summary)
    };
    out.lines().filter_map(remark).collect()
}

#[test]
fn wireshark_finds_no_fault_in_our_side_of_connections_with_linux() {
    require_program("tcpdump", "tcpdump");
    require_program("tshark", "tshark");
    require_program("ethtool", "ethtool");
    let lab = Lab::new();
    lab.add_ipv6();
    // The capture needs correct checksums and single frames: the kernel makes them where devices do not.
    lab.on_client(Program::line("ethtool -K eth1 tx off gro off")).run(10).ok();
    lab.on_server(Program::line("ethtool -K eth1 tx off")).run(10).ok();
    let all = Options { ecn: 1, ..DEFAULT };
    all.set_on_linux(&lab);
    let table = Table::lay(&lab, all);
    lab.drop_kernel_tcp();
    // On a busy machine segments may be repeated and windows fill. Never a gap, an acknowledgement of unsent data, a
    // wrong checksum or a reset.
    let may = ["retransmission", "Duplicate ACK", "D-SACK", "out-of-order", "completely full", "Zero Window"];
    let judge = |said: &BTreeSet<String>| {
        for summary in said {
            assert!(may.iter().any(|known| summary.contains(known)), "{summary:?} in {said:?}");
        }
    };
    judge(&remarks(&table, || table.round(all, all)));
    let rules = "add table inet loss;
        add chain inet loss in { type filter hook input priority -300; };
        add rule inet loss in iifname eth1 meta l4proto tcp meta length > 1000 numgen random mod 50 0 drop;";
    lab.on_client(Program::new(&["nft", rules])).run(10).ok();
    let said = remarks(&table, || table.round(all, all));
    judge(&said);
    assert!(said.iter().any(|summary| summary.contains("retransmission")), "nothing was lost: {said:?}");
}
