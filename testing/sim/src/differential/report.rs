//! Reports of a divergence: the shortest sequence that still has it, as a script, and the reactions of both endpoints.

use super::subjects::{Ours, Smoltcp};
use super::{Difference, Run, Scene, Step, rules, run};
use crate::model::{ModelState, Segment};
use std::fmt::Write;
use std::mem::{Discriminant, discriminant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use towpath_wire::segment::flags;

/// The endpoint that is compared with the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Our stack.
    Ours,
    /// smoltcp.
    Smoltcp,
}

/// Runs exactly these steps. A panic of the endpoint is a divergence, too: `Err` has its message.
pub fn replay(who: Who, scene: Scene, steps: &[Step]) -> Result<Run, String> {
    let mut left = steps.iter().copied();
    let result = catch_unwind(AssertUnwindSafe(|| match who {
        Who::Ours => run(scene, &mut Ours::new(scene), rules::OURS, |_| left.next()),
        Who::Smoltcp => {
            let scene = Scene { listener: false, ..scene };
            run(scene, &mut Smoltcp::new(scene), rules::SMOLTCP, |_| left.next())
        }
    }));
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
    })
}

/// The kind of a sequence's divergence, without its numbers.
fn kind(who: Who, scene: Scene, steps: &[Step]) -> Option<Vec<Discriminant<Difference>>> {
    match replay(who, scene, steps) {
        Err(_) => Some(Vec::new()),
        Ok(run) => run.divergence.map(|d| d.differences.iter().map(discriminant).collect()),
    }
}

/// Drops steps as long as the rest still diverges in the same way.
pub fn shortest(who: Who, scene: Scene, steps: &[Step]) -> Vec<Step> {
    let mut steps = steps.to_vec();
    let Some(wanted) = kind(who, scene, &steps) else { return steps };
    loop {
        let before = steps.len();
        for i in (0..before).rev() {
            let mut without = steps.clone();
            without.remove(i);
            if kind(who, scene, &without).as_ref() == Some(&wanted) {
                steps = without;
            }
        }
        if steps.len() == before {
            return steps;
        }
    }
}

/// The report.
pub fn describe(who: Who, scene: Scene, steps: &[Step]) -> String {
    let steps = shortest(who, scene, steps);
    let mut text =
        format!("{who:?} and the model differ; {scene:?}; the shortest sequence:\n{}", script(scene, &steps));
    for other in [Who::Ours, Who::Smoltcp] {
        match replay(other, scene, &steps) {
            Err(panic) => _ = writeln!(text, "{other:?} panics: {panic}"),
            Ok(Run { divergence: None, hits, .. }) => _ = writeln!(text, "{other:?}: as the model, but for {hits:?}"),
            Ok(Run { divergence: Some(d), .. }) => {
                let sent: Vec<String> = d.seen.sent.iter().map(segment).collect();
                let state = d.seen.state;
                _ = writeln!(text, "{other:?}, step {}: {:?}\n  is in {state:?}, sent {sent:?}", d.at, d.differences);
                _ = writeln!(text, "  its model before: {:?}\n  its model after:  {:?}", d.models[0], d.models[1]);
            }
        }
    }
    text
}

/// The sequence as a packet script (`testing/packetdrill/scripts`), without the endpoint's segments.
pub fn script(scene: Scene, steps: &[Step]) -> String {
    let mut text = String::from("0     socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n");
    let socket = match scene.start {
        ModelState::Listen => {
            text += "+0    bind(3, ..., ...) = 0\n+0    listen(3, 5) = 0\n";
            4
        }
        ModelState::SynSent => {
            text +=
                "+0    fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n+0    connect(3, ..., ...) = -1 EINPROGRESS (...)\n";
            3
        }
        _ => 3,
    };
    for step in steps {
        let line = match step {
            Step::Arrives(s) => format!("< {}", segment(s)),
            Step::Write(bytes) => format!("write({socket}, ..., {bytes}) = {bytes}"),
            Step::Read => format!("read({socket}, ..., 4096) = ..."),
            Step::Shutdown => format!("shutdown({socket}, SHUT_WR) = 0"),
            Step::Close => format!("close({socket}) = 0"),
        };
        _ = writeln!(text, "+.003 {line}");
    }
    text
}

fn segment(s: &Segment) -> String {
    let letters = [
        (flags::FIN, 'F'),
        (flags::SYN, 'S'),
        (flags::RST, 'R'),
        (flags::PSH, 'P'),
        (flags::URG, 'U'),
        (flags::ACK, '.'),
    ];
    let mut text: String = letters.iter().filter(|(flag, _)| s.has(*flag)).map(|(_, letter)| *letter).collect();
    if text.is_empty() {
        text.push('-');
    }
    _ = write!(text, " {}:{}({})", s.seq, s.seq.wrapping_add(s.len), s.len);
    if s.has(flags::ACK) {
        _ = write!(text, " ack {}", s.ack);
    }
    _ = write!(text, " win {}", s.window);
    if s.has(flags::URG) {
        _ = write!(text, " urg {}", s.urgent);
    }
    let mut options = Vec::new();
    options.extend(s.mss.map(|mss| format!("mss {mss}")));
    options.extend(s.shift.map(|shift| format!("wscale {shift}")));
    options.extend(s.sack_permitted.then(|| "sackOK".to_owned()));
    if !options.is_empty() {
        _ = write!(text, " <{}>", options.join(","));
    }
    text
}
