//! The pages of `towpath doctor`, for people (80 columns) and as JSON.

use super::advice::{self, Part};
use super::host::{Check, CheckState};
use super::nics::Fitness;
use super::options;
use serde_json::{Value, json};
use std::fmt::Write;
use towpath_ring::report::{Call, Count, HookMethod, Program};

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Columns of a tab.
const TAB: usize = 8;

/// How the program ended.
pub struct Ending {
    /// Its exit code.
    pub code: Option<i32>,
    /// Or the signal that ended it.
    pub signal: Option<i32>,
}

/// Wraps words in lines of at most [`WIDTH`] columns. `first` begins the first line. The others are indented by spaces.
fn wrapped(out: &mut String, first: &str, indent: usize, text: &str) {
    let mut line = format!("{first:<indent$}");
    let mut columns = line.chars().map(|c| if c == '\t' { TAB } else { 1 }).sum::<usize>().max(indent);
    let mut begun = false;
    for word in text.split(' ') {
        let length = word.chars().count();
        if begun && columns + 1 + length > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            (line, columns, begun) = (" ".repeat(indent), indent, false);
        }
        if begun {
            line.push(' ');
            columns += 1;
        }
        line.push_str(word);
        columns += length;
        begun = true;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(3)).collect::<String>() + "..."
}

/// The checks that are at least as bad as `least`.
pub fn host(checks: &[Check], least: CheckState) -> String {
    let mut out = String::new();
    for check in checks.iter().filter(|check| check.state >= least) {
        let state = match check.state {
            CheckState::Ok => "ok",
            CheckState::Warn => "warn",
            CheckState::Fail => "FAIL",
        };
        wrapped(&mut out, &format!("{state:<5} {:<11} ", check.check), 18, &check.found);
        if let Some(remedy) = &check.remedy {
            wrapped(&mut out, "", 20, remedy);
        }
    }
    out
}

fn total(program: &Program, part: Part) -> u64 {
    program.counts.iter().filter(|(count, _)| advice::of(*count).0 == part).map(|(_, times)| u64::from(*times)).sum()
}

/// A program that only executed another one is left out: the other has a record of its own.
fn shown(programs: &[Program]) -> Vec<&Program> {
    let idle = |program: &Program| {
        program.method != HookMethod::None && program.counts.is_empty() && program.refused.is_empty()
    };
    let goes_on = |at: usize| {
        programs[at + 1..].iter().any(|later| later.pid == programs[at].pid && later.method != HookMethod::None)
    };
    (0..programs.len()).filter(|at| !(idle(&programs[*at]) && goes_on(*at))).map(|at| &programs[at]).collect()
}

fn hook(program: &Program) -> &'static str {
    match program.method {
        HookMethod::None => "none",
        HookMethod::Preload => "preload",
        HookMethod::Inject => "inject",
    }
}

fn call(call: Call) -> &'static str {
    match call {
        Call::SetOption => "setsockopt",
        Call::GetOption => "getsockopt",
    }
}

/// The human form.
pub fn programs(programs: &[Program], left_out: u32) -> String {
    let mut out = format!("{:<8}{:<8}{:>8}{:>8}{:>9}  Program\n", "Pid", "Hook", "Towpath", "Kernel", "Refused");
    let shown = shown(programs);
    let (mut told, mut quiet): (Vec<_>, Vec<_>) = shown.into_iter().partition(|program| has_sockets(program));
    if told.is_empty() && !quiet.is_empty() {
        told.push(quiet.remove(0));
    }
    for program in told {
        let refused: u64 = program.refused.iter().map(|(.., times)| u64::from(*times)).sum();
        let row = format!(
            "{:<8}{:<8}{:>8}{:>8}{refused:>9}  ",
            program.pid,
            hook(program),
            total(program, Part::Accelerated),
            total(program, Part::Kernel),
        );
        let room = WIDTH.saturating_sub(row.chars().count());
        let _ = writeln!(out, "{}", (row + &cut(&program.line, room)).trim_end());
        details(&mut out, program);
    }
    if !quiet.is_empty() {
        wrapped(&mut out, "", 0, &format!("without sockets: {}", names(&quiet)));
    }
    if left_out > 0 {
        let _ = writeln!(out, "{left_out} programs more for which there was no room");
    }
    out
}

/// Is there anything to say of a program's sockets? What is not hooked is said in any case.
fn has_sockets(program: &Program) -> bool {
    program.method == HookMethod::None || !program.counts.is_empty() || !program.refused.is_empty()
}

/// The programs' names, each with how often it ran.
fn names(programs: &[&Program]) -> String {
    let mut times: Vec<(&str, usize)> = Vec::new();
    for program in programs {
        let first = program.line.split(' ').next().unwrap_or_default();
        let name = first.rsplit('/').next().unwrap_or_default();
        match times.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => *times += 1,
            None => times.push((name, 1)),
        }
    }
    times.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    let words =
        times.iter().map(|(name, times)| if *times > 1 { format!("{name} ({times} times)") } else { (*name).into() });
    words.collect::<Vec<_>>().join(", ")
}

fn details(out: &mut String, program: &Program) {
    if program.method == HookMethod::None {
        wrapped(out, "", TAB, &format!("the kernel's, whole: {}", program.why));
        return;
    }
    if !program.why.is_empty() {
        wrapped(out, "", TAB, &program.why);
    }
    let accelerated = program.counts.iter().filter(|(count, _)| advice::of(*count).0 == Part::Accelerated);
    let accelerated: Vec<_> = accelerated.map(|(count, times)| format!("{times} {}", advice::of(*count).1)).collect();
    if !accelerated.is_empty() {
        wrapped(out, "", TAB, &format!("towpath: {}", accelerated.join(", ")));
    }
    for (title, wanted) in [("kernel", Part::Kernel), ("used", Part::Used)] {
        for (count, times) in &program.counts {
            let (part, what, hint) = advice::of(*count);
            if part == wanted {
                wrapped(out, &" ".repeat(TAB), TAB, &format!("{title}: {times} {what}"));
                wrapped(out, "", TAB + 2, hint);
            }
        }
    }
    for (which, level, name, times) in &program.refused {
        let text = format!("refused: {times} {} {}", call(*which), options::name(*level, *name));
        wrapped(out, "", TAB, &text);
    }
    if program.counts.is_empty() && program.refused.is_empty() {
        wrapped(out, "", TAB, "no sockets");
    }
}

/// What is recorded of the program elsewhere, if anything is.
pub fn known(known: Option<&[&str]>) -> String {
    let mut out = String::new();
    if let Some(known) = known {
        let _ = writeln!(out, "recorded elsewhere (docs/performance.md has the machine):");
        known.iter().for_each(|text| wrapped(&mut out, "", TAB, text));
    }
    out
}

/// The host's checks as JSON.
pub fn host_json(checks: &[Check], nics: &[Fitness]) -> String {
    let failed = checks.iter().any(|check| check.state == CheckState::Fail);
    crate::json::line(
        &json!({ "version": env!("CARGO_PKG_VERSION"), "ok": !failed, "host": checks, "interfaces": nics }),
    )
}

/// Everything as JSON.
pub fn json(ending: &Ending, checks: &[Check], programs: &[Program], left_out: u32, known: Option<&[&str]>) -> String {
    let failed = checks.iter().any(|check| check.state == CheckState::Fail);
    let programs: Vec<Value> = shown(programs).into_iter().map(program).collect();
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": !failed,
        "host": checks,
        "exit": { "code": ending.code, "signal": ending.signal },
        "programs": programs,
        "left_out": left_out,
        "recorded": known,
    });
    crate::json::line(&all)
}

fn program(program: &Program) -> Value {
    let times = |wanted: Count| {
        let found = program.counts.iter().find(|(count, _)| *count == wanted);
        found.map_or(0, |(_, times)| *times)
    };
    let listed = |wanted: Part| {
        let found = program.counts.iter().filter(|(count, _)| advice::of(*count).0 == wanted);
        let found = found.map(|(count, times)| {
            let (_, what, hint) = advice::of(*count);
            json!({ "reason": count.name(), "count": times, "what": what, "hint": hint })
        });
        found.collect::<Vec<_>>()
    };
    let refused = program.refused.iter().map(|(which, level, name, times)| {
        json!({ "call": call(*which), "option": options::name(*level, *name), "count": times })
    });
    json!({
        "pid": program.pid,
        "parent": program.parent,
        "program": program.line,
        "hook": hook(program),
        "why": program.why,
        "accelerated": {
            "connected": { "direct": times(Count::ConnectedDirect), "stack": times(Count::ConnectedStack) },
            "accepted": { "direct": times(Count::AcceptedDirect), "stack": times(Count::AcceptedStack) },
            "listening": times(Count::Listening),
        },
        "kernel": listed(Part::Kernel),
        "used": listed(Part::Used),
        "refused": refused.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: u32, method: HookMethod, line: &str, counts: &[(Count, u32)]) -> Program {
        let counts = counts.to_vec();
        Program { pid, parent: 1, method, line: line.into(), why: String::new(), counts, refused: Vec::new() }
    }

    #[test]
    fn what_has_no_sockets_is_named_after_the_answer() {
        let shim = |pid, line: &str| one(pid, HookMethod::Preload, line, &[]);
        let answer = one(30, HookMethod::Preload, "/usr/bin/python3 tcp.py", &[(Count::ConnectedDirect, 1)]);
        let mut all: Vec<_> = (1..13).map(|pid| shim(pid, "bash /opt/pyenv/libexec/pyenv-exec")).collect();
        all.extend([shim(20, "/usr/bin/readlink pyenv"), answer.clone(), shim(31, "/usr/bin/readlink conda")]);
        let page = programs(&all, 0);
        let lines: Vec<_> = page.lines().collect();
        assert!(lines[1].ends_with("  /usr/bin/python3 tcp.py"), "{page}");
        assert_eq!(lines[3..], ["without sockets: bash (12 times), readlink (2 times)"], "{page}");
        // Where none has sockets, that is the answer.
        let page = programs(&all[..2], 0);
        assert_eq!(page.lines().skip(2).collect::<Vec<_>>(), ["        no sockets", "without sockets: bash"], "{page}");
        // A program that is not hooked is the answer, too.
        assert_eq!(programs(&[one(1, HookMethod::None, "/usr/bin/sudo", &[])], 0).lines().count(), 3);
    }

    #[test]
    fn the_page_fits_a_terminal() {
        let server = one(
            4711,
            HookMethod::Preload,
            &"python3 server.py --with-a-long-name ".repeat(3),
            &Count::ALL.iter().map(|count| (*count, u32::MAX)).collect::<Vec<_>>(),
        );
        let long = "words and words ".repeat(20);
        let checks = [CheckState::Ok, CheckState::Warn, CheckState::Fail].map(|state| Check {
            check: "hugepages",
            state,
            found: long.clone(),
            remedy: Some(long.clone()),
        });
        let recorded = crate::run::profile::known_of("haproxy".as_ref());
        let page = host(&checks, CheckState::Ok) + &programs(&[server], 9) + &known(recorded);
        assert!(page.contains("recorded elsewhere") && page.contains("--splice PORTS") && known(None).is_empty());
        for line in page.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn the_table() {
        let mut server = one(42, HookMethod::Preload, "server", &[(Count::AcceptedDirect, 2), (Count::Udp, 1)]);
        server.refused.push((Call::SetOption, 1, 26, 3));
        let mut child = one(43, HookMethod::None, "/usr/bin/sudo", &[]);
        child.why = "is setuid or setgid and left alone".into();
        let shell = one(44, HookMethod::Preload, "sh -c exec idle", &[]);
        let idle = one(44, HookMethod::Preload, "idle", &[]);
        let expected = "\
Pid     Hook     Towpath  Kernel  Refused  Program
42      preload        2       1        3  server
        towpath: 2 accepted directly
        kernel: 1 UDP
          Towpath carries TCP; nothing to do
        refused: 3 setsockopt SOL_SOCKET/SO_ATTACH_FILTER
43      none           0       0        0  /usr/bin/sudo
        the kernel's, whole: is setuid or setgid and left alone
without sockets: idle
";
        assert_eq!(programs(&[server, child, shell, idle], 0), expected);
    }
}
