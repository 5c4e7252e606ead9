//! The reports of `towpath cores` to people, logs and Prometheus: the owner of each CPU, and the reason.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use towpath_system_tests::program::{Finished, Running};
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, until};

/// A service that is pinned to a CPU takes that away from all other tests, so such a test runs alone.
static CPUS: RwLock<()> = RwLock::new(());

/// A veth with two queues in a namespace, and the directory of this test's journal.
struct Host {
    lab: Lab,
    scratch: Scratch,
    _cpus: Option<RwLockReadGuard<'static, ()>>,
}

impl Host {
    fn new(name: &str) -> Self {
        let cpus = CPUS.read().unwrap_or_else(PoisonError::into_inner);
        Self { lab: Lab::with_queues(2), scratch: Scratch::new(name), _cpus: Some(cpus) }
    }
    fn cores(&self, line: &str) -> Program {
        let journal = self.scratch.path("cores.journal");
        let program = Program::new(&[bin("towpath")]).arg("cores").env("TOWPATH_CORES_JOURNAL", journal);
        self.lab.on_server(line.split(' ').fold(program, Program::arg))
    }
    fn shell(&self, line: &str) -> Finished {
        self.lab.on_server(Program::new(&["bash", "-c", line])).run(20)
    }
    fn enforced(&self, more: &str) -> Running {
        let log = self.scratch.path("enforce.log");
        let running = self.cores(&format!("enforce --interface eth1 --cpus 1 --force --way rps{more}")).start(log);
        until("one CPU is reserved", 60, || {
            self.status().1["allocator"]["reserved"].as_str().is_some_and(|r| !r.is_empty())
        });
        running
    }
    /// The exit code of `status`, and its output. The code says whether there are alarms.
    fn status(&self) -> (i32, Value) {
        let finished = self.cores("status --json").run(20);
        let status: Value = serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{finished:?}"));
        let alarms = status["alarms"].as_array().is_some_and(|alarms| !alarms.is_empty());
        assert_eq!(finished.code, if alarms { 4 } else { 0 }, "{status}");
        (finished.code, status)
    }
    fn has_alarm(&self, kind: &str) -> bool {
        self.status().1["alarms"].as_array().unwrap().iter().any(|alarm| alarm["kind"] == kind)
    }
}

/// The two processes of `enforce`: the watcher, and the worker that does the work.
fn processes(running: &Running) -> (i32, i32) {
    let watching = running.pid();
    let children = std::fs::read_to_string(format!("/proc/{watching}/task/{watching}/children")).expect("children");
    (watching, children.trim().parse().expect("one child"))
}

fn kill(signal: &str, pid: i32) {
    Program::line(&format!("kill -{signal} {pid}")).run(20).ok();
}

#[test]
fn status_and_explain_say_who_has_which_cpu_and_why() {
    let host = Host::new("face-status");
    let (code, before) = host.status();
    assert_eq!((code, before["allocator"].is_null()), (0, true), "{before}");
    assert!(host.cores("explain").run(20).err.contains("nobody decides"));
    let mut running = host.enforced("");
    let (_, status) = host.status();
    let of = |cpu: &str| {
        let cpus = status["cpus"].as_array().unwrap();
        cpus.iter().find(|line| line["cpu"].as_u64() == cpu.parse().ok()).unwrap_or_else(|| panic!("{status}")).clone()
    };
    let reserved = status["allocator"]["reserved"].as_str().unwrap();
    assert_eq!((of(reserved)["owner"].as_str(), of("0")["owner"].as_str()), (Some("receive"), Some("housekeeping")));
    assert!(of(reserved)["why"].as_str().is_some_and(|why| why.contains("receives for eth1 (rps)")), "{status}");
    assert_eq!(status["allocator"]["pid"].as_i64(), Some(processes(&running).1.into()), "{status}");
    let explained: Value = serde_json::from_str(&host.cores("explain --json").run(20).ok()).expect("JSON");
    assert_eq!(explained["decisions"][0]["reason"], "bounds", "{explained}");
    let conditions = explained["explanation"]["conditions"].as_array().unwrap();
    let busy = conditions.iter().find(|condition| condition["reason"] == "busy").expect("the reason of the growth");
    assert_eq!((busy["to"].as_u64(), busy["terms"][0]["limit"].as_f64()), (Some(2), Some(0.75)), "{busy}");
    assert!(busy["barred"].as_str().is_some_and(|why| why.contains("limits")), "--cpus 1: {busy}");
    for line in ["enforce --interface eth1 --cpus 1 --force", "restore"] {
        let refused = host.cores(line).run(20);
        assert!(refused.code == 1 && refused.err.contains("enforces already"), "{line}: {refused:?}");
    }
    running.signal(libc::SIGTERM);
    running.wait_end(30);
    let (code, after) = host.status();
    assert_eq!((code, after["allocator"].is_null()), (0, true), "{after}");
}

#[test]
fn only_one_process_enforces_or_restores_at_a_time_whatever_the_state_file_says() {
    let host = Host::new("face-lock");
    let beside = || {
        // This file names who enforces. An `enforce` that has just begun is not in it yet.
        let _ = std::fs::remove_file(host.scratch.path("cores.state"));
        ["enforce --interface eth1 --cpus 1 --force --way rps --times 1", "restore"]
            .map(|line| host.cores(line).run(60))
    };
    for killed in ["worker", "watcher", "both"] {
        let mut running = host.enforced("");
        let (watching, working) = processes(&running);
        for refused in beside() {
            assert_eq!(refused.code, 1, "{refused:?}");
            assert!(refused.err.contains(&format!("pid {watching} enforces already: end it")), "{refused:?}");
        }
        assert!(running.alive() && host.scratch.path("cores.journal").exists(), "it works on");
        // When the watcher is killed, the worker keeps the lock while it puts everything back.
        if killed == "watcher" {
            kill("STOP", working);
            kill("KILL", watching);
            running.wait_end(20);
            for refused in beside() {
                assert!(refused.code == 1 && refused.err.contains("enforces already"), "{refused:?}");
            }
            kill("CONT", working);
        } else {
            kill("KILL", working);
            if killed == "both" {
                kill("KILL", watching);
            }
            running.wait_end(30);
        }
        for again in beside() {
            assert_eq!(again.code, 0, "{killed}: {again:?}");
        }
        assert!(!host.scratch.path("cores.journal").exists(), "{killed}");
    }
}

#[test]
fn leftovers_of_a_killed_enforce_and_changes_by_others_are_alarms() {
    let host = Host::new("face-alarms");
    let mut running = host.enforced("");
    // A setting that somebody changed is set again once. After a second change it is left alone.
    until("the drift is an alarm", 60, || {
        host.shell("echo 0 > /sys/class/net/eth1/queues/rx-0/rps_cpus").ok();
        host.has_alarm("drift")
    });
    let (watching, working) = processes(&running);
    kill("STOP", working);
    until("an alarm tells that it is stalled", 60, || host.has_alarm("stalled"));
    kill("STOP", watching);
    kill("KILL", working);
    kill("KILL", watching);
    running.wait_end(20);
    until("an alarm tells that it has died", 20, || host.has_alarm("abandoned"));
    host.cores("restore").run(20).ok();
    assert_eq!(host.status().0, 0);
}

#[test]
fn a_state_that_another_could_have_written_is_not_believed() {
    let host = Host::new("face-forged");
    let state = host.scratch.path("observed.state");
    let log = host.scratch.path("observe.log");
    let line = format!("observe --interface eth1 --force --state {}", state.display());
    let mut running = host.cores(&line).start(log);
    until("it writes its state", 30, || state.exists());
    let explain = |path: &std::path::Path| host.cores(&format!("explain --json --state {}", path.display())).run(20);
    until("it explains", 30, || explain(&state).ok().contains("observe"));
    let copy = host.scratch.path("copy.state");
    std::fs::copy(&state, &copy).unwrap();
    let mode = |mode| {
        std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(0o644);
    explain(&copy).ok();
    mode(0o666);
    assert!(explain(&copy).err.contains("alone"), "anybody can write it");
    mode(0o644);
    std::os::unix::fs::chown(&copy, Some(12345), None).unwrap();
    assert!(explain(&copy).err.contains("alone"), "another user owns it");
    let link = host.scratch.path("link.state");
    std::os::unix::fs::symlink(&state, &link).unwrap();
    assert!(explain(&link).err.contains("alone"), "it is a link");
    // Not even root may write to another user's file there (fs.protected_regular, as Debian sets it).
    std::fs::remove_file(&copy).unwrap();
    std::fs::copy(&state, &copy).unwrap();
    running.stop();
    assert!(explain(&copy).err.contains("nobody decides"), "its writer has ended");
    assert!(!state.exists(), "and has removed it");
}

#[test]
fn advice_is_a_script_and_its_exit_code_says_whether_there_is_any() {
    let host = Host::new("face-advise");
    let advise = |times: u32| {
        host.cores(&format!("advise --interface eth1 --cpus 1 --force --way rps --once --times {times}")).run(60)
    };
    let advice = advise(20);
    assert_eq!(advice.code, 2, "{advice:?}");
    assert!(advice.out.starts_with("# ") && advice.out.contains("echo "), "{advice:?}");
    assert!(
        host.shell("cat /sys/class/net/eth1/queues/rx-*/rps_cpus")
            .ok()
            .lines()
            .all(|cpus| cpus.trim_matches(['0', ',']).is_empty())
    );
    host.shell(&advice.out).ok();
    let nothing = advise(3);
    assert_eq!(nothing.code, 0, "{nothing:?}");
    assert!(nothing.out.contains("nothing is advised: 1 reserved"), "{nothing:?}");
    // Without a subcommand it only observes.
    let observed = host.cores("--interface eth1 --force --times 1 --json").run(30).ok();
    assert!(observed.contains("\"tick\":1"), "{observed}");
}

#[test]
fn decisions_go_to_a_log_and_to_prometheus() {
    let host = Host::new("face-told");
    let path = |name: &str| host.scratch.path(name).display().to_string();
    let (log, page) = (path("decisions.jsonl"), path("towpath.prom"));
    let mut running = host.enforced(&format!(" --log {log} --metrics 127.0.0.1:9187 --metrics-file {page}"));
    let scrape = "exec 3<>/dev/tcp/127.0.0.1/9187; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3";
    let has = |text: &str| text.contains("\ntowpath_cores_reserved_cpus{interface=\"eth1\"} 1\n");
    until("the metrics can be scraped", 30, || has(&host.shell(scrape).ok()));
    let text = host.shell(scrape).ok();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("towpath_cores_decisions_total{interface=\"eth1\",reason=\"bounds\"} 1\n"), "{text}");
    until("the file is there", 30, || std::fs::read_to_string(&page).is_ok_and(|text| has(&text)));
    running.signal(libc::SIGTERM);
    running.wait_end(30);
    assert!(!std::path::Path::new(&page).exists(), "old values are not shown as present ones");
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let first = &lines[0];
    assert_eq!((first["reason"].as_str(), first["cores"].as_u64()), (Some("bounds"), Some(1)), "{text}");
    assert!(first["commands"].as_array().is_some_and(|commands| !commands.is_empty()), "{text}");
    assert!(first["time_ms"].as_u64().is_some_and(|time| time > 1_600_000_000_000), "{text}");
}

#[test]
fn cpus_of_a_service_are_its_own() {
    let host = Host::new("face-taken");
    let plan = || host.cores("plan --interface eth1 --cpus 1 --force --way rps --json").run(20).ok();
    let before: Value = serde_json::from_str(&plan()).expect("JSON");
    let cpu = before["reserved"].as_str().unwrap_or_else(|| panic!("{before}")).to_owned();
    drop(host);
    let alone = CPUS.write().unwrap_or_else(PoisonError::into_inner);
    let host = Host { lab: Lab::with_queues(2), scratch: Scratch::new("face-taken"), _cpus: None };
    let service = Service::start(|program| program.arg("--cores").arg("1").arg("--cpus").arg(&cpu));
    // The service's thread pins itself when it begins, which may be after its socket exists.
    until("the CPU is the stack's", 20, || {
        let (_, status) = host.status();
        let owned = status["cpus"].as_array().unwrap().iter().find(|line| line["cpu"].as_u64() == cpu.parse().ok());
        let why = owned.unwrap()["why"].as_str().unwrap();
        owned.unwrap()["owner"] == "stack" && why.contains("fast-0 of towpath")
    });
    let after = host.cores("plan --interface eth1 --cpus 1 --force --way rps --json").run(20).ok();
    let after: Value = serde_json::from_str(&after).expect("JSON");
    match after["reserved"].as_str() {
        Some(other) => assert!(other != cpu && after["taken"] == cpu.as_str(), "{after}"),
        None => assert!(after["why"].as_str().is_some_and(|why| why.contains("0 of this machine")), "{after}"),
    }
    drop((service, alone));
}

#[test]
fn a_running_one_sees_which_cpus_services_are_pinned_to_and_keeps_off_them() {
    let alone = CPUS.write().unwrap_or_else(PoisonError::into_inner);
    let host = Host { lab: Lab::with_queues(2), scratch: Scratch::new("face-room"), _cpus: None };
    let _running = host.enforced("");
    let seen = |name: &str| host.status().1["allocator"][name].as_str().unwrap_or_default().to_owned();
    let has_first = |list: &str| list.split(',').any(|part| part == "0" || part.starts_with("0-"));
    // Nobody can reserve the first CPU, so a machine with two CPUs has room too.
    assert!(!has_first(&seen("taken")));
    let first = Service::start(|program| program.arg("--cores").arg("1").arg("--cpus").arg("0"));
    until("it sees who has the first CPU", 90, || has_first(&seen("taken")));
    drop(first);
    until("it sees that the service has ended", 90, || !has_first(&seen("taken")));
    let before = seen("reserved");
    let _second = Service::start(|program| program.arg("--cores").arg("1").arg("--cpus").arg(&before));
    until("it takes another CPU, or logs that there is none", 90, || {
        let after = seen("reserved");
        (after != before && !after.is_empty()) || host.has_alarm("overlap")
    });
    drop(alone);
}

/// The CPUs on which each thread of a service may run, and those of a second kernel that it has started.
fn allowed(service: &Service) -> Vec<String> {
    // It answers once all threads run.
    service.status();
    let (mut processes, mut cpus) = (vec![service.running.worker().to_string()], Vec::new());
    while let Some(pid) = processes.pop() {
        // A thread that ends meanwhile is left out.
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let status = text("status");
            let list = status.split_once("Cpus_allowed_list:\t").and_then(|(_, list)| list.lines().next());
            cpus.extend(list.map(str::to_owned));
            processes.extend(text("children").split_whitespace().map(str::to_owned));
        }
    }
    cpus
}

#[test]
fn threads_that_nobody_pins_keep_off_reserved_cpus_and_come_back() {
    let alone = CPUS.write().unwrap_or_else(PoisonError::into_inner);
    let host = Host { lab: Lab::with_queues(2), scratch: Scratch::new("face-guard"), _cpus: None };
    let journal = host.scratch.path("cores.journal");
    let start = |line: &str| {
        let with = |program| line.split(' ').fold(program, Program::arg).env("TOWPATH_CORES_JOURNAL", &journal);
        Service::start(with)
    };
    let everywhere = start("--cores 1-2");
    let all = allowed(&everywhere)[0].clone();
    let are = |service: &Service, cpus: &str| allowed(service).iter().all(|allowed| allowed == cpus);
    assert!(are(&everywhere, &all), "{:?}", allowed(&everywhere));
    let guest = Service::uml(|program| program.env("TOWPATH_CORES_JOURNAL", &journal));
    let threads = std::fs::read_dir(format!("/proc/{}/task", guest.status()["pid"])).unwrap().count();
    assert!(allowed(&guest).len() > threads, "the guest's kernel is a process of its own");
    let mut running = host.enforced("");
    let standing = host.status().1["allocator"].clone();
    let (reserved, rest) = (standing["reserved"].as_str().unwrap(), standing["applications"].as_str().unwrap());
    until("its threads leave the reserved CPU", 90, || are(&everywhere, rest) && are(&guest, rest));
    // Services that begin meanwhile, one of them pinned by its operator.
    let late = start("--cores 2 --stack kernel");
    assert!(are(&late, rest), "{:?}", allowed(&late));
    let pinned = start(&format!("--cores 1 --cpus {reserved}"));
    until("its thread is where it was put", 90, || allowed(&pinned).iter().any(|cpus| cpus == reserved));
    assert!(allowed(&pinned).contains(&all), "the others may run anywhere: {:?}", allowed(&pinned));
    let pids = [&everywhere, &late].map(|service| u64::try_from(service.running.worker()).ok());
    let (_, status) = host.status();
    let threads = status["threads"].as_array().unwrap();
    let kept_off = threads.iter().filter(|thread| pids.contains(&thread["pid"].as_u64()));
    assert_eq!(kept_off.filter(|thread| thread["pinned"] == false && thread["cpus"] == rest).count(), 5, "{status}");
    assert!(
        status["cpus"].as_array().unwrap().iter().all(|cpu| cpu["owner"] != "stack"),
        "services that are not pinned own no CPU: {status}"
    );
    assert!(host.has_alarm("overlap"), "only the pinned service is an alarm");
    running.signal(libc::SIGTERM);
    running.wait_end(60);
    until("they run everywhere again", 90, || [&everywhere, &late, &guest].iter().all(|service| are(service, &all)));
    drop(alone);
}

/// The content of a terminal of this size after the last redraw.
fn screen(output: &str) -> Vec<String> {
    let frames: Vec<&str> = output.split("\x1b[H\x1b[?7l").filter(|frame| frame.contains("\x1b[?7h")).collect();
    let last = frames.last().copied().unwrap_or_default().split("\x1b[J").next().unwrap_or_default();
    // The terminal adds a \r to each line's end.
    last.lines().map(|line| line.trim_end_matches('\r').trim_end_matches("\x1b[K").to_owned()).collect()
}

#[test]
fn the_live_page_is_cut_to_the_terminal_also_when_that_changes() {
    let host = Host::new("face-live");
    // A machine with 64 CPUs, as the observer sees it.
    let fake = host.scratch.path("cpu");
    std::fs::create_dir(&fake).unwrap();
    std::fs::write(fake.join("online"), "0-63\n").unwrap();
    let watch = format!("tty; stty rows 24 cols 80; exec {} cores status --watch", bin("towpath").display());
    let shell = format!(
        "mount --bind {} /sys/devices/system/cpu && exec script -qfc '{watch}' {}",
        fake.display(),
        host.scratch.path("typescript").display()
    );
    // A journal without an owner is an alarm, which is shown even if there is no room for anything else.
    std::fs::write(host.scratch.path("cores.journal"), "").unwrap();
    let program =
        Program::new(&["bash", "-c", &shell]).env("TOWPATH_CORES_JOURNAL", host.scratch.path("cores.journal"));
    let running = host.lab.on_server(program).start(host.scratch.path("live.log"));
    let shown = || screen(&running.output());
    let fits = |rows: usize, columns: usize| {
        let page = shown();
        page.len() == rows - 1 && page.iter().all(|line| line.chars().count() <= columns)
    };
    until("24 rows of 80", 60, || fits(24, 80));
    let page = shown();
    assert!(page[0].starts_with("CPU  node") && page[1].starts_with("  0     0"), "{page:#?}");
    let more = page.iter().find(|line| line.starts_with("... and")).unwrap_or_else(|| panic!("{page:#?}"));
    let cpus = page.iter().filter(|line| line.trim_start().starts_with(char::is_numeric)).count();
    assert!(more.ends_with("more lines: no room") && cpus >= 15, "{page:#?}");
    assert!(page.last().is_some_and(|line| line.starts_with("ALARM abandoned")), "{page:#?}");
    let terminal = running.output().lines().find(|line| line.starts_with("/dev/pts/")).unwrap().trim().to_owned();
    // The terminal is in the script's own mount namespace, as is its /dev.
    Program::new(&["stty", "-F", &terminal, "rows", "10", "cols", "40"]).run(20).ok();
    until("10 rows of 40", 60, || fits(10, 40));
    let page = shown();
    assert!(page.iter().any(|line| line.chars().count() == 40 && line.ends_with('>')), "{page:#?}");
    assert!(page.last().is_some_and(|line| line.starts_with("ALARM abandoned")), "{page:#?}");
}
