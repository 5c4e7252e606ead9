//! What a service and its stacks tell, as metrics.

mod files;

use super::page::{Histogram, Labels, Page};
use std::collections::BTreeMap;
use towpath_service::api::{EndedStatus, ModuleList, NamedCounts, NumberedFlowGroup, SpreadStatus, Status, Tally};

/// Most programs of a user that have lines of their own, and most users. A user may name programs as he likes.
const MOST_PROGRAMS: usize = 10;
const MOST_USERS: usize = 100;
/// The users and programs beyond.
const OTHER: &str = "other";
const MICROS: f64 = 1e-6;

/// A stack that was asked.
pub struct Reading {
    /// `home`, or the name that the configuration gives it.
    pub stack: String,
    /// Its answer. `None`: it gives none.
    pub status: Option<Status>,
    /// Its modules, if whoever asks may see them.
    pub modules: Option<ModuleList>,
}

/// A part of a stack that counts: a flow group, or the slow path.
struct Part<'a> {
    labels: Labels,
    tally: &'a Tally,
}

/// The page.
pub fn page(readings: &[Reading]) -> String {
    let mut page = Page::default();
    let up = readings.iter().map(|reading| (stack(&reading.stack), f64::from(u8::from(reading.status.is_some()))));
    page.gauge("towpath_up", "The stack answers.", up);
    let stacks: Vec<(&str, &Status)> =
        readings.iter().filter_map(|reading| Some((reading.stack.as_str(), reading.status.as_ref()?))).collect();
    about(&mut page, &stacks);
    work(&mut page, &stacks);
    tallies(&mut page, &stacks);
    times(&mut page, &stacks);
    network(&mut page, &stacks);
    left_to_the_kernel(&mut page, &stacks);
    programs(&mut page, &stacks);
    files::add(&mut page, &stacks);
    modules(&mut page, readings);
    page.text()
}

fn stack(name: &str) -> Labels {
    vec![("stack", name.to_owned())]
}

fn with(labels: &Labels, more: &[(&'static str, &str)]) -> Labels {
    labels.iter().cloned().chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect()
}

fn about(page: &mut Page, stacks: &[(&str, &Status)]) {
    let info = stacks.iter().map(|(name, s)| {
        let sandbox = if s.sandbox.in_force.is_empty() { "off" } else { "on" };
        (with(&stack(name), &[("version", &s.version), ("kind", &s.stack), ("sandbox", sandbox)]), 1.0)
    });
    page.gauge("towpath_info", "Version and kind of the stack.", info);
    let mut each = |name, help, of: &dyn Fn(&Status) -> f64| {
        page.gauge(name, help, stacks.iter().map(|(name, s)| (stack(name), of(s))));
    };
    each("towpath_uptime_seconds", "Time since its start.", &|s| s.uptime_us as f64 * MICROS);
    each("towpath_workers", "Workers that run.", &|s| s.sizing.workers as f64);
    each("towpath_workers_most", "Most workers that the configuration allows.", &|s| s.sizing.most as f64);
    each("towpath_policy_rules", "Rules and limits of the policy.", &|s| s.policy.rules as f64);
    let mut each = |name, help, of: &dyn Fn(&Status) -> f64| {
        page.counter(name, help, stacks.iter().map(|(name, s)| (stack(name), of(s))));
    };
    each("towpath_policy_denied", "Attempts that a rule or the default has refused.", &|s| s.policy.denied as f64);
    each("towpath_policy_limited", "Attempts that a limit has refused.", &|s| s.policy.limited as f64);
    let help = "System calls that the sandbox has refused: an error of Towpath, or an attack.";
    each("towpath_sandbox_refused_calls", help, &|s| s.sandbox.refused as f64);
}

/// What workers and flow groups do with their time.
fn work(page: &mut Page, stacks: &[(&str, &Status)]) {
    let workers: Vec<_> = stacks
        .iter()
        .flat_map(|(name, s)| s.workers.iter().enumerate().map(|(number, worker)| (stack(name), number, worker)))
        .map(|(stack, number, worker)| (with(&stack, &[("worker", &number.to_string())]), worker))
        .collect();
    let each = |of: fn(&towpath_service::api::WorkerStatus) -> f64| {
        workers.iter().map(move |(labels, worker)| (labels.clone(), of(worker)))
    };
    let help = "Time in turns with work, by the clock.";
    page.counter("towpath_worker_busy_seconds", help, each(|worker| worker.busy_us as f64 * MICROS));
    let help = "Time without work, spinning or asleep.";
    page.counter("towpath_worker_idle_seconds", help, each(|worker| worker.idle_us as f64 * MICROS));
    page.counter("towpath_worker_turns", "Turns with work.", each(|worker| worker.turns as f64));
    page.counter("towpath_worker_sleeps", "Times that it went to sleep.", each(|worker| worker.sleeps as f64));
    let flows = groups(stacks).map(|(labels, group)| (labels, group.status.flows as f64));
    page.gauge("towpath_connections", "Connections of a flow group.", flows);
}

fn groups<'a>(
    stacks: &'a [(&str, &Status)],
) -> impl Iterator<Item = (Labels, &'a towpath_service::api::NumberedFlowGroup)> {
    stacks.iter().flat_map(|(name, s)| {
        s.flow_groups.iter().map(|group| (with(&stack(name), &[("flow_group", &group.flow_group.to_string())]), group))
    })
}

/// Counters that flow groups and the slow path share.
fn tallies(page: &mut Page, stacks: &[(&str, &Status)]) {
    let of_groups = groups(stacks).map(|(labels, group)| Part { labels, tally: &group.status.tally });
    let slow = stacks
        .iter()
        .map(|(name, s)| Part { labels: with(&stack(name), &[("flow_group", "slow path")]), tally: &s.slow });
    let parts: Vec<Part> = of_groups.chain(slow).collect();
    let named = |of: fn(&Tally) -> &NamedCounts, label| {
        parts.iter().flat_map(move |part| {
            of(part.tally).iter().map(move |(name, count)| (with(&part.labels, &[(label, name)]), count as f64))
        })
    };
    page.counter("towpath_stage_items", "Items that a stage has handled.", named(|tally| &tally.stages, "stage"));
    page.counter("towpath_dropped_frames", "Frames dropped, by reason.", named(|tally| &tally.drops, "reason"));
    let mut each = |name, help, of: fn(&Tally) -> u64| {
        page.counter(name, help, parts.iter().map(|part| (part.labels.clone(), of(part.tally) as f64)));
    };
    each("towpath_retransmitted_segments", "Segments sent again.", |tally| tally.retransmits);
    each("towpath_retransmission_timeouts", "Retransmission time-outs.", |tally| tally.timeouts);
    each("towpath_connections_opened", "Connections opened.", |tally| tally.opened);
    each("towpath_connections_failed", "Connections that failed before they were established.", |tally| tally.failed);
    each("towpath_resets", "Connections that were reset.", |tally| tally.resets);
    let help = "Violations of the contract by programs.";
    each("towpath_contract_violations", help, |tally| tally.contract_violations);
    each("towpath_syn_cookies_sent", "SYNs answered with a cookie.", |tally| tally.syn_cookies_sent);
    each("towpath_syn_cookies_accepted", "Cookies that came back.", |tally| tally.syn_cookies_accepted);
    each("towpath_out_of_ports", "Connects that found no free port.", |tally| tally.out_of_ports);
    let help = "Segments that came to another flow group than their connection's.";
    each("towpath_relayed_segments", help, |tally| tally.relayed_segments);
}

/// The first and the last bucket of a page, as powers of two µs: 8 µs and 16.8 s.
const FIRST_BUCKET: usize = 3;
const LAST_BUCKET: usize = 24;

/// Those of several flow groups together. A bound of 2^n µs has all times that are shorter.
fn histogram<'a>(spreads: impl Iterator<Item = &'a SpreadStatus>) -> Histogram {
    let (mut counts, mut sum_us) = (vec![0; LAST_BUCKET - FIRST_BUCKET + 2], 0);
    for spread in spreads {
        sum_us += spread.sum_us;
        for (bit, count) in spread.counts.iter().enumerate() {
            counts[(bit + 1).clamp(FIRST_BUCKET, LAST_BUCKET + 1) - FIRST_BUCKET] += count;
        }
    }
    let bound = |at: usize| if at > LAST_BUCKET { f64::MAX } else { (1_u64 << at) as f64 / 1e6 };
    let buckets = counts.into_iter().enumerate().map(|(at, count)| (bound(at + FIRST_BUCKET), count));
    Histogram { buckets: buckets.collect(), sum: sum_us as f64 / 1e6 }
}

/// How long round trips and answers take.
fn times(page: &mut Page, stacks: &[(&str, &Status)]) {
    let mut one = |name, help, of: fn(&NumberedFlowGroup) -> &SpreadStatus| {
        let samples = stacks.iter().map(|(name, s)| (stack(name), histogram(s.flow_groups.iter().map(of))));
        page.histogram(name, help, samples.filter(|(_, times)| times.buckets.iter().any(|(_, count)| *count > 0)));
    };
    one("towpath_round_trip_seconds", "Round trips of timed segments.", |group| &group.status.round_trips);
    let help = "From the arrival of data until their program has taken them, of one connection at a time.";
    one("towpath_request_seconds", help, |group| &group.status.requests);
}

/// Ports and interfaces.
fn network(page: &mut Page, stacks: &[(&str, &Status)]) {
    let ports: Vec<_> = groups(stacks)
        .flat_map(|(labels, group)| {
            group.ports.iter().map(move |port| (with(&labels, &[("port", &port.name)]), port.status))
        })
        .collect();
    let both = |received: fn(&towpath_service::api::PortStatus) -> u64,
                sent: fn(&towpath_service::api::PortStatus) -> u64| {
        ports.iter().flat_map(move |(labels, port)| {
            [("received", received(port)), ("sent", sent(port))]
                .map(|(direction, count)| (with(labels, &[("direction", direction)]), count as f64))
        })
    };
    page.counter("towpath_port_frames", "Frames of a port.", both(|port| port.rx_frames, |port| port.tx_frames));
    let help = "Frames that a port could not take or send.";
    page.counter("towpath_port_dropped_frames", help, both(|port| port.rx_dropped, |port| port.tx_dropped));
    let interfaces: Vec<_> = stacks
        .iter()
        .flat_map(|(name, s)| s.interfaces.iter().map(|interface| (stack(name), interface)))
        .map(|(stack, interface)| (with(&stack, &[("interface", &interface.name)]), interface))
        .collect();
    let each = |of: fn(&towpath_service::api::InterfaceStatus) -> f64| {
        interfaces.iter().map(move |(labels, interface)| (labels.clone(), of(interface)))
    };
    let is = |yes: bool| f64::from(u8::from(yes));
    let help = "1: the interface is up, has its carrier, and its frames come to the stack.";
    page.gauge("towpath_interface_serving", help, {
        interfaces.iter().map(|(labels, i)| (labels.clone(), is(i.up && i.carrier && i.steering)))
    });
    page.gauge("towpath_interface_queues", "Receive queues.", each(|interface| f64::from(interface.queues)));
    page.gauge("towpath_interface_sockets", "Receive queues with a socket.", each(|i| f64::from(i.sockets)));
    let help = "Frames of accelerated connections that came on other queues.";
    page.counter("towpath_interface_stray_frames", help, each(|interface| interface.strays as f64));
}

/// What is not accelerated, and why.
fn left_to_the_kernel(page: &mut Page, stacks: &[(&str, &Status)]) {
    // These two are no fall-backs.
    let (given, asked) = ("stack", "join");
    let help = "Connects and listens left to the kernel, by reason.";
    let of = stacks.iter().flat_map(|(name, s)| {
        let reasons = s.kernel.iter().filter(|(reason, _)| ![given, asked].contains(reason));
        reasons.map(|(reason, count)| (with(&stack(name), &[("reason", reason)]), count as f64))
    });
    page.counter("towpath_left_to_kernel", help, of);
    let mut one = |which: &str, name, help| {
        let of = stacks.iter().filter_map(|(name, s)| Some((stack(name), s.kernel.get(which)? as f64)));
        page.counter(name, help, of);
    };
    one(given, "towpath_given_to_stacks", "Connects and listens given to another stack.");
    one(asked, "towpath_asked_to_join", "Connects that another namespace's stack was asked to join.");
    let help = "First SYNs for listeners that the kernel has too, and connections that it accepted, by outcome.";
    let of = stacks.iter().flat_map(|(name, s)| {
        s.listeners.iter().map(move |(which, count)| (with(&stack(name), &[("outcome", which)]), count as f64))
    });
    page.counter("towpath_listener_syns", help, of);
}

/// Processes that are served, their sockets, and their part of the stack's time, with that of those that have ended.
#[derive(Clone, Copy, Default)]
struct Counts {
    clients: f64,
    sockets: f64,
    busy_us: f64,
}

impl Counts {
    fn and(self, other: Self) -> Self {
        let (clients, sockets) = (self.clients + other.clients, self.sockets + other.sockets);
        Self { clients, sockets, busy_us: self.busy_us + other.busy_us }
    }
}

/// So many with most of it, and the rest together.
fn most(all: BTreeMap<String, Counts>, most: usize, of: fn(&Counts) -> f64) -> Vec<(String, Counts)> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, left), (_, right)| of(right).total_cmp(&of(left)));
    let rest = all.split_off(all.len().min(most));
    if !rest.is_empty() {
        all.push((OTHER.to_owned(), rest.iter().fold(Counts::default(), |sum, (_, one)| sum.and(*one))));
    }
    all
}

/// Users with their programs, by what there is most of.
type Users = BTreeMap<u32, BTreeMap<String, Counts>>;

fn ranked(users: Users, of: fn(&Counts) -> f64) -> Vec<(String, Vec<(String, Counts)>)> {
    let name = |uid: u32| if uid == u32::MAX { OTHER.to_owned() } else { uid.to_string() };
    let users = users.into_iter().map(|(uid, programs)| (name(uid), most(programs, MOST_PROGRAMS, of)));
    let all = |programs: &Vec<(String, Counts)>| programs.iter().fold(Counts::default(), |sum, (_, one)| sum.and(*one));
    let mut users: Vec<_> = users.collect();
    users.sort_by(|(_, left), (_, right)| of(&all(right)).total_cmp(&of(&all(left))));
    let mut rest = users.split_off(users.len().min(MOST_USERS));
    // The service's own rest is one, too.
    if let Some(at) = users.iter().position(|(name, _)| name == OTHER) {
        rest.push(users.remove(at));
    }
    if !rest.is_empty() {
        let rest = rest.iter().fold(Counts::default(), |sum, (_, programs)| sum.and(all(programs)));
        users.push((OTHER.to_owned(), vec![(OTHER.to_owned(), rest)]));
    }
    users
}

/// Users and their programs.
fn programs(page: &mut Page, stacks: &[(&str, &Status)]) {
    let (mut living, mut busy) = (Vec::new(), Vec::new());
    for (name, s) in stacks {
        let (mut now, mut ever) = (Users::new(), Users::new());
        for client in &s.clients {
            let one = Counts { clients: 1.0, sockets: f64::from(client.slots), busy_us: client.busy_us as f64 };
            for users in [&mut now, &mut ever] {
                let counts = users.entry(client.uid).or_default().entry(client.name.clone()).or_default();
                *counts = counts.and(one);
            }
        }
        for EndedStatus { uid, program, busy_us } in &s.ended {
            let counts = ever.entry(*uid).or_default().entry(program.clone()).or_default();
            counts.busy_us += *busy_us as f64;
        }
        let lines = |users: Vec<(String, Vec<(String, Counts)>)>| {
            let of_user = |(uid, programs): (String, Vec<(String, Counts)>)| {
                let labels = move |program: &str| with(&stack(name), &[("uid", &uid), ("program", program)]);
                programs.into_iter().map(move |(program, counts)| (labels(&program), counts))
            };
            users.into_iter().flat_map(of_user).collect::<Vec<_>>()
        };
        living.extend(lines(ranked(now, |counts| counts.sockets)));
        let divided = lines(ranked(ever, |counts| counts.busy_us));
        // Other stacks do not divide their time.
        busy.extend(divided.into_iter().filter(|(_, counts)| counts.busy_us > 0.0));
    }
    let help = "Processes that are served, by user and program.";
    page.gauge("towpath_clients", help, living.iter().map(|(labels, counts)| (labels.clone(), counts.clients)));
    let help = "Their sockets. Those with most have lines of their own, others are in \"other\".";
    page.gauge("towpath_sockets", help, living.iter().map(|(labels, counts)| (labels.clone(), counts.sockets)));
    let help = "Their part of the time in turns with work, by the events and entries of their sockets.";
    let seconds = busy.iter().map(|(labels, counts)| (labels.clone(), counts.busy_us * MICROS));
    page.counter("towpath_program_busy_seconds", help, seconds);
}

fn modules(page: &mut Page, readings: &[Reading]) {
    let all: Vec<_> = readings
        .iter()
        .flat_map(|reading| reading.modules.iter().flat_map(|list| &list.modules).map(move |module| (reading, module)))
        .map(|(reading, m)| (with(&stack(&reading.stack), &[("module", &m.name), ("hook", &m.hook)]), m))
        .collect();
    let frames = all.iter().flat_map(|(labels, module)| {
        module.counts.iter().map(move |(action, count)| (with(labels, &[("action", action)]), count as f64))
    });
    page.counter("towpath_module_frames", "What became of the frames that a module had.", frames);
    let detached = all.iter().map(|(labels, module)| (labels.clone(), f64::from(u8::from(module.detached))));
    page.gauge(
        "towpath_module_detached",
        "1: its tenant took more time than the budget, and it runs no more.",
        detached,
    );
}

#[cfg(test)]
mod tests;
