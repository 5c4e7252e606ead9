//! Observations of the receive path, from frames recorded on a machine (`tests/frames/record`) and from made-up files.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use std::path::Path;
use std::time::Duration;
use towpath_rxcpus::{CpuSet, Sample, Sensed, Sensor, Tree};

const SECOND: Duration = Duration::from_secs(1);

fn cpus(list: &str) -> CpuSet {
    CpuSet::of_list(list).unwrap()
}

/// The observation between the two frames of a recording of two seconds.
fn recorded(name: &str, reserved: &str) -> Sensed {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frames").join(name);
    let frame = |time: &str| Sensor::new(&Tree::at(&folder.join(time)), "eth1", None, &[]).read().unwrap();
    frame("after").since(&frame("before"), 2 * SECOND, &cpus(reserved), None)
}

fn about(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-3
}

#[test]
fn softirqs_are_counted_by_ticks_on_the_cpus_that_receive() {
    let all = recorded("softirqs", "");
    assert_eq!((all.busy_from.as_str(), all.waiting_from), ("ticks+ksoftirqd", "machine"));
    assert!(about(all.observation.busy, 0.175), "35 ticks in two seconds: {all:?}");
    assert!(about(all.observation.app_busy, 2.335), "the frames are a little further apart: {all:?}");
    assert_eq!((all.observation.app_waiting, all.losses.as_slice()), (1.0, [].as_slice()));
    assert!(about(all.observation.offered, 81_726.5), "{all:?}");
    let one = recorded("softirqs", "1");
    assert!(about(one.observation.busy, 0.155) && about(one.observation.app_busy, 1.235), "{one:?}");
}

#[test]
fn threads_of_napi_are_counted_to_the_nanosecond_and_are_no_programs() {
    let seen = recorded("threaded-napi", "");
    assert_eq!(seen.busy_from, "ticks+ksoftirqd+napi");
    let (threads, ticks) = ((0.116_202_508 + 0.116_960_183) / 2.0, 0.015);
    assert!(about(seen.observation.busy, threads + ticks), "ticks alone see a ninth of it: {seen:?}");
    assert!(about(seen.observation.app_busy, 2.13 - threads), "{seen:?}");
    let other = Sensor::new(
        &Tree::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frames/threaded-napi/after")),
        "eth2",
        None,
        &[],
    );
    assert!(other_device_has_none(other), "and another card's are not this one's");
}

fn other_device_has_none(mut sensor: Sensor) -> bool {
    let sample = sensor.read().unwrap();
    sample.since(&sample, SECOND, &cpus(""), None).busy_from == "ticks+ksoftirqd"
}

/// A machine with two CPUs. One of them receives, without losses.
fn quiet() -> Files {
    let files = Files::new();
    files.put("/proc/stat", "cpu  0 0 0\ncpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\nintr 5");
    files.put("/proc/net/softnet_stat", "00000005 00000000 00000000\n00000005 00000000 00000000");
    files.put("/proc/net/netstat", "TcpExt: A TCPBacklogDrop B\nTcpExt: 1 0 2\nIpExt: C\nIpExt: 5");
    for name in ["rx_packets", "rx_missed_errors", "rx_dropped"] {
        files.put(&format!("/sys/class/net/eth1/statistics/{name}"), "0");
    }
    files
}

fn sample(files: &Files, application: Option<&str>) -> Sample {
    Sensor::new(&Tree::at(&files.0), "eth1", application, &[]).read().unwrap()
}

fn losses(path: &str, text: &str, reserved: &str) -> Vec<&'static str> {
    let files = quiet();
    let before = sample(&files, None);
    files.put(path, text);
    sample(&files, None).since(&before, SECOND, &cpus(reserved), None).losses
}

#[test]
fn losses_have_the_kernels_names() {
    let full = "00000005 00000000 00000000\n00000005 00000001 00000000";
    assert_eq!(losses("/proc/net/softnet_stat", full, ""), ["dropped"]);
    assert_eq!(losses("/proc/net/softnet_stat", full, "1"), ["dropped"]);
    assert_eq!(losses("/proc/net/softnet_stat", full, "0"), [""; 0], "on a CPU that does not receive");
    let named = "05 00 00 0 0 0 0 0 0 0 0 0 00000001 0 0\n05 00 0a 0 0 0 0 0 0 0 0 0 00000000 0 0";
    assert_eq!(losses("/proc/net/softnet_stat", named, "0"), ["time_squeeze"], "the thirteenth field is the CPU");
    assert_eq!(losses("/sys/class/net/eth1/statistics/rx_missed_errors", "1", ""), ["rx_missed_errors"]);
    assert_eq!(losses("/proc/net/netstat", "TcpExt: A TCPBacklogDrop B\nTcpExt: 1 7 2", ""), ["TCPBacklogDrop"]);
    assert_eq!(losses("/sys/class/net/eth1/statistics/rx_dropped", "9", ""), [""; 0], "frames that nobody wanted");
    assert_eq!(losses("/sys/class/net/eth1/statistics/rx_dropped", "10", ""), ["rx_dropped"]);
    assert_eq!(losses("/proc/net/netstat", "TcpExt: A\nTcpExt:", ""), [""; 0]);
}

#[test]
fn waiting_is_the_control_groups_own_where_there_is_one_to_ask() {
    let files = quiet();
    let pressure = |total: u64| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0 total=9");
    let seen = |before: &Sample, application| {
        let sensed = sample(&files, application).since(before, SECOND, &cpus(""), None);
        (sensed.waiting_from, sensed.observation.app_waiting)
    };
    assert_eq!(seen(&sample(&files, None), None), ("nothing", 0.0));
    let schedstat = |waited: u64| format!("version 17\ncpu0 0 0 0 0 0 0 3000000 {waited} 5\ndomain0 3");
    files.put("/proc/schedstat", &schedstat(0));
    let before = sample(&files, None);
    files.put("/proc/schedstat", &schedstat(1_000_000).replace("3000000", "6000000"));
    assert_eq!(seen(&before, None), ("machine-schedstat", 0.25));
    files.put("/proc/pressure/cpu", &pressure(0));
    let before = sample(&files, None);
    files.put("/proc/pressure/cpu", &pressure(400_000));
    assert_eq!(seen(&before, None), ("machine", 0.4));
    let group = Some("/sys/fs/cgroup/app/cpuset.cpus");
    files.put("/sys/fs/cgroup/app/tasks", "71\n72\n73");
    files.put("/proc/71/schedstat", "1000 500 3");
    files.put("/proc/72/schedstat", "1000 500 3");
    let before = sample(&files, group);
    files.put("/proc/71/schedstat", "2000 1500 4");
    files.put("/proc/73/schedstat", "1 9999999 4");
    assert_eq!(seen(&before, group), ("cgroup-threads", 0.5), "of the threads that were there before");
    files.put("/proc/72/task/72/comm", "application");
    let of_process = || Sensor::new(&Tree::at(&files.0), "eth1", None, &[72]).read().unwrap();
    let before_process = of_process();
    files.put("/proc/72/schedstat", "4000 1500 5");
    let sensed = of_process().since(&before_process, SECOND, &cpus(""), None);
    assert_eq!((sensed.waiting_from, sensed.observation.app_waiting), ("process-threads", 0.25));
    files.put("/sys/fs/cgroup/app/cpu.pressure", &pressure(0));
    assert_eq!(seen(&before, group), ("cgroup", 0.0), "another source says nothing yet");
    let before = sample(&files, group);
    files.put("/sys/fs/cgroup/app/cpu.pressure", &pressure(5_000_000));
    assert_eq!(seen(&before, group), ("cgroup", 1.0));
}

#[test]
fn counters_that_go_back_and_no_time_are_no_nonsense() {
    let files = quiet();
    let before = sample(&files, None);
    files.put("/proc/stat", "cpu0 5 5 5 5 5 50 50 0\ncpu1 x\ncpu99999999999 1");
    files.put("/sys/class/net/eth1/statistics/rx_packets", "4000");
    let after = sample(&files, None);
    let seen = after.since(&before, 2 * SECOND, &cpus(""), None).observation;
    assert_eq!((seen.busy, seen.app_busy, seen.offered), (0.5, 0.075, 2000.0));
    for (now, then, time) in [(&before, &after, SECOND), (&after, &before, Duration::ZERO)] {
        assert!(now.since(then, time, &cpus(""), None).observation.is_sound());
    }
    assert_eq!(Sensor::new(&Tree::at(&Files::new().0), "eth1", None, &[]).read(), None);
}

#[test]
fn kernel_threads_that_come_and_go_are_found() {
    let files = quiet();
    files.put("/proc/2/comm", "kthreadd");
    let thread = |pid: u32, name: &str, ran: &str| {
        files.put(&format!("/proc/{pid}/comm"), name);
        files.put(&format!("/proc/{pid}/schedstat"), &format!("{ran} 0 1"));
    };
    thread(70, "napi/eth1-8193", "0");
    thread(71, "napi/eth11-8194", "0");
    files.put("/proc/2/task/2/children", "70 71 99");
    let mut sensor = Sensor::new(&Tree::at(&files.0), "eth1", None, &[]);
    let first = sensor.read().unwrap();
    thread(70, "napi/eth1-8193", "500000000");
    thread(71, "napi/eth11-8194", "500000000");
    let second = sensor.read().unwrap();
    assert!(about(second.since(&first, SECOND, &cpus(""), None).observation.busy, 0.5));
    std::fs::remove_dir_all(files.0.join("proc/70")).unwrap();
    thread(72, "napi/eth1-8195", "7");
    files.put("/proc/2/task/2/children", "71 72");
    let third = sensor.read().unwrap();
    assert!(about(third.since(&second, SECOND, &cpus(""), None).observation.busy, 0.0), "one has gone");
    let fourth = sensor.read().unwrap();
    thread(72, "napi/eth1-8195", "250000007");
    let fifth = sensor.read().unwrap();
    assert!(about(fifth.since(&fourth, SECOND, &cpus(""), None).observation.busy, 0.25), "and another has come");
}
