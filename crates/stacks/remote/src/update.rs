//! Updates as bytes: a kind, then little-endian words.

use towpath_ring::Geometry;
use towpath_ring::codec::{
    AppLineWords, CommandLineWords, CountsLineWords, InfoLineWords, OptionsLineWords, StackLineWords,
};

/// Most message bytes in one update.
pub const PART: usize = 16 << 10;

/// An update that one side sends to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The host's first: version of the contract, sizes of all regions.
    Greeting { version: u32, geometry: Geometry },
    /// A part of a message.
    Part { last: bool, bytes: Vec<u8> },
    /// A heartbeat.
    Beat,
    /// An application's line. The bytes of the send ring that it covers have been sent before.
    App { index: u32, slot: u32, app: AppLineWords },
    /// A command or options, and the application's line.
    Command { index: u32, slot: u32, app: AppLineWords, options: OptionsLineWords, command: CommandLineWords },
    /// The stack's line. The bytes of the receive ring that it covers have been sent before.
    Stack { index: u32, slot: u32, shown: StackLineWords },
    /// The stack's information about a connection.
    Info { index: u32, slot: u32, info: Box<InfoLineWords>, counts: Box<CountsLineWords> },
}

fn put(to: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| to.extend(word.to_le_bytes()));
}

fn get<const N: usize>(from: &mut &[u8]) -> Option<[u32; N]> {
    let bytes = from.split_off(..4 * N)?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes(*bytes.as_array()?);
    }
    Some(words)
}

impl Update {
    /// Encodes it into a buffer, which is emptied first.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.clear();
        match self {
            Self::Greeting { version, geometry: g } => {
                to.push(1);
                let sizes = [g.tx_bytes, g.rx_bytes, g.tx_most, g.rx_most];
                put(to, &[*version, g.slots, g.app_slots]);
                put(to, &sizes);
                put(to, &[g.contexts, g.flow_groups]);
            }
            Self::Part { last, bytes } => {
                to.extend([2, u8::from(*last)]);
                to.extend_from_slice(bytes);
            }
            Self::Beat => to.push(3),
            Self::App { index, slot, app } => {
                to.push(4);
                put(to, &[*index, *slot]);
                put(to, app);
            }
            Self::Command { index, slot, app, options, command } => {
                to.push(5);
                put(to, &[*index, *slot]);
                put(to, app);
                put(to, options);
                put(to, command);
            }
            Self::Stack { index, slot, shown } => {
                to.push(6);
                put(to, &[*index, *slot]);
                put(to, shown);
            }
            Self::Info { index, slot, info, counts } => {
                to.push(7);
                put(to, &[*index, *slot]);
                put(to, &**info);
                put(to, &**counts);
            }
        }
    }

    /// Decodes an update; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let from = &mut rest;
        let record = match kind {
            1 => {
                let [version, slots, app_slots, tx_bytes, rx_bytes, tx_most, rx_most, contexts, flow_groups] =
                    get(from)?;
                Self::Greeting {
                    version,
                    geometry: Geometry {
                        slots,
                        app_slots,
                        tx_bytes,
                        rx_bytes,
                        tx_most,
                        rx_most,
                        contexts,
                        flow_groups,
                    },
                }
            }
            2 => {
                let (last, part) = from.split_first()?;
                let part = Self::Part { last: *last != 0, bytes: part.to_vec() };
                *from = &[];
                part
            }
            3 => Self::Beat,
            4..=7 => {
                let [index, slot] = get(from)?;
                match kind {
                    4 => Self::App { index, slot, app: get(from)? },
                    5 => {
                        let (app, options, command) = (get(from)?, get(from)?, get(from)?);
                        Self::Command { index, slot, app, options, command }
                    }
                    6 => Self::Stack { index, slot, shown: get(from)? },
                    _ => {
                        let (info, counts) = (Box::new(get(from)?), Box::new(get(from)?));
                        Self::Info { index, slot, info, counts }
                    }
                }
            }
            _ => return None,
        };
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let records = [
            Update::Greeting { version: 6, geometry: Geometry::DEFAULT },
            Update::Part { last: true, bytes: b"bytes".to_vec() },
            Update::Beat,
            Update::App { index: 1, slot: 2, app: [3; 7] },
            Update::Command { index: 1, slot: 2, app: [3; 7], options: [4; 27], command: [5; 15] },
            Update::Stack { index: 1, slot: 2, shown: [6; 11] },
            Update::Info { index: 1, slot: 2, info: Box::new([7; 47]), counts: Box::new([8; 25]) },
        ];
        let mut bytes = Vec::new();
        for record in records {
            record.encode(&mut bytes);
            assert_eq!(Update::decode(&bytes).as_ref(), Some(&record));
            bytes.push(0);
            assert!(matches!(record, Update::Part { .. }) || Update::decode(&bytes).is_none(), "a byte too many");
        }
        assert!(Update::decode(&[]).is_none() && Update::decode(&[8]).is_none() && Update::decode(&[6, 0]).is_none());
    }
}
