//! `towpath cores enforce` goes on whatever happens to the receivers of its decisions. It logs once what is wrong, and
//! sends again when it can.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, bin, until};

/// An `enforce` in a namespace, with a small file system of its own for what it writes.
struct Host {
    lab: Lab,
    scratch: Scratch,
    running: Option<Running>,
}

impl Host {
    fn new(name: &str, more: &str) -> Self {
        let (lab, scratch) = (Lab::with_queues(2), Scratch::new(name));
        let (small, towpath) = (scratch.path("small"), bin("towpath"));
        std::fs::create_dir(&small).unwrap();
        let shell = format!(
            "mount -t tmpfs -o size=128k {name} {0} && cd {0} && mkdir there && exec {1} cores enforce --interface eth1 --cpus 1 --force --way rps {more}",
            small.display(),
            towpath.display()
        );
        let program = Program::new(&["bash", "-c", &shell]).env("TOWPATH_CORES_JOURNAL", scratch.path("cores.journal"));
        let running = lab.on_server(program).start(scratch.path("enforce.log"));
        let host = Self { lab, scratch, running: Some(running) };
        until("it decides", 60, || host.ticks() > 0);
        host
    }
    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }
    /// A path in its small file system, which only it has mounted.
    fn small(&self, name: &str) -> PathBuf {
        let inside = self.scratch.path("small");
        Path::new(&format!("/proc/{}/root", self.running().pid())).join(inside.strip_prefix("/").unwrap()).join(name)
    }
    /// The number of decisions that it has made.
    fn ticks(&self) -> u64 {
        let text = std::fs::read_to_string(self.scratch.path("cores.state")).unwrap_or_default();
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        state["decisions"].as_array().and_then(|all| all.last()?["tick"].as_u64()).unwrap_or(0)
    }
    fn goes_on(&self) {
        let before = self.ticks();
        until("it goes on", 60, || self.ticks() > before + 1);
    }
    fn says(&self, what: &str) -> usize {
        self.running().output().lines().filter(|line| line.starts_with("towpath:") && line.contains(what)).count()
    }
    /// The ticks in the whole lines of a file.
    fn logged(&self, name: &str) -> Vec<u64> {
        let text = std::fs::read_to_string(self.small(name)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| line["tick"].as_u64()).collect()
    }
    fn shell(&self, line: &str) -> String {
        self.lab.on_server(Program::new(&["bash", "-c", line])).run(60).out
    }
    /// It ends in order, and everything is put back.
    fn end(mut self) {
        let mut running = self.running.take().unwrap();
        running.signal(libc::SIGTERM);
        running.wait_end(60);
        assert!(!self.scratch.path("cores.journal").exists(), "{}", running.output());
    }
}

#[test]
fn a_full_disk_and_a_folder_that_is_gone_are_said_once_and_it_goes_on() {
    let host = Host::new("outputs-full", "--log there/log --log-every --metrics-file there/cores.prom --record trace");
    until("all is written", 60, || {
        host.small("there/cores.prom").exists() && !host.logged("there/log").is_empty() && host.small("trace").exists()
    });
    std::fs::write(host.small("filler"), vec![b'x'; 1 << 20]).expect_err("the disk is full");
    until("each problem is logged", 120, || ["log", "cores.prom", "trace"].iter().all(|name| host.says(name) == 1));
    host.goes_on();
    assert!(["log", "cores.prom", "trace"].iter().all(|name| host.says(name) == 1), "{}", host.running().output());
    std::fs::remove_file(host.small("filler")).unwrap();
    let at = host.ticks();
    until("all is written again", 60, || {
        host.logged("there/log").last().is_some_and(|tick| *tick > at) && host.says("is written again") == 3
    });
    // The directory vanishes and comes back.
    std::fs::rename(host.small("there"), host.small("elsewhere")).unwrap();
    until("it logs that the log file is gone", 60, || host.says("the log there/log: No such file") == 1);
    host.goes_on();
    assert_eq!(host.says("the log there/log: No such file"), 1, "{}", host.running().output());
    let _ = std::fs::remove_dir_all(host.small("there"));
    std::fs::create_dir_all(host.small("there")).unwrap();
    let at = host.ticks();
    until("the log begins anew", 60, || host.logged("there/log").last().is_some_and(|tick| *tick > at));
    // The part of a line that the full disk has cut off does not count.
    let trace = std::fs::read_to_string(host.small("trace")).unwrap();
    assert!(trace.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{trace}");
    host.end();
}

#[test]
fn devices_and_links_are_no_files_to_replace() {
    let (lab, scratch) = (Lab::with_queues(2), Scratch::new("outputs-device"));
    let link = scratch.path("link.prom");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for wanted in ["--metrics-file /dev/full", "--state /dev/null", &format!("--metrics-file {}", link.display())] {
        let line = format!("{} cores observe --interface eth1 --force --times 1 {wanted}", bin("towpath").display());
        let refused = lab.on_server(Program::line(&line)).run(60);
        assert!(refused.code == 1 && refused.err.contains("is no regular file"), "{wanted}: {refused:?}");
    }
    use std::os::unix::fs::FileTypeExt;
    assert!(
        ["/dev/full", "/dev/null"].iter().all(|path| std::fs::metadata(path).unwrap().file_type().is_char_device())
    );
    assert!(link.is_symlink());
    // A log may be a device: it is appended to. That it is full is logged once.
    let line = format!(
        "{} cores observe --interface eth1 --force --times 3 --log /dev/full --log-every",
        bin("towpath").display()
    );
    let finished = lab.on_server(Program::line(&line)).run(60);
    assert_eq!((finished.code, finished.err.matches("No space left").count()), (0, 1), "{finished:?}");
}

/// Slow, huge and many requests, and clients that hang up. A client that asks properly gets the page meanwhile.
const HOSTILE: &str = r#"
exec 2>/dev/null
for i in $(seq 20); do (exec 3<>/dev/tcp/127.0.0.1/9187; printf 'GET /met' >&3; sleep 3) & done
for i in $(seq 5); do (exec 3<>/dev/tcp/127.0.0.1/9187; head -c 3000000 /dev/zero >&3) & done
for i in $(seq 50); do (exec 3<>/dev/tcp/127.0.0.1/9187; printf 'GET /metrics HTTP/1.1\r\n\r\n' >&3) & done
wait; true"#;

#[test]
fn hostile_clients_of_the_metrics_do_not_hold_it_up() {
    let host = Host::new("outputs-hostile", "--metrics 9187");
    let scrape = "exec 3<>/dev/tcp/127.0.0.1/9187; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3";
    let page = || host.shell(scrape).contains("towpath_cores_reserved_cpus{interface=\"eth1\"} 1\n");
    until("the metrics can be scraped", 60, page);
    let hostile = host.lab.on_server(Program::new(&["bash", "-c", HOSTILE])).start(host.scratch.path("hostile.log"));
    host.goes_on();
    until("the metrics can be scraped beside hostile clients", 60, page);
    drop(hostile);
    host.goes_on();
    assert!(page(), "the metrics can be scraped after them");
    host.end();
}

#[test]
fn a_reader_that_does_not_read_stops_nothing() {
    let (lab, scratch) = (Lab::with_queues(2), Scratch::new("outputs-reader"));
    let state = scratch.path("observed.state");
    // Its output is a pipe that is full from the beginning and that nobody reads.
    let shell = format!(
        "mkfifo {0}; exec 3<>{0}; timeout 5 head -c 1000000 /dev/zero >&3; exec {1} cores observe --interface eth1 --force --json --state {2} >&3",
        scratch.path("pipe").display(),
        bin("towpath").display(),
        state.display()
    );
    let mut running = lab.on_server(Program::new(&["bash", "-c", &shell])).start(scratch.path("log"));
    until("it goes on deciding", 60, || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        state["decisions"].as_array().is_some_and(|all| all.last().is_some_and(|last| last["tick"].as_u64() > Some(2)))
    });
    running.signal(libc::SIGTERM);
    running.wait_end(30);
    assert!(!state.exists(), "and ends by a signal");
}
