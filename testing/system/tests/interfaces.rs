//! One service, several interfaces.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT, CLIENT_TOO, SERVER, SERVER_TOO};
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, until};

/// A laboratory with two pairs, and a service on both of the server's interfaces.
fn both() -> (Lab, Service) {
    let lab = Lab::new();
    lab.join_again();
    let service = Service::start(|program| {
        let words = ["--interface", "eth1", "--interface", "eth2", "--admit", "all"];
        lab.on_server(words.into_iter().fold(program, Program::arg))
    });
    (lab, service)
}

fn ip(words: &str) {
    Program::line(&format!("ip {words}")).run(10).ok();
}

/// Answers on this port with the peer's address and what it got, line by line.
fn echo(port: u16) -> String {
    format!(
        "import socket,threading\nl=socket.create_server(('',{port}));print('ready',flush=True)\n\
         def serve(c,a):\n for line in c.makefile('rb'): c.sendall(a[0].encode()+b' '+line)\n\
         while 1: threading.Thread(target=serve,args=l.accept(),daemon=True).start()"
    )
}

/// Says something to each of these addresses on this port, and prints what came back.
fn ask(port: u16, addresses: &[&str]) -> String {
    format!(
        "import socket\nfor at in {addresses:?}:\n s=socket.create_connection((at,{port}),timeout=60)\n\
         \x20s.sendall(b'hello\\n');print(s.makefile().readline().strip())"
    )
}

fn python(code: &str) -> Program {
    Program::new(&["python3", "-c", code])
}

/// How many connections the stack has established, and how many the kernel has accepted for listeners.
fn counts(service: &Service) -> [u64; 2] {
    let status = service.status();
    let count = |part: &str, name: &str| status[part][name].as_u64().unwrap_or(0);
    [count("slow", "opened"), count("listeners", "accepted_by_kernel")]
}

#[test]
fn a_listener_and_a_program_use_all_of_them() {
    let (lab, service) = both();
    let server = lab.on_server(service.accelerated("python3 -c").arg(echo(7611)));
    let mut server = server.start(service.scratch.path("server"));
    server.wait_for("ready", 20);
    let out = lab.on_client(python(&ask(7611, &[SERVER, SERVER_TOO]))).run(40).ok();
    assert_eq!(out.trim(), format!("{CLIENT} hello\n{CLIENT_TOO} hello"));
    let mut peer = lab.on_client(python(&echo(7612))).start(service.scratch.path("peer"));
    peer.wait_for("ready", 20);
    let program = service.accelerated("python3 -c").arg(ask(7612, &[CLIENT_TOO, CLIENT]));
    let out = lab.on_server(program).run(40).ok();
    assert_eq!(out.trim(), format!("{SERVER_TOO} hello\n{SERVER} hello"));
    assert_eq!(counts(&service), [4, 0], "all by the stack");
    let names: Vec<String> =
        service.status()["interfaces"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect();
    assert_eq!(names, ["\"eth1\"", "\"eth2\""]);
}

/// One connection between two addresses that both interfaces lead to.
#[test]
fn a_connection_goes_on_when_its_route_takes_another_interface() {
    let (lab, service) = both();
    let (ours, theirs) = ("10.79.0.1", "10.79.0.2");
    ip(&format!("-n {} addr add {ours}/32 dev lo", lab.server));
    ip(&format!("-n {} addr add {theirs}/32 dev lo", lab.client));
    let by = |name: &str, [to_server, to_client]: [&str; 2]| {
        ip(&format!("-n {} route replace {theirs} via {to_client} dev {name} src {ours}", lab.server));
        ip(&format!("-n {} route replace {ours} via {to_server} dev {name} src {theirs}", lab.client));
    };
    by("eth1", [SERVER, CLIENT]);
    let server = lab.on_server(service.accelerated("python3 -c").arg(echo(7613)));
    let mut server = server.start(service.scratch.path("server"));
    server.wait_for("ready", 20);
    let go = service.scratch.path("go");
    let code = format!(
        "import socket,os,time\ns=socket.create_connection(('{ours}',7613),timeout=60);f=s.makefile()\n\
         def say(): s.sendall(b'hello\\n');print(f.readline().strip(),flush=True)\n\
         say()\nwhile not os.path.exists('{}'): time.sleep(.02)\nsay()",
        go.display()
    );
    let mut client = lab.on_client(python(&code)).start(service.scratch.path("client"));
    let hello = format!("{theirs} hello");
    client.wait_for(&hello, 20);
    by("eth2", [SERVER_TOO, CLIENT_TOO]);
    ip(&format!("-n {} link set eth1 down", lab.client));
    std::fs::write(&go, "").unwrap();
    until("the second answer", 60, || client.output().matches(&hello).count() == 2);
    assert_eq!(counts(&service), [1, 0]);
}

/// Both ends are served by these interfaces and VLANs, because this machine's kernel may lack VLAN devices. Their neighbours
/// are permanent, because the kernel's ARP requests have no tag.
#[test]
fn each_interface_has_a_vlan_of_its_own() {
    let lab = Lab::new();
    lab.join_again();
    let ends = [(&lab.server, &lab.client, [CLIENT, CLIENT_TOO]), (&lab.client, &lab.server, [SERVER, SERVER_TOO])];
    for (here, there, addresses) in ends {
        for (address, name) in addresses.into_iter().zip(["eth1", "eth2"]) {
            let shown = Program::line(&format!("ip -n {there} -br link show dev {name}")).run(10).ok();
            let mac = shown.split_whitespace().nth(2).expect("a MAC address");
            ip(&format!("-n {here} neigh replace {address} lladdr {mac} dev {name} nud permanent"));
        }
    }
    let files = Scratch::new("vlans");
    let config = |vlans: &str| {
        let file = files.path(&format!("{}.toml", vlans.replace([',', ' '], "-")));
        let text = format!("interface = [\"eth1\", \"eth2\"]\nvlan = [{vlans}]\nport = \"xdp\"\nadmit = [\"all\"]\n");
        std::fs::write(&file, text).unwrap();
        file
    };
    let server = Service::start(|program| lab.on_server(program.arg("--config").arg(config("7, 8"))));
    let mut listener = lab.on_server(server.accelerated("python3 -c").arg(echo(7615))).start(files.path("echo"));
    listener.wait_for("ready", 20);
    let asked =
        |client: &Service, at: &str| lab.on_client(client.accelerated("python3 -c").arg(ask(7615, &[at]))).run(40);
    {
        let client = Service::start(|program| lab.on_client(program.arg("--config").arg(config("7, 8"))));
        for (at, from) in [(SERVER, CLIENT), (SERVER_TOO, CLIENT_TOO)] {
            assert_eq!(asked(&client, at).ok().trim(), format!("{from} hello"));
        }
        assert_eq!((counts(&server), counts(&client)), ([2, 0], [2, 0]), "all by the stacks");
        let page = Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&server.socket).run(20).ok();
        assert!(page.contains("eth1 (VLAN 7): up") && page.contains("eth2 (VLAN 8): up"), "{page}");
        let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(&server.socket).run(30).out;
        assert!(doctor.contains("eth1 (VLAN 7), ") && doctor.contains("eth2 (VLAN 8), "), "{doctor}");
    }
    // The second interface has the first one's VLAN here, which the server does not serve there.
    let client = Service::start(|program| lab.on_client(program.arg("--config").arg(config("7, 7"))));
    assert_eq!(asked(&client, SERVER).ok().trim(), format!("{CLIENT} hello"));
    let code = ask(7615, &[SERVER_TOO]).replace("timeout=60", "timeout=3");
    let unanswered = lab.on_client(client.accelerated("python3 -c").arg(code)).run(40);
    assert!(unanswered.err.contains("TimeoutError"), "{}", unanswered.err);
    assert_eq!(counts(&server), [3, 0]);
}

#[test]
fn one_that_goes_and_comes_back_does_not_disturb_the_others() {
    let (lab, service) = both();
    let server = lab.on_server(service.accelerated("python3 -c").arg(echo(7614)));
    let mut server = server.start(service.scratch.path("server"));
    server.wait_for("ready", 20);
    let asked = |at: &str, from: &str| {
        let out = lab.on_client(python(&ask(7614, &[at]))).run(40).ok();
        assert_eq!(out.trim(), format!("{from} hello"));
    };
    // The first in the configuration: the others use its tables.
    ip(&format!("-n {} link del eth1", lab.server));
    let trouble = |at: usize| service.status()["interfaces"][at]["trouble"].clone();
    until("its end is seen", 60, || trouble(0).as_str().is_some_and(|why| why.contains("has gone")));
    asked(SERVER_TOO, CLIENT_TOO);
    lab.join(1);
    until("it is served again", 60, || trouble(0).is_null());
    asked(SERVER, CLIENT);
    asked(SERVER_TOO, CLIENT_TOO);
    assert_eq!(counts(&service), [3, 0], "all by the stack");
}

#[test]
fn a_worker_that_is_replaced_serves_all_of_them() {
    let (lab, service) = both();
    let server = lab.on_server(service.accelerated("python3 -c").arg(echo(7615)));
    let mut server = server.start(service.scratch.path("server"));
    server.wait_for("ready", 20);
    let before = service.running.worker();
    rustix::process::kill_process(rustix::process::Pid::from_raw(before).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    until("another worker", 60, || ![before, service.running.pid()].contains(&service.running.worker()));
    // Until it answers there is no list.
    until("the listener has joined it", 60, || {
        let sockets = Program::new(&[bin("towpath")]).arg("sockets").arg("-a").arg("--json").arg("--socket");
        sockets.arg(&service.socket).run(20).out.contains("LISTEN")
    });
    let out = lab.on_client(python(&ask(7615, &[SERVER, SERVER_TOO]))).run(40).ok();
    assert_eq!(out.trim(), format!("{CLIENT} hello\n{CLIENT_TOO} hello"));
    assert_eq!(counts(&service), [2, 0], "all by the stack");
}

#[test]
fn one_that_cannot_be_served_is_named() {
    let (lab, scratch) = (Lab::new(), Scratch::new("refused"));
    let serve = |words: &[&str]| {
        let program = Program::new(&[bin("towpath")]).arg("serve").arg("--socket").arg(scratch.path("a.sock"));
        lab.on_server(words.iter().fold(program, |program, word| program.arg(word))).run(20)
    };
    for (words, why) in [
        (["--interface", "eth1", "--interface", "eth9"], "eth9"),
        (["--interface", "eth1", "--interface", "lo"], "loopback"),
        (["--interface", "eth1", "--interface", "eth1"], "named twice"),
    ] {
        let ended = serve(&words);
        assert!(ended.code != 0 && ended.err.contains(why), "{words:?}: {}", ended.err);
    }
}
