//! The arms: the set-ups that are compared.

use clap::ValueEnum;
use std::fmt;

/// Kinds of arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArmKind {
    /// Packets are received on all of the server's CPUs.
    Symmetric,
    /// On reserved CPUs, which the server keeps off. There is one arm for each number.
    Reserved,
    /// On as many as `towpath cores enforce` chooses.
    Chosen,
    /// By the server's event loops themselves.
    BusyPoll,
}

impl fmt::Display for ArmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// One arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// See [`ArmKind::Symmetric`].
    Symmetric,
    /// This many CPUs.
    Reserved(u32),
    /// See [`ArmKind::Chosen`].
    Chosen,
    /// See [`ArmKind::BusyPoll`].
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
    /// How many CPUs only receive, if that number is fixed.
    pub fn fixed(self) -> Option<u32> {
        match self {
            Self::Symmetric => Some(0),
            Self::Reserved(cpus) => Some(cpus),
            Self::Chosen | Self::BusyPoll => None,
        }
    }
}

/// All arms of these kinds. `symmetric` is always there: the others are compared with it.
pub fn all(kinds: &[ArmKind], most: u32) -> Vec<Arm> {
    let mut arms = vec![Arm::Symmetric];
    if kinds.contains(&ArmKind::Reserved) {
        arms.extend((1..=most).map(Arm::Reserved));
    }
    if kinds.contains(&ArmKind::Chosen) {
        arms.push(Arm::Chosen);
    }
    if kinds.contains(&ArmKind::BusyPoll) {
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
        assert_eq!(names(all(ArmKind::value_variants(), 2)), "symmetric, reserved 1, reserved 2, chosen, busy poll");
        assert_eq!(names(all(&[ArmKind::Chosen], 2)), "symmetric, chosen");
    }
}
