//! The fields of a connection record, independent of the stack that has the connection.

use std::net::SocketAddr;
use std::time::Duration;

/// Most bytes of either queue.
pub const MAX_QUEUE_BYTES: usize = 64 << 20;
/// Greatest shift of a window (RFC 7323 §2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
/// Smallest segment size (Linux's TCP_MIN_MSS).
const MIN_MSS: u16 = 48;
/// Longest name of a congestion control (Linux's TCP_CA_NAME_MAX, without the final zero).
const MAX_CONGESTION_NAME: usize = 15;

/// An established connection. Sequence numbers are those on the wire (RFC 9293 §3.4); window sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Bytes that the application has written and the peer has not acknowledged, from SND.UNA on.
    pub send: Queue,
    /// Bytes of `send` that have been sent: SND.NXT - SND.UNA.
    pub sent: u32,
    /// Bytes that have arrived and the application has not read. RCV.NXT follows them.
    pub receive: Queue,
    /// Flow control.
    pub window: Window,
    /// Largest payload that the peer takes, without options, bytes.
    pub mss: u16,
    /// Snd.Wind.Shift and Rcv.Wind.Shift, if window scaling was agreed on (RFC 7323 §2).
    pub scale: Option<(u8, u8)>,
    /// Selective acknowledgements were agreed on (RFC 2018).
    pub sack: bool,
    /// The timestamp that would be sent now, if timestamps were agreed on (RFC 7323 §3).
    pub timestamp: Option<u32>,
    /// Options of the application.
    pub settings: Settings,
}

/// Bytes of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Sequence number of the first byte.
    pub first: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Queue {
    /// The sequence number after the last byte.
    pub fn end(&self) -> u32 {
        self.first.wrapping_add(self.bytes.len() as u32)
    }
}

/// Flow control of both directions (RFC 9293 §3.3.1), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// SND.WL1.
    pub update: u32,
    /// SND.WND.
    pub send: u32,
    /// The largest SND.WND so far.
    pub largest: u32,
    /// RCV.WND as last announced.
    pub receive: u32,
    /// RCV.NXT at that announcement.
    pub announced_at: u32,
}

/// Socket options. `None` and false mean the default of a fresh socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// TCP_CORK.
    pub corked: bool,
    /// SO_OOBINLINE.
    pub urgent_inline: bool,
    /// SO_KEEPALIVE, with idle time, interval and number of probes.
    pub keepalive: Option<(Duration, Duration, u32)>,
    /// TCP_USER_TIMEOUT.
    pub user_timeout: Option<Duration>,
    /// SO_LINGER.
    pub linger: Option<Duration>,
    /// Sizes of the send and receive buffer, bytes, as Linux counts them.
    pub buffers: Option<(u32, u32)>,
    /// IP_TOS or IPV6_TCLASS.
    pub traffic_class: Option<u8>,
    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub hops: Option<u8>,
    /// TCP_CONGESTION.
    pub congestion: Option<String>,
}

/// Why a record describes no possible connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// One address is IPv4, the other IPv6.
    #[error("the ends are of different families")]
    Families,
    /// An unspecified address or port 0.
    #[error("an end has no address or no port")]
    NoEnd,
    /// More bytes are sent than the queue has.
    #[error("more bytes sent than there are to send")]
    Sent,
    /// A queue is longer than [`MAX_QUEUE_BYTES`].
    #[error("a queue of more than {MAX_QUEUE_BYTES} bytes")]
    Long,
    /// See [`MAX_WINDOW_SCALE`].
    #[error("a window is shifted by more than {MAX_WINDOW_SCALE} bits")]
    Scale,
    /// The segment size is too small.
    #[error("a segment size below {MIN_MSS} bytes")]
    Mss,
    /// A window is larger than the scale can express.
    #[error("a window that the scale cannot express")]
    Window,
    /// Not the name of a congestion control.
    #[error("no name of a congestion control")]
    Congestion,
}

impl ConnectionRecord {
    /// SND.NXT.
    pub fn send_next(&self) -> u32 {
        self.send.first.wrapping_add(self.sent)
    }

    /// RCV.NXT.
    pub fn receive_next(&self) -> u32 {
        self.receive.end()
    }

    /// Checks the record, because records come from outside.
    ///
    /// # Errors
    /// The first impossible value.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.local.is_ipv4() != self.remote.is_ipv4() {
            return Err(Invalid::Families);
        }
        if [self.local, self.remote].iter().any(|end| end.port() == 0 || end.ip().is_unspecified()) {
            return Err(Invalid::NoEnd);
        }
        if self.send.bytes.len().max(self.receive.bytes.len()) > MAX_QUEUE_BYTES {
            return Err(Invalid::Long);
        }
        if self.sent as usize > self.send.bytes.len() {
            return Err(Invalid::Sent);
        }
        if self.scale.is_some_and(|(send, receive)| send.max(receive) > MAX_WINDOW_SCALE) {
            return Err(Invalid::Scale);
        }
        if self.mss < MIN_MSS {
            return Err(Invalid::Mss);
        }
        let (send, receive) = self.scale.unwrap_or_default();
        let most = |shift: u8| u32::from(u16::MAX) << shift;
        if self.window.send > most(send) || self.window.largest > most(send) || self.window.receive > most(receive) {
            return Err(Invalid::Window);
        }
        let named = |name: &String| {
            (1..=MAX_CONGESTION_NAME).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        if self.settings.congestion.as_ref().is_some_and(|name| !named(name)) {
            return Err(Invalid::Congestion);
        }
        Ok(())
    }
}
