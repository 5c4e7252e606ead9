//! What a run of all benchmarks consists of: one command per shape, so that each figure has its own noise and command.

/// One command.
#[derive(Clone, Debug)]
pub struct Planned {
    /// `echo`, `direct` and so on.
    pub benchmark: &'static str,
    /// What chooses the shape.
    pub arguments: Vec<String>,
    /// `None`: the command takes no rounds.
    pub rounds: Option<usize>,
    /// Measured seconds of one run.
    pub seconds: f64,
    /// Runs in a round.
    pub runs: f64,
    /// Seconds that a run takes besides.
    pub besides: f64,
    /// Seconds that the command takes before the first run.
    pub before: f64,
}

/// How long the benchmarks may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds over a wire and on the same host.
    pub rounds: usize,
    /// Measured seconds of one run.
    pub seconds: f64,
    /// CPUs of the machine.
    pub cpus: usize,
}

const ECHO: [&str; 6] = ["c1-d1", "c16-d1", "c64-d1", "c1000-d1", "c1-d32", "c16-d32"];
const REDIS: [&str; 4] = ["get-c50-P1", "set-c50-P1", "get-c50-P16", "set-c50-P16"];
const CONNECTIONS: [&str; 2] = ["rpc-32", "rpc-1"];
const BULK: [&str; 2] = ["receive", "send"];
/// Shapes of requests with work, over two stacks each.
const WORKS: f64 = 16.0;
/// With the number of ways: only programs of ours can spin.
const DIRECT: [(&str, f64); 9] = [
    ("ping-pong-64B", 5.0),
    ("ping-pong-1KB", 5.0),
    ("echo-64B-c64", 4.0),
    ("rpc-per-connection", 5.0),
    ("redis-get-c50-P1", 4.0),
    ("redis-get-c50-P16", 4.0),
    ("bulk", 4.0),
    ("nginx-wrk-c32", 4.0),
    ("memcached-get-c50", 4.0),
];
/// Bytes of a send. 0: a request's time.
const SENDS: [usize; 6] = [64, 256, 1448, 16 << 10, 64 << 10, 0];

impl Planned {
    fn new(benchmark: &'static str, arguments: &[&str], (effort, runs): (Effort, f64)) -> Self {
        Self {
            benchmark,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            rounds: Some(effort.rounds),
            seconds: effort.seconds,
            runs,
            besides: 0.7,
            before: 0.5,
        }
    }

    /// The command that measures it alone.
    pub fn command(&self) -> String {
        ["towpath bench", self.benchmark]
            .into_iter()
            .chain(self.arguments.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// All arguments behind `towpath bench`.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.benchmark.to_owned(), "--json".to_owned()];
        words.extend(self.arguments.iter().cloned());
        if let Some(rounds) = self.rounds {
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
            words.extend(["--seconds".to_owned(), self.seconds.to_string()]);
        }
        words
    }

    /// Seconds that it takes, about.
    pub fn estimate(&self) -> f64 {
        self.before + self.rounds.unwrap_or(1) as f64 * self.runs * (self.seconds + self.besides)
    }
}

/// All commands, in the order of the report.
pub fn plan(effort: Effort) -> Vec<Planned> {
    // Their ways differ by more than rounds do, and there are many of them.
    let fewer = Effort { rounds: effort.rounds.div_ceil(2).min(3), ..effort };
    let shape = |benchmark, shape, runs| Planned::new(benchmark, &["--shape", shape], (effort, runs));
    let mut plan: Vec<Planned> = ECHO.into_iter().map(|name| shape("echo", name, 2.0)).collect();
    plan.extend(REDIS.into_iter().map(|name| Planned { besides: 0.4, ..shape("redis", name, 2.0) }));
    // A second has thousands of connections.
    let short = |name, effort: Effort| {
        Planned::new("connections", &["--shape", name], (Effort { seconds: effort.seconds / 2.0, ..effort }, 2.0))
    };
    plan.extend(CONNECTIONS.into_iter().map(|name| short(name, effort)));
    plan.push(short("connect", fewer));
    plan.extend(BULK.into_iter().map(|name| Planned { besides: 0.5, ..shape("bulk", name, 2.0) }));
    plan.push(Planned { besides: 0.6, before: 3.0, ..Planned::new("splice", &[], (effort, 2.0)) });
    // Each stack's server is measured four times.
    let brief = Effort { seconds: effort.seconds / 2.0, ..effort };
    plan.push(Planned { besides: 0.3, ..Planned::new("capture", &[], (brief, 8.0)) });
    // Before the rounds, twice as many connections are opened.
    let half = Effort { seconds: effort.seconds / 2.0, ..effort };
    plan.push(Planned { besides: 0.2, before: 35.0, ..Planned::new("many", &[], (half, 4.0)) });
    // The transfer begins before the flood, and the flood ends after what is measured.
    plan.push(Planned { besides: 1.8, ..Planned::new("flood", &[], (effort, 2.0)) });
    // Its own rounds. The connections take the time, and the wait until all of them are idle.
    plan.push(Planned { rounds: None, seconds: 35.0, ..Planned::new("memory", &[], (effort, 1.0)) });
    // A round measures two rates and then three loads over each stack.
    plan.push(Planned { besides: 0.5, ..Planned::new("latency", &[], (effort, 8.0)) });
    plan.push(Planned {
        besides: 0.4,
        ..Planned::new("work", &[], (Effort { seconds: effort.seconds / 2.0, ..fewer }, WORKS))
    });
    plan.extend(DIRECT.into_iter().map(|(name, ways)| Planned { besides: 0.5, ..shape("direct", name, ways) }));
    let sends = SENDS.map(|bytes| Planned::new("offload", &["--bytes", &bytes.to_string()], (fewer, 7.0)));
    plan.extend(sends.map(|planned| Planned { besides: 0.2, ..planned }));
    for (part, ways, besides) in [("sendfile", 4.0, 0.5), ("tls", 3.0, 2.5)] {
        let files = Planned::new("offload", &["--only", part], (fewer, ways));
        plan.push(Planned { besides, before: 2.0, ..files });
    }
    // Each doubling of CPUs adds Linux and one more split.
    let doublings = (effort.cpus / 2).max(1).ilog2();
    let arms = (0..=doublings).map(|power| 1 + power.max(1)).sum::<u32>();
    plan.push(Planned { besides: 1.5, ..Planned::new("throughput", &[], (fewer, f64::from(arms))) });
    plan.push(Planned { rounds: None, seconds: 40.0, ..Planned::new("modules", &["--no-splicing"], (effort, 1.0)) });
    plan.push(Planned { rounds: None, seconds: 30.0, ..Planned::new("instructions", &[], (effort, 1.0)) });
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_bench_report::{figures, recorded};

    const DEFAULT: Effort = Effort { rounds: 7, seconds: 1.0, cpus: 2 };

    #[test]
    fn every_figure_is_measured_or_recorded() {
        let plan = plan(DEFAULT);
        for figure in figures::all() {
            let shape = plan.iter().find(|planned| {
                let named = planned.arguments.iter().any(|word| word == "--shape");
                planned.benchmark == figure.benchmark
                    && (!named || planned.arguments.iter().any(|word| word == figure.shape))
            });
            let recorded = recorded::FILES.iter().any(|(benchmark, ..)| *benchmark == figure.benchmark);
            assert!(shape.is_some() || recorded, "{figure:?}");
        }
    }

    #[test]
    fn all_of_it_takes_24_minutes_at_most() {
        let seconds: f64 = plan(DEFAULT).iter().map(Planned::estimate).sum();
        assert!(seconds < 24.0 * 60.0, "{seconds} s");
    }

    #[test]
    fn a_command_is_what_a_person_would_type() {
        let plan = plan(DEFAULT);
        assert_eq!(plan[0].command(), "towpath bench echo --shape c1-d1");
        assert_eq!(plan[0].words().join(" "), "echo --json --shape c1-d1 --rounds 7 --seconds 1");
        let last = plan.last().map(|planned| planned.words().join(" "));
        assert_eq!(last.as_deref(), Some("instructions --json"));
    }
}
