//! What a figure of the report is: a shape, how it is judged, and what limits it.

/// A section of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Two network namespaces and a veth.
    Wire,
    /// Two programs of one host.
    Host,
    /// The kernel's own TCP behind rings.
    KernelStack,
    /// How CPUs are used.
    Cores,
    /// Programs of an operator's own on each frame.
    Modules,
    /// Counted, not timed.
    Instructions,
}

impl Section {
    /// In the order of the report.
    pub const ALL: [Self; 6] =
        [Self::Wire, Self::Host, Self::KernelStack, Self::Cores, Self::Modules, Self::Instructions];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Wire => "Over a wire",
            Self::Host => "On the same host",
            Self::KernelStack => "The kernel stack",
            Self::Cores => "Cores",
            Self::Modules => "Modules",
            Self::Instructions => "Instructions",
        }
    }

    /// What a reader has to know of all figures in it.
    pub fn about(self) -> &'static str {
        match self {
            Self::Wire => {
                "Two network namespaces and a veth. The server side is on CPU 0 with Towpath's core, the client is plain Linux on \
                 CPU 1. All ends sleep while they wait, and Towpath's core spins for a while first. Receive packet \
                 steering (RPS) keeps the receive work of both on CPU 0, so it is in the server's CPU time."
            }
            Self::Host => {
                "Server on CPU 0, client on CPU 1. Linux has three ways, and the best of each round counts. Both ends sleep. Or \
                 both spin, which only programs of ours can. Or both share CPU 0, where no other CPU is woken. Towpath's ends \
                 spin for a while before they sleep."
            }
            Self::KernelStack => {
                "One program sends to plain Linux over a veth. Linux has four ways (Nagle's algorithm or not, pinned or free), and \
                 the best of each round counts. Apart: program on CPU 0, kernel stack and other end on CPU 1. Free: all on any \
                 CPU. The kernel stack's thread polls for answers, and Linux's program sleeps."
            }
            Self::Cores => {
                "64 bytes there and back over a veth. Linux's program has all CPUs of the server's side, and Towpath's cores and \
                 program share them. Receive CPUs are CPUs of their own for the kernel's receive path: as many as the scaling \
                 policy chooses. Linux does the same work on all CPUs (RPS). How a service's cores follow the load is no ratio: \
                 `towpath bench cores`, docs/figures/cores.svg."
            }
            Self::Modules => {
                "What a module adds to a received frame of 130 bytes, in turns of 64 frames, beside the kernel's own run of the same \
                 program (BPF_PROG_TEST_RUN), which is repeated on one frame without a network stack."
            }
            Self::Instructions => {
                "Counted by callgrind for a 64-byte request, in the stages of the fast path, in a core's whole turns, in the \
                 library or in the native API. They hardly depend on the machine's load. A growth over the recorded counts fails the \
                 run. Linux's path has no such count."
            }
        }
    }
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests per second.
    Requests,
    /// Bytes per second.
    Bytes,
    /// Bits per second.
    Bits,
    /// Mbit/s.
    Mbit,
    /// µs.
    Us,
    /// ns.
    Ns,
    /// ms of CPU time for 10⁹ bytes.
    MsPerGb,
    /// Bytes of memory.
    Memory,
    /// A part of another value, in percent.
    Share,
    /// A plain number.
    Number,
}

/// Which value of a row is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its key in the rows.
    pub key: &'static str,
    /// The key of its ratio to Linux, in rows that keep no rounds.
    pub ratio: &'static str,
    /// How it is written.
    pub unit: Unit,
    /// Higher is better.
    pub higher: bool,
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Nothing.
    None,
    /// At least (or, if less is better, at most) so much of Linux's.
    Ratio(f64),
    /// At most this value, in the metric's unit.
    AtMost(f64),
    /// At least this value, in the metric's unit.
    AtLeast(f64),
}

/// One row of the report.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Where it stands.
    pub section: Section,
    /// What is measured, for people.
    pub what: &'static str,
    /// The benchmark that measures it.
    pub benchmark: &'static str,
    /// The shape of its rows.
    pub shape: &'static str,
    /// Towpath's way in these rows. Linux's ways begin with `linux`.
    pub way: &'static str,
    /// What is compared.
    pub metric: Metric,
    /// What is aimed at.
    pub target: Target,
    /// What limits it now, as far as it has been examined.
    pub limit: &'static str,
}

/// A group of figures with all but a few things in common.
#[derive(Clone, Copy)]
pub struct Kind {
    /// See [`Figure`].
    pub section: Section,
    /// See [`Figure`].
    pub benchmark: &'static str,
    /// See [`Figure`].
    pub way: &'static str,
    /// See [`Figure`].
    pub metric: Metric,
}

impl Kind {
    /// A figure of this kind.
    pub const fn figure(self, what: &'static str, shape: &'static str, target: Target, limit: &'static str) -> Figure {
        let Self { section, benchmark, way, metric } = self;
        Figure { section, what, benchmark, shape, way, metric, target, limit }
    }

    /// The same kind of figures of another way.
    pub const fn by(self, way: &'static str) -> Self {
        Self { way, ..self }
    }
}
