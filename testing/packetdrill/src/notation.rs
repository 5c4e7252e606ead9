//! Segments in packetdrill's notation: `[ect0] P. 1:1001(1000) ack 1 win 257 urg 3 <nop,nop,TS val 1 ecr 2>`.

use std::fmt::{self, Display, Formatter};

/// FIN.
pub const FIN: u8 = 1;
/// SYN.
pub const SYN: u8 = 2;
/// RST.
pub const RST: u8 = 4;
/// ACK.
pub const ACK: u8 = 16;
/// URG.
pub const URG: u8 = 32;
/// The letters of the flag bits, in the order in which packetdrill writes them.
pub const LETTERS: [(char, u8); 8] =
    [('F', FIN), ('S', SYN), ('R', RST), ('P', 8), ('.', ACK), ('U', URG), ('E', 64), ('W', 128)];

/// Ports in a line of the script (`33000>8080` for inbound lines: remote first); `None` = the connection of the
/// previous line.
pub type Endpoint = Option<(u16, u16)>;

/// One TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// End of list.
    End,
    /// Padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks.
    Sack(Vec<(u32, u32)>),
    /// Timestamps.
    Timestamps {
        /// TSval.
        value: u32,
        /// TSecr.
        echo: u32,
    },
    /// Any other, by kind and body.
    Other(u8, Vec<u8>),
    /// Bytes that need not be an option.
    Raw(Vec<u8>),
}

/// One TCP segment, from a script or from the wire, in the script's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Type of service; `None` = not compared (outbound) or 0 (inbound).
    pub tos: Option<u8>,
    /// Compare only the ECN bits of `tos`?
    pub ecn_only: bool,
    /// Time to live; `None` = not compared (outbound) or 64 (inbound).
    pub ttl: Option<u8>,
    /// Flag bits.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Window field of the header.
    pub win: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options in their order; `None` = any (`<...>`).
    pub options: Option<Vec<TcpOption>>,
}

impl Segment {
    /// Is this flag set?
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Display for TcpOption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("eol"),
            Self::Nop => f.write_str("nop"),
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::WindowScale(shift) => write!(f, "wscale {shift}"),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            Self::Timestamps { value, echo } => write!(f, "TS val {value} ecr {echo}"),
            Self::Other(kind, body) => {
                write!(f, "kind {kind} 0x")?;
                body.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Raw(bytes) => {
                f.write_str("raw 0x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl Display for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const ECN: [&str; 4] = ["noecn", "ect1", "ect0", "ce"];
        match self.tos {
            Some(tos) if self.ecn_only => write!(f, "[{}] ", ECN[usize::from(tos & 3)])?,
            Some(tos) => write!(f, "[tos {tos:#04x}] ")?,
            None => {}
        }
        if let Some(ttl) = self.ttl {
            write!(f, "[ttl {ttl}] ")?;
        }
        if self.flags == 0 {
            f.write_str("-")?;
        }
        for (letter, bit) in LETTERS {
            if self.has(bit) {
                write!(f, "{letter}")?;
            }
        }
        write!(f, " {}:{}({})", self.seq, self.seq.wrapping_add(self.len), self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(win) = self.win {
            write!(f, " win {win}")?;
        }
        if let Some(urgent) = self.urgent {
            write!(f, " urg {urgent}")?;
        }
        match &self.options {
            None => f.write_str(" <...>"),
            Some(options) if options.is_empty() => Ok(()),
            Some(options) => {
                let list: Vec<String> = options.iter().map(ToString::to_string).collect();
                write!(f, " <{}>", list.join(","))
            }
        }
    }
}
