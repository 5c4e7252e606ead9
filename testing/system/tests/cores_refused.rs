//! Refusals of `towpath cores`: the exit code of docs/guide/cores.md, advice, and no change.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::program::Finished;
use towpath_system_tests::{Lab, Program, Scratch, bin};

/// A user id that nobody has.
const USER: u32 = 54_321;
/// The exit code for a setting that is not possible.
const FAILED: i32 = 1;
/// The exit code for a wrong command line.
const WRONG: i32 = 2;

/// A veth with two queues in a namespace, and the directory of this test's journal, which is root's.
struct Host {
    lab: Lab,
    scratch: Scratch,
}

impl Host {
    fn new(name: &str) -> Self {
        let host = Self { lab: Lab::with_queues(2), scratch: Scratch::new(name) };
        std::fs::create_dir(host.scratch.path("run")).unwrap();
        host
    }
    fn cores(&self, line: &str) -> Program {
        let program =
            Program::new(&[bin("towpath")]).arg("cores").env("TOWPATH_CORES_JOURNAL", self.scratch.path("run/journal"));
        line.split(' ').fold(program, Program::arg)
    }
    fn inside(&self, program: Program) -> Finished {
        self.lab.on_server(program).run(30)
    }
    /// The program ends with this code, and its messages contain all of these.
    fn refuses(&self, program: Program, code: i32, says: &[&str]) {
        let refused = self.inside(program.clone());
        assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{program:?}: {refused:?}");
        says.iter().for_each(|what| assert!(refused.err.contains(what), "{program:?}, {what}: {refused:?}"));
        let steered = self.inside(Program::new(&["sh", "-c", "cat /sys/class/net/eth1/queues/rx-*/rps_cpus"])).ok();
        assert!(steered.trim_matches(['0', ',', '\n']).is_empty(), "{program:?}: {steered}");
        assert!(!self.scratch.path("run/journal").exists(), "{program:?}");
    }
}

#[test]
fn a_user_other_than_root_may_plan_and_is_told_how_to_do_the_rest() {
    let host = Host::new("refused-user");
    let user = |line: &str| host.cores(line).user(USER);
    let plan = host.inside(user("plan --interface eth1 --force --way rps"));
    assert!(plan.ok().contains("rps_cpus"), "any user may observe");
    let enforce = user("enforce --interface eth1 --cpus 1 --force --way rps");
    host.refuses(enforce, FAILED, &["this needs root: sudo towpath cores enforce"]);
    host.refuses(user("restore"), FAILED, &["this needs root: sudo towpath cores restore"]);
}

#[test]
fn a_device_that_is_not_there_not_one_or_not_meant_is_refused_with_those_that_are() {
    let host = Host::new("refused-card");
    for mode in ["plan", "observe", "advise", "enforce"] {
        let of = |more: &str| host.cores(&format!("{mode} --force{more}"));
        host.refuses(of(" --interface eth9"), FAILED, &["there is no network interface eth9; there are eth1"]);
        host.refuses(of(" --interface lo"), FAILED, &["lo is no network card", "there are eth1"]);
        host.refuses(of(""), FAILED, &["no network interface has interrupts", "name one with --interface", "eth1"]);
    }
    host.inside(Program::line("ip route add default via 10.77.0.2")).ok();
    for mode in ["plan", "enforce"] {
        let refused = host.cores(&format!("{mode} --force"));
        host.refuses(refused, FAILED, &["eth1 has the default route: name it with --interface if it is meant"]);
    }
    let named = host.inside(host.cores("plan --interface eth1 --force"));
    assert!(named.ok().contains("eth1: received on"), "it is meant");
}

#[test]
fn more_cpus_than_there_are_and_machines_with_few_are_refused() {
    let host = Host::new("refused-cpus");
    for mode in ["plan", "enforce"] {
        let of = |more: &str| host.cores(&format!("{mode} --interface eth1{more}"));
        let says = ["500 CPUs cannot be reserved: ", " of this machine's ", "at least one stays for applications"];
        host.refuses(of(" --force --cpus 500"), FAILED, &says);
        host.refuses(of(" --cpus many"), WRONG, &["'many'", "--cpus"]);
    }
    let none = host.cores("enforce --interface eth1 --force --cpus 0");
    host.refuses(none, WRONG, &["0 is not in 1.."]);
    let both = host.cores("enforce --interface eth1 --force --cpus 1 --most 2");
    host.refuses(both, WRONG, &["--cpus", "cannot be used with", "--most"]);
    // A machine with two CPUs, as the observer sees it.
    let few = host.scratch.path("cpu");
    std::fs::create_dir(&few).unwrap();
    std::fs::write(few.join("online"), "0-1\n").unwrap();
    let mount = format!("mount --bind {} /sys/devices/system/cpu && exec \"$@\"", few.display());
    let small = host.cores("enforce --interface eth1 --cpus 1").under(&["sh", "-c", &mount, "sh"]);
    host.refuses(small, FAILED, &["this machine has 2 CPUs", "--force plans it all the same"]);
}

#[test]
fn applications_that_are_not_there_are_refused() {
    let host = Host::new("refused-applications");
    let of = |more: &str| host.cores(&format!("enforce --interface eth1 --cpus 1 --force {more}"));
    host.refuses(of("--cgroup /towpath-nowhere"), FAILED, &["there is no control group /towpath-nowhere", "+cpuset"]);
    host.refuses(of("--cgroup /"), FAILED, &["the root control group cannot be confined: name one below it"]);
    // The largest process id, and one above it.
    host.refuses(of("--pid 4194304"), FAILED, &["there is no process 4194304"]);
    host.refuses(of("--way threats"), WRONG, &["rss", "threads"]);
}
