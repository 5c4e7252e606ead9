//! Network namespaces that come and go while the service runs.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::PathBuf;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, until};

const OURS: &str = "10.79.0.1";
const PEER: &str = "10.79.0.2";
const PORT: u16 = 7631;

fn ip(words: &str) {
    Program::line(&format!("ip {words}")).run(10).ok();
}

/// A service whose configuration names a namespace that is not there.
struct Later {
    lab: Lab,
    /// The name.
    later: String,
    folder: PathBuf,
    service: Service,
}

impl Later {
    fn new() -> Self {
        let lab = Lab::new();
        let later = format!("tpl-{}", lab.server);
        let folder = std::env::temp_dir().join(format!("towpath-later-{}", lab.server));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("later.sock");
        let text = format!(
            "interface = \"eth1\"\nadmit = [\"all\"]\n[stacks.later]\nnetns = \"{later}\"\ninterface = \"eth1\"\n\
             admit = [\"all\"]\nsocket = \"{}\"\nidle_exit = \"10min\"\n",
            socket.display()
        );
        std::fs::write(folder.join("towpath.toml"), text).unwrap();
        let service = Service::start(|program| lab.on_server(program.arg("--config").arg(folder.join("towpath.toml"))));
        Self { lab, later, folder, service }
    }

    /// Makes the namespace, with a veth to the laboratory's client.
    fn comes(&self) {
        let (later, client) = (&self.later, &self.lab.client);
        ip(&format!("netns add {later}"));
        ip(&format!("-n {later} link set lo up"));
        ip(&format!("link add eth1 netns {later} type veth peer name later netns {client}"));
        for (namespace, address, name) in [(later, OURS, "eth1"), (client, PEER, "later")] {
            ip(&format!("-n {namespace} addr add {address}/24 dev {name}"));
            ip(&format!("-n {namespace} link set {name} up"));
        }
    }

    /// A server in the namespace, under the service.
    fn serves(&self, word: &str) -> Running {
        let code = format!(
            "import socket\nl=socket.create_server(('',{PORT}));print('ready',flush=True)\n\
             while 1:\n c,_=l.accept();c.sendall(b'{word}\\n');c.close()"
        );
        let program = self.service.accelerated("python3 -c").arg(code);
        let mut server = program.under(&["ip", "netns", "exec", &self.later]).start(self.service.scratch.path(word));
        server.wait_for("ready", 60);
        server
    }

    /// What that server says, through the veth.
    fn says(&self) -> String {
        let code = format!(
            "import socket\ns=socket.create_connection(('{OURS}',{PORT}),timeout=20);print(s.makefile().readline().strip())"
        );
        self.lab.on_client(Program::new(&["python3", "-c", &code])).run(40).ok().trim().to_owned()
    }

    /// What the namespace's stack answers to this command; `None`: it does not run.
    fn asked(&self, command: &str) -> Option<Value> {
        let socket = self.folder.join("later.sock");
        let ask =
            Program::line(&format!("{} {command} --json --socket {}", bin("towpath").display(), socket.display()));
        let answer = ask.run(20);
        (answer.code == 0).then(|| serde_json::from_str(&answer.out).unwrap())
    }

    fn status(&self) -> Option<Value> {
        self.asked("status")
    }

    /// Waits until its stack has the listener, and gives it a connection.
    fn is_accelerated(&self, word: &str) {
        until("its stack has the listener", 60, || {
            let sockets = self.asked("sockets -a").and_then(|all| all["sockets"].as_array().cloned());
            sockets.is_some_and(|all| all.iter().any(|socket| socket["state"] == "LISTEN"))
        });
        assert_eq!(self.says(), word);
        let status = self.status().unwrap();
        let count = |part: &str, name: &str| status[part][name].as_u64().unwrap_or(0);
        assert_eq!([count("slow", "opened"), count("listeners", "accepted_by_kernel")], [1, 0], "{status}");
    }

    /// Are the devices of the namespace gone?
    fn has_gone(&self) -> bool {
        self.lab.on_client(Program::line("ip link show dev later")).run(10).code != 0
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let stop = Program::new(&[bin("towpath")]).arg("stop").arg("--socket");
        let _ = stop.arg(self.folder.join("later.sock")).run(20);
        let _ = Program::line(&format!("ip netns del {}", self.later)).run(10);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_namespace_that_comes_after_the_start_is_served_and_given_up_when_it_goes() {
    let later = Later::new();
    let service = || later.service.status()["pid"].clone();
    let before = service();
    later.comes();
    let mut server = later.serves("first");
    later.is_accelerated("first");
    // Without programs nobody keeps a namespace that has lost its name, and its veth goes with it.
    server.stop();
    ip(&format!("netns del {}", later.later));
    until("the stack has ended", 60, || later.status().is_none());
    until("the devices have gone", 60, || later.has_gone());
    later.comes();
    let _server = later.serves("second");
    later.is_accelerated("second");
    assert_eq!(service(), before, "no restart");
}

/// Programs that still run keep a namespace whose name is gone. The name may be another one's meanwhile.
#[test]
fn a_namespace_that_is_made_anew_beside_the_old_one_gets_a_stack_of_its_own() {
    let later = Later::new();
    later.comes();
    let mut old = later.serves("old");
    later.is_accelerated("old");
    let first = later.status().map(|status| status["pid"].clone());
    ip(&format!("netns del {}", later.later));
    assert_eq!(later.says(), "old", "its programs are served on");
    ip(&format!("-n {} link del later", later.lab.client));
    later.comes();
    // The old programs ask for their stack, so that another may run already.
    let pid = || later.status().map(|status| status["pid"].clone());
    until("the old stack has ended", 60, || pid() != first);
    let _new = later.serves("new");
    later.is_accelerated("new");
    old.stop();
}
