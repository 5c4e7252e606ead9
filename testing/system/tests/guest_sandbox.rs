//! The processes of a guest: the worker, which reads its rings, and the machine, which runs its kernel. Each has given up
//! what it does not need.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use towpath_system_tests::guest::{CONVERSATION, Outside, exec, group, kernel_of};
use towpath_system_tests::{Service, require_root, until};

/// The lines of a process's status that say what it may do.
fn rights(process: i32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let names = ["CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd", "NoNewPrivs", "Seccomp"];
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    names.into_iter().filter_map(|name| Some(format!("{name} {}", of(name)?))).collect()
}

/// No capability, none to be had, and a filter of system calls.
fn none() -> Vec<String> {
    let zeroes = ["CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"].map(|name| format!("{name} {}", "0".repeat(16)));
    zeroes.into_iter().chain(["NoNewPrivs 1".into(), "Seccomp 2".into()]).collect()
}

fn is_confined(service: &Service) {
    let status = service.status()["sandbox"].to_string();
    assert!(status.contains("capabilities none") && status.contains("seccomp on"), "{status}");
    assert_eq!(rights(service.running.worker()), none(), "the worker");
    let machine = group(kernel_of(service));
    let processes: Vec<i32> =
        machine.iter().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    assert!(!processes.is_empty());
    for process in processes {
        let rights = rights(process);
        assert!(rights.is_empty() || rights == none(), "{machine:?}: {rights:?}");
    }
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    assert_eq!(out.trim(), "whole 0");
    let log = service.running.output();
    assert!(!log.contains("the sandbox has refused"), "{log}");
}

/// Root of a guest, which has made its root file system writable, as somebody who has taken over its kernel can. Writes
/// to a file of the host's.
fn write(service: &Service, place: &Path) -> towpath_system_tests::program::Finished {
    let script = format!("mount -o remount,rw /; cat /etc/hostname; echo written > {}", place.display());
    exec(service).arg("sh").arg("-c").arg(script).run(60)
}

#[test]
fn user_mode_linux_and_the_process_that_reads_its_rings_are_confined() {
    require_root();
    let service = Service::uml(|program| program);
    is_confined(&service);
    // The guest has a /tmp of its own, in which this repository may lie.
    let file = Path::new("/var/tmp").join(format!("towpath-guest-writes-{}", std::process::id()));
    let refused = write(&service, &file);
    assert!(refused.code != 0 && refused.err.contains("ermission denied"), "{refused:?}");
    assert!(!file.exists(), "it writes nothing of this host's");
    // A worker that dies is replaced, and the guest with it.
    let (worker, kernel) = (service.running.worker(), kernel_of(&service));
    let killed = rustix::process::Pid::from_raw(worker).unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
    until("the guest ends with its worker", 20, || group(kernel).iter().all(|line| line.contains(" Z")));
    until("another serves", 90, || service.running.output().matches("the guest serves").count() == 2);
    assert_ne!(service.running.worker(), worker);
    drop(service);
    // Without a sandbox it does write, so the test above tests something.
    let service = Service::uml(|program| program.arg("--sandbox").arg("off"));
    assert!(service.running.output().contains("sandbox=\"OFF\""), "{}", service.running.output());
    assert_eq!(write(&service, &file).code, 0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "written\n");
    std::fs::remove_file(&file).unwrap();
}

#[test]
#[ignore = "boots guests: scripts/setup guest; make test-slow"]
fn qemu_and_the_process_that_reads_its_rings_are_confined() {
    require_root();
    is_confined(&Service::qemu(|program| program));
}

#[test]
fn a_guest_makes_its_device_and_keeps_the_right_to_it_alone() {
    require_root();
    let outside = Outside::new("guest-sandbox");
    // One that exists needs no right.
    for (device, rights) in [("tap1", "capabilities net_admin, landlock"), ("tap0", "capabilities none, landlock")] {
        let service = Service::uml(|program| outside.attach(program, device, "10.97.7.2/24"));
        let log = service.running.output();
        assert!(log.contains(rights), "{log}");
        assert!(outside.run("ip link show").contains(device));
    }
}
