//! How packets are brought to the reserved CPUs: the first of these that a card offers.

use crate::pool::Pool;
use serde::Serialize;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The card's own table (RSS) names as many queues as there are CPUs, and the queues' interrupts go to one CPU each.
    Rss,
    /// The table stays; the interrupts of all queues go to the CPUs.
    Irq,
    /// There are fewer queues than CPUs: the interrupts go there, and software (RPS) spreads the packets.
    IrqRps,
    /// No interrupt can be moved: packets are polled by threads (NAPI) that are kept on the CPUs.
    Threads,
    /// Software (RPS) passes packets on to the CPUs.
    Rps,
}

impl Way {
    /// All of them, best first.
    pub const ALL: [Self; 5] = [Self::Rss, Self::Irq, Self::IrqRps, Self::Threads, Self::Rps];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rss => "rss",
            Self::Irq => "irq",
            Self::IrqRps => "irq-rps",
            Self::Threads => "threads",
            Self::Rps => "rps",
        }
    }
    /// Of its name.
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
    /// Why this card does not offer it to so many CPUs. `None`: it does.
    pub fn obstacle(self, pool: &Pool, cores: u32) -> Option<&'static str> {
        let card = &pool.interface;
        let interrupts = || match (card.irqs.is_empty(), pool.refused.is_empty()) {
            (true, _) => Some("it has no interrupts that can be moved"),
            (_, false) => Some("an interrupt of it refuses to be moved"),
            _ => None,
        };
        let queues = || (card.receive_queues < cores).then_some("it has fewer receive queues than CPUs were asked for");
        let software = || (!card.rps).then_some("its packets cannot be steered in software");
        match self {
            Self::Rss => {
                let table = card.table.is_none().then_some("it shows no indirection table");
                table.or_else(interrupts).or_else(queues)
            }
            Self::Irq => interrupts().or_else(queues),
            Self::IrqRps => interrupts().or_else(software),
            Self::Threads if !card.threads => Some("the kernel gives it no threads (Linux 6.8, a driver with NAPI)"),
            Self::Threads if !pool.machine.preempts => {
                Some("its threads would keep CPUs for themselves: this kernel does not preempt itself")
            }
            Self::Threads => None,
            Self::Rps => software(),
        }
    }
}
