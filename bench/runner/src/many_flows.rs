//! Many connections behind one switch port, in two halves. Real ones go through `towpath-impair`, where Linux and
//! Towpath with several congestion controls take turns. Simulated ones run in `towpath-fabric`.

use crate::impaired_path::{Host, ImpairedPath, RECEIVER};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::process::Command;
use towpath_bench_report::median;
use towpath_service::programs::find;

/// Arguments that `towpath bench fairness` and `towpath bench incast` share.
#[derive(Args)]
pub struct ManyFlows {
    /// One JSON object per row instead of the tables.
    #[arg(long)]
    pub json: bool,
    /// Only one half: real flows through the relay (root), or the simulated rack (anybody).
    #[arg(long)]
    pub only: Option<Half>,
    /// Relay: rounds. In each, all contenders take a turn.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Relay: only these contenders, such as linux-cubic,towpath-dctcp.
    #[arg(long, value_delimiter = ',', value_parser = contender)]
    pub who: Vec<Contender>,
    /// Relay: bottleneck in Mbit/s. Two CPUs carry both hosts and the relay.
    #[arg(long, default_value_t = 200)]
    pub mbit: u32,
    /// Relay: delay one way.
    #[arg(long, default_value = "500us")]
    pub delay: String,
    /// Relay: queue of the bottleneck.
    #[arg(long, default_value = "1m")]
    pub queue: String,
    /// Relay: marks frames beyond this many waiting bytes.
    #[arg(long, default_value = "64k")]
    pub mark: String,
    /// Flags of the simulated half: see `-- --help`.
    #[arg(last = true)]
    pub simulated: Vec<OsString>,
}

/// Real or simulated.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Half {
    /// Real flows, Linux beside Towpath.
    Relay,
    /// Virtual time, Towpath alone.
    Simulated,
}

impl ManyFlows {
    fn wants(&self, half: Half) -> bool {
        self.only.is_none_or(|only| only == half)
    }

    fn contenders(&self) -> Vec<Contender> {
        if self.who.is_empty() { CONTENDERS.to_vec() } else { self.who.clone() }
    }

    /// The bottleneck, for a heading.
    pub fn bottleneck(&self) -> String {
        let Self { mbit, delay, queue, mark, rounds, .. } = self;
        format!(
            "{mbit} Mbit/s, {delay} each way, queue {queue}, marks beyond {mark}, {rounds} interleaved rounds; Linux has no DCTCP here"
        )
    }
}

/// A sending stack with a congestion control. The receiver is Linux, except for DCTCP: Linux echoes marks as DCTCP
/// needs only where it has DCTCP itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Contender {
    /// `linux` or `towpath`.
    pub stack: &'static str,
    /// Congestion control.
    pub cc: &'static str,
    /// True if it uses ECN.
    pub ecn: bool,
}

/// All, in the order of their turns.
pub const CONTENDERS: [Contender; 7] = [
    Contender { stack: "linux", cc: "cubic", ecn: false },
    Contender { stack: "towpath", cc: "cubic", ecn: false },
    Contender { stack: "linux", cc: "cubic", ecn: true },
    Contender { stack: "towpath", cc: "cubic", ecn: true },
    Contender { stack: "linux", cc: "bbr", ecn: false },
    Contender { stack: "towpath", cc: "bbr", ecn: false },
    Contender { stack: "towpath", cc: "dctcp", ecn: true },
];

impl Contender {
    /// Its name, such as `linux-cubic-ecn`. DCTCP always uses ECN, so its name leaves that out.
    pub fn name(&self) -> String {
        let ecn = if self.ecn && self.cc != "dctcp" { "-ecn" } else { "" };
        format!("{}-{}{ecn}", self.stack, self.cc)
    }
}

fn contender(name: &str) -> Result<Contender, String> {
    CONTENDERS.into_iter().find(|one| one.name() == name).ok_or_else(|| {
        let known: Vec<String> = CONTENDERS.iter().map(Contender::name).collect();
        format!("there are {}", known.join(", "))
    })
}

/// Losses and repairs of a run. The receiving program reports the rest.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Losses {
    /// Frames that the bottleneck's queue dropped.
    pub drops: f64,
    /// Frames that it marked.
    pub marks: f64,
    /// Segments sent again.
    pub retransmits: f64,
    /// Frames that the relay was too slow to see. If there are any, the machine was the limit and not the path.
    pub missed: f64,
}

impl Losses {
    /// The median of each counter over some runs.
    fn median(runs: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| median(runs.iter().map(field));
        Self {
            drops: of(|run| run.drops),
            marks: of(|run| run.marks),
            retransmits: of(|run| run.retransmits),
            missed: of(|run| run.missed),
        }
    }
}

/// The load of one run of the real half.
pub struct Load<'a> {
    /// Connections that send.
    pub connections: u32,
    /// Bytes of a block that a sender answers with; 0 = without end.
    pub block_bytes: u64,
    /// The receiver's role in `towpath-rpc`, and its flags.
    pub role: &'static str,
    /// See `role`.
    pub flags: &'a [String],
}

/// Runs both halves of a benchmark, or the one asked for. `relay` is the real half.
pub fn run(name: &str, options: &ManyFlows, relay: impl FnOnce(&ImpairedPath) -> io::Result<()>) -> io::Result<()> {
    // The namespaces come first: without root the simulated half must not run in vain.
    let path = if options.wants(Half::Relay) { Some(path(name)?) } else { None };
    if options.wants(Half::Simulated) {
        simulated(name, options)?;
    }
    path.map_or(Ok(()), |path| relay(&path))
}

/// The namespaces of the real half, which alone needs root.
fn path(name: &str) -> io::Result<ImpairedPath> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other(format!(
            "real flows need network namespaces: sudo towpath bench {name}; without root: towpath bench {name} --only simulated"
        )));
    }
    ImpairedPath::new()
}

/// The simulated half is a program of its own, with the simulator in it.
fn simulated(experiment: &str, options: &ManyFlows) -> io::Result<()> {
    let json = options.json.then_some("--json");
    let status = Command::new(find("towpath-fabric")?).arg(experiment).args(json).args(&options.simulated).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("the simulated half has failed: {status}")))
}

/// Runs the load with every contender in every round. The result has the reports and the median losses of each
/// contender.
pub fn rounds(
    path: &ImpairedPath,
    options: &ManyFlows,
    title: &str,
    load: &Load<'_>,
) -> io::Result<Vec<(Contender, Vec<Value>, Losses)>> {
    let mut runs: Vec<_> = options.contenders().into_iter().map(|who| (who, Vec::new(), Vec::new())).collect();
    for round in 0..options.rounds.max(1) {
        for (contender, reports, losses) in &mut runs {
            eprint!("\r{title}: round {} of {}, {:20}", round + 1, options.rounds, contender.name());
            let (report, lost) = one(path, options, contender, load)?;
            reports.push(report);
            losses.push(lost);
        }
    }
    eprint!("\r{:70}\r", "");
    Ok(runs.into_iter().map(|(contender, reports, losses)| (contender, reports, Losses::median(&losses))).collect())
}

/// One run: the receiver's report, and the losses on the path.
fn one(
    path: &ImpairedPath,
    options: &ManyFlows,
    contender: &Contender,
    load: &Load<'_>,
) -> io::Result<(Value, Losses)> {
    let ManyFlows { mbit, delay, queue, mark, .. } = options;
    let Load { connections, block_bytes, role, flags } = load;
    let (rate, at) = (format!("{mbit}mbit"), format!("{RECEIVER}:9004"));
    let bottleneck = ["--rate", &rate, "--delay", delay, "--queue", queue, "--mark", mark];
    let relay = path.relay(&bottleneck)?;
    let ours = contender.stack == "towpath";
    if !ours {
        path.set_kernel(contender.cc, contender.ecn)?;
    }
    // The service and its program may change the veth's offloads, so they exist only while they are measured.
    let config = format!("congestion = \"{}\"\necn = {}\n", contender.cc, if contender.ecn { 1 } else { 0 });
    let sending = if ours { Some(path.serve(Host::Sender, &config)?) } else { None };
    let both = ours && contender.cc == "dctcp";
    let receiving = if both { Some(path.serve(Host::Receiver, &config)?) } else { None };

    let before = path.retransmitted()?;
    let many = ["--connections".to_owned(), connections.to_string()];
    let words = [&[(*role).to_owned(), at.clone()], &many[..], *flags].concat();
    let mut receiver = path.start(path.rpc(Host::Receiver, receiving.as_ref(), &words)?, "receiver.log", "ready")?;
    let words = [&["senders".to_owned(), at], &many[..], &["--bytes".to_owned(), block_bytes.to_string()]].concat();
    let senders = path.start(path.rpc(Host::Sender, sending.as_ref(), &words)?, "senders.log", "")?;
    receiver.wait_end(240.0)?;
    let retransmits = match &sending {
        Some(service) => service.retransmitted()?,
        None => path.retransmitted()? - before,
    };
    drop((senders, receiver, sending, receiving, relay));
    let report = path.last_json("receiver.log").map_err(|error| {
        let said = std::fs::read_to_string(path.dir().join("senders.log")).unwrap_or_default();
        io::Error::other(format!("{}: {error}{said}", contender.name()))
    })?;
    let relayed = path.last_json("relay.log")?;
    let count = |direction: &str, name: &str| relayed[direction][name].as_f64().unwrap_or(f64::NAN);
    let losses = Losses {
        drops: count("a_to_b", "queue_full"),
        marks: count("a_to_b", "marked"),
        retransmits: retransmits as f64,
        missed: count("a", "missed") + count("b", "missed"),
    };
    Ok((report, losses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_are_known_by_their_names() {
        for one in CONTENDERS {
            assert_eq!(contender(&one.name()), Ok(one));
        }
        assert!(contender("linux-dctcp").is_err_and(|text| text.contains("towpath-dctcp")));
    }
}
