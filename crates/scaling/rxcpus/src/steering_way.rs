//! The ways to bring packets to the reserved CPUs. The first that a network device offers is the best.

use serde::Serialize;

/// A way to bring packets to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SteeringWay {
    /// The device's table (RSS) names as many queues as there are CPUs. Each queue's interrupt goes to one CPU.
    Rss,
    /// The table stays; the interrupts of all queues go to the CPUs.
    Irq,
    /// There are fewer queues than CPUs: the interrupts go there, and software (RPS) spreads the packets.
    IrqRps,
    /// No interrupt can be moved. NAPI threads on the CPUs poll the packets.
    Threads,
    /// Software (RPS) passes packets on to the CPUs.
    Rps,
}

impl SteeringWay {
    /// All of them, best first.
    pub const ALL: [Self; 5] = [Self::Rss, Self::Irq, Self::IrqRps, Self::Threads, Self::Rps];

    /// The name, as options and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rss => "rss",
            Self::Irq => "irq",
            Self::IrqRps => "irq-rps",
            Self::Threads => "threads",
            Self::Rps => "rps",
        }
    }
    /// The way of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }
    /// For people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Rss => "its table of queues and its interrupts",
            Self::Irq => "its interrupts",
            Self::IrqRps => "its interrupts, and from there by software (RPS)",
            Self::Threads => "threads that poll it (NAPI)",
            Self::Rps => "software (RPS)",
        }
    }
}
