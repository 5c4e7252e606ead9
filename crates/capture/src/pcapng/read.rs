//! Reads what [`super::Writer`] writes. Unknown blocks and options are skipped; a file that was cut off ends there.

use super::{BYTE_ORDER, INTERFACE, Interface, PACKET, Packet, SECTION, STATISTICS, option};

/// A file's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The program that wrote it.
    pub application: String,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its frames.
    pub packets: Vec<Packet>,
    /// By interface: frames seen, and lost.
    pub statistics: Vec<(u32, u64, u64)>,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It does not begin as such a file does.
    #[error("no little-endian pcapng file")]
    Format,
    /// The block at this offset contradicts itself.
    #[error("the block at byte {0} contradicts itself")]
    Block(usize),
}

/// Reads a file.
pub fn read(bytes: &[u8]) -> Result<File, Wrong> {
    let mut file = File::default();
    if word(bytes, 0) != Some(SECTION) || word(bytes, 8) != Some(BYTE_ORDER) {
        return Err(Wrong::Format);
    }
    let mut at = 0;
    while let (Some(kind), Some(length)) = (word(bytes, at), word(bytes, at + 4)) {
        let length = length as usize;
        let wrong = Wrong::Block(at);
        if length < 12 || !length.is_multiple_of(4) {
            return Err(wrong);
        }
        let Some(block) = bytes.get(at..).and_then(|rest| rest.get(..length)) else { break };
        if word(block, length - 4) != Some(length as u32) {
            return Err(wrong);
        }
        take(&mut file, kind, &block[8..length - 4]).ok_or(wrong)?;
        at += length;
    }
    Ok(file)
}

fn take(file: &mut File, kind: u32, body: &[u8]) -> Option<()> {
    match kind {
        SECTION => {
            for (code, value) in options(body.get(16..)?) {
                if code == option::SECTION_APPLICATION {
                    file.application = text(value);
                }
            }
        }
        INTERFACE => {
            let mut interface = Interface { snap: word(body, 4)?, ..Interface::default() };
            for (code, value) in options(body.get(8..)?) {
                match code {
                    option::INTERFACE_NAME => interface.name = text(value),
                    option::INTERFACE_DESCRIPTION => interface.description = text(value),
                    option::INTERFACE_FILTER => interface.filter = text(value.get(1..)?),
                    _ => {}
                }
            }
            file.interfaces.push(interface);
        }
        PACKET => {
            let captured = word(body, 12)? as usize;
            let bytes = body.get(20..)?.get(..captured)?;
            let mut packet = Packet {
                interface: word(body, 0)?,
                time_ns: time(body)?,
                length: word(body, 16)?,
                bytes: bytes.to_vec(),
                ..Packet::default()
            };
            for (code, value) in options(body.get(20 + captured.next_multiple_of(4)..)?) {
                match code {
                    option::COMMENT => packet.comment = text(value),
                    option::PACKET_FLAGS => packet.outgoing = word(value, 0).map(|flags| flags & 3 == super::OUTBOUND),
                    _ => {}
                }
            }
            file.packets.push(packet);
        }
        STATISTICS => {
            let (mut seen, mut dropped) = (0, 0);
            for (code, value) in options(body.get(12..)?) {
                let count = value.first_chunk().map_or(0, |count| u64::from_le_bytes(*count));
                match code {
                    option::STATISTICS_RECEIVED => seen = count,
                    option::STATISTICS_DROPPED => dropped = count,
                    _ => {}
                }
            }
            file.statistics.push((word(body, 0)?, seen, dropped));
        }
        _ => {}
    }
    Some(())
}

fn time(body: &[u8]) -> Option<u64> {
    Some(u64::from(word(body, 4)?) << 32 | u64::from(word(body, 8)?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// The options of a block, as far as they are whole.
fn options(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = word(bytes, 0)?;
        let (code, length) = (head as u16, (head >> 16) as usize);
        if code == option::END {
            return None;
        }
        let value = bytes.get(4..)?.get(..length)?;
        bytes = bytes.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}
