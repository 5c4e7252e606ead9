//! What is compared.

use clap::ValueEnum;
use std::fmt;

/// Kinds of arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Packets are received on all of the server's CPUs.
    Symmetric,
    /// On so many of their own, which the server keeps off: one arm for each number.
    Reserved,
    /// On as many as `towpath cores enforce` chooses.
    Chosen,
    /// By the server's event loops themselves.
    BusyPoll,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// One arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// See [`Kind::Symmetric`].
    Symmetric,
    /// So many CPUs.
    Reserved(u32),
    /// See [`Kind::Chosen`].
    Chosen,
    /// See [`Kind::BusyPoll`].
    BusyPoll,
}

impl Arm {
    /// As tables name it.
    pub fn name(self) -> String {
        match self {
            Self::Symmetric => "symmetric".into(),
            Self::Reserved(cpus) => format!("reserved {cpus}"),
            Self::Chosen => "chosen".into(),
            Self::BusyPoll => "busy poll".into(),
        }
    }
    /// How many CPUs only receive, all the time; `None` if that is not a matter of a number, or not fixed.
    pub fn fixed(self) -> Option<u32> {
        match self {
            Self::Symmetric => Some(0),
            Self::Reserved(cpus) => Some(cpus),
            Self::Chosen | Self::BusyPoll => None,
        }
    }
}

/// All arms of these kinds. `symmetric` is always there: the others are compared with it.
pub fn all(kinds: &[Kind], most: u32) -> Vec<Arm> {
    let mut arms = vec![Arm::Symmetric];
    if kinds.contains(&Kind::Reserved) {
        arms.extend((1..=most).map(Arm::Reserved));
    }
    if kinds.contains(&Kind::Chosen) {
        arms.push(Arm::Chosen);
    }
    if kinds.contains(&Kind::BusyPoll) {
        arms.push(Arm::BusyPoll);
    }
    arms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_reserved_cpus_has_its_arm_and_symmetric_is_never_missing() {
        let names = |arms: Vec<Arm>| arms.iter().map(|arm| arm.name()).collect::<Vec<_>>().join(", ");
        assert_eq!(names(all(Kind::value_variants(), 2)), "symmetric, reserved 1, reserved 2, chosen, busy poll");
        assert_eq!(names(all(&[Kind::Chosen], 2)), "symmetric, chosen");
    }
}
