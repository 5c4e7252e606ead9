//! What a service and its stacks tell, as metrics.

mod files;

use super::page::{Labels, Page};
use std::collections::BTreeMap;
use towpath_service::api::{ModuleList, NamedCounts, Status, Tally};

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

/// Processes that are served, and their sockets.
#[derive(Clone, Copy, Default)]
struct Counts {
    clients: f64,
    sockets: f64,
}

impl Counts {
    fn and(self, other: Self) -> Self {
        Self { clients: self.clients + other.clients, sockets: self.sockets + other.sockets }
    }
}

/// So many with most sockets, and the rest together.
fn most(all: BTreeMap<String, Counts>, most: usize) -> Vec<(String, Counts)> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, left), (_, right)| right.sockets.total_cmp(&left.sockets));
    let rest = all.split_off(all.len().min(most));
    if !rest.is_empty() {
        all.push((OTHER.to_owned(), rest.iter().fold(Counts::default(), |sum, (_, one)| sum.and(*one))));
    }
    all
}

/// Users and their programs.
fn programs(page: &mut Page, stacks: &[(&str, &Status)]) {
    let mut counted = Vec::new();
    for (name, s) in stacks {
        let mut users: BTreeMap<u32, BTreeMap<String, Counts>> = BTreeMap::new();
        for client in &s.clients {
            let programs = users.entry(client.uid).or_default();
            let counts = programs.entry(client.name.clone()).or_default();
            *counts = counts.and(Counts { clients: 1.0, sockets: f64::from(client.slots) });
        }
        let users = users.into_iter().map(|(uid, programs)| (uid.to_string(), most(programs, MOST_PROGRAMS)));
        let all =
            |programs: &Vec<(String, Counts)>| programs.iter().fold(Counts::default(), |sum, (_, one)| sum.and(*one));
        let mut users: Vec<_> = users.collect();
        users.sort_by(|(_, left), (_, right)| all(right).sockets.total_cmp(&all(left).sockets));
        let rest = users.split_off(users.len().min(MOST_USERS));
        if !rest.is_empty() {
            let rest = rest.iter().fold(Counts::default(), |sum, (_, programs)| sum.and(all(programs)));
            users.push((OTHER.to_owned(), vec![(OTHER.to_owned(), rest)]));
        }
        for (uid, programs) in &users {
            counted.extend(programs.iter().map(|(program, Counts { clients, sockets })| {
                (with(&stack(name), &[("uid", uid), ("program", program)]), (*clients, *sockets))
            }));
        }
    }
    let help = "Processes that are served, by user and program.";
    page.gauge("towpath_clients", help, counted.iter().map(|(labels, (clients, _))| (labels.clone(), *clients)));
    let help = "Their sockets. Those with most have lines of their own, others are in \"other\".";
    page.gauge("towpath_sockets", help, counted.iter().map(|(labels, (_, sockets))| (labels.clone(), *sockets)));
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
