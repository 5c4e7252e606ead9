//! A file that cannot be written is reported once. Decisions do not depend on it.

use std::fmt::Display;

/// Good writes in a row after which a file counts as mended. A full disk has room for a moment again and again.
const MENDED: u32 = 5;

/// The state of reports about one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Complaint {
    said: bool,
    /// Good writes since the last that failed.
    good: u32,
}

impl Complaint {
    /// The report to make after a write of `of`, if any.
    pub fn after<E: Display>(&mut self, of: &dyn Display, written: Result<(), E>) -> Option<String> {
        match written {
            Err(error) => {
                self.good = 0;
                (!std::mem::replace(&mut self.said, true)).then(|| format!("{of}: {error}"))
            }
            Ok(()) if self.said => {
                self.good += 1;
                if self.good < MENDED {
                    return None;
                }
                *self = Self::default();
                Some(format!("{of}: is written again"))
            }
            Ok(()) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_once_and_its_end_when_it_has_lasted() {
        let mut complaint = Complaint::default();
        let mut after = |written: &[bool]| -> Vec<String> {
            let one = |good: &bool| complaint.after(&"log", if *good { Ok(()) } else { Err("full") });
            written.iter().filter_map(one).collect()
        };
        assert_eq!(after(&[true, false, false]), ["log: full"]);
        assert!(after(&[true, true, false, true, true, true, true, false]).is_empty());
        assert_eq!(after(&[true; 9]), ["log: is written again"]);
        assert_eq!(after(&[false]), ["log: full"]);
    }
}
