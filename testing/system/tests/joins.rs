//! Programs of two network namespaces of one host are joined ring to ring where a rule allows it and the routes lead there.
//! Without that the kernel, or the wire, carries them.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_ring::control::{self, Request};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, RawClient, Service, bin, require_program, require_root, until};

/// The namespaces: two pods on a bridge of a host, and one pod that has a veth pair of its own with each.
const NAMES: [&str; 4] = ["host", "blue", "red", "apart"];
const HOST: &str = "10.88.0.254";
const BLUE: &str = "10.88.0.1";
const RED: &str = "10.88.0.2";
const RED6: &str = "fd88::2";
const BLUE6: &str = "fd88::1";
/// `apart` has it, on a veth pair with `blue`.
const APART: &str = "10.89.0.2";
const BLUE_TO_APART: &str = "10.89.0.1";
/// `red` has the first on its bridge, and `blue` reaches it by the host. It has the second on its loopback device, and `blue`
/// looks for it on the bridge.
const BEHIND: &str = "10.90.0.2";
const ON_LINK: &str = "10.90.0.3";

/// The namespaces, and a service for all of them that is started in the first.
struct Pods {
    id: String,
    service: Service,
    folder: PathBuf,
}

impl Pods {
    fn new(rules: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        require_root();
        require_program("ip", "iproute2");
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = |which: &str| format!("tpj-{which}-{id}");
        for which in NAMES {
            run(&format!("ip netns add {}", name(which)));
            run(&format!("ip -n {} link set lo up", name(which)));
        }
        let [host, blue, red, apart] = NAMES.map(name);
        run(&format!("ip -n {host} link add br0 type bridge"));
        for (port, pod, address, six) in [("p1", &blue, BLUE, BLUE6), ("p2", &red, RED, RED6)] {
            run(&format!("ip link add {port} netns {host} type veth peer name eth0 netns {pod}"));
            run(&format!("ip -n {host} link set {port} master br0 up"));
            run(&format!("ip -n {pod} addr add {address}/24 dev eth0"));
            run(&format!("ip -n {pod} addr add {six}/64 dev eth0 nodad"));
            run(&format!("ip -n {pod} link set eth0 up"));
        }
        run(&format!("ip -n {host} addr add {HOST}/24 dev br0"));
        run(&format!("ip -n {host} link set br0 up"));
        run(&format!("ip link add eth1 netns {blue} type veth peer name eth1 netns {apart}"));
        for (pod, address) in [(&blue, BLUE_TO_APART), (&apart, APART)] {
            run(&format!("ip -n {pod} addr add {address}/24 dev eth1"));
            run(&format!("ip -n {pod} link set eth1 up"));
        }
        for (address, device) in [(BEHIND, "eth0"), (ON_LINK, "lo")] {
            run(&format!("ip -n {red} addr add {address}/32 dev {device}"));
        }
        run(&format!("ip netns exec {host} sysctl -q -w net.ipv4.ip_forward=1"));
        run(&format!("ip -n {host} route add {BEHIND} dev br0"));
        run(&format!("ip -n {blue} route add {BEHIND} via {HOST} dev eth0"));
        run(&format!("ip -n {blue} route add {ON_LINK} dev eth0"));
        let folder = std::env::temp_dir().join(format!("towpath-joins-{id}"));
        std::fs::create_dir_all(&folder).unwrap();
        let tables = NAMES[1..].iter().map(|which| {
            let socket = folder.join(which).with_extension("sock");
            format!("[stacks.{which}]\nnetns = \"{}\"\nsocket = {socket:?}\nidle_exit = \"20s\"\n", name(which))
        });
        let text = format!("admit = [\"all\"]\npolicy = {rules:?}\n{}", tables.collect::<String>());
        let file = folder.join("towpath.toml");
        std::fs::write(&file, text).unwrap();
        let service =
            Service::start(|program| program.arg("--config").arg(&file).under(&["ip", "netns", "exec", &host]));
        Self { id, service, folder }
    }

    fn name(&self, which: &str) -> String {
        format!("tpj-{which}-{}", self.id)
    }

    /// A Python program in a namespace, under the service.
    fn accelerated(&self, which: &str, code: &str) -> Program {
        self.plain(which, self.service.accelerated("python3 -c").arg(code))
    }

    fn plain(&self, which: &str, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.name(which)])
    }

    /// A server that says whom it sees, and goes on until its peers have closed.
    fn server(&self, which: &str, port: u16) -> Running {
        let code = format!(
            "import socket,threading\nl=socket.create_server(('::',{port}),family=socket.AF_INET6,dualstack_ipv6=True)\n\
             print('ready',flush=True)\n\
             def serve(c,a):\n for line in c.makefile('rb'):\n  \
             c.sendall((' '.join([a[0],str(a[1]),c.getsockname()[0],str(c.getpeername()==a)])+'\\n').encode())\n\
             while 1: threading.Thread(target=serve,args=l.accept(),daemon=True).start()"
        );
        let mut server = self.accelerated(which, &code).start(self.service.scratch.path(&format!("{which}-{port}")));
        server.wait_for("ready", 60);
        server
    }

    /// A client of that server: how it sees itself, and how the server sees it. It holds the connection until it is stopped.
    fn client(&self, which: &str, address: &str, port: u16, log: &str) -> (Running, Vec<String>) {
        let mut client = self.accelerated(which, &asks(address, port)).start(self.service.scratch.path(log));
        client.wait_for("end", 60);
        let words = client.output().split_whitespace().map(str::to_owned).take_while(|word| word != "end").collect();
        (client, words)
    }

    fn socket(&self, which: &str) -> PathBuf {
        match which {
            "host" => self.service.socket.clone(),
            pod => self.folder.join(pod).with_extension("sock"),
        }
    }

    /// What the stack of a namespace says, by a command of `towpath`.
    fn says(&self, which: &str, command: &[&str]) -> Value {
        let program = Program::new(&[bin("towpath")]).arg(command[0]).arg("--socket").arg(self.socket(which));
        let program = command[1..].iter().fold(program, |program, word| program.arg(word));
        let out = program.arg("--json").run(20).ok();
        serde_json::from_str(&out).unwrap()
    }

    /// Both ends of the direct connections at the stack of a namespace to this port, as `LOCAL PEER`.
    fn direct(&self, which: &str, port: u16) -> Vec<String> {
        let listed = self.says(which, &["sockets", "-a"]);
        let is = |end: &Value| end["direct"] == true && end["state"] == "ESTAB";
        let ends = listed["sockets"].as_array().unwrap().iter().filter(|end| is(end));
        let ends = ends.map(|end| format!("{} {}", end["local"].as_str().unwrap(), end["peer"].as_str().unwrap()));
        let mut ends: Vec<String> = ends.filter(|end| end.contains(&format!(":{port}"))).collect();
        ends.sort();
        ends
    }

    /// Is a client joined to the server? Both must see the addresses that the kernels have.
    fn is_joined(&self, (from, own): (&str, &str), (to, address): (&str, &str), port: u16) -> bool {
        let log = format!("{from}-{to}-{port}-{}", address.replace([':', '.'], "-"));
        let (mut client, words) = self.client(from, address, port, &log);
        let [local, local_port, peer, peer_port, seen, seen_port, at, same] = &words[..] else { panic!("{words:?}") };
        let plain = |address: &String| address.replace("::ffff:", "");
        assert_eq!(
            (local.as_str(), peer.as_str(), peer_port.as_str()),
            (own, address, &*port.to_string()),
            "{words:?}"
        );
        assert_eq!((plain(seen).as_str(), plain(at).as_str(), seen_port), (own, address, local_port), "{words:?}");
        assert_eq!(same, "True", "{words:?}");
        let ends = self.direct(to, port);
        assert!(client.alive(), "{}", client.output());
        client.stop();
        until("it has ended", 20, || self.direct(to, port).is_empty());
        if !ends.is_empty() {
            let bracket =
                |address: &str| if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
            let (one, other) = (format!("{}:{local_port}", bracket(own)), format!("{}:{port}", bracket(address)));
            let mut expected = vec![format!("{one} {other}"), format!("{other} {one}")];
            expected.sort();
            assert_eq!(ends, expected);
        }
        !ends.is_empty()
    }

    fn hits(&self, which: &str, rule: usize) -> u64 {
        self.says(which, &["policy", "list"])["rules"][rule]["hits"].as_u64().unwrap()
    }

    fn asked_to_join(&self, which: &str) -> u64 {
        self.says(which, &["status"])["kernel"]["join"].as_u64().unwrap()
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for which in &NAMES[1..] {
            let _ = Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(self.socket(which)).run(20);
        }
        for which in NAMES {
            let _ = Program::line(&format!("ip netns del {}", self.name(which))).run(10);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(line: &str) {
    Program::line(line).run(10).ok();
}

fn asks(address: &str, port: u16) -> String {
    format!(
        "import socket,time\ns=socket.create_connection(('{address}',{port}),timeout=60)\n\
         s.sendall(b'hello\\n');line=s.makefile().readline().strip()\n\
         print(*s.getsockname()[:2],*s.getpeername()[:2],line,'end',flush=True)\ntime.sleep(600)"
    )
}

#[test]
fn pods_of_one_host_are_joined_where_a_rule_says_so() {
    let pods = Pods::new(&[
        "join from blue to red on 10.88.0.2 port 7701-7702",
        "join from blue to red on fd88::/64",
        "join from blue to red on 10.90.0.0/24",
        "join from blue to home on 10.88.0.254 port 7701",
        "join from home to red on 10.88.0.2 port 7701",
        "join from blue to apart on 10.89.0.0/24",
    ]);
    let _servers = [("red", 7701), ("red", 7703), ("host", 7701), ("apart", 7701)].map(|(which, port)| {
        let server = pods.server(which, port);
        assert!(pods.direct(which, port).is_empty());
        server
    });
    // By the host's bridge, to the bridge itself, from it, and by a veth pair.
    assert!(pods.is_joined(("blue", BLUE), ("red", RED), 7701));
    assert!(pods.is_joined(("blue", BLUE6), ("red", RED6), 7701));
    assert!(pods.is_joined(("blue", BLUE), ("host", HOST), 7701));
    assert!(pods.is_joined(("host", HOST), ("red", RED), 7701));
    assert!(pods.is_joined(("blue", BLUE_TO_APART), ("apart", APART), 7701));
    assert_eq!(
        [0, 1, 2, 3].map(|rule| pods.hits("red", rule)),
        [1, 1, 0, 1],
        "the listener's stack has asked its rules"
    );
    let verdict = |which: &str, port: u16| {
        let question = format!("join from blue to red pid {} on {RED} port {port}", std::process::id());
        pods.says(which, &["policy", "test", &question])["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!([verdict("red", 7701), verdict("blue", 7701)], ["join", "join"]);
    assert_eq!([verdict("red", 7703), verdict("blue", 7703)], ["no join", "no join"]);
    // No rule: another port, the other way, and another namespace.
    let asked = pods.asked_to_join("blue");
    assert!(!pods.is_joined(("blue", BLUE), ("red", RED), 7703));
    assert!(!pods.is_joined(("red", RED), ("host", HOST), 7701));
    assert_eq!(pods.asked_to_join("blue"), asked, "nobody was asked");
    // A rule and no way: a router is in between, as the route says, or the device on the link does not have the address.
    assert!(!pods.is_joined(("blue", BLUE), ("red", BEHIND), 7701));
    assert!(!pods.is_joined(("blue", BLUE), ("red", ON_LINK), 7701));
    assert_eq!(pods.asked_to_join("blue"), asked + 2, "it was tried");
}

#[test]
fn who_has_no_rule_or_no_listener_goes_the_kernels_way() {
    let pods = Pods::new(&[
        "join from blue to red user 23461 on 10.88.0.2 port 7711",
        "join from blue to red user 23462 on 10.88.0.2 port 7712",
    ]);
    let _server = pods.server("red", 7711);
    assert!(!pods.is_joined(("blue", BLUE), ("red", RED), 7711), "root is another user");
    let as_user = |port| pods.plain("blue", pods.service.accelerated("python3 -c").arg(asks(RED, port)).user(23461));
    let mut user = as_user(7711).start(pods.service.scratch.path("user"));
    user.wait_for("end", 60);
    assert_eq!(pods.direct("red", 7711).len(), 2);
    // Plain listeners of the other namespace are not clients.
    let code = "import socket\nl=socket.create_server(('',7712));print('ready',flush=True)\n\
                while 1:\n c,a=l.accept();c.recv(10);c.sendall(b'plain\\n')";
    let mut plain = pods.plain("red", Program::new(&["python3", "-c", code])).start(pods.service.scratch.path("plain"));
    plain.wait_for("ready", 60);
    let asked = pods.asked_to_join("blue");
    let code = asks(RED, 7712);
    let other = pods.plain("blue", pods.service.accelerated("python3 -c").arg(&code).user(23462));
    let mut other = other.start(pods.service.scratch.path("other"));
    other.wait_for("plain end", 60);
    assert_eq!(pods.asked_to_join("blue"), asked + 1);
    assert!(pods.direct("red", 7712).is_empty());
    // Nobody listens: the error is the kernel's.
    let code = "import socket,errno\ntry: socket.create_connection(('10.88.0.2',7711+2))\n\
                except OSError as e: print(errno.errorcode[e.errno])";
    assert_eq!(pods.accelerated("blue", code).run(40).ok().trim(), "ECONNREFUSED");
}

#[test]
fn a_pair_across_namespaces_ends_as_any_other() {
    let pods = Pods::new(&["join from blue to red on 10.88.0.2"]);
    let _server = pods.server("red", 7721);
    // The connecting program is killed: the server sees the end, and the port is free again.
    let (client, words) = pods.client("blue", RED, 7721, "killed");
    assert_eq!(pods.direct("red", 7721).len(), 2);
    client.signal(libc::SIGKILL);
    until("both ends are gone", 20, || pods.direct("red", 7721).is_empty());
    let bind = format!("import socket\ns=socket.socket();s.bind(('{BLUE}',{}));print('free')", words[1]);
    let free = || pods.plain("blue", Program::new(&["python3", "-c", &bind])).run(20).out.trim() == "free";
    until("the port is free", 20, free);
    // While a connection has it, nobody else can.
    let (held, words) = pods.client("blue", RED, 7721, "held");
    let bind = format!("import socket\ns=socket.socket();s.bind(('{BLUE}',{}))", words[1]);
    assert!(pods.plain("blue", Program::new(&["python3", "-c", &bind])).run(20).err.contains("in use"));
    drop(held);
    // The stack of the connecting program ends: the connection is not its own. The listener's stack ends: so does the
    // connection, and new ones are the kernel's.
    let code = format!(
        "import socket,time\ns=socket.create_connection(('{RED}',7721));f=s.makefile();print('open',flush=True)\n\
         try:\n while 1:\n  s.sendall(b'x\\n');line=f.readline()\n  if not line: break\n  \
         print('line',flush=True);time.sleep(0.05)\n\
         except OSError as e: pass\n\
         print('over',flush=True)"
    );
    let mut client = pods.accelerated("blue", &code).start(pods.service.scratch.path("ends"));
    client.wait_for("line", 60);
    assert_eq!(pods.direct("red", 7721).len(), 2);
    let stop = |which| Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(pods.socket(which)).run(20).ok();
    stop("blue");
    let lines = || client.output().matches("line").count();
    let before = lines();
    until("it goes on", 60, || lines() > before + 3);
    stop("red");
    client.wait_for("over", 60);
    let (_after, words) = pods.client("blue", RED, 7721, "after");
    assert_eq!(words[0], BLUE, "{words:?}");
}

#[test]
fn a_joined_socket_is_as_any_other_for_its_program() {
    let pods = Pods::new(&["join from blue to red on 10.88.0.2", "join from blue to home on 10.88.0.254"]);
    let _servers = [pods.server("red", 7741), pods.server("host", 7741)];
    // It goes over fork and exec, and waits in epoll, also for a non-blocking connect.
    let code = "import asyncio,os,socket,subprocess,sys\n\
                s=socket.create_connection((sys.argv[1],7741));f=s.makefile()\n\
                def ask(): s.sendall(b'x\\n');return f.readline().split()[0]\n\
                print('first',ask(),flush=True)\n\
                if os.fork()==0:\n print('forked',ask(),flush=True);os._exit(0)\n\
                os.wait()\n\
                child='import socket,sys;s=socket.socket(fileno=int(sys.argv[1]));s.sendall(b\"x\\\\n\");'\\\n \
                'print(\"executed\",s.makefile().readline().split()[0],flush=True)'\n\
                subprocess.run([sys.executable,'-c',child,str(s.fileno())],pass_fds=[s.fileno()],check=True)\n\
                print('still',ask(),flush=True)\n\
                async def main():\n r,w=await asyncio.open_connection(sys.argv[1],7741)\n \
                w.write(b'x\\n');print('waited',(await r.readline()).split()[0].decode(),flush=True)\n \
                print('direct',flush=True);await asyncio.sleep(60)\n\
                asyncio.run(main())";
    for (to, address) in [("red", RED), ("host", HOST)] {
        let program = pods.accelerated("blue", code).arg(address);
        let mut program = program.start(pods.service.scratch.path(&format!("uses-{to}")));
        program.wait_for("direct", 60);
        let seen = format!("::ffff:{BLUE}");
        let said: Vec<String> = program.output().lines().map(str::to_owned).collect();
        let expected = ["first", "forked", "executed", "still", "waited"].map(|step| format!("{step} {seen}"));
        assert_eq!(said[..expected.len()], expected);
        assert_eq!(pods.direct(to, 7741).len(), 4, "two connections");
    }
}

/// Runs in a thread that has entered the namespace.
fn within<T: Send>(namespace: &str, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let enter = || {
            let file = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        };
        scope.spawn(enter).join().unwrap()
    })
}

fn tcp() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

/// A client that says what it likes. The kernel says where it is.
#[test]
fn a_hostile_client_is_joined_only_from_where_it_is() {
    let pods = Pods::new(&["join from blue to red on 10.88.0.2 port 7731"]);
    let _server = pods.server("red", 7731);
    let to = |port: u16| Command {
        op: op::JOIN,
        remote_addr: RED.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped(),
        remote_port: port.into(),
        ..Command::default()
    };
    let call = || {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(pods.socket("red")).unwrap()).unwrap();
        RawClient::on(socket)
    };
    // Shows this socket for one address and port, and asks for another.
    let ask = |raw: &mut RawClient, shown: &OwnedFd, proven: u16, asked: u16| {
        let (seq, command) = (raw.next_seq(0), to(proven));
        let Command { remote_addr, remote_port, .. } = command;
        let request = Request::Join { slot: 0, seq, remote_addr, remote_port };
        control::send_request(raw.socket.as_fd(), &request, &[shown.as_fd()]).unwrap();
        raw.command(0, &to(asked))
    };
    let no = |why: u32| NOT_OURS + why as i32;
    let blue = pods.name("blue");
    let blues = within(&blue, tcp);
    // Of a namespace without a rule, with its own socket and with one of blue's.
    for other in ["apart", "host"] {
        within(&pods.name(other), || {
            let mut raw = call();
            assert_eq!(ask(&mut raw, &tcp(), 7731, 7731), no(not_ours::POLICY), "{other}");
            let refused = ask(&mut raw, &blues, 7731, 7731);
            assert!([no(not_ours::ELSEWHERE), no(not_ours::NAMESPACE)].contains(&refused), "{refused}");
        });
    }
    // In a namespace that the configuration does not name.
    within(&blue, || {
        let mut raw = call();
        // SAFETY: this thread alone leaves its namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        assert_eq!(ask(&mut raw, &tcp(), 7731, 7731), no(not_ours::NAMESPACE));
    });
    // The connection of somebody in blue, in other hands.
    let given = within(&blue, call);
    within(&pods.name("apart"), || {
        let mut given = given;
        assert_eq!(ask(&mut given, &blues, 7731, 7731), no(not_ours::ELSEWHERE), "no process of it is there");
    });
    within(&blue, || {
        let mut raw = call();
        assert_eq!(ask(&mut raw, &tcp(), 7731, 7732), -libc::EACCES, "a proof is for one port");
        let bound = tcp();
        rustix::net::bind(&bound, &std::net::SocketAddr::from(([10, 88, 0, 1], 0))).unwrap();
        assert_eq!(ask(&mut raw, &bound, 7731, 7731), no(not_ours::ELSEWHERE), "a bound socket");
        assert_eq!(ask(&mut raw, &tcp(), 7732, 7732), no(not_ours::POLICY), "another port");
        let connect = Command { op: op::CONNECT, ..to(7731) };
        assert_eq!(raw.command(0, &connect), no(not_ours::NAMESPACE), "it may join, and nothing else");
        // It is what the others are compared with.
        assert_eq!(ask(&mut raw, &tcp(), 7731, 7731), 0);
    });
}
