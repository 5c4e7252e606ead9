//! The `towpath-impair` command.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use towpath_impair::relay::{self, Report, Setup};
use towpath_impair::{Burst, Impairments, Reorder, units};

/// Relays Ethernet frames between two interfaces and impairs them as a bad network does, decided by a seed.
#[derive(Parser)]
#[command(
    name = "towpath-impair",
    version,
    arg_required_else_help = true,
    after_help = "\
Impairments apply in this order: loss and burst loss; duplication; the bottleneck's queue (tail drop, ECN mark) and corruption;
the bottleneck's rate; delay and jitter, which keep the order; reordering. Each cause has its own random stream: a seed decides
whether the n-th frame is lost, independent of the other options.

The interfaces should have no addresses: the relay is a wire, not a host. Like a network card, it cuts super-frames and
completes partial checksums.

Examples:
  A slow path with 1 % loss between two namespaces a and b (as root):
    ip netns add a; ip netns add b
    ip link add wire-a type veth peer name eth1 netns a
    ip link add wire-b type veth peer name eth1 netns b
    ip link set wire-a up; ip link set wire-b up
    ip -n a addr add 10.77.0.1/24 dev eth1; ip -n a link set eth1 up
    ip -n b addr add 10.77.0.2/24 dev eth1; ip -n b link set eth1 up
    towpath-impair --a wire-a --b wire-b --loss 1% --delay 10ms --rate 50mbit --queue 256k

  Impair only frames from A:
    towpath-impair --a wire-a --b wire-b --loss 2% --delay 5ms --one-way
  Bursts of 5 frames on average, one every 500 frames; 3 % delayed by 2 ms more:
    towpath-impair --a wire-a --b wire-b --burst 0.2%:5 --reorder 3%:2ms
  A data centre's switch port that marks beyond 100 KiB (RFC 8257):
    towpath-impair --a wire-a --b wire-b --rate 1gbit --queue 1m --mark 100k

SIGUSR1 prints the counters per cause, and so does the end (SIGINT, SIGTERM). `ready` is printed when frames are relayed.
Exit codes: 0 ended by a signal; 1 failed; 2 wrong command line."
)]
struct Arguments {
    /// First interface
    #[arg(long, value_name = "IF")]
    a: String,
    /// Second interface
    #[arg(long, value_name = "IF")]
    b: String,
    /// Share of frames lost independently
    #[arg(long, value_name = "SHARE", value_parser = units::share, default_value = "0%")]
    loss: u32,
    /// Loss in bursts (Gilbert-Elliott): probability per frame that one begins, mean length in frames [, share lost
    /// within]
    #[arg(long, value_name = "ENTER:LENGTH[:LOSS]")]
    burst: Option<Burst>,
    /// Share of frames duplicated
    #[arg(long, value_name = "SHARE", value_parser = units::share, default_value = "0%")]
    duplicate: u32,
    /// Share of frames in which up to three bits flip
    #[arg(long, value_name = "SHARE", value_parser = units::share, default_value = "0%")]
    corrupt: u32,
    /// Bottleneck, such as 100mbit; frames count with their Ethernet header
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<u64>,
    /// Size of the bottleneck's queue
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "256k", requires = "rate")]
    queue: u64,
    /// Mark ECN-capable packets CE that find more than this many bytes in the queue
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, requires = "rate")]
    mark: Option<u64>,
    /// Propagation delay, each way
    #[arg(long, value_name = "TIME", value_parser = units::time, default_value = "0ms")]
    delay: u64,
    /// Most additional delay per frame; the order is kept
    #[arg(long, value_name = "TIME", value_parser = units::time, default_value = "0ms")]
    jitter: u64,
    /// Share of frames delayed more so that others overtake them, and by how much
    #[arg(long, value_name = "SHARE:TIME")]
    reorder: Option<Reorder>,
    /// Only frames from A to B are lost, duplicated, corrupted and reordered; rate, queue, delay and jitter apply both
    /// ways
    #[arg(long)]
    one_way: bool,
    /// Seed of every decision
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Counters as one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn impairments(&self) -> [Impairments; 2] {
        let there = Impairments {
            loss_ppm: self.loss,
            burst: self.burst,
            duplicate_ppm: self.duplicate,
            corrupt_ppm: self.corrupt,
            rate_bits_per_s: self.rate,
            queue_bytes: self.queue,
            mark_bytes: self.mark,
            delay_ns: self.delay,
            jitter_ns: self.jitter,
            reorder: self.reorder,
        };
        if !self.one_way {
            return [there, there];
        }
        let back = Impairments { loss_ppm: 0, burst: None, duplicate_ppm: 0, corrupt_ppm: 0, reorder: None, ..there };
        [there, back]
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let setup =
        Setup { interfaces: [&arguments.a, &arguments.b], impairments: arguments.impairments(), seed: arguments.seed };
    let say = |text: String| {
        // A closed standard output does not stop the relay.
        let _ = writeln!(std::io::stdout(), "{text}");
    };
    let ready = || say(if arguments.json { r#"{"ready":true}"#.into() } else { "ready".into() });
    match relay::run(&setup, ready, |report| say(page(report, arguments.json))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("towpath-impair: {error}");
            ExitCode::FAILURE
        }
    }
}

fn page(report: &Report, json: bool) -> String {
    let value = serde_json::to_value(report).unwrap_or_default();
    if json {
        return value.to_string();
    }
    let mut out = String::new();
    for (title, key) in [("A to B", "a_to_b"), ("B to A", "b_to_a"), ("A's socket", "a"), ("B's socket", "b")] {
        let counters = value[key].as_object().into_iter().flatten();
        let words: Vec<String> =
            counters.filter(|(_, n)| n.as_u64() != Some(0)).map(|(name, n)| format!("{name} {n}")).collect();
        if !words.is_empty() {
            out += &format!("{title}: {}\n", words.join(", "));
        }
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_its_examples_are_accepted() {
        Arguments::command().debug_assert();
        let help = Arguments::command().get_after_help().unwrap().to_string();
        let examples: Vec<&str> = help.lines().map(str::trim).filter(|l| l.starts_with("towpath-impair --")).collect();
        assert!(examples.len() >= 4);
        for line in examples {
            assert!(Arguments::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
        }
    }

    #[test]
    fn one_way_spares_what_comes_back_but_not_its_delay() {
        let line = "towpath-impair --a x --b y --loss 1% --delay 5ms --rate 10mbit --one-way";
        let [there, back] = Arguments::try_parse_from(line.split_whitespace()).unwrap().impairments();
        assert_eq!((there.loss_ppm, back.loss_ppm), (10_000, 0));
        assert_eq!((back.delay_ns, back.rate_bits_per_s), (5_000_000, Some(10_000_000)));
    }
}
