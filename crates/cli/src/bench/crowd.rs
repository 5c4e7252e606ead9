//! Many real connections from one namespace into another through `towpath-relay`, as one slow switch port with a queue and ECN marks: Linux and
//! Towpath with several congestion controls in turn.

use super::measure::quantile;
use super::wire::{Place, RECEIVER, Wire};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;

/// What `towpath bench fairness` and `incast` have in common.
#[derive(Args)]
pub struct Crowd {
    /// One JSON object per row instead of the tables.
    #[arg(long)]
    pub json: bool,
    /// Only one half: real flows through the relay (root), or the simulated rack (anybody).
    #[arg(long)]
    pub only: Option<Half>,
    /// Relay: rounds; in each all contenders have their turn.
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
    /// Relay: marks beyond so many bytes waiting.
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

impl Crowd {
    /// Is this half wanted?
    pub fn wants(&self, half: Half) -> bool {
        self.only.is_none_or(|only| only == half)
    }

    /// Who takes part.
    pub fn contenders(&self) -> Vec<Contender> {
        if self.who.is_empty() { CONTENDERS.to_vec() } else { self.who.clone() }
    }

    /// The bottleneck, for a heading.
    pub fn path(&self) -> String {
        let Self { mbit, delay, queue, mark, rounds, .. } = self;
        format!(
            "{mbit} Mbit/s, {delay} each way, queue {queue}, marks beyond {mark}, {rounds} interleaved rounds; Linux has no DCTCP here"
        )
    }
}

/// A stack with a congestion control as sender. The receiver is Linux, but for DCTCP, whose echo Linux' receiver has only where it has
/// DCTCP itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Contender {
    /// `linux` or `towpath`.
    pub stack: &'static str,
    /// Congestion control.
    pub cc: &'static str,
    /// Does it use ECN?
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
    /// Its name: `linux-cubic-ecn`. That DCTCP uses ECN goes without saying.
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

/// What a run has come to, beside what the receiving program reports.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Losses {
    /// Frames that the bottleneck's queue dropped.
    pub drops: f64,
    /// Frames that it marked.
    pub marks: f64,
    /// Segments sent again.
    pub retransmits: f64,
    /// Frames that the relay was too slow to see: the machine is the limit, not the path.
    pub missed: f64,
}

impl Losses {
    /// The middle of some runs, each count for itself.
    pub fn median(runs: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| quantile(&runs.iter().map(field).collect::<Vec<f64>>(), 0.5);
        Self {
            drops: of(|run| run.drops),
            marks: of(|run| run.marks),
            retransmits: of(|run| run.retransmits),
            missed: of(|run| run.missed),
        }
    }
}

/// One run: `connections` senders of blocks of `bytes` (0 = without end) and a receiver with these words and flags, which says how it went.
pub fn run(
    wire: &Wire,
    options: &Crowd,
    contender: &Contender,
    (connections, bytes): (u32, u64),
    (role, flags): (&str, &[String]),
) -> io::Result<(Value, Losses)> {
    let Crowd { mbit, delay, queue, mark, .. } = options;
    let (rate, at) = (format!("{mbit}mbit"), format!("{RECEIVER}:9004"));
    let path = ["--rate", &rate, "--delay", delay, "--queue", queue, "--mark", mark];
    let relay = wire.relay(&path)?;
    let ours = contender.stack == "towpath";
    if !ours {
        wire.kernel(contender.cc, contender.ecn)?;
    }
    // A service (and its XDP program, which changes the veth's offloads) exists only while it is measured.
    let config = format!("congestion = \"{}\"\necn = {}\n", contender.cc, if contender.ecn { 1 } else { 0 });
    let sending = if ours { Some(wire.serve(Place::Sender, &config)?) } else { None };
    let both = ours && contender.cc == "dctcp";
    let receiving = if both { Some(wire.serve(Place::Receiver, &config)?) } else { None };

    let before = wire.retransmitted()?;
    let many = ["--connections".to_owned(), connections.to_string()];
    let words = [&[role.to_owned(), at.clone()], &many[..], flags].concat();
    let mut receiver = wire.start(wire.rpc(Place::Receiver, receiving.as_ref(), &words)?, "receiver.log", "ready")?;
    let words = [&["senders".to_owned(), at], &many[..], &["--bytes".to_owned(), bytes.to_string()]].concat();
    let senders = wire.start(wire.rpc(Place::Sender, sending.as_ref(), &words)?, "senders.log", "")?;
    receiver.wait_end(240.0)?;
    let retransmits = match &sending {
        Some(under) => under.retransmitted()?,
        None => wire.retransmitted()? - before,
    };
    drop((senders, receiver, sending, receiving, relay));
    let report = wire.last_json("receiver.log").map_err(|error| {
        let said = std::fs::read_to_string(wire.dir.join("senders.log")).unwrap_or_default();
        io::Error::other(format!("{}: {error}{said}", contender.name()))
    })?;
    let books = wire.last_json("relay.log")?;
    let count = |way: &str, name: &str| books[way][name].as_f64().unwrap_or(f64::NAN);
    let losses = Losses {
        drops: count("a_to_b", "queue_full"),
        marks: count("a_to_b", "marked"),
        retransmits: retransmits as f64,
        missed: count("a", "missed") + count("b", "missed"),
    };
    Ok((report, losses))
}

/// Runs every contender in every round; `done` gets the runs of one contender, in the order of contenders.
pub fn rounds(
    options: &Crowd,
    what: &str,
    mut one: impl FnMut(&Contender) -> io::Result<(Value, Losses)>,
) -> io::Result<Vec<(Contender, Vec<Value>, Losses)>> {
    let mut runs: Vec<_> = options.contenders().into_iter().map(|who| (who, Vec::new(), Vec::new())).collect();
    for round in 0..options.rounds.max(1) {
        for (who, reports, losses) in &mut runs {
            eprint!("\r{what}: round {} of {}, {:20}", round + 1, options.rounds, who.name());
            let (report, lost) = one(who)?;
            reports.push(report);
            losses.push(lost);
        }
    }
    eprint!("\r{:70}\r", "");
    Ok(runs.into_iter().map(|(who, reports, losses)| (who, reports, Losses::median(&losses))).collect())
}

/// Prints a row as JSON; true if that was asked for.
pub fn as_json(wanted: bool, row: &impl Serialize) -> bool {
    if wanted && let Ok(text) = serde_json::to_string(row) {
        println!("{text}");
    }
    wanted
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
