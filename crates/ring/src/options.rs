//! The socket options that an application shows the stack: one table, from which the line, its copy and their codec
//! follow.

use crate::command::{consume, publish};
use core::sync::atomic::AtomicU32;

/// The value of an option as the `N` words of the line that hold it.
trait Value<const N: usize>: Sized {
    fn to_words(self) -> [u32; N];
    fn of_words(words: [u32; N]) -> Self;
}

impl Value<1> for u32 {
    fn to_words(self) -> [u32; 1] {
        [self]
    }
    fn of_words([word]: [u32; 1]) -> Self {
        word
    }
}

impl Value<1> for i32 {
    fn to_words(self) -> [u32; 1] {
        [self.cast_unsigned()]
    }
    fn of_words([word]: [u32; 1]) -> Self {
        word.cast_signed()
    }
}

impl Value<2> for u64 {
    fn to_words(self) -> [u32; 2] {
        [self as u32, (self >> 32) as u32]
    }
    fn of_words([low, high]: [u32; 2]) -> Self {
        Self::from(high) << 32 | Self::from(low)
    }
}

/// Makes the line and its copy of `option: type in [words]`. The words stand in the line in this order, behind `seq`.
macro_rules! options {
    ($($(#[$about:meta])* $option:ident: $type:ident in [$($word:ident),+];)*) => {
        /// The socket options that the stack has to know. 0 = the stack's default, unless said otherwise. The
        /// application writes the line and publishes it like a command, `seq` last. The stack looks at it with every
        /// command, and whenever the slot stands in the command queue.
        #[repr(C, align(64))]
        #[derive(Default)]
        pub struct OptionsLine {
            /// Changes with every change of the others; never 0 when something is set.
            pub seq: AtomicU32,
            $($(
                #[doc = concat!("Holds [`Options::", stringify!($option), "`].")]
                pub $word: AtomicU32,
            )+)*
            _reserved: [u32; 5],
        }

        /// The options of an [`OptionsLine`], copied once (unchecked).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Options {
            $($(#[$about])* pub $option: $type,)*
        }

        impl OptionsLine {
            /// Application: shows the stack these options from now on.
            pub fn post(&self, options: &Options) {
                $(let [$($word),+] = options.$option.to_words();)*
                publish(&self.seq, self.words(), [$($($word),+),*]);
            }

            /// Copies the options once, with their sequence number (0 = none were ever set). If the application changes
            /// them meanwhile, the copy is a mixture of old and new. The application notifies again then.
            pub fn read(&self) -> (u32, Options) {
                let (seq, [$($($word),+),*]) = consume(&self.seq, self.words());
                (seq, Options { $($option: $type::of_words([$($word),+]),)* })
            }

            /// All words but `seq`, in their order.
            pub(crate) fn words(&self) -> [&AtomicU32; WORDS] {
                [$($(&self.$word),+),*]
            }
        }

        /// Words of the line beside `seq`.
        pub(crate) const WORDS: usize = [$($(stringify!($word)),+),*].len();
    };
}

options! {
    /// [`option_flags`] bits.
    flags: u32 in [flags];
    /// `TCP_KEEPIDLE`, s.
    keep_idle_s: u32 in [keep_idle_s];
    /// `TCP_KEEPINTVL`, s.
    keep_interval_s: u32 in [keep_interval_s];
    /// `TCP_KEEPCNT`.
    keep_count: u32 in [keep_count];
    /// `TCP_USER_TIMEOUT`, ms.
    user_timeout_ms: u32 in [user_timeout_ms];
    /// `TCP_MAXSEG`, bytes.
    max_segment: u32 in [max_segment];
    /// `IP_TOS`: of IPv4 packets.
    tos: u32 in [tos];
    /// `IP_TTL`: of IPv4 packets.
    ttl: u32 in [ttl];
    /// `TCP_CONGESTION`: one of [`congestion`](crate::lines::congestion).
    congestion: u32 in [congestion];
    /// `TCP_SYNCNT`.
    syn_retries: u32 in [syn_retries];
    /// `TCP_LINGER2`, s; negative = no FIN-WAIT-2 at all.
    linger2_s: i32 in [linger2_s];
    /// `TCP_DEFER_ACCEPT`, s.
    defer_accept_s: u32 in [defer_accept_s];
    /// `SO_MAX_PACING_RATE` in bytes per second, in the line its low 32 bits first; 0 = no limit.
    max_pacing: u64 in [pacing_low, pacing_high];
    /// `IPV6_TCLASS`: of IPv6 packets.
    tclass: u32 in [tclass];
    /// `IPV6_UNICAST_HOPS`: of IPv6 packets.
    hops: u32 in [hops];
    /// `SO_SNDBUF` as it reads (Linux doubles what is asked for), bytes; 0 = not asked for.
    send_buffer: u32 in [send_buffer];
    /// `SO_RCVBUF`, as `send_buffer`.
    receive_buffer: u32 in [receive_buffer];
    /// `TCP_NOTSENT_LOWAT`, bytes. This option and those below matter only to a stack that has sockets of a kernel.
    not_sent_low_water: u32 in [not_sent_low_water];
    /// `TCP_WINDOW_CLAMP`, bytes.
    window_clamp: u32 in [window_clamp];
    /// `IP_MTU_DISCOVER` or `IPV6_MTU_DISCOVER`, its lowest bit inverted, so that 0 is Linux's default.
    path_mtu_discovery: u32 in [path_mtu_discovery];
    /// `IP_MINTTL` or `IPV6_MINHOPCOUNT`.
    least_hops: u32 in [least_hops];
    /// `TCP_FASTOPEN` of a listener.
    fast_open: u32 in [fast_open];
    /// `TCP_TX_DELAY`, µs.
    send_delay_us: u32 in [send_delay_us];
    /// `SO_PRIORITY`. A value above 6 counts for root's applications only.
    priority: u32 in [priority];
    /// `SO_MARK`, for root's applications only.
    mark: u32 in [mark];
}

const _: () = assert!(size_of::<OptionsLine>() == 128);

/// Bits of [`OptionsLine::flags`].
pub mod option_flags {
    /// `SO_KEEPALIVE`.
    pub const KEEPALIVE: u32 = 1;
    /// `IP_RECVERR`: soft errors of connections over IPv4 are reported
    /// ([`StackLine::soft_error`](crate::StackLine::soft_error)).
    pub const RECVERR: u32 = 2;
    /// `IPV6_RECVERR`: those of connections over IPv6.
    pub const RECVERR_SIX: u32 = 4;
    /// `SO_REUSEPORT`: listeners that all have it share a port.
    pub const REUSEPORT: u32 = 8;
    /// `SO_DONTROUTE`.
    pub const DONTROUTE: u32 = 16;
    /// `TCP_THIN_LINEAR_TIMEOUTS`.
    pub const THIN: u32 = 32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_is_read() {
        let options = Options {
            flags: option_flags::KEEPALIVE,
            linger2_s: -1,
            max_pacing: 1 << 40 | 7,
            mark: 9,
            ..Options::default()
        };
        let line = OptionsLine::default();
        assert_eq!(line.read(), (0, Options::default()));
        line.post(&options);
        assert_eq!(line.read(), (1, options));
    }
}
