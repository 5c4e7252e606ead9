//! Plans for a machine made of files.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use towpath_rxcpus::{Effect, Machine, PlanError, Pool, Shape, SteeringWay, Tree};

fn knobs(plan: &towpath_rxcpus::Plan) -> Vec<String> {
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
    let device = machine.interface("eth1").unwrap();
    assert_eq!((device.irqs.as_slice(), device.receive_queues, device.node), ([40, 41, 42, 43].as_slice(), 4, None));
    assert_eq!(Machine::read(&Tree::at(&Files::new().0)).cpus, [], "nothing is there, and nothing is made up");
}

#[test]
fn interrupts_go_to_the_reserved_cpus_and_applications_go_first() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    let mut pool = Pool::find(&machine, None).unwrap();
    assert_eq!(pool.interface.name, "eth1", "not the one with the default route");
    pool.application = Some("/sys/fs/cgroup/app/cpuset.cpus".into());
    // CPU 0 does the housekeeping, so the other cache has two whole cores: CPUs 2, 6, 3, 7.
    let plan = pool.plan(0, 2).unwrap();
    assert_eq!(
        (plan.reserved.list().as_str(), plan.applications.list().as_str(), plan.way),
        ("2,6", "0-1,3-5,7", SteeringWay::Irq)
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
fn a_device_without_interrupts_is_steered_in_software() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    let plan = Pool::find(&machine, Some("veth1")).unwrap().plan(0, 2).unwrap();
    assert_eq!(plan.way, SteeringWay::Rps);
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

#[test]
fn cpus_that_a_service_is_pinned_to_are_never_reserved() {
    let files = Files::machine();
    let machine = Machine::read(&Tree::at(&files.0));
    let mut pool = Pool::find(&machine, Some("eth1")).unwrap();
    let free: Vec<u32> = pool.order().take(7).to_vec();
    pool.taken = towpath_rxcpus::CpuSet([free[0], free[3]].into());
    let left: Vec<u32> = pool.order().take(7).to_vec();
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(!left.contains(&free[0]) && !left.contains(&free[3]) && !left.contains(&0), "{left:?}");
    assert!(matches!(pool.plan(0, 6), Err(PlanError::TooMany { most: 5, .. })));
}

/// The complete machine's `eth1`, with an application that is a process.
fn complete(files: &Files) -> Pool {
    let tree = Tree::at(&files.0);
    let mut pool = Pool::find(&Machine::read(&tree), Some("eth1")).unwrap();
    pool.processes = vec![900];
    assert!(pool.refresh(&tree));
    pool
}

#[test]
fn a_device_with_a_table_gets_as_many_queues_as_cpus_with_the_fewest_buckets_moved() {
    let files = Files::complete();
    let tree = Tree::at(&files.0);
    let mut pool = complete(&files);
    let plan = pool.plan(0, 2).unwrap();
    assert_eq!(
        (plan.way, plan.reserved.list().as_str(), plan.why.as_str()),
        (SteeringWay::Rss, "2,6", "it is the best there is")
    );
    let all = knobs(&plan);
    assert_eq!(all[..2], ["task:900:900:19 0-1,3-5,7", "task:900:901:19 0-1,3-5,7"], "applications go first");
    // A queue's interrupts for receiving and for sending go to the same CPU. An interrupt without a queue is left
    // alone.
    assert_eq!(
        all[2..5],
        ["41 2", "42 2", "43 6"].map(|irq| format!("/proc/irq/{}", irq.replace(' ', "/smp_affinity_list ")))
    );
    let table = plan.knobs.iter().find(|knob| knob.path == "rss:eth1").unwrap();
    assert_eq!(table.why, "packets come by 2 queues; 64 of 128 buckets move");
    assert_eq!(table.command(), "ethtool -X eth1 weight 64 64");
    tree.write("rss:eth1", &table.value).unwrap();
    pool.refresh(&tree);
    let third = pool.plan(2, 3).unwrap();
    let table = third.knobs.iter().find(|knob| knob.path == "rss:eth1").unwrap();
    assert_eq!(table.why, "packets come by 3 queues; 42 of 128 buckets move", "`equal 3` would move 84");
    tree.write("rss:eth1", &table.value).unwrap();
    pool.refresh(&tree);
    assert!(
        knobs(&pool.plan(3, 3).unwrap()).contains(&format!("rss:eth1 {}", table.value)),
        "once it is so nothing moves"
    );
}

#[test]
fn what_a_device_does_not_offer_leads_to_the_next_way_and_says_why() {
    let files = Files::complete();
    let mut pool = complete(&files);
    let way = |pool: &Pool, cores| pool.best(cores);
    assert_eq!(
        way(&pool, 5).unwrap(),
        (SteeringWay::IrqRps, "it has fewer receive queues than CPUs were asked for".into())
    );
    assert_eq!(
        pool.plan(0, 5)
            .unwrap()
            .knobs
            .iter()
            .filter(|knob| knob.path.ends_with("rps_cpus") && knob.value != "0")
            .count(),
        4
    );
    pool.refused.insert(41);
    let (refused, why) = way(&pool, 2).unwrap();
    assert_eq!((refused, why.as_str()), (SteeringWay::Threads, "an interrupt of it refuses to be moved"));
    let plan = pool.plan(0, 2).unwrap();
    assert!(!knobs(&plan).iter().any(|knob| knob.starts_with("/proc/irq") || knob.starts_with("rss")), "{plan:?}");
    pool.machine.preempts = false;
    assert_eq!(way(&pool, 2).unwrap().0, SteeringWay::Rps, "a thread would keep the CPU for itself");
    pool.way = Some(SteeringWay::Rss);
    let refused = pool.plan(0, 2).unwrap_err().to_string();
    assert_eq!(refused, "eth1 cannot be set in the way rss: an interrupt of it refuses to be moved");
    for way in SteeringWay::ALL {
        assert_eq!(SteeringWay::named(way.name()), Some(way));
    }
}

#[test]
fn threads_poll_on_the_reserved_cpus_one_setting_each_or_by_the_devices_own_file() {
    let files = Files::complete();
    let mut pool = complete(&files);
    pool.way = Some(SteeringWay::Threads);
    let all = knobs(&pool.plan(0, 2).unwrap());
    let first =
        ["napi-threaded:eth1:516 1", "napi-cpus:eth1:516 2", "napi-threaded:eth1:517 1", "napi-cpus:eth1:517 6"];
    assert_eq!(all[2..6], first, "{all:?}");
    // Before Linux 6.17 all instances of a device are set together.
    pool.interface.napis.iter_mut().for_each(|napi| napi.threaded = None);
    let all = knobs(&pool.plan(0, 2).unwrap());
    assert_eq!(all[2..4], ["/sys/class/net/eth1/threaded 1", "napi-cpus:eth1:516 2"], "{all:?}");
}

#[test]
fn send_queues_are_dealt_out_to_all_cpus_those_of_applications_first() {
    let files = Files::complete();
    let mut pool = complete(&files);
    pool.xps = true;
    let all = knobs(&pool.plan(0, 2).unwrap());
    let xps: Vec<&str> = all.iter().filter_map(|knob| knob.split_once("xps_cpus ").map(|(_, cpus)| cpus)).collect();
    // Applications have 0, 1, 3, 4, 5 and 7, the receive path 2 and 6: each queue has two CPUs.
    assert_eq!(xps, ["21", "82", "c", "50"]);
}

#[test]
fn an_interrupt_that_comes_and_does_not_move_is_found() {
    let files = Files::complete();
    let (tree, pool) = (Tree::at(&files.0), complete(&files));
    let knobs = pool.plan(0, 2).unwrap().knobs;
    let mut effect = Effect::default();
    knobs.iter().filter(|knob| knob.path.starts_with("/proc/irq")).for_each(|knob| files.put(&knob.path, &knob.value));
    effect.sent(&tree, &knobs);
    assert_eq!(effect.refused(&tree), [0u32; 0], "it moves when it comes");
    files.put("/sys/kernel/irq/41/per_cpu_count", "6,0,0,1");
    assert_eq!(effect.refused(&tree), [0u32; 0], "that was the one with which it moves");
    files.put("/sys/kernel/irq/41/per_cpu_count", "13,0,0,1");
    files.put("/sys/kernel/irq/42/per_cpu_count", "6,0,9,1");
    files.put("/proc/irq/42/effective_affinity_list", "2");
    assert_eq!(effect.refused(&tree), [41], "and the other one has moved");
    files.put("/proc/irq/41/smp_affinity_list", "0");
    assert_eq!(effect.refused(&tree), [0u32; 0], "somebody else has sent it there");
    files.put("/proc/irq/41/smp_affinity_list", "2");
    assert_eq!(effect.refused(&tree), [41]);
    effect.sent(&tree, &[]);
    assert_eq!(effect.refused(&tree), [0u32; 0], "it is left alone");
}

#[test]
fn whatever_makes_the_kernel_forget_is_seen() {
    let files = Files::complete();
    let tree = Tree::at(&files.0);
    let shape = || Shape::of(&tree, &complete(&files).interface);
    let mut before = shape();
    assert_eq!(before, shape(), "nothing has happened");
    let mut changed = |what: &str| {
        let now = shape();
        assert_ne!(now, before, "{what}");
        before = now;
    };
    files.put("/sys/class/net/eth1/carrier_changes", "3");
    changed("the link was down");
    files.put("/sys/class/net/eth1/ifindex", "4");
    changed("another card has the name");
    std::fs::rename(files.0.join("kernel/napi-threaded:eth1:516"), files.0.join("kernel/napi-threaded:eth1:600"))
        .unwrap();
    changed("NAPI instances were made anew");
    let queue = files.0.join("sys/class/net/eth1/queues/rx-3");
    std::fs::rename(&queue, files.0.join("moved")).unwrap();
    changed("there are fewer queues");
    files.put("/sys/class/net/eth1/queues/rx-3/rps_cpus", "00");
    changed("there are as many again");
    std::fs::rename(&queue, files.0.join("moved-too")).unwrap();
    std::fs::rename(files.0.join("moved"), &queue).unwrap();
    changed("a queue is another one");
}
