//! The units under a real systemd, which runs in a container of its own.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_system_tests::module::object;
use towpath_system_tests::packages;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Finished, Program, Scratch, bin_dir, require_program, until};

/// A booted systemd with Towpath installed.
struct Booted {
    init: i32,
    running: Running,
    /// Its control group, with all that it makes.
    group: PathBuf,
}

impl Booted {
    /// With the programs that are tested.
    fn new(scratch: &Scratch) -> Self {
        Self::with(scratch, bin_dir().as_os_str())
    }
    /// With what lies there, or with nothing (`none`).
    fn with(scratch: &Scratch, programs: &OsStr) -> Self {
        for (program, package) in [("systemctl", "systemd"), ("unshare", "util-linux"), ("curl", "curl")] {
            require_program(program, package);
        }
        let unified = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let unified = unified.into_iter().find(|path| path.join("cgroup.procs").is_file()).expect("cgroup2");
        // Several may be booted at a time.
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let number = BOOTED.fetch_add(1, Ordering::Relaxed);
        let group = unified.join(format!("towpath-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/boot");
        let running = Program::new(&[boot]).arg(programs).arg(&group).start(scratch.path("boot.log"));
        let children = format!("/proc/{0}/task/{0}/children", running.pid());
        // Whatever happens from now on, it ends with this.
        let mut booted = Self { init: 0, running, group };
        until("systemd is booted", 120, || {
            assert!(booted.running.alive(), "{}", booted.running.output());
            let init = fs::read_to_string(&children).ok().and_then(|text| text.trim().parse::<i32>().ok());
            booted.init = init.unwrap_or_default();
            let state = init.map(|init| inside(init, "systemctl is-system-running").run(60).out).unwrap_or_default();
            ["running", "degraded"].contains(&state.trim())
        });
        booted
    }
    fn inside(&self, line: &str) -> Program {
        inside(self.init, line)
    }
    /// `systemctl show` of one property.
    fn property(&self, unit: &str, name: &str) -> String {
        self.inside(&format!("systemctl show --value -p {name} {unit}")).run(60).ok().trim().to_owned()
    }
    /// Runs a line, and shows the unit's log if that fails.
    fn must(&self, line: &str) -> String {
        let Finished { code, out, err } = self.inside(line).run(120);
        let log = || self.inside("journalctl --no-pager -n 50").run(60).out;
        assert_eq!(code, 0, "{line}: {out}{err}\n{}", log());
        out
    }
    /// A path of its own files, as we reach it.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.init)).join(path)
    }
    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }
}

fn inside(init: i32, line: &str) -> Program {
    Program::line(&format!("nsenter -t {init} -m -u -i -n -p -C -- {line}"))
}

impl Drop for Booted {
    fn drop(&mut self) {
        // Its end takes all of its processes along.
        self.running.signal(9);
        self.running.wait_end(30);
        let deepest_first = |path: &Path| {
            let mut all = Vec::new();
            let mut next = vec![path.to_owned()];
            while let Some(path) = next.pop() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                next.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
                all.insert(0, path);
            }
            all
        };
        // The kernel takes a moment to see that they are empty.
        for _ in 0..500 {
            for group in deepest_first(&self.group) {
                let _ = fs::remove_dir(group);
            }
            if !self.group.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

const ECHO: &str = "/usr/bin/towpath run --require -- python3 /tmp/echo.py";

#[test]
fn systemd_starts_reloads_watches_and_ends_the_service() {
    let scratch = Scratch::new("systemd");
    let booted = Booted::new(&scratch);
    booted.write(
        "tmp/echo.py",
        "import socket
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1)
c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b'bytes'); print(s.recv(9))",
    );
    booted.must("ip link set lo up");
    booted.must("ip link add eth1 type veth peer name eth2");
    for device in ["eth1", "eth2"] {
        booted.must(&format!("ip link set {device} up"));
    }
    booted.must("ip address add 10.77.0.1/24 dev eth1");
    booted.write("etc/towpath/towpathd.toml", "interface = \"eth1\"\n");

    // With Type=notify this returns when programs are served.
    until("the service is started", 60, || {
        let started = booted.inside("systemctl start towpathd.service").run(60).code == 0;
        if !started {
            // Without CAP_SYS_RESOURCE no unit's limit is above this machine's, which holds for all processes of root together.
            let said = booted.inside("journalctl --no-pager -u towpathd -n 20").run(60).out;
            assert!(said.contains("may not be locked"), "{said}");
            booted.must("systemctl reset-failed towpathd.service");
        }
        started
    });
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "active");
    assert_eq!(booted.must(ECHO), "b'bytes'\n");
    let status = booted.must("towpath status");
    assert!(status.contains("sandbox: capabilities none") && status.contains("eth1"), "{status}");
    // Its privileges suffice: the program is on the interface, and the verifier judges a module, which is compiled.
    let object = object(&scratch, "firewall", None);
    fs::copy(object, booted.path("tmp/firewall.bpf.o")).unwrap();
    booted.must("towpath module add wall /tmp/firewall.bpf.o");
    let listed = booted.must("towpath module list --json");
    assert!(listed.contains("\"compiled\":true"), "{listed}");
    let status: serde_json::Value = serde_json::from_str(&booted.must("towpath status --json")).unwrap();
    assert_eq!(status["interfaces"][0]["steering"], true, "{status}");

    // A good configuration is taken over, and a wrong one is an error of the command.
    booted.write("etc/towpath/towpathd.toml", "interface = \"eth1\"\npolicy = [\"deny connect port 25\"]\n");
    booted.must("systemctl reload towpathd.service");
    assert!(booted.must("towpath policy list").contains("deny connect port 25"));
    booted.write("etc/towpath/towpathd.toml", "interface = \"eth1\"\ncolour = 1\n");
    assert_ne!(booted.inside("systemctl reload towpathd.service").run(60).code, 0);
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "active");
    booted.write("etc/towpath/towpathd.toml", "interface = \"eth1\"\n");

    // The broker beats for the watchdog.
    let first = booted.property("towpathd.service", "WatchdogTimestampMonotonic");
    until("the watchdog hears of the service", 60, || {
        booted.property("towpathd.service", "WatchdogTimestampMonotonic") != first
    });

    // The service's process is replaced by its own broker, and systemd need not know.
    let main = booted.property("towpathd.service", "MainPID");
    booted.must(&format!("pkill -9 -P {main} -x towpathd"));
    // The old one may answer for a moment.
    let replaced =
        || booted.inside("journalctl --no-pager -u towpathd.service").run(60).out.contains("is started again in");
    until("its end is noticed", 60, replaced);
    until("another process serves", 60, || booted.inside(ECHO).run(60).out == "b'bytes'\n");
    assert_eq!(booted.property("towpathd.service", "MainPID"), main);
    assert_eq!(booted.property("towpathd.service", "NRestarts"), "0");
    // Its lines are in the journal with their fields, also in a report of an error, and those of the one that died.
    let lines = "journalctl --no-pager -q -o cat TOWPATH_STACK=fast TOWPATH_INTERFACE=eth1";
    until("both are in the journal", 60, || booted.must(lines).matches("serving version=").count() == 2);
    booted.must("towpath doctor --bundle /tmp/bundle.tar.gz");
    let log = booted.must("tar -xzOf /tmp/bundle.tar.gz --wildcards */service/log.txt");
    assert_eq!(log.matches("serving version=").count(), 2, "{log}");
    // A broker that dies is systemd's.
    booted.must(&format!("kill -9 {main}"));
    until("systemd starts another one", 60, || booted.property("towpathd.service", "NRestarts") == "1");
    until("another service serves", 60, || booted.inside(ECHO).run(60).out == "b'bytes'\n");

    booted.must("systemctl start towpath-metrics.service");
    until("the metrics are there", 60, || {
        let page = booted.inside("curl -s http://127.0.0.1:9464/metrics").run(60).out;
        page.contains("towpath_up{stack=\"home\"} 1.0") && page.contains("towpath_interface_serving")
    });

    booted.must("systemctl stop towpath-metrics.service towpathd.service");
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "inactive");
    assert_eq!(booted.property("towpathd.service", "Result"), "success");
    let left: Vec<_> =
        fs::read_dir(booted.path("run/towpath")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["towpath.lock"]);
    // A further service, with a configuration of its own. The machine's comes and goes beside it.
    booted.write("etc/towpath/second.toml", "");
    booted.must("systemctl start towpathd@second.service");
    let echo = ECHO.replace(" --require", " --require --socket /run/towpath/second.sock");
    assert_eq!(booted.must(&echo), "b'bytes'\n");
    booted.write("etc/towpath/second.toml", "policy = [\"deny connect port 25\"]\n");
    booted.must("systemctl reload towpathd@second.service");
    let list = "towpath policy --socket /run/towpath/second.sock list";
    assert!(booted.must(list).contains("deny connect port 25"));

    // The first who connects starts the service. Who stops it leaves the sockets to the next.
    booted.must("systemctl start towpathd.socket");
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "inactive");
    assert!(booted.must("towpath status").contains("eth1"));
    assert_eq!(booted.must(ECHO), "b'bytes'\n");
    booted.must("systemctl stop towpathd.service");
    assert_eq!(booted.property("towpathd.socket", "ActiveState"), "active");
    assert_eq!(booted.must(ECHO), "b'bytes'\n");
    booted.must("systemctl stop towpathd.socket towpathd.service");
    assert_eq!(booted.must(&echo), "b'bytes'\n");
    booted.must("systemctl stop towpathd@second.service");
    assert!(!booted.path("run/towpath/towpath.sock").exists());
    // A configuration that cannot be used is not tried again and again.
    booted.write("etc/towpath/towpathd.toml", "colour = 1\n");
    assert_ne!(booted.inside("systemctl start towpathd.service").run(60).code, 0);
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "failed");
    assert_eq!(booted.property("towpathd.service", "ExecMainStatus"), "2");
    let log = booted.must("journalctl --no-pager -u towpathd.service");
    assert!(log.contains("unknown key \"colour\""), "{log}");
}

#[test]
fn debians_own_units_come_under_towpath_and_off_again() {
    require_program("nginx", "nginx-light");
    require_program("redis-server", "redis-server");
    let scratch = Scratch::new("units-enabled");
    let booted = Booted::new(&scratch);
    booted.must("ip link set lo up");
    // Redis is not admitted at first. It has the kernel's TCP then, and starts no service of its own.
    booted.write("etc/towpath/towpathd.toml", "");
    booted.must("towpath unit enable redis");
    booted.must("systemctl restart redis-server");
    assert_eq!(booted.must("redis-cli ping"), "PONG\n");
    let group = booted.must("systemctl status --no-pager redis-server");
    assert!(!group.contains("towpathd "), "{group}");
    booted.must("towpath unit disable redis");
    booted.write("etc/towpath/towpathd.toml", "admit = [\"user:redis\", \"user:www-data\"]\n");
    booted.must("systemctl restart towpathd");
    // What an operator has changed holds, and ours comes behind it.
    let edited = booted.path("etc/systemd/system/nginx.service.d/override.conf");
    fs::create_dir_all(edited.parent().unwrap()).unwrap();
    fs::write(&edited, "[Service]\nExecStart=\nExecStart=/usr/sbin/nginx -g 'daemon on; master_process on; #edited'\n")
        .unwrap();
    booted.must("systemctl daemon-reload");
    let listed = || booted.must("towpath unit list");
    assert!(listed().contains("no unit is under Towpath"));

    for unit in ["nginx", "redis-server.service"] {
        booted.must(&format!("systemctl start {unit}"));
        booted.must(&format!("towpath unit enable {unit}"));
        assert!(listed().contains("` puts all there"), "it still runs as before: {}", listed());
        booted.must(&format!("systemctl restart {unit}"));
        // Again, with its own drop-in there.
        booted.must(&format!("towpath unit enable {unit}"));
    }
    // The service comes with them. What redis runs in may do as little as before.
    assert_eq!(booted.property("towpathd.service", "ActiveState"), "active");
    let page = booted.must("/usr/bin/towpath run --require -- curl -sI http://127.0.0.1/");
    assert!(page.contains("Server: nginx"), "{page}");
    let answer = booted.must("/usr/bin/towpath run --require -- redis-cli ping");
    assert_eq!(answer, "PONG\n");
    let sockets = booted.must("towpath sockets -l");
    assert!(sockets.contains("nginx") && sockets.contains("redis-server"), "{sockets}");
    let units: serde_json::Value = serde_json::from_str(&booted.must("towpath unit list --json")).unwrap();
    for (number, unit) in ["nginx.service", "redis-server.service"].into_iter().enumerate() {
        let found = &units["units"][number];
        assert_eq!((&found["unit"], &found["state"]), (&unit.into(), &"active".into()), "{units}");
        assert!(found["processes"].as_u64().unwrap() > 0 && found["processes"] == found["under_towpath"], "{units}");
    }
    // Without the service they go on, as the kernel's.
    booted.must("systemctl stop towpathd.service");
    assert_eq!(booted.must("redis-cli ping"), "PONG\n");

    for unit in ["nginx.service", "redis-server.service"] {
        booted.must(&format!("towpath unit disable {unit}"));
        booted.must(&format!("systemctl restart {unit}"));
        assert!(!booted.path(&format!("etc/systemd/system/{unit}.d/zz-towpath.conf")).exists());
        assert!(!booted.property(unit, "ExecStart").contains("towpath"));
    }
    assert!(edited.exists(), "what is the operator's stays");
    assert!(listed().contains("no unit is under Towpath"));
    assert_eq!(booted.must("redis-cli ping"), "PONG\n");
    let again = booted.inside("towpath unit disable nginx").run(60);
    assert!(again.code == 1 && again.err.contains("nginx.service is not under Towpath"), "{}", again.err);
    // `make uninstall` takes off what is still there, so that it can start.
    booted.must("towpath unit enable nginx");
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let said = booted.must(&format!("env PREFIX=/usr sh {} --remove", install.display()));
    assert!(said.contains("taken off Towpath: nginx.service"), "{said}");
    booted.must("systemctl restart nginx");
    assert_eq!(booted.property("towpathd.service", "LoadState"), "not-found");
}

#[test]
fn what_cannot_come_under_towpath_is_said() {
    let scratch = Scratch::new("units-refused");
    let booted = Booted::new(&scratch);
    let unknown = booted.inside("towpath unit enable nothing").run(60);
    assert!(unknown.code == 1 && unknown.err.contains("does not know nothing.service"), "{}", unknown.err);
}

#[test]
fn a_package_is_installed_upgraded_and_purged_and_leaves_nothing() {
    require_program("nginx", "nginx-light");
    let scratch = Scratch::new("package");
    let [first, later] = ["0.1.0", "0.1.1"].map(|version| packages::packed(&scratch, version, version, "host"));
    let booted = Booted::with(&scratch, "none".as_ref());
    booted.must("ip link set lo up");
    fs::copy(first.deb("0.1.0"), booted.path("tmp/first.deb")).unwrap();
    fs::copy(later.deb("0.1.1"), booted.path("tmp/later.deb")).unwrap();
    fs::copy(first.rpm("0.1.0"), booted.path("tmp/first.rpm")).unwrap();
    fs::copy(later.rpm("0.1.1"), booted.path("tmp/later.rpm")).unwrap();
    // But for what dpkg keeps of packages that it has had, and for the log.
    let left = || {
        let found = booted.must("find /etc /usr /run /var/lib /tmp /root -xdev -name *towpath*");
        found.lines().filter(|path| !path.starts_with("/var/lib/systemd")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = left();
    let head = "towpath run --require -- curl -sI http://127.0.0.1/";
    // Debian's rpm does not know what dpkg has installed.
    let dpkg = ["dpkg -i /tmp/first.deb", "dpkg --force-confold -i /tmp/later.deb", "dpkg --purge towpath"];
    let rpm = ["rpm -i --nodeps /tmp/first.rpm", "rpm -U --nodeps /tmp/later.rpm", "rpm -e towpath"];
    // RPM does not tell a package's scripts the version before, and keeps a changed configuration under another name.
    let kept = "/etc/towpath/towpathd.toml.rpmsave";
    for ([install, upgrade, purge], version, kept) in
        [(dpkg, "version 0.1.0", None), (rpm, "the version before", Some(kept))]
    {
        booted.must(install);
        booted.must("systemctl start nginx");
        booted.must("towpath unit enable nginx");
        booted.must("systemctl restart nginx");
        assert!(booted.must(head).contains("Server: nginx"));
        assert!(booted.must("towpath unit list").contains("nginx.service  active"));

        // An upgrade ends no connection, and keeps a configuration that was changed.
        booted.write("etc/towpath/towpathd.toml", "max_connections = 1000\n");
        let main = booted.property("towpathd.service", "MainPID");
        let said = booted.must(upgrade);
        assert!(said.contains(&format!("towpathd still runs {version}")), "{said}");
        assert_eq!(booted.property("towpathd.service", "MainPID"), main);
        assert!(booted.must(head).contains("Server: nginx"));
        assert_eq!(fs::read_to_string(booted.path("etc/towpath/towpathd.toml")).unwrap(), "max_connections = 1000\n");

        booted.write("etc/towpath/second.toml", "");
        booted.must("systemctl enable --now towpathd@second.service");
        booted.must("towpath unit enable nginx --instance second");
        booted.must("systemctl restart nginx");
        let by_second = head.replace(" --require", " --require --socket /run/towpath/second.sock");
        assert!(booted.must(&by_second).contains("Server: nginx"));

        booted.must(purge);
        assert_eq!(booted.property("towpathd.service", "LoadState"), "not-found");
        booted.must("systemctl restart nginx");
        assert!(booted.must("curl -sI http://127.0.0.1/").contains("Server: nginx"));
        if let Some(kept) = kept {
            assert_eq!(booted.must(&format!("cat {kept}")), "max_connections = 1000\n");
        }
        // What else lay there is the operator's.
        booted.must("rm /etc/towpath/second.toml");
        booted.must("rm -rf /etc/towpath");
        assert_eq!(left(), before);
    }
}

/// systemd rates how much each unit may still do.
#[test]
fn the_units_may_do_little() {
    require_program("systemd-analyze", "systemd");
    let scratch = Scratch::new("units");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for (unit, most) in [("towpathd.service", "45"), ("towpath-metrics.service", "25")] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        let text = text.replace("@PREFIX@", "/usr").replace("@SYSCONFDIR@", "/etc");
        let path = scratch.path(unit);
        fs::write(&path, text).unwrap();
        let judge = Program::line("systemd-analyze security --no-pager --offline=true --threshold").arg(most).arg(path);
        let judged = judge.run(60);
        assert_eq!(judged.code, 0, "{}", judged.out);
    }
}
