//! What programs say of frames.

/// What becomes of a frame (`enum xdp_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The program has failed.
    Aborted = 0,
    /// It is dropped.
    Drop = 1,
    /// It goes on.
    Pass = 2,
    /// It goes back to where it came from.
    Tx = 3,
    /// It goes over another interface.
    Redirect = 4,
}

/// What a program returns for [`Action::Pass`].
pub const PASS: u32 = Action::Pass as u32;

impl Action {
    /// What a program has returned.
    pub fn of(result: u64) -> Self {
        match result as u32 {
            1 => Self::Drop,
            PASS => Self::Pass,
            3 => Self::Tx,
            4 => Self::Redirect,
            _ => Self::Aborted,
        }
    }
}
