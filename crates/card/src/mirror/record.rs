//! What is carried, as bytes: a kind, then little-endian words.

use towpath_ring::Geometry;
use towpath_ring::carry::{App, Choice, Order, Shown, Told};

/// Most bytes of a message in one record.
pub const PART: usize = 16 << 10;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The near side's first: version of the contract, sizes of all regions.
    Greeting { version: u32, geometry: Geometry },
    /// A part of a message, perhaps its last.
    Part { last: bool, bytes: Vec<u8> },
    /// It lives.
    Beat,
    /// An application's line, after what it covers of the send ring.
    App { place: u32, slot: u32, app: App },
    /// A command or options, and the line.
    Command { place: u32, slot: u32, app: App, options: Choice, command: Order },
    /// The stack's line, after what it covers of the receive ring.
    Stack { place: u32, slot: u32, shown: Shown },
    /// What the stack tells of a connection.
    Info { place: u32, slot: u32, told: Box<Told> },
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

impl Record {
    /// Writes it into an empty buffer.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.clear();
        match self {
            Self::Greeting { version, geometry: g } => {
                to.push(1);
                put(to, &[*version, g.slots, g.app_slots, g.tx_bytes, g.rx_bytes, g.contexts, g.cores]);
            }
            Self::Part { last, bytes } => {
                to.extend([2, u8::from(*last)]);
                to.extend_from_slice(bytes);
            }
            Self::Beat => to.push(3),
            Self::App { place, slot, app } => {
                to.push(4);
                put(to, &[*place, *slot]);
                put(to, app);
            }
            Self::Command { place, slot, app, options, command } => {
                to.push(5);
                put(to, &[*place, *slot]);
                put(to, app);
                put(to, options);
                put(to, command);
            }
            Self::Stack { place, slot, shown } => {
                to.push(6);
                put(to, &[*place, *slot]);
                put(to, shown);
            }
            Self::Info { place, slot, told } => {
                to.push(7);
                put(to, &[*place, *slot]);
                put(to, &**told);
            }
        }
    }

    /// Reads one; `None` = it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let from = &mut rest;
        let record = match kind {
            1 => {
                let [version, slots, app_slots, tx_bytes, rx_bytes, contexts, cores] = get(from)?;
                Self::Greeting { version, geometry: Geometry { slots, app_slots, tx_bytes, rx_bytes, contexts, cores } }
            }
            2 => {
                let (last, part) = from.split_first()?;
                let part = Self::Part { last: *last != 0, bytes: part.to_vec() };
                *from = &[];
                part
            }
            3 => Self::Beat,
            4..=7 => {
                let [place, slot] = get(from)?;
                match kind {
                    4 => Self::App { place, slot, app: get(from)? },
                    5 => {
                        let (app, options, command) = (get(from)?, get(from)?, get(from)?);
                        Self::Command { place, slot, app, options, command }
                    }
                    6 => Self::Stack { place, slot, shown: get(from)? },
                    _ => Self::Info { place, slot, told: Box::new(get(from)?) },
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
            Record::Greeting { version: 6, geometry: Geometry::DEFAULT },
            Record::Part { last: true, bytes: b"bytes".to_vec() },
            Record::Beat,
            Record::App { place: 1, slot: 2, app: [3; 5] },
            Record::Command { place: 1, slot: 2, app: [3; 5], options: [4; 27], command: [5; 15] },
            Record::Stack { place: 1, slot: 2, shown: [6; 11] },
            Record::Info { place: 1, slot: 2, told: Box::new([7; 47]) },
        ];
        let mut bytes = Vec::new();
        for record in records {
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes).as_ref(), Some(&record));
            bytes.push(0);
            assert!(matches!(record, Record::Part { .. }) || Record::decode(&bytes).is_none(), "a byte too many");
        }
        assert!(Record::decode(&[]).is_none() && Record::decode(&[8]).is_none() && Record::decode(&[6, 0]).is_none());
    }
}
