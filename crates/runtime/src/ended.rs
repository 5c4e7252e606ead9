//! What programs have used that have ended, so that the sum for a program never falls.

use crate::status::EndedStatus;
use std::collections::BTreeMap;

/// Most programs that are told apart. A user may name programs as he likes.
const MOST: usize = 1024;
/// The user and the program of all others.
pub const OTHERS: (u32, &str) = (u32::MAX, "other");

/// Sums by user and program, ns.
#[derive(Debug, Default)]
pub struct Ended(BTreeMap<(u32, String), u64>);

impl Ended {
    /// A client has ended.
    pub fn add(&mut self, uid: u32, program: &str, busy_ns: u64) {
        if busy_ns == 0 {
            return;
        }
        let mut key = (uid, program.to_owned());
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            key = (OTHERS.0, OTHERS.1.to_owned());
        }
        *self.0.entry(key).or_default() += busy_ns;
    }

    /// All of them.
    pub fn status(&self) -> Vec<EndedStatus> {
        let one = |((uid, program), ns): (&(u32, String), &u64)| EndedStatus {
            uid: *uid,
            program: program.clone(),
            busy_us: ns / 1000,
        };
        self.0.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_program_are_added_up_and_a_flood_of_names_is_one() {
        let mut ended = Ended::default();
        ended.add(7, "idle", 0);
        ended.add(7, "redis", 1_000);
        ended.add(7, "redis", 2_500);
        let redis = EndedStatus { uid: 7, program: "redis".into(), busy_us: 3 };
        assert_eq!(ended.status(), [redis]);
        for name in 0..3000 {
            ended.add(8, &name.to_string(), 1_000);
        }
        let all = ended.status();
        assert!(all.len() == MOST + 1 && all.iter().map(|one| one.busy_us).sum::<u64>() == 3003);
        assert_eq!(all.last().map(|one| (one.uid, one.program.as_str())), Some(OTHERS));
    }
}
