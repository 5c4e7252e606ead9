//! Any text in the kernel's files, or in a journal, causes no panic, and no write outside the settings that a journal
//! may name.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use towpath_rxcpus::{CpuSet, Journal, Machine, Pool, Sensor, Setting, StackThread, Table, Tree, write_file};

/// Words of such files.
const WORDS: [&str; 44] = [
    "0",
    "1",
    "7",
    "-1",
    "18446744073709551615",
    "4294967295",
    "99999999999999999999",
    "0-7",
    "0-8191",
    "3-1",
    ",",
    "-",
    ":",
    " ",
    "\n",
    "\t",
    "ff",
    "ffffffff",
    "cpu0 ",
    "cpu ",
    "cpu4294967295 ",
    "some avg10=0.00 total=",
    "total=",
    "TcpExt: TCPBacklogDrop\nTcpExt: ",
    "eth1",
    "default",
    "NaN",
    ")",
    "(",
    " R ",
    "fast-0",
    "towpath",
    "Cpus_allowed_list:",
    "Uid:\t",
    "napi/eth1-516",
    "kthreadd",
    "00000000",
    "\u{fffd}",
    "/proc/",
    "/..",
    "rss:",
    "task:",
    "\0",
    "",
];

fn text(words: &[u8]) -> String {
    words.iter().take(64).map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect()
}

/// A machine with every file that is read.
fn machine() -> Files {
    let files = Files::complete();
    files.put("/proc/stat", "cpu0 10 0 10 900 0 3 4 0 0 0\ncpu1 10 0 10 900 0 3 4 0 0 0");
    files.put("/proc/schedstat", "cpu0 0 0 0 0 0 0 5 6 7\ncpu1 0 0 0 0 0 0 5 6 7");
    files.put("/proc/net/softnet_stat", "00000001 00000002 00000003 0 0 0 0 0 0 0 0 0 00000000");
    files.put("/proc/net/netstat", "TcpExt: A TCPBacklogDrop\nTcpExt: 1 2");
    files.put("/proc/net/ipv6_route", "0 00 0 00 0 0 0 0 0 eth0");
    files.put("/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1");
    files.put("/sys/fs/cgroup/app/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1");
    files.put("/sys/fs/cgroup/app/cgroup.threads", "900\n901");
    files.put("/sys/class/net/eth1/statistics/rx_packets", "1000");
    files.put("/sys/class/net/eth1/statistics/rx_missed_errors", "0");
    files.put("/proc/2/comm", "kthreadd");
    files.put("/proc/2/task/2/children", "12 13");
    for (pid, name) in [(12, "napi/eth1-516"), (13, "ksoftirqd/1"), (900, "towpathd")] {
        files.put(&format!("/proc/{pid}/comm"), name);
        files.put(&format!("/proc/{pid}/schedstat"), "1000 2000 3");
    }
    for (thread, name) in [(900, "slow"), (901, "fast-0")] {
        files.put(&format!("/proc/900/task/{thread}/comm"), name);
        files.put(&format!("/proc/900/task/{thread}/status"), "Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t1");
    }
    files
}

/// Everything that reads the machine.
fn look(files: &Files) {
    let tree = Tree::at(&files.0);
    let machine = Machine::read(&tree);
    let _ = StackThread::find(&tree, &machine.online(), &CpuSet::default());
    for (application, processes) in
        [(Some("/sys/fs/cgroup/app/cpuset.cpus"), vec![]), (None, vec![900]), (None, vec![])]
    {
        let mut sensor = Sensor::new(&tree, "eth1", application, &processes);
        let Some(before) = sensor.read() else { continue };
        files.put("/proc/stat", "cpu0 10 0 10 900 0 3 4 0 0 0\ncpu1 18446744073709551615 0 10 900 0 3 4 0 0 0");
        let Some(after) = sensor.read() else { continue };
        for (now, then) in [(&after, &before), (&before, &after), (&after, &after)] {
            let sensed = now.since(then, Duration::from_secs(1), &machine.online(), None);
            let seen = sensed.observation;
            let numbers = [seen.busy, seen.app_busy, seen.app_waiting, seen.offered];
            assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{sensed:?}");
        }
    }
    let Ok(mut pool) = Pool::find(&machine, Some("eth1")) else { return };
    pool.application = Some("/sys/fs/cgroup/app/cpuset.cpus".into());
    pool.processes = vec![900];
    pool.refresh(&tree);
    for (from, cores) in [(0, 1), (1, 3), (2, 0)] {
        for knob in pool.plan(from, cores).map_or(Vec::new(), |plan| plan.knobs) {
            assert!(Setting::parse(&knob.path).is_some(), "{knob:?}");
            let _ = (knob.holds(&tree), knob.command());
        }
    }
}

#[test]
fn fuzz_files_of_the_kernel() {
    let files = machine();
    look(&files);
    let whole: Vec<(PathBuf, String)> = files.snapshot().into_iter().collect();
    bolero::check!().with_type::<Vec<(u16, Vec<u8>)>>().with_iterations(60).for_each(|changes| {
        for (place, words) in changes.iter().take(6) {
            let (path, _) = &whole[usize::from(*place) % whole.len()];
            std::fs::write(path, text(words)).unwrap();
        }
        look(&files);
        whole.iter().for_each(|(path, text)| std::fs::write(path, format!("{text}\n")).unwrap());
    });
}

#[test]
fn fuzz_values_of_settings() {
    let names = ["/proc/irq/4/smp_affinity_list", "/sys/class/net/eth1/queues/rx-0/rps_cpus", "rss:eth1", "task:1:1:1"];
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().with_iterations(4_000).for_each(|(a, b)| {
        let (a, b) = (text(a), text(b));
        for set in [CpuSet::of_list(&a), CpuSet::of_mask(&a)].into_iter().flatten() {
            assert_eq!(CpuSet::of_list(&set.list()).as_ref(), Some(&set), "{a:?}");
            assert_eq!(CpuSet::of_mask(&set.mask()), Some(set), "{a:?}");
        }
        for setting in names.iter().filter_map(|name| Setting::parse(name)).chain(Setting::parse(&a)) {
            let _ = setting.command(&b);
            assert_eq!(setting.same(&a, &b), setting.same(&b, &a), "{a:?} and {b:?}");
            assert_eq!(Setting::parse(&setting.to_string()), Some(setting));
        }
        let _ = Table::parse(&a);
    });
}

/// Words of journals.
const LINES: [&str; 16] = [
    "{\"version\":2,\"boot_id\":\"boot-1\"}\n",
    "{\"version\":1,\"boot_id\":\"boot-1\"}\n",
    "{\"version\":3,\"boot_id\":\"boot-1\"}\n",
    "{\"version\":2,\"boot_id\":\"boot-0\"}\n",
    "{\"path\":\"/proc/irq/41/smp_affinity_list\",\"before\":\"3\",\"value\":\"0-7\"}\n",
    "{\"path\":\"/proc/irq/41/smp_affinity_list\",\"value\":\"5\"}\n",
    "{\"path\":\"/sys/fs/cgroup/app/cpuset.cpus\",\"before\":\"\",\"value\":\"0-3\"}\n",
    "{\"path\":\"rss:eth1\",\"before\":\"0 1 0 1\",\"value\":\"default\"}\n",
    "{\"path\":\"task:900:900:19\",\"before\":\"0-3\",\"value\":\"0-7\"}\n",
    "{\"path\":\"napi-threaded:eth1:516\",\"before\":\"1\",\"value\":\"0\"}\n",
    "{\"path\":\"/etc/passwd\",\"before\":\"root::0:0\",\"value\":\"\"}\n",
    "{\"path\":\"/proc/../etc/passwd\",\"before\":\"root::0:0\",\"value\":\"\"}\n",
    "{\"path\":\"rss:../../etc\",\"before\":\"x\",\"value\":\"\"}\n",
    "{\"path\":\"/proc/irq/42/smp_affinity_list\",\"bef",
    "\n",
    "[[[[[[[[[[[[",
];

#[test]
fn fuzz_journals() {
    let files = machine();
    files.put("/etc/passwd", "canary");
    let whole = files.snapshot();
    let journal = files.0.with_extension("journal");
    let written: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let writing = Arc::clone(&written);
    let tree = AssertUnwindSafe(Tree::with_writer(
        &files.0,
        Arc::new(move |path, value| {
            writing.lock().unwrap().push(path.to_owned());
            write_file(path, value)
        }),
    ));
    type Noise = Vec<(u16, u8)>;
    bolero::check!().with_type::<(bool, Vec<u8>, Noise)>().with_iterations(150).for_each(|(begins, lines, noise)| {
        let lines = lines.iter().take(12).map(|line| LINES[usize::from(*line) % LINES.len()]);
        let mut bytes: Vec<u8> = begins.then_some(LINES[0]).into_iter().chain(lines).collect::<String>().into_bytes();
        for (place, byte) in noise.iter().take(2) {
            let place = usize::from(*place) % (bytes.len() + 1);
            bytes.insert(place, *byte);
        }
        std::fs::write(&journal, &bytes).unwrap();
        std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o600)).unwrap();
        let restored = Journal::restore(&journal, &tree, "boot-1");
        let written = std::mem::take(&mut *written.lock().unwrap());
        assert!(restored.is_ok() || written.is_empty(), "what is no journal is not believed in part");
        for path in &written {
            let below = |folder| path.starts_with(files.0.join(folder));
            assert!(below("proc") || below("sys") || below("kernel"), "{}", path.display());
            assert!(whole.contains_key(path), "{} was not there", path.display());
        }
        for path in written {
            std::fs::write(&path, format!("{}\n", whole[&path])).unwrap();
        }
    });
    let _ = std::fs::remove_file(&journal);
    assert_eq!(files.snapshot(), whole);
}
