//! Files that cannot be written are spoken of once: decisions do not depend on them.

use std::fmt::Display;

/// So many good writes in a row, and a file counts as mended: on a full disk there is room for a moment again and again.
const MENDED: u32 = 5;

/// What has been said of one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Complaint {
    said: bool,
    /// Good writes since the last that failed.
    good: u32,
}

impl Complaint {
    /// What is to be said now that `of` has been written, or not.
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
