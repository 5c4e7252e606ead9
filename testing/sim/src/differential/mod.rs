//! Differential testing: one endpoint of ours, one of smoltcp's and the reference model receive the same segments, one
//! at a time, in virtual time. After each their reactions must agree, or a [named rule](rules) must explain the
//! difference.

pub mod generate;
pub mod report;
pub mod rules;
pub mod subjects;

use crate::model::{Model, ModelState, Reply, Segment};
use rules::{Case, Rule};
use std::collections::BTreeSet;
use subjects::{Seen, Subject};
use towpath_wire::segment::flags;

/// The start of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// CLOSED, LISTEN or SYN-SENT.
    pub start: ModelState,
    /// Does the listener remain when a connection is established?
    pub listener: bool,
    /// The peer's initial sequence number.
    pub irs: u32,
    /// Seed of the endpoint.
    pub seed: u64,
}

/// One event at the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A segment arrives.
    Arrives(Segment),
    /// The application writes this many bytes.
    Write(u32),
    /// It reads all available bytes.
    Read,
    /// `shutdown(SHUT_WR)`.
    Shutdown,
    /// `close`.
    Close,
}

/// A difference between an endpoint and the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The model's state, the endpoint's.
    State(ModelState, ModelState),
    /// The model's reply; the endpoint's segments are in [`Case::seen`].
    Reply(Reply),
    /// The endpoint has sent a forbidden segment.
    Sent(String),
    /// Bytes that the application should have read, and has read. If equal, their contents differ.
    Bytes(u32, u32),
    /// SND.UNA or SND.WND differ: the model's pair, the endpoint's pair.
    Sender((u32, u32), (u32, u32)),
}

impl Difference {
    /// Do the two states differ from here on?
    fn parts(&self) -> bool {
        !matches!(self, Self::Reply(_))
    }
}

/// A difference that no rule explains.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// The step, counted from 0.
    pub at: usize,
    /// The differences.
    pub differences: Vec<Difference>,
    /// The model before and after the step.
    pub models: [Model; 2],
    /// The endpoint's reaction.
    pub seen: Seen,
}

/// The result of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The steps taken.
    pub steps: Vec<Step>,
    /// Rules that explained a difference.
    pub hits: BTreeSet<&'static str>,
    /// The unexplained difference at its end, if any.
    pub divergence: Option<Divergence>,
}

/// Runs the steps that `next` gives on `subject` and on a new model.
pub fn run(
    scene: Scene,
    subject: &mut dyn Subject,
    rules: &[Rule],
    mut next: impl FnMut(&Model) -> Option<Step>,
) -> Run {
    let mut pair = Pair { model: Model::new(scene.start, scene.listener), subject, read: 0, blurred: false };
    let mut run = Run::default();
    let opening = pair.subject.open();
    opening.sent.iter().for_each(|s| drop(pair.model.sent(s)));
    while let Some(step) = next(&pair.model) {
        // A shortened sequence may lack the steps that establish the connection.
        if !matches!(step, Step::Arrives(_)) && !pair.model.synchronized() {
            continue;
        }
        let before = pair.model.clone();
        run.steps.push(step);
        let (differences, seen) = pair.step(step);
        if differences.is_empty() {
            continue;
        }
        let blurred = pair.blurred;
        let case = Case { before: &before, after: &pair.model, step, seen: &seen, differences: &differences, blurred };
        if let Some(rule) = rules.iter().find(|rule| (rule.holds)(&case)) {
            run.hits.insert(rule.name);
            if rule.ends || differences.iter().any(Difference::parts) {
                break;
            }
            continue;
        }
        let models = [before, pair.model];
        run.divergence = Some(Divergence { at: run.steps.len() - 1, differences, models, seen });
        break;
    }
    run
}

/// An endpoint and its model.
struct Pair<'a> {
    model: Model,
    subject: &'a mut dyn Subject,
    /// Bytes that the application has read from this connection.
    read: u32,
    /// See [`Case::blurred`].
    blurred: bool,
}

impl Pair<'_> {
    fn step(&mut self, step: Step) -> (Vec<Difference>, Seen) {
        let unread = self.model.delivered.wrapping_sub(self.read);
        let seen = self.subject.step(step);
        let mut differences = Vec::new();
        match step {
            Step::Arrives(segment) => {
                self.blurred |= rules::blurs(&self.model, &segment);
                let reply = self.model.arrives(&segment);
                if !answered(reply, &seen.sent) {
                    differences.push(Difference::Reply(reply));
                }
            }
            Step::Write(_) => self.model.write(seen.wrote),
            Step::Read => {
                if (seen.read != unread || !seen.intact) && self.model.synchronized() {
                    differences.push(Difference::Bytes(unread, seen.read));
                }
                self.read += seen.read;
            }
            Step::Shutdown => self.model.shutdown(),
            Step::Close => {
                if self.model.close(unread > 0) != seen.sent.iter().any(|s| s.has(flags::RST)) {
                    differences.push(Difference::Reply(Reply::Reset(0, Some(0))));
                }
            }
        }
        for segment in &seen.sent {
            if let Err(what) = self.model.sent(segment) {
                differences.push(Difference::Sent(what));
            }
        }
        if self.model.delivered == 0 {
            self.read = 0;
        }
        if !self.model.synchronized() {
            self.blurred = false;
        }
        if seen.state != self.model.state {
            differences.push(Difference::State(self.model.state, seen.state));
        }
        let sender = (self.model.snd_una, self.model.snd_wnd);
        if let Some(theirs) = seen.sender.filter(|theirs| self.model.synchronized() && *theirs != sender) {
            differences.push(Difference::Sender(sender, theirs));
        }
        (differences, seen)
    }
}

/// Do the sent segments fulfil the model's reply?
fn answered(reply: Reply, sent: &[Segment]) -> bool {
    let resets: Vec<&Segment> = sent.iter().filter(|s| s.has(flags::RST)).collect();
    let bare = |s: &Segment| s.flags & (flags::RST | flags::SYN | flags::FIN) == 0 && s.len == 0;
    let syn_ack = sent.iter().any(|s| s.has(flags::SYN));
    match reply {
        // Data that a new window or acknowledgement allows may be sent.
        Reply::Nothing => resets.is_empty() && !syn_ack && !sent.iter().any(bare),
        Reply::Ack => resets.is_empty() && !syn_ack && sent.iter().any(|s| s.has(flags::ACK)),
        Reply::SynAck => resets.is_empty() && sent.iter().any(|s| s.has(flags::SYN) && s.has(flags::ACK)),
        Reply::Reset(seq, None) => resets.len() == 1 && resets[0].seq == seq && !resets[0].has(flags::ACK),
        Reply::Reset(_, Some(ack)) => resets.len() == 1 && resets[0].ack == ack && resets[0].has(flags::ACK),
    }
}
