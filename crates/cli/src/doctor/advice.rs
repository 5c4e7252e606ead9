//! The meaning of each counter of a report, in words, and the remedy.

use towpath_ring::report::Count;

/// The part of a page that a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Accelerated sockets.
    Accelerated,
    /// Sockets of the kernel.
    Kernel,
    /// Other things that Towpath does not carry.
    Used,
}

/// A counter in words: its meaning, and the remedy.
pub fn of(count: Count) -> (Part, &'static str, &'static str) {
    use Part::{Accelerated, Kernel, Used};
    match count {
        Count::ConnectedDirect => (Accelerated, "connected directly", ""),
        Count::ConnectedStack => (Accelerated, "connected by the stack", ""),
        Count::AcceptedDirect => (Accelerated, "accepted directly", ""),
        Count::AcceptedStack => (Accelerated, "accepted by the stack", ""),
        Count::AcceptedKernel => (
            Kernel,
            "accepted by the kernel's half of a listener",
            "from a program without Towpath on this host, or by an interface that is not served",
        ),
        Count::Listening => (Accelerated, "listening", ""),
        Count::Udp => (Kernel, "UDP", "Towpath carries TCP; nothing to do"),
        Count::Unix => (Kernel, "UNIX", "inside this host already; nothing to do"),
        Count::Netlink => (Kernel, "netlink", "nothing to do"),
        Count::Raw => (Kernel, "raw or packet", "Towpath carries TCP; nothing to do"),
        Count::OtherProtocol => (Kernel, "of another protocol", "Towpath carries TCP over IPv4 and IPv6"),
        Count::NoVariable => {
            (Kernel, "without TOWPATH_SOCKET", "start the program with `towpath run`, and keep its environment")
        }
        Count::ServiceAbsent => {
            (Kernel, "without a service", "start one (`towpath serve`), or let `towpath run` do so")
        }
        Count::NotAdmitted => {
            (Kernel, "not admitted", "have the service admit the user: `towpath serve --admit user:NAME`")
        }
        Count::ServiceFull => {
            (Kernel, "service full", "raise `clients_per_user`, or the service's `ulimit -Hn`; its log says which")
        }
        Count::WrongVersion => {
            (Kernel, "versions differ", "install library and service of one version, restart the service")
        }
        Count::ServiceRefused => (Kernel, "refused by the service", "the service's log says why"),
        Count::NoMemory => (
            Kernel,
            "without memory for the region",
            "raise `ulimit -v`, or lower `sockets_per_client`, `send_buffer_max`, `receive_buffer_max` of the service",
        ),
        Count::NoDescriptor => {
            (Kernel, "without a free descriptor", "raise the program's `ulimit -n`: registration needs some eight")
        }
        Count::ServiceGone => (Kernel, "service gone", "start the service again, then the program"),
        Count::NoSlot => (Kernel, "no slot left", "raise `sockets_per_client`"),
        Count::Address => (
            Kernel,
            "address of the kernel's",
            "link-local and multicast addresses are not carried; use another address",
        ),
        Count::NoListener => (
            Kernel,
            "no Towpath listener there",
            "start the server with `towpath run` on the same service; a kernel server stays with the kernel",
        ),
        Count::Elsewhere => (
            Kernel,
            "not on a served interface",
            "serve the interface that the route takes: `towpath serve --interface IF`",
        ),
        Count::Namespace => (
            Kernel,
            "of another network namespace",
            "give the service a stack for it (`[stacks.NAME]` with `netns`), or start one there (`towpath serve --netns NAME`)",
        ),
        Count::Policy => (Kernel, "left to the kernel by policy", "`towpath policy list` has the rule"),
        Count::Firewall => (
            Kernel,
            "refused or translated by the host's firewall",
            "the kernel has the connection, as its rules say: see docs/guide/firewalls.md",
        ),
        Count::IpOptions => (Kernel, "with IP options", "do not set IP_OPTIONS"),
        Count::KernelOption => (
            Kernel,
            "with an option that only the kernel acts on",
            "do not set SO_BINDTODEVICE, IP_LOCAL_PORT_RANGE, TCP_MD5SIG or their like",
        ),
        Count::IoUringRefused => (
            Used,
            "io_uring refused",
            "the program falls back or fails; a program that makes its system calls itself needs `towpath run --hook inject`",
        ),
        Count::IoUringLeft => (Used, "io_uring left to the kernel", "it must not be used with accelerated sockets"),
        Count::IoUringCarried => (Used, "io_uring", "operations on accelerated sockets are carried by the library"),
        Count::AioRefused => (Used, "AIO on a socket refused", "use read and write, or epoll"),
        Count::StackUnreachable => (
            Used,
            "failed for want of the stack that the policy names",
            "`towpath policy list` has the rule; start that stack, and have it admit the user",
        ),
        Count::OwnCalls => (
            Used,
            "libraries loaded at run time, or waits, that make system calls on sockets themselves",
            "their calls on accelerated sockets are not seen, and their waits cost more: `towpath run --hook inject`",
        ),
        Count::NoContext => {
            (Used, "no event context left", "waiting costs more then; use fewer epoll instances in one program")
        }
        Count::EventMissed => (
            Used,
            "events missed, and found a second later",
            "a fault of Towpath's: report it, with the program's name",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_the_kernels_has_a_hint() {
        for count in Count::ALL {
            let (part, what, hint) = of(*count);
            assert!(!what.is_empty() && (part == Part::Accelerated) == hint.is_empty(), "{count:?}");
        }
    }
}
