//! One service for several network namespaces: a stack for each, which programs find by the namespace of their sockets.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, Service, bin, until};

/// A service for the first laboratory, whose configuration names a stack for the second. Both have the same addresses.
struct Both {
    red: Lab,
    blue: Lab,
    service: Service,
    /// Where the second one's stack is.
    blues: PathBuf,
}

impl Both {
    fn new() -> Self {
        let (red, blue) = (Lab::new(), Lab::new());
        let mut blues = PathBuf::new();
        let service = Service::start(|program| {
            let folder = std::env::temp_dir().join(format!("towpath-several-{}", red.server));
            std::fs::create_dir_all(&folder).unwrap();
            blues = folder.join("blue.sock");
            let file = folder.join("towpath.toml");
            let text = format!(
                "interface = \"eth1\"\nadmit = [\"all\"]\n[stacks.blue]\nnetns = \"{}\"\ninterface = \"eth1\"\n\
                 admit = [\"all\"]\nsocket = \"{}\"\nidle_exit = \"5s\"\n",
                blue.server,
                blues.display()
            );
            std::fs::write(&file, text).unwrap();
            red.on_server(program.arg("--config").arg(&file))
        });
        Self { red, blue, service, blues }
    }

    /// A Python program under the first service, in the second namespace.
    fn in_blue(&self, code: &str) -> Program {
        self.blue.on_server(self.service.accelerated("python3 -c").arg(code))
    }

    /// What the second stack says of itself.
    fn blue_status(&self) -> Value {
        let status = Program::new(&[bin("towpath")]).arg("status").arg("--json").arg("--socket").arg(&self.blues);
        serde_json::from_str(&status.run(20).ok()).unwrap()
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // It has no client any more, and ends by itself; the folder is of no use to it then.
        let _ = Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(&self.blues).run(20);
        let _ = std::fs::remove_dir_all(self.blues.parent().unwrap());
    }
}

/// Answers on this port with a word and what it got.
fn echo(port: u16, word: &str) -> String {
    format!(
        "import socket,threading\nl=socket.create_server(('',{port}));print('ready',flush=True)\n\
         def serve(c,a):\n for line in c.makefile('rb'): c.sendall(b'{word} '+line)\n\
         while 1: threading.Thread(target=serve,args=l.accept(),daemon=True).start()"
    )
}

fn ask(address: &str, port: u16) -> String {
    format!(
        "import socket\ns=socket.create_connection(('{address}',{port}),timeout=60)\n\
         s.sendall(b'hello\\n');print(s.makefile().readline().strip())"
    )
}

fn python(code: &str) -> Program {
    Program::new(&["python3", "-c", code])
}

fn opened(status: &Value) -> [u64; 3] {
    let count = |part: &str, name: &str| status[part][name].as_u64().unwrap_or(0);
    [count("slow", "opened"), count("slow", "joined"), count("listeners", "accepted_by_kernel")]
}

#[test]
fn programs_of_each_namespace_are_served_by_its_stack() {
    let both = Both::new();
    let (red, blue, service) = (&both.red, &both.blue, &both.service);
    let server = |program: Program, log: &str| {
        let mut server = program.start(service.scratch.path(log));
        server.wait_for("ready", 60);
        server
    };
    // The same port in both.
    let _reds = server(red.on_server(service.accelerated("python3 -c").arg(echo(7621, "red"))), "red");
    let _blues = server(both.in_blue(&echo(7621, "blue")), "blue");
    for (lab, word) in [(red, "red hello"), (blue, "blue hello")] {
        assert_eq!(lab.on_client(python(&ask(SERVER, 7621))).run(40).ok().trim(), word);
    }
    let blues = || opened(&both.blue_status());
    assert_eq!((opened(&service.status())[0], blues()[0]), (1, 1));
    // Outgoing, and within the namespace.
    let _peer = server(blue.on_client(python(&echo(7622, "peer"))), "peer");
    assert_eq!(both.in_blue(&ask(CLIENT, 7622)).run(40).ok().trim(), "peer hello");
    assert_eq!(both.in_blue(&ask("127.0.0.1", 7621)).run(40).ok().trim(), "blue hello");
    let within = red.on_server(service.accelerated("python3 -c").arg(ask("127.0.0.1", 7621)));
    assert_eq!(within.run(40).ok().trim(), "red hello");
    assert_eq!((blues()[0], blues()[2]), (2, 0), "all by the stack: {}", both.blue_status());
    assert_eq!(opened(&service.status())[2], 0, "no connection of the first one's was accepted by its kernel");
}

#[test]
fn a_socket_belongs_to_the_stack_of_its_own_namespace() {
    let both = Both::new();
    let (blue, service) = (&both.blue, &both.service);
    let mut blues = both.in_blue(&echo(7623, "blue")).start(service.scratch.path("blue"));
    blues.wait_for("ready", 60);
    // Made in the second namespace by a program of the first: its kernel has it, and it goes to the second one's server.
    let code = format!(
        "import ctypes,os\nlibc=ctypes.CDLL(None)\n\
         def enter(path):\n f=open(path);assert libc.setns(f.fileno(),0x40000000)==0\n\
         import socket\nhome=os.open('/proc/self/ns/net',os.O_RDONLY)\nenter('/run/netns/{}')\ns=socket.socket()\n\
         assert libc.setns(home,0x40000000)==0\n\
         s.settimeout(60);s.connect(('{SERVER}',7623))\ns.sendall(b'hello\\n');print(s.makefile().readline().strip())",
        blue.server
    );
    let program = both.red.on_server(service.accelerated("python3 -c").arg(&code));
    assert_eq!(program.run(60).ok().trim(), "blue hello");
    // A third namespace is its kernel's.
    let third = Lab::new();
    let mut plain = third.on_client(python(&echo(7624, "third"))).start(service.scratch.path("third"));
    plain.wait_for("ready", 60);
    let program = third.on_server(service.accelerated("python3 -c").arg(ask(CLIENT, 7624)));
    assert_eq!(program.run(40).ok().trim(), "third hello");
    until("nobody of it is there", 20, || opened(&service.status())[0] == 0);
}

/// Listens as a stack, and answers nobody.
fn hangs(socket: &Path) -> String {
    let control = socket.with_file_name("blue.control.sock");
    format!(
        "import os,socket,time\nheld=[]\nfor path,kind in (({socket:?},socket.SOCK_SEQPACKET),({control:?},socket.SOCK_STREAM)):\n \
         if os.path.exists(path): os.unlink(path)\n \
         s=socket.socket(socket.AF_UNIX,kind);s.bind(path);s.listen(64);held.append(s)\nprint('hangs',flush=True);time.sleep(600)"
    )
}

/// A stack that cannot be started for a while has not refused anything. What it refuses counts for that time alone.
#[test]
fn a_listener_waits_for_its_stack_although_that_cannot_be_started_for_long() {
    let both = Both::new();
    let mut server = both.in_blue(&echo(7625, "blue")).start(both.service.scratch.path("blue"));
    server.wait_for("ready", 60);
    let listens = || {
        let sockets = Program::new(&[bin("towpath")]).arg("sockets").arg("-l").arg("--socket").arg(&both.blues).run(20);
        sockets.code == 0 && sockets.out.contains(":7625")
    };
    until("the listener", 30, listens);
    let file = both.blues.with_file_name("towpath.toml");
    let away = file.with_extension("away");
    for _ in 0..2 {
        // Without its configuration it cannot be started.
        std::fs::rename(&file, &away).unwrap();
        let blue = both.blue_status()["pid"].as_i64().unwrap();
        // SAFETY: `kill` takes numbers and no memory. The process is the stack's.
        unsafe { libc::kill(i32::try_from(blue).unwrap(), libc::SIGKILL) };
        until("a start that fails", 60, || both.service.status()["stacks"][0]["failed"].is_string());
        // One that hangs has its place meanwhile. It holds up no accept of the program, whose kernel half goes on.
        let mut hangs = both.red.on_server(python(&hangs(&both.blues))).start(both.service.scratch.path("hangs"));
        hangs.wait_for("hangs", 60);
        for _ in 0..8 {
            assert_eq!(both.blue.on_client(python(&ask(SERVER, 7625))).run(40).ok().trim(), "blue hello");
            // More attempts than a stack may refuse, about once in a second.
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(server.alive(), "{}", server.output());
        hangs.stop();
        std::fs::rename(&away, &file).unwrap();
        until("the listener again", 60, listens);
        assert_eq!(both.blue.on_client(python(&ask(SERVER, 7625))).run(40).ok().trim(), "blue hello");
    }
}
