//! What is planned for a machine made of files.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use towpath_anp::{Machine, PlanError, Pool, Tree};

fn knobs(plan: &towpath_anp::Plan) -> Vec<String> {
    plan.knobs.iter().map(|knob| format!("{} {}", knob.path, knob.value)).collect()
}

#[test]
fn a_machine_is_read_as_it_is() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    assert_eq!((machine.cpus.len(), machine.boot_id.as_str()), (8, "boot-1"));
    assert_eq!((machine.cpus[5].core, machine.cpus[5].cache), (1, 0));
    assert_eq!((machine.cpus[7].core, machine.cpus[7].cache), (3, 2));
    let names: Vec<&str> = machine.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    assert_eq!(names, ["eth0", "eth1", "veth1"], "and no loopback device");
    assert!(machine.interface("eth0").unwrap().default_route);
    let card = machine.interface("eth1").unwrap();
    assert_eq!((card.irqs.as_slice(), card.receive_queues, card.node), ([40, 41, 42, 43].as_slice(), 4, None));
    assert_eq!(Machine::read(&Tree::at(&Files::new().0)).cpus, [], "nothing is there, and nothing is made up");
}

#[test]
fn interrupts_go_to_the_reserved_cpus_and_applications_go_first() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    let mut pool = Pool::find(&machine, None).unwrap();
    assert_eq!(pool.interface.name, "eth1", "not the one with the default route");
    pool.application = Some("/sys/fs/cgroup/app/cpuset.cpus".into());
    // CPU 0 does the housekeeping, so the cache with two whole cores is the other one: CPUs 2, 6, 3, 7.
    let plan = pool.plan(0, 2).unwrap();
    assert_eq!(
        (plan.reserved.list().as_str(), plan.applications.list().as_str(), plan.way),
        ("2,6", "0-1,3-5,7", "irq")
    );
    let all = knobs(&plan);
    assert_eq!(all[0], "/sys/fs/cgroup/app/cpuset.cpus 0-1,3-5,7");
    assert_eq!(
        all[1..5],
        ["40 2", "41 6", "42 2", "43 6"].map(|irq| format!("/proc/irq/{}", irq.replace(' ', "/smp_affinity_list ")))
    );
    assert!(all[5..].iter().all(|knob| knob.ends_with("rps_cpus 0") || knob.ends_with("rps_flow_cnt 0")), "{all:?}");
    let fewer = knobs(&pool.plan(2, 1).unwrap());
    assert_eq!(
        fewer.last().unwrap(),
        "/sys/fs/cgroup/app/cpuset.cpus 0-1,3-7",
        "back only when the interrupts have gone"
    );
}

#[test]
fn a_card_without_interrupts_is_steered_in_software() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    let plan = Pool::find(&machine, Some("veth1")).unwrap().plan(0, 2).unwrap();
    assert_eq!(plan.way, "rps");
    assert_eq!(
        knobs(&plan)[..2],
        ["rps_cpus 44", "rps_flow_cnt 0"].map(|knob| format!("/sys/class/net/veth1/queues/rx-0/{knob}"))
    );
    assert_eq!(plan.commands()[0], "echo 44 > /sys/class/net/veth1/queues/rx-0/rps_cpus");
}

#[test]
fn what_cannot_be_has_a_reason() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    assert_eq!(Pool::find(&machine, Some("eth9")).unwrap_err(), PlanError::NoInterface("eth9".into()));
    let pool = Pool::find(&machine, Some("eth1")).unwrap();
    assert!(matches!(pool.plan(0, 0).unwrap_err(), PlanError::TooMany { wanted: 0, .. }));
    assert!(matches!(pool.plan(0, 8).unwrap_err(), PlanError::TooMany { wanted: 8, most: 7, all: 8 }));
    assert_eq!(pool.plan(0, 7).unwrap().applications.list(), "0", "one CPU stays, whatever is asked for");
    let only = Machine { interfaces: vec![machine.interface("eth0").unwrap().clone()], ..machine.clone() };
    assert_eq!(Pool::find(&only, None).unwrap_err(), PlanError::DefaultRoute("eth0".into()));
    assert_eq!(Pool::find(&only, Some("eth0")).unwrap().interface.name, "eth0", "but when it is named");
}
