//! A service reads its configuration again, by command and by SIGHUP: what can change changes, and a wrong file changes
//! nothing.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Client, Daemon, Scratch, client, towpathd, until};
use rustix::process::{Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use towpath_service::api::{self, AskError, Command, Reloaded};
use towpath_service::policy::request::{Listing, PolicyRequest};

/// A service with a configuration file.
struct Configured {
    scratch: Scratch,
    daemon: Daemon,
}

impl Configured {
    fn start(name: &str, text: &str) -> Self {
        let scratch = Scratch::new(name);
        std::fs::write(scratch.0.join("towpath.toml"), text).unwrap();
        let log = std::fs::File::create(scratch.0.join("service.log")).unwrap();
        let daemon = Daemon::start(towpathd(&scratch).arg("--config").arg(scratch.0.join("towpath.toml")).stderr(log));
        Self { scratch, daemon }
    }
    fn file(&self) -> PathBuf {
        self.scratch.0.join("towpath.toml")
    }
    /// Another file in the place of the first, as editors write them.
    fn write(&self, text: &str) {
        std::fs::write(self.scratch.0.join("new"), text).unwrap();
        std::fs::rename(self.scratch.0.join("new"), self.file()).unwrap();
    }
    fn reload(&self) -> Result<Reloaded, String> {
        api::ask(&self.scratch.socket(), Command::Reload).map_err(|error| match error {
            AskError::Refused(why) => why,
            error => panic!("{error}"),
        })
    }
    fn policy(&self, request: PolicyRequest) -> Listing {
        api::ask(&self.scratch.socket(), Command::Policy(request)).unwrap()
    }
    /// The rules, and the default.
    fn rules(&self) -> Vec<String> {
        let listing = self.policy(PolicyRequest::List);
        listing.rules.into_iter().map(|rule| rule.rule).chain([listing.default]).collect()
    }
    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("service.log")).unwrap()
    }
    /// Permissions of both sockets.
    fn modes(&self) -> [u32; 2] {
        ["towpath.sock", "control.sock"]
            .map(|name| std::fs::metadata(self.scratch.0.join(name)).unwrap().permissions().mode() & 0o777)
    }
    fn kill_worker(&self) {
        let worker = self.daemon.worker();
        rustix::process::kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
        until("another worker serves", || {
            api::ask::<api::Status>(&self.scratch.socket(), Command::Status).is_ok() && self.daemon.worker() != worker
        });
    }
}

#[test]
fn a_reload_takes_over_what_can_change_and_names_the_rest() {
    let service = Configured::start("reload", "clients_per_user = 8\npolicy = [\"deny connect port 25\"]\n");
    assert_eq!(service.modes(), [0o600; 2]);
    let unchanged = service.reload().unwrap();
    assert_eq!((unchanged.changed.len(), unchanged.restart.len(), unchanged.edited), (0, 0, false));
    service.write(
        "clients_per_user = 1\nspin = \"1ms\"\nadmit = [\"uid:65534\"]\npolicy_default = \"kernel\"\n\
         policy = [\"allow connect port 25\", \"deny listen port 80\"]\n",
    );
    let reloaded = service.reload().unwrap();
    assert_eq!(reloaded.changed, ["admit", "policy", "policy_default", "clients_per_user"]);
    assert_eq!(reloaded.restart, ["spin"]);
    assert_eq!((reloaded.file, reloaded.rules, reloaded.edited), (service.file(), 2, false));
    assert_eq!(service.rules(), ["allow connect port 25", "deny listen port 80", "kernel"]);
    assert_eq!(service.modes(), [0o666; 2], "others are admitted");
    let connect = || client::connect(&service.scratch.socket()).unwrap();
    let _one = Client::hello(connect(), 0).unwrap();
    assert!(Client::welcomed(connect()).is_err(), "one client of a user");
    // The value of the start is in force until a restart, so it is named again.
    assert_eq!(service.reload().unwrap().restart, ["spin"]);
    service.policy(PolicyRequest::Flush);
    service.write("clients_per_user = 8\n");
    let reloaded = service.reload().unwrap();
    assert_eq!(reloaded.changed, ["admit", "policy", "policy_default", "clients_per_user"]);
    assert!(!reloaded.edited, "the file has no rules either");
    assert_eq!(service.modes(), [0o600; 2]);
    let _two = Client::hello(connect(), 0).unwrap();
    service.policy(PolicyRequest::Add { rule: "deny all".into() });
    assert!(service.reload().unwrap().edited);
    assert_eq!(service.rules(), ["allow"]);
}

#[test]
fn a_file_that_is_wrong_changes_nothing_and_the_line_is_named() {
    let first = "policy = [\"deny connect port 25\"]\n";
    let service = Configured::start("reload-wrong", first);
    let file = service.file();
    for (text, why) in [
        ("admit = [\"all\"]\npolicy = []\nspinn = \"20us\"\n", ":3: unknown key \"spinn\"; did you mean \"spin\"?"),
        ("admit = [\"all\"]\npolicy = [\n  \"deny nothing\",\n]\n", ":3: "),
        (
            "policy = []\nadmit = [\"user:no-such-user\"]\n",
            ":2: admit: there is no user \"no-such-user\" on this machine",
        ),
        ("admit = [\"all\"]\nclients_per_user = 0\n", ":2: clients_per_user: 0 is outside 1 to 65536"),
        (
            "admit = [\"all\"]\npolicy = [\"stack red all\"]\n[stacks.red]\nstack = \"kernel\"\n",
            ":2: policy: there is no stack \"red\"; the configuration names none ([stacks.NAME]); a stack that is new \
             needs a restart",
        ),
    ] {
        service.write(text);
        let said = service.reload().unwrap_err();
        assert!(said.starts_with(&format!("{}{why}", file.display())), "{said}");
        assert!(service.log().contains(&format!("the configuration is as it was: {said}")), "{said}");
        assert_eq!(service.rules(), ["deny connect port 25", "allow"]);
        assert_eq!(service.modes(), [0o600; 2]);
    }
    std::fs::remove_file(&file).unwrap();
    let said = service.reload().unwrap_err();
    assert_eq!(said, format!("{}: No such file or directory (os error 2)", file.display()));
    service.write(first);
    assert_eq!(service.reload().unwrap().changed, [""; 0]);
}

#[test]
fn a_hangup_reloads_and_ends_nothing() {
    let mut service = Configured::start("reload-hangup", "policy = [\"deny connect port 25\"]\n");
    service.write("policy = [\"deny connect port 26\"]\n");
    service.daemon.signal(Signal::HUP);
    until("the new rules", || service.rules() == ["deny connect port 26", "allow"]);
    service.write("wrong\n");
    service.daemon.signal(Signal::HUP);
    until("the line of the log", || service.log().contains("the configuration is as it was: "));
    assert_eq!(service.rules(), ["deny connect port 26", "allow"]);
    // It may come while no process serves.
    let worker = service.daemon.worker();
    rustix::process::kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    service.daemon.signal(Signal::HUP);
    until("another worker serves", || api::ask::<api::Status>(&service.scratch.socket(), Command::Status).is_ok());
    service.daemon.signal(Signal::TERM);
    assert_eq!(service.daemon.end(), 0);
}

#[test]
fn the_next_worker_begins_with_what_was_read_last() {
    let service = Configured::start("reload-worker", "policy = [\"deny connect port 25\"]\n");
    service.write("policy = [\"deny connect port 26\"]\nadmit = [\"all\"]\n");
    service.reload().unwrap();
    // These are not in force.
    service.write("policy = []\n");
    service.kill_worker();
    assert_eq!(service.rules(), ["deny connect port 26", "allow"]);
    assert_eq!(service.modes(), [0o666; 2]);
    service.write("policy = [\"deny nothing\"]\n");
    service.reload().unwrap_err();
    service.kill_worker();
    assert_eq!(service.rules(), ["deny connect port 26", "allow"]);
}

#[test]
fn a_service_without_a_file_or_a_sandbox_reloads_as_well() {
    let scratch = Scratch::new("reload-none");
    let _daemon = Daemon::start(&mut towpathd(&scratch));
    let error = api::ask::<Reloaded>(&scratch.socket(), Command::Reload).unwrap_err().to_string();
    assert!(error.starts_with("the service was started without --config"), "{error}");
    let service = Configured::start("reload-off", "sandbox = \"off\"\n");
    service.write("sandbox = \"off\"\nadmit = [\"all\"]\npolicy_default = \"deny\"\n");
    assert_eq!(service.reload().unwrap().changed, ["admit", "policy_default"]);
    assert_eq!((service.rules(), service.modes()), (vec!["deny".to_owned()], [0o666; 2]));
}
