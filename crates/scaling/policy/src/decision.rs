//! The policy's answer.

use std::fmt;

/// The number of cores from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No change.
    Hold,
    /// Another number.
    Change {
        /// The present number.
        from: u32,
        /// The new number.
        to: u32,
    },
}

/// Why the policy decided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing calls for a change.
    Steady,
    /// The last change has not taken effect yet.
    Settling,
    /// The last change is on trial.
    OnTrial,
    /// Its cores have more to do than they should.
    Busy,
    /// More comes than its cores can take.
    Pressure,
    /// Fewer would do.
    Idle,
    /// Applications wait for CPUs.
    Starved,
    /// Another size is tried to learn its outcome.
    Explore,
    /// The change on trial made it worse, and is taken back.
    Worse,
    /// The change on trial has not cured its cause, and is taken back.
    NoCure,
    /// The size that was tried is no better, and is given up.
    NoBetter,
    /// Feedback stopped in the middle of a trial, so the change is taken back.
    FeedbackLost,
    /// A change is called for, but a limit forbids it, or the size was worse a short time ago.
    Limited,
    /// The limits allow only another number.
    Bounds,
    /// The stack and the applications both want more, and there is nothing to give.
    Saturated,
    /// After too many changes for the worse: back to the fewest cores, and a rest.
    Fused,
    /// The observation is impossible.
    Unsound,
}

impl Reason {
    /// Every one.
    pub const ALL: [Self; 17] = [
        Self::Steady,
        Self::Settling,
        Self::OnTrial,
        Self::Busy,
        Self::Pressure,
        Self::Idle,
        Self::Starved,
        Self::Explore,
        Self::Worse,
        Self::NoCure,
        Self::NoBetter,
        Self::FeedbackLost,
        Self::Limited,
        Self::Bounds,
        Self::Saturated,
        Self::Fused,
        Self::Unsound,
    ];

    /// One word, for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Settling => "settling",
            Self::OnTrial => "on-trial",
            Self::Busy => "busy",
            Self::Pressure => "pressure",
            Self::Idle => "idle",
            Self::Starved => "starved",
            Self::Explore => "explore",
            Self::Worse => "worse",
            Self::NoCure => "no-cure",
            Self::NoBetter => "no-better",
            Self::FeedbackLost => "feedback-lost",
            Self::Limited => "limited",
            Self::Bounds => "bounds",
            Self::Saturated => "saturated",
            Self::Fused => "fused",
            Self::Unsound => "unsound",
        }
    }

    /// A sentence, for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Steady => "nothing calls for a change",
            Self::Settling => "the last change has not taken effect yet",
            Self::OnTrial => "the last change is on trial",
            Self::Busy => "the stack's cores are busier than they should be",
            Self::Pressure => "more comes in than the stack's cores take",
            Self::Idle => "fewer cores would do",
            Self::Starved => "applications wait for CPUs",
            Self::Explore => "another size is tried, to see how it does with this load",
            Self::Worse => "the last change made it worse",
            Self::NoCure => "the last change has not cured what it was made for",
            Self::NoBetter => "the size that was tried is no better",
            Self::FeedbackLost => "applications have stopped to say how they do, in the middle of a trial",
            Self::Limited => "a change is called for, but a limit forbids it or that size was worse a short time ago",
            Self::Bounds => "there were more or fewer than the limits allow",
            Self::Saturated => "the stack and the applications both want more CPUs",
            Self::Fused => "too many changes made it worse: nothing is changed for a while",
            Self::Unsound => "what was observed cannot be",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
