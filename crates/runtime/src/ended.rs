//! What programs have used that have ended, so that the sum for a program never falls.

use crate::status::EndedStatus;
use std::collections::BTreeMap;

/// Most users that are told apart.
const USERS: usize = 1024;
/// Most programs of a user that are told apart. He may name programs as he likes.
const PROGRAMS: usize = 64;
/// The user and the program of all others. A user's other programs have this name, too.
pub const OTHERS: (u32, &str) = (u32::MAX, "other");

/// Sums by user and program, ns. No user's programs take the places of another's.
#[derive(Debug, Default)]
pub struct Ended {
    users: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Of users who have no place.
    others_ns: u64,
}

impl Ended {
    /// A client has ended.
    pub fn add(&mut self, uid: u32, program: &str, busy_ns: u64) {
        if busy_ns == 0 {
            return;
        }
        if self.users.len() >= USERS && !self.users.contains_key(&uid) {
            self.others_ns += busy_ns;
            return;
        }
        let programs = self.users.entry(uid).or_default();
        let is_one_too_many = programs.len() >= PROGRAMS && !programs.contains_key(program);
        let program = if is_one_too_many { OTHERS.1 } else { program };
        *programs.entry(program.to_owned()).or_default() += busy_ns;
    }

    /// All of them.
    pub fn status(&self) -> Vec<EndedStatus> {
        let users = self.users.iter();
        let of = users.flat_map(|(uid, programs)| programs.iter().map(|(program, ns)| (*uid, program.as_str(), *ns)));
        let others = (self.others_ns != 0).then_some((OTHERS.0, OTHERS.1, self.others_ns));
        let one =
            |(uid, program, ns): (u32, &str, u64)| EndedStatus { uid, program: program.into(), busy_us: ns / 1000 };
        of.chain(others).map(one).collect()
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
        assert!(all.len() == PROGRAMS + 2 && all.iter().map(|one| one.busy_us).sum::<u64>() == 3003);
        assert_eq!(all.last().map(|one| (one.uid, one.program.as_str())), Some((8, OTHERS.1)));
    }

    #[test]
    fn a_flood_of_names_of_one_user_leaves_every_sum_of_the_others() {
        let mut ended = Ended::default();
        for name in 0..3000 {
            ended.add(8, &name.to_string(), 1_000);
        }
        for name in 0..PROGRAMS {
            ended.add(7, &name.to_string(), 1_000);
        }
        for name in 0..PROGRAMS {
            ended.add(7, &name.to_string(), 2_000);
        }
        let all = ended.status();
        let of_7 = all.iter().filter(|one| one.uid == 7);
        assert_eq!(of_7.map(|one| one.busy_us).collect::<Vec<_>>(), [3; PROGRAMS]);
        assert!(all.iter().all(|one| one.uid != OTHERS.0));
    }

    #[test]
    fn a_flood_of_users_is_one_and_those_who_were_there_keep_their_sums() {
        let mut ended = Ended::default();
        for uid in 0..3000 {
            ended.add(uid, "one", 1_000);
        }
        for uid in 0..USERS as u32 {
            ended.add(uid, "two", 1_000);
        }
        let all = ended.status();
        assert_eq!((all.len(), all.iter().map(|one| one.busy_us).sum::<u64>()), (2 * USERS + 1, 3000 + USERS as u64));
        let others = EndedStatus { uid: OTHERS.0, program: OTHERS.1.into(), busy_us: 3000 - USERS as u64 };
        assert_eq!(all.last(), Some(&others));
    }
}
