//! `towpath cores advise`: decides, and says what to type; whoever reads it does it, or does not.

use super::outputs::{Outputs, Turn};
use super::show::Entry;
use super::watch::{self, Seconds};
use clap::Args;
use std::io::Write;
use std::process::ExitCode;
use towpath_anp::{Knob, Machine, Pool, Setting, Tree};
use towpath_cores::{Decision, State, step};

/// Help after the options.
pub const HELP: &str = "Examples:
  towpath cores advise --interface eth1 --once
  towpath cores advise --interface eth1 --once | sudo sh

What it prints are commands and comments of a shell. Whether its advice was taken it sees by what is set.

Exit codes: 0 as many CPUs as now are the right number; 1 failed; 2 another number is advised, or wrong command line.";
/// Something is advised.
const ADVISED: u8 = 2;
/// With --once: ends after so many seconds without advice, unless --times says otherwise.
const ONCE: u64 = 30;

/// Says what to type.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    watch: watch::Arguments,
    /// End with the first advice, or after 30 seconds (--times) without any
    #[arg(long)]
    once: bool,
}

/// What was set before anything was advised.
struct Before(Vec<Knob>);

impl Before {
    /// Now. If CPUs are reserved already, nobody knows: then what the kernel begins with.
    fn read(pool: &Pool, tree: &Tree, reserved: u32) -> Self {
        let knobs = pool.plan(0, 1).map_or(Vec::new(), |plan| plan.knobs);
        let all = pool.machine.online().list();
        let value = |knob: &Knob| if reserved == 0 { tree.text(&knob.path) } else { usual(&knob.path, &all) };
        // With a control group goes all that is set in it.
        let goes = |knob: &&Knob| pool.partition.as_ref().is_some_and(|group| knob.path.starts_with(group.folder()));
        let before = |knob: &Knob| Some(Knob::new(knob.path.clone(), value(knob)?, "as it was"));
        Self(knobs.iter().rev().filter(|knob| !goes(knob)).filter_map(before).collect())
    }
}

/// What the kernel begins with.
fn usual(path: &str, all: &str) -> Option<String> {
    if let Some(Setting::Group(_)) = Setting::parse(path) {
        return Some(Setting::ABSENT.to_owned());
    }
    let everywhere = path.ends_with("/smp_affinity_list") || path.ends_with("/cpuset.cpus");
    (everywhere || path.ends_with("/rps_cpus")).then(|| if everywhere { all } else { "0" }.to_owned())
}

/// As many CPUs as are reserved now, whoever has done it: the most for which every setting is as it would be.
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
    let mut state = State::new(reserved, &config);
    // What it would be if the advice had been taken.
    let mut advised: Option<State> = None;
    let times = arguments.watch.times.unwrap_or(if arguments.once { ONCE } else { u64::MAX });
    for _ in 0..times {
        let there = watch::reserved(&pool, state.cores());
        let Some(sensed) = seconds.next(&there)? else { break };
        let now = in_force(&pool, &tree);
        if now != state.cores() {
            let taken = advised.take().filter(|after| after.cores() == now);
            // If it is neither as it was nor as it was to be, nothing is known of it.
            state = taken.unwrap_or_else(|| State::new(now, &config));
        }
        let (after, decision, reason) = step(&config, state.clone(), &sensed.observation);
        let (from, pool, config) = (now, &pool, &config);
        let (heard, drifted) = (seconds.heard(), Vec::new());
        let turn = Turn { pool, config, state: &after, from, reason, sensed: &sensed, heard, drifted };
        let entry = outputs.record(&turn);
        if decision == Decision::Hold {
            if advised.take().is_some() {
                say(&format!("# not advised any more: {}\n", entry.why));
            }
            state = after;
            continue;
        }
        // As long as it is not done, this second's question is asked again: the state stays as it is.
        let news = advised.as_ref().is_none_or(|advised| advised.cores() != after.cores());
        if news {
            say(&if arguments.watch.wanted.json { entry.json() } else { script(&entry, &before) });
        }
        advised = Some(after);
        if arguments.once {
            break;
        }
    }
    if arguments.once && advised.is_none() && !arguments.watch.wanted.json {
        say(&format!("# nothing is advised: {} reserved is right as far as can be seen\n", state.cores()));
    }
    Ok(advised.map_or(ExitCode::SUCCESS, |_| ExitCode::from(ADVISED)))
}

fn say(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// What to type, and why.
fn script(entry: &Entry, before: &Before) -> String {
    let Entry { tick, from, cores, why, .. } = entry;
    let mut text = format!("# {tick} s: reserve {cores} in place of {from}: {why}\n");
    let back: Vec<String> = before.0.iter().map(Knob::command).collect();
    let commands = if *cores == 0 { &back } else { &entry.commands };
    commands.iter().for_each(|command| text.push_str(&format!("{command}\n")));
    text
}
