//! The service ends at any instant, under load, in each way: nothing spins or hangs, everybody is served, and nothing is
//! left behind.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use towpath_rng::Rng;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, require_program, until};

/// The longest time between the load's beginning and the end of the service.
const LONGEST: Duration = Duration::from_millis(1500);
/// A program that has nothing to do uses no more ticks (10 ms of CPU) in [`WINDOW`]. One that spins has a hundred.
const IDLE_TICKS: u64 = 4;
/// See [`IDLE_TICKS`].
const WINDOW: Duration = Duration::from_secs(1);
/// Rounds before the load. Memcached gives connections to its four threads in turn. After four rounds each thread has had
/// one of each side, and holds what it needs for that.
const WARM_UP: u64 = 4;
/// A program may have so many descriptors and maps more than before the load: some are made with the first connection of
/// a kind. The load has dozens of connections.
const FEW: usize = 3;

/// How the service ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// `kill -9` of the process that was started.
    KillBroker,
    /// `kill -9` of the process that serves.
    KillWorker,
    /// SIGSEGV of the process that serves.
    FaultWorker,
    /// `towpath stop`.
    Stop,
    /// `towpath stop --drain 1`.
    Drain,
}

const ENDS: [End; 5] = [End::KillBroker, End::FaultWorker, End::Stop, End::KillWorker, End::Drain];

/// Where a client is.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// On the host, without Towpath.
    Plain,
    /// On the host, under the service.
    Joined,
    /// On another host, by the served interface.
    Far,
}

const SIDES: [Side; 3] = [Side::Plain, Side::Joined, Side::Far];

/// A service, its servers and their clients.
struct Host<'a> {
    lab: &'a Lab,
    /// They are dropped before the service, in whose folder their output is: it tells why one has ended.
    servers: Vec<Running>,
    service: Service,
}

/// Of a service, in its network namespace.
struct Traces {
    /// An XDP program is attached.
    served: bool,
    /// Ports that the kernel does not choose.
    ports: String,
}

/// What a process holds: descriptors, and maps of regions.
type Holdings = (usize, usize);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lifecycle").join(name)
}

impl<'a> Host<'a> {
    fn new(lab: &'a Lab) -> Self {
        let service = Service::on_interface(lab);
        let mut host = Self { lab, service, servers: Vec::new() };
        host.start_servers();
        host
    }

    fn start_servers(&mut self) {
        let path = |name: &str| self.service.scratch.path(name);
        let nginx = format!(
            "daemon off; worker_processes 2; pid {0}/nginx.pid; error_log {0}/nginx.err; user root;
             events {{ worker_connections 256; }}
             http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;
             uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
             server {{ listen 7902; location / {{ return 204; }} }} }}",
            self.service.scratch.0.display()
        );
        std::fs::write(path("nginx.conf"), nginx).unwrap();
        let python = format!("/usr/bin/python3 -u {}", script("serve.py").display());
        let lines = [
            "redis-server --port 7901 --save --appendonly no --protected-mode no --bind 0.0.0.0".to_owned(),
            format!("nginx -c {}", path("nginx.conf").display()),
            "memcached -u root -p 7903 -U 0 -l 0.0.0.0".to_owned(),
            format!("{python} asyncio 7904"),
            format!("{python} prefork 7905"),
        ];
        for (number, line) in lines.iter().enumerate() {
            let program = self.lab.on_server(self.under(line)).dir(&self.service.scratch.0);
            self.servers.push(program.start(path(&format!("server{number}"))));
        }
        self.await_listeners();
    }

    /// Waits until the service has all listeners.
    fn await_listeners(&mut self) {
        until("the service has all listeners", 60, || {
            let sockets = self.service.sockets();
            let listen = |port: u16| {
                let is_it = |socket: &serde_json::Value| {
                    socket["state"] == "LISTEN" && socket["local"].as_str().unwrap().ends_with(&format!(":{port}"))
                };
                sockets["sockets"].as_array().unwrap().iter().any(is_it)
            };
            assert!(self.servers.iter_mut().all(Running::alive), "a server has ended");
            (7901..=7905).all(listen)
        });
    }

    /// The line under `towpath run`. Without the service its new sockets are the kernel's.
    fn under(&self, line: &str) -> Program {
        let run = format!("{} run --socket {} --", bin("towpath").display(), self.service.socket.display());
        Program::line(line).under(&run.split(' ').collect::<Vec<_>>())
    }

    /// Connections that the stack has accepted.
    fn accelerated(&self) -> u64 {
        let sockets = self.service.sockets();
        let accepted = |socket: &serde_json::Value| socket["halves"]["accelerated"].as_u64();
        sockets["sockets"].as_array().unwrap().iter().filter_map(accepted).sum()
    }

    fn ask(&self, side: Side, words: &[&str]) -> Program {
        let script = script("ask.py");
        let line = format!("/usr/bin/python3 -u {}", script.display());
        let program = match side {
            Side::Joined => self.under(&line),
            Side::Plain | Side::Far => Program::line(&line),
        };
        let program = words.iter().fold(program, |program, word| program.arg(word));
        match side {
            Side::Far => self.lab.on_client(program),
            Side::Plain | Side::Joined => self.lab.on_server(program),
        }
    }

    /// Requires that all servers answer a client.
    fn serves(&mut self, side: Side, when: &str) {
        let answer = self.ask(side, &["once", SERVER]).run(60);
        let servers: Vec<_> = self.servers.iter_mut().map(|server| (server.alive(), server.output())).collect();
        assert_eq!(answer.out, "all\n", "{when}, {side:?}: {answer:?}\n{servers:#?}");
    }

    fn load(&self, side: Side) -> Running {
        let words: &[&str] = match side {
            Side::Plain => &["load", "127.0.0.1", "no"],
            Side::Joined => &["load", SERVER, "yes"],
            Side::Far => &["load", SERVER, "yes", "far"],
        };
        self.ask(side, words).start(self.service.scratch.path(&format!("load-{side:?}")))
    }

    /// The servers' processes, with those that they have started.
    fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.servers.iter().map(Running::pid).collect();
        let mut at = 0;
        while at < all.len() {
            let id = all[at];
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            at += 1;
        }
        all
    }

    fn holdings(&self) -> Vec<Holdings> {
        self.processes().into_iter().map(holdings).collect()
    }

    /// Requires that the servers hold no more than they held before.
    fn hold_no_more_than(&self, before: &[Holdings], when: &str) {
        until(&format!("{when}: servers hold what they held, {before:?}"), 60, || {
            let now = self.holdings();
            now.len() == before.len()
                && now.iter().zip(before).all(|(now, then)| now.0 <= then.0 + FEW && now.1 <= then.1 + FEW)
        });
    }

    /// Requires that nothing of the service is left.
    fn is_gone(&mut self) {
        self.service.running.wait_end(60);
        // The worker ends after a broker that was killed.
        until("nothing of the service is left", 60, || {
            let Traces { served, ports } = self.traces();
            !served && ports.is_empty()
        });
    }

    fn end(&mut self, end: End) {
        match end {
            End::KillBroker => self.service.running.signal(libc::SIGKILL),
            End::KillWorker => kill(self.service.running.worker(), libc::SIGKILL),
            End::FaultWorker => kill(self.service.running.worker(), libc::SIGSEGV),
            End::Stop => _ = self.stop(&[]),
            End::Drain => _ = self.stop(&["--drain", "1"]),
        }
    }

    fn stop(&self, more: &[&str]) -> String {
        let program = Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(&self.service.socket);
        more.iter().fold(program, |program, word| program.arg(word)).run(30).ok()
    }

    /// What `ip` and the kernel's settings show of a service.
    fn traces(&self) -> Traces {
        let served = self.lab.is_served();
        let ports = self.lab.on_server(Program::line("cat /proc/sys/net/ipv4/ip_local_reserved_ports")).run(10).ok();
        Traces { served, ports: ports.trim().to_owned() }
    }
}

fn kill(process: i32, signal: i32) {
    // SAFETY: `kill` takes numbers and no memory. The process is the service's, whose broker waits for it.
    unsafe { libc::kill(process, signal) };
}

fn holdings(process: i32) -> Holdings {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("the server runs").count();
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("the server runs");
    (open, maps.lines().filter(|line| line.contains("memfd:towpath")).count())
}

/// Ticks of CPU that a process has used.
fn ticks(process: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the server runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// One service, which ends in this way at this time after its load has begun.
fn ends(lab: &Lab, end: End, after: Duration) {
    let mut host = Host::new(lab);
    for _ in 0..WARM_UP {
        for side in SIDES {
            host.serves(side, &format!("{end:?}: before the load"));
        }
    }
    until("the stack has accepted for each server from both sides", 60, || host.accelerated() == 10 * WARM_UP);
    let before = host.holdings();
    let mut loads = SIDES.map(|side| host.load(side));
    loads.iter_mut().for_each(|load| load.wait_for("round 1", 60));
    std::thread::sleep(after);
    host.end(end);
    let ended = Instant::now();
    for side in [Side::Plain, Side::Far] {
        host.serves(side, &format!("{end:?}: served afterwards"));
        println!("{end:?} after {after:?}: {side:?} served within {:?}", ended.elapsed());
    }
    for load in &mut loads {
        let rounds = |load: &Running| load.output().matches("round").count();
        let before = rounds(load);
        until(&format!("{end:?}: clients go on"), 60, || rounds(load) > before + 1 || !load.alive());
    }
    for load in &mut loads {
        load.signal(libc::SIGTERM);
        load.wait_for("over", 60);
        load.wait_end(60);
        println!("  {}", load.output().lines().last().unwrap_or_default());
    }
    assert!(host.servers.iter_mut().all(Running::alive), "{end:?}: a server has ended");
    let processes = host.processes();
    until("no server spins", 60, || {
        let begun: Vec<u64> = processes.iter().map(|process| ticks(*process)).collect();
        std::thread::sleep(WINDOW);
        processes.iter().zip(begun).all(|(process, begun)| ticks(*process) - begun <= IDLE_TICKS)
    });
    host.hold_no_more_than(&before, &format!("{end:?}: afterwards"));
    match end {
        End::KillWorker | End::FaultWorker => {
            until("another worker serves", 60, || {
                let status = Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&host.service.socket);
                status.run(20).code == 0
            });
        }
        End::KillBroker | End::Stop | End::Drain => {
            host.is_gone();
            host.service.on_interface_again(lab);
        }
    }
    let begun = Instant::now();
    host.await_listeners();
    println!("  all servers have joined another service within {:?}", begun.elapsed());
    let accelerated = host.accelerated();
    for side in SIDES {
        host.serves(side, &format!("{end:?}: served by another service"));
    }
    until("another service has accepted for each server from both sides", 60, || {
        host.accelerated() >= accelerated + 10
    });
    host.hold_no_more_than(&before, &format!("{end:?}: with another service"));
    host.stop(&[]);
    host.is_gone();
    drop(host);
}

fn many(seed: u64, rounds: usize) {
    for (program, package) in
        [("redis-server", "redis-server"), ("nginx", "nginx-light"), ("memcached", "memcached"), ("python3", "python3")]
    {
        require_program(program, package);
    }
    let (lab, mut rng) = (Lab::new(), Rng::new(seed));
    for round in 0..rounds {
        ends(&lab, ENDS[round % ENDS.len()], Duration::from_micros(rng.below(LONGEST.as_micros() as u64)));
    }
}

#[test]
fn the_service_may_end_at_any_instant() {
    many(18, ENDS.len());
}

#[test]
#[ignore = "ends 200 services under load: make test-slow"]
fn the_service_may_end_at_any_of_many_instants() {
    many(19, 200);
}
