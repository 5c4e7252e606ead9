//! `towpath cores advise`: decides, and prints the commands. The user types them, or does not.

use super::decide::{self, Seconds};
use super::feedback_sources::Said;
use super::outputs::Outputs;
use super::show::Entry;
use super::tick::Tick;
use clap::Args;
use std::io::Write;
use std::process::ExitCode;
use towpath_feedback::Heard;
use towpath_rxcpus::{Knob, Machine, Pool, Setting, Tree};
use towpath_scaling::{Decision, PolicyState, step};

/// Help after the options.
pub const HELP: &str = "Examples:
  towpath cores advise --interface eth1 --once
  towpath cores advise --interface eth1 --once | sudo sh

What it prints are commands and comments of a shell. Whether its advice was taken it sees by what is set.

Exit codes: 0 as many CPUs as now are the right number; 1 failed, or no source of --feedback was heard; 2 another number is
advised, or wrong command line.";
/// Exit code if something is advised.
const ADVISED: u8 = 2;
/// With --once: ends after this many seconds without advice, unless --times says otherwise.
const ONCE: u64 = 30;

/// Prints commands for a better number of CPUs.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    pub watch: decide::Arguments,
    /// End with the first advice, or after 30 seconds (--times) without any
    #[arg(long)]
    once: bool,
}

/// The values that were set before the first advice.
struct Before(Vec<Knob>);

impl Before {
    /// Reads the present values. If CPUs are reserved already, or a setting does not exist yet (threads that poll), it
    /// is the kernel's default.
    ///
    /// The order is that of the journal, the last first. A control group can only be removed once it is no partition
    /// and has no threads.
    fn read(pool: &Pool, tree: &Tree, reserved: u32) -> Self {
        let knobs = pool.plan(0, 1).map_or(Vec::new(), |plan| plan.knobs);
        let now = |path: &str| tree.text(path).filter(|_| reserved == 0);
        // All settings in a control group go with it, except the partition, which keeps it from being removed.
        let goes = |path: &str| is_in_group(pool, path) && !path.ends_with("/cpuset.cpus.partition");
        let before = |knob: &Knob| {
            let value = now(&knob.path).or_else(|| usual(pool, &knob.path))?;
            Some(Knob::new(knob.path.clone(), value, "as it was"))
        };
        Self(knobs.iter().rev().filter(|knob| !goes(&knob.path)).filter_map(before).collect())
    }
    /// The commands for this number of CPUs. `planned` are those of its plan. For 0 there is no plan.
    fn commands(&self, cores: u32, planned: &[String]) -> Vec<String> {
        if cores == 0 { self.0.iter().map(Knob::command).collect() } else { planned.to_vec() }
    }
}

/// True if it is a file of the control group of the reserved CPUs.
fn is_in_group(pool: &Pool, path: &str) -> bool {
    pool.partition.as_ref().is_some_and(|group| path.starts_with(group.folder()))
}

/// The kernel's default of a setting.
fn usual(pool: &Pool, path: &str) -> Option<String> {
    let all = || pool.machine.online().list();
    match Setting::parse(path)? {
        Setting::Group(_) => Some(Setting::ABSENT.to_owned()),
        // Kernel threads start in the root group.
        Setting::NapiGroup(..) => {
            let (root, _) = pool.partition.as_ref()?.folder().rsplit_once('/')?;
            Some(root.to_owned())
        }
        Setting::NapiCpus(..) | Setting::Task(_) => Some(all()),
        Setting::NapiThreaded(..) => Some("0".to_owned()),
        Setting::Table(_) => Some("default".to_owned()),
        Setting::File(_) if is_in_group(pool, path) => Some("member".to_owned()),
        Setting::File(_) if path.ends_with("/smp_affinity_list") || path.ends_with("/cpuset.cpus") => Some(all()),
        Setting::File(_) if path.ends_with("/rps_cpus") || path.ends_with("/threaded") => Some("0".to_owned()),
        Setting::File(_) => None,
    }
}

/// The number of CPUs that are reserved now, by any program: the largest for which every setting has its planned value.
fn in_force(pool: &Pool, tree: &Tree) -> u32 {
    let holds =
        |cores: &u32| pool.plan(*cores, *cores).is_ok_and(|plan| plan.knobs.iter().all(|knob| knob.holds(tree)));
    (1..=pool.order().most()).rev().find(holds).unwrap_or(0)
}

/// Advises.
pub fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    let pool = arguments.watch.pool(&machine, &tree)?;
    let config = arguments.watch.config(&machine, &pool)?;
    let reserved = in_force(&pool, &tree);
    let before = Before::read(&pool, &tree, reserved);
    let mut outputs = Outputs::open(&arguments.watch.wanted, "advise", &pool, &tree, &machine)?;
    let mut seconds = Seconds::begin(&arguments.watch, &pool, &tree)?;
    let mut state = PolicyState::new(reserved, &config);
    // The state if the advice had been taken.
    let mut advised: Option<PolicyState> = None;
    let times = arguments.watch.times.unwrap_or(if arguments.once { ONCE } else { u64::MAX });
    let mut silence = Silence::default();
    for _ in 0..times {
        let there = decide::reserved(&pool, state.cores());
        let Some(sensed) = seconds.next(&there)? else { break };
        silence.listen(seconds.heard());
        let now = in_force(&pool, &tree);
        if now != state.cores() {
            let taken = advised.take().filter(|after| after.cores() == now);
            // If it is neither the old number nor the advised one, nothing is known of it.
            state = taken.unwrap_or_else(|| PolicyState::new(now, &config));
        }
        let (after, decision, reason) = step(&config, state.clone(), &sensed.observation);
        let (from, pool, config) = (now, &pool, &config);
        let (heard, drifted) = (seconds.heard(), Vec::new());
        let tick = Tick { pool, config, state: &after, from, reason, sensed: &sensed, heard, drifted };
        let entry = outputs.record(&tick);
        if decision == Decision::Hold {
            if advised.take().is_some() {
                say(&format!("# not advised any more: {}\n", entry.why));
            }
            state = after;
            continue;
        }
        // Until the advice is taken, the state stays and the same question is asked again.
        let news = advised.as_ref().is_none_or(|advised| advised.cores() != after.cores());
        if news {
            let entry = Entry { commands: before.commands(entry.cores, &entry.commands), ..entry };
            say(&if arguments.watch.wanted.json { entry.json() } else { script(&entry) });
        }
        advised = Some(after);
        if arguments.once {
            break;
        }
    }
    if advised.is_none()
        && let Some(why) = silence.of_all()
    {
        return Err(format!("nothing can be advised, because nothing was heard of how applications do: {why}"));
    }
    if arguments.once && advised.is_none() && !arguments.watch.wanted.json {
        say(&format!("# nothing is advised: {} reserved is right as far as can be seen\n", state.cores()));
    }
    Ok(advised.map_or(ExitCode::SUCCESS, |_| ExitCode::from(ADVISED)))
}

/// The sources of feedback that have not been heard yet.
#[derive(Default)]
struct Silence {
    /// Has any source been heard?
    heard: bool,
    /// The last silence of each source.
    why: Vec<String>,
}

impl Silence {
    fn listen(&mut self, heard: &[Heard]) {
        let said: Vec<Said> = heard.iter().map(Said::of).collect();
        self.heard |= said.iter().any(|said| said.throughput.is_some());
        self.why = said.iter().filter_map(Said::silence).collect();
    }
    /// Why none was heard, if there are any and none was.
    fn of_all(&self) -> Option<String> {
        (!self.heard && !self.why.is_empty()).then(|| self.why.join("; "))
    }
}

fn say(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// The commands, with the reason as a comment.
fn script(entry: &Entry) -> String {
    let Entry { tick, from, cores, why, .. } = entry;
    let mut text = format!("# {tick} s: reserve {cores} in place of {from}: {why}\n");
    entry.commands.iter().for_each(|command| text.push_str(&format!("{command}\n")));
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::receive_cpus::fake_machine::{Cpus, Fake};
    use std::process::Command;
    use towpath_rxcpus::{Partition, PartitionKind, SteeringWay};

    /// Stand-ins for the commands, first in PATH, that act as the kernel and its tools do. They are stricter than
    /// Linux. Threads that no longer poll stay. A group that is a partition or has threads is not removed.
    const TOOLS: [(&str, &str); 6] = [
        ("pgrep", r#"echo "${2##*-}""#),
        ("taskset", r#"test -e "$ROOT/kernel/napi-cpus:eth1:$3" && echo "$2" > "$ROOT/kernel/napi-cpus:eth1:$3""#),
        (
            "ynl",
            r#"id=$(echo "$6" | tr -dc 0-9)
            case $6 in *disabled*) echo 0 > "$ROOT/kernel/napi-threaded:eth1:$id"; exit;; esac
            echo 1 > "$ROOT/kernel/napi-threaded:eth1:$id"
            test -e "$ROOT/kernel/napi-cgroup:eth1:$id" && exit
            echo 0-3 > "$ROOT/kernel/napi-cpus:eth1:$id"
            echo /sys/fs/cgroup > "$ROOT/kernel/napi-cgroup:eth1:$id""#,
        ),
        ("attach", r#"read -r id; echo "${1#"$ROOT"}" > "$ROOT/kernel/napi-cgroup:eth1:$id""#),
        (
            "mkdir",
            r#"test -e "$2" && exit; /bin/mkdir -p "$2"
            echo > "$2/cpuset.cpus"; echo member > "$2/cpuset.cpus.partition""#,
        ),
        (
            "rmdir",
            r#"if grep -q "${1#"$ROOT"}" "$ROOT"/kernel/napi-cgroup:* || ! grep -q member "$1/cpuset.cpus.partition"
            then echo "rmdir: $1: Device or resource busy" >&2; exit 1; fi
            rm -r "$1""#,
        ),
    ];

    /// A machine with control groups of version 2, whose network device can be polled by threads.
    struct Host(Fake);

    impl Host {
        fn new(name: &str) -> Self {
            let fake = Fake::new(name, &Cpus::default());
            fake.put("proc/version", "Linux version 6.18 #1 SMP PREEMPT_DYNAMIC");
            fake.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu");
            fake.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset");
            fake.put("sys/fs/cgroup/app/cpuset.cpus", "");
            (516..518).for_each(|id| fake.put(&format!("kernel/napi-threaded:eth1:{id}"), "0"));
            for (name, text) in TOOLS {
                fake.put(&format!("tools/{name}"), &format!("#!/bin/sh\n{text}"));
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(fake.place(&format!("tools/{name}")), mode).unwrap();
            }
            Self(fake)
        }
        fn pool(&self, kind: Option<PartitionKind>) -> Pool {
            let tree = self.0.tree();
            let mut pool = Pool::find(&Machine::read(&tree), Some("eth1")).unwrap();
            (pool.way, pool.application) = (Some(SteeringWay::Threads), Some("/sys/fs/cgroup/app/cpuset.cpus".into()));
            pool.partition = kind.map(|kind| Partition::find(&tree, kind).unwrap());
            pool
        }
        /// Types the advice. All of it must work.
        fn follow(&self, before: &Before, pool: &Pool, from: u32, cores: u32) {
            let commands = pool.plan(from, cores).map_or(Vec::new(), |plan| plan.commands());
            let entry = Entry { from, cores, commands: before.commands(cores, &commands), ..Entry::default() };
            let root = self.0.place("");
            let root = root.to_str().unwrap().trim_end_matches('/');
            // A group's members are not the last value written to its file.
            let line = |line: &str| match line.strip_suffix("/cgroup.procs").and_then(|line| line.rsplit_once(" > ")) {
                Some((who, group)) => format!("{who} | attach {group}\n"),
                None => format!("{line}\n"),
            };
            let text: String = script(&entry).lines().map(line).collect();
            let text = text.replace(" /sys/", &format!(" {root}/sys/"));
            let path = format!("{root}/tools:{}", std::env::var("PATH").unwrap());
            let done = Command::new("sh").args(["-ec", &text]).env("PATH", path).env("ROOT", root).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() && said.is_empty(), "{from} to {cores}: {said}\n{text}");
        }
        /// Every setting that a command could have changed and that is not the kernel's default.
        fn settings(&self) -> Vec<String> {
            let (tree, pool) = (self.0.tree(), self.pool(Some(PartitionKind::Root)));
            let knobs = pool.plan(0, 1).unwrap().knobs;
            let value = |path: &str| {
                tree.text(path).filter(|now| !usual(&pool, path).is_some_and(|usual| Knob::same(path, now, &usual)))
            };
            knobs.iter().map(|knob| format!("{} {:?}", knob.path, value(&knob.path))).collect()
        }
    }

    #[test]
    fn without_a_source_that_is_heard_nothing_is_advised() {
        let heard = |problem: Option<&str>, outcome| Heard {
            source: "redis://127.0.0.1:1".into(),
            outcome,
            problem: problem.map(str::to_owned),
        };
        let mut silence = Silence::default();
        silence.listen(&[]);
        assert_eq!(silence.of_all(), None, "load alone decides");
        silence.listen(&[heard(Some("connection refused"), None)]);
        assert_eq!(silence.of_all().as_deref(), Some("redis://127.0.0.1:1: connection refused"));
        silence.listen(&[heard(None, Some(towpath_scaling::Outcome::default()))]);
        silence.listen(&[heard(Some("connection refused"), None)]);
        assert_eq!(silence.of_all(), None, "it was heard once");
    }

    #[test]
    fn what_is_advised_can_be_typed_and_taken_back_in_the_order_in_which_it_is_printed() {
        for kind in [None, Some(PartitionKind::Root), Some(PartitionKind::Isolated)] {
            let machine = Host::new("advise");
            let (tree, pool, untouched) = (machine.0.tree(), machine.pool(kind), machine.settings());
            let before = Before::read(&pool, &tree, in_force(&pool, &tree));
            for (from, cores) in [(0, 1), (1, 2), (2, 1)] {
                machine.follow(&before, &pool, from, cores);
                assert_eq!(in_force(&pool, &tree), cores, "{kind:?}: {:?}", machine.settings());
            }
            machine.follow(&before, &pool, 1, 0);
            assert_eq!((in_force(&pool, &tree), machine.settings()), (0, untouched), "{kind:?}");
            assert!(!tree.has("/sys/fs/cgroup/towpath-rxcpus"), "{kind:?}");
        }
    }

    #[test]
    fn what_another_has_set_as_it_was_advised_is_taken_back_to_what_the_kernel_begins_with() {
        let machine = Host::new("advise-late");
        machine.0.put("sys/fs/cgroup/app/cpuset.cpus", "0-3");
        let (tree, pool, untouched) = (machine.0.tree(), machine.pool(Some(PartitionKind::Root)), machine.settings());
        machine.follow(&Before(Vec::new()), &pool, 0, 2);
        assert_eq!(in_force(&pool, &tree), 2);
        machine.follow(&Before::read(&pool, &tree, 2), &pool, 2, 0);
        assert_eq!((in_force(&pool, &tree), machine.settings()), (0, untouched));
        assert!(!tree.has("/sys/fs/cgroup/towpath-rxcpus"), "threads have left it, so it could be removed");
    }
}
