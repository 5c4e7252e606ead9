//! The reasons why a frame is rejected.

/// Why a frame is not a TCP segment for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than its headers say.
    #[error("the frame is shorter than its headers say")]
    Truncated,
    /// Not IP, not TCP, a fragment, or an IPv6 extension header that only a router or the kernel handles.
    #[error("not an unfragmented TCP segment")]
    NotTcp,
    /// IPv4 header checksum wrong.
    #[error("the IPv4 header checksum is wrong")]
    IpChecksum,
    /// Header length, data offset or option length impossible; or an IPv4 source route.
    #[error("a header or option length is impossible")]
    BadHeader,
    /// Source = destination address and port (LAND), or the source is broadcast, multicast, unspecified or IPv4-mapped.
    #[error("the source address cannot be a peer's")]
    BadSource,
}
