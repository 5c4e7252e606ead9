//! The events of one thread.
//!
//! Events of five sorts have a ring each, in which the newest take the places of the oldest. So no flood of one sort pushes out
//! another: programs that come and go at will do not hide what the service did. Drops have a table, with one place for each
//! reason, and so have wakes and violations, with one for each client: the last of each, and how many there were. So a program that
//! breaks the contract again and again hides nobody else who does.

use crate::Entry;
use crate::event::{Event, Kind};
use crate::words::Place;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places of a ring.
const RING: usize = 256;
const RINGS: usize = 5;
/// Places of the table of drops: as many as reasons, and more.
const DROPS: usize = 64;
/// Places of the table of wakes, and of that of violations. Clients whose numbers differ by a multiple of it share one, which then tells of the last.
const CLIENTS: usize = 256;
const FIRST_DROP: usize = RINGS * RING;
const FIRST_WAKE: usize = FIRST_DROP + DROPS;
const FIRST_VIOLATION: usize = FIRST_WAKE + CLIENTS;

/// One thread's memory. All zeros are an empty one.
#[repr(C)]
pub struct Row {
    /// Its thread's name, UTF-8.
    name: [AtomicU64; 2],
    /// Events of each ring so far. The last word counts those of the tables.
    counts: [AtomicU64; RINGS + 1],
    _unused: [AtomicU64; 8],
    places: [Place; FIRST_VIOLATION + CLIENTS],
}

/// Where events of a kind stand.
enum Lane {
    Ring(usize),
    /// Its first place, and their number.
    Table(usize, usize),
}

fn lane(kind: Kind) -> Lane {
    match kind {
        Kind::Connect | Kind::Established | Kind::Close | Kind::End => Lane::Ring(0),
        Kind::Retransmit | Kind::Timeout | Kind::TailProbe | Kind::Message => Lane::Ring(1),
        Kind::Client | Kind::ClientGone => Lane::Ring(2),
        // A panic is not hidden by the work that leads to it.
        Kind::LongTurn | Kind::Full => Lane::Ring(3),
        Kind::Panic => Lane::Ring(4),
        Kind::Drop => Lane::Table(FIRST_DROP, DROPS),
        Kind::Wake => Lane::Table(FIRST_WAKE, CLIENTS),
        Kind::Violation => Lane::Table(FIRST_VIOLATION, CLIENTS),
    }
}

impl Row {
    /// Its thread begins. No other thread writes this row.
    pub fn begin(&self, name: &str) {
        let mut bytes = [0; 16];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        let name = u128::from_ne_bytes(bytes);
        self.name[0].store(name as u64, Ordering::Relaxed);
        self.name[1].store((name >> 64) as u64, Ordering::Relaxed);
    }

    /// Its thread's name.
    pub fn name(&self) -> String {
        let [low, high] = [0, 1].map(|half: usize| u128::from(self.name[half].load(Ordering::Relaxed)));
        let bytes = (low | high << 64).to_ne_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).replace(|c: char| c.is_control(), "?")
    }

    /// Records an event.
    pub fn put(&self, now_us: u64, entry: &Entry) {
        match lane(entry.kind) {
            Lane::Ring(ring) => {
                let count = self.counts[ring].load(Ordering::Relaxed);
                let last = &self.places[ring * RING + (count.wrapping_sub(1) % RING as u64) as usize];
                if count != 0 && last.is_like(entry) {
                    return last.write(now_us, entry, count, true);
                }
                let place = &self.places[ring * RING + (count % RING as u64) as usize];
                let number = count.wrapping_add(1);
                place.write(now_us, entry, number, false);
                self.counts[ring].store(number, Ordering::Relaxed);
            }
            Lane::Table(first, places) => {
                let number = self.counts[RINGS].load(Ordering::Relaxed).wrapping_add(1);
                let place = &self.places[first + (entry.key % places as u64) as usize];
                place.write(now_us, entry, number, place.is_like(entry));
                self.counts[RINGS].store(number, Ordering::Relaxed);
            }
        }
    }

    /// All that it has, the newest last.
    pub fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.places.iter().filter_map(Place::read).collect();
        events.sort_by_key(|event| event.at_us);
        events
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.name.iter().chain(&self.counts).for_each(|word| word.store(0, Ordering::Relaxed));
        self.places.iter().for_each(Place::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_fallen_process_has_written_no_count_overflows() {
        // SAFETY: all zeros are an empty row.
        let row: Box<Row> = unsafe { Box::new_zeroed().assume_init() };
        row.counts.iter().for_each(|count| count.store(u64::MAX, Ordering::Relaxed));
        for kind in
            [Kind::Connect, Kind::Timeout, Kind::Client, Kind::Violation, Kind::LongTurn, Kind::Panic, Kind::Wake]
        {
            row.put(1, &Entry::new(kind, 1));
            row.put(2, &Entry::new(kind, 2));
        }
        assert!(row.events().iter().filter(|event| event.key == 2).count() == 7);
    }
}
