//! What a module, or a capture's filter, costs a frame: instructions counted by callgrind, and time beside the kernel's own run of
//! the program.

use crate::callgrind::{absent, callgrind, per_request};
use crate::clang::clang;
use crate::programs::{ScratchDir, json_report, number};
use crate::{side_by_side, spliced_proxy};
use clap::Args;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use towpath_bench_report::print_json;
use towpath_module_compiler::compile;
use towpath_modules::Object;
use towpath_modules::verify::{may_ask, time_of_runs, verify};
use towpath_service::programs::find;

/// What is measured.
#[derive(Clone, Copy)]
struct Measured {
    name: &'static str,
    source: &'static str,
    /// What it is: a `module`, or the filter of a `capture`.
    role: &'static str,
    /// The most that a run may take.
    instructions: Option<f64>,
    nanoseconds: Option<f64>,
}

const MODULE: Measured = Measured { name: "", source: "", role: "module", instructions: None, nanoseconds: None };

/// A filter that matches no frame of the measurement.
const FILTER: Measured = Measured {
    name: "filter",
    source: include_str!("modules/filter.bpf.c"),
    role: "capture",
    instructions: Some(40.0),
    nanoseconds: None,
};

const ALL: [Measured; 4] = [
    Measured { name: "null", source: include_str!("modules/null.bpf.c"), instructions: Some(20.0), ..MODULE },
    Measured { name: "parse", source: include_str!("modules/parse.bpf.c"), nanoseconds: Some(8.0), ..MODULE },
    Measured { name: "hash", source: include_str!("modules/hash.bpf.c"), nanoseconds: Some(30.0), ..MODULE },
    FILTER,
];

/// Frames that callgrind counts, and frames of a timed run.
const COUNTED: u64 = 6400;
const TIMED: u64 = 2_000_000;

/// The frame: an Ethernet header, IPv4, TCP with timestamps, and 64 bytes.
const FRAME_BYTES: usize = 14 + 20 + 32 + 64;

/// Arguments of `towpath bench modules`.
#[derive(Args)]
pub struct Options {
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Rounds of the timed runs; the median is told, with the range.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Leave out what the module that splices gains (`towpath bench splice`), which needs a veth.
    #[arg(long)]
    no_splicing: bool,
}

/// Most rounds of the spliced proxy, which take seconds each.
const MOST_SPLICED: usize = 3;

/// Median, least and most of some rounds, and all in turn.
#[derive(Serialize)]
struct Times {
    median: f64,
    least: f64,
    most: f64,
    rounds: Vec<f64>,
}

/// One module's figures, for each frame.
#[derive(Serialize)]
struct Row {
    module: &'static str,
    role: &'static str,
    /// More than without a module or a capture.
    ingress_instructions: f64,
    egress_instructions: f64,
    /// More than without a module.
    ingress_ns: Times,
    /// In the kernel, by `BPF_PROG_TEST_RUN`, without a network stack.
    kernel_ns: Times,
    /// The targets: of instructions, and of time.
    target_instructions: Option<f64>,
    target_ns: Option<f64>,
}

/// What is left of a module that was there and has been removed: nothing, or the frames of all who use none would pay.
#[derive(Serialize)]
struct Removed {
    ingress_instructions: f64,
    egress_instructions: f64,
    target_instructions: f64,
}

/// An object and its code, where the counted program finds them.
struct Prepared {
    object: PathBuf,
    code: PathBuf,
}

/// Measures all modules and prints the figures.
pub fn run(options: &Options) -> io::Result<()> {
    if !may_ask() {
        return Err(io::Error::other(
            "the kernel's verifier judges modules for CAP_BPF and CAP_NET_ADMIN only: run it as root",
        ));
    }
    let (program, scratch) = (find("towpath-instructions")?, ScratchDir::new("modules")?);
    let removed = removed(&program, &scratch.0)?;
    let rows: io::Result<Vec<Row>> =
        ALL.iter().map(|measured| row(*measured, &program, &scratch.0, options.rounds)).collect();
    let rows = rows?;
    let splicing = (!options.no_splicing).then(|| splicing(options.rounds as usize)).transpose();
    let why = splicing.as_ref().err().map(ToString::to_string);
    let splicing = splicing.ok().flatten();
    let figures =
        serde_json::json!({ "removed": removed, "modules": rows, "splicing": splicing, "splicing_failed": why });
    if print_json(options.json, &figures) {
        return Ok(());
    }
    println!(
        "the cost for each frame of {FRAME_BYTES} bytes of a module, and of a capture's filter that matches nothing, beside the kernel's run of the same program"
    );
    println!("  {:<8} {:>12} {:>12} {:>22} {:>22}", "module", "ingress", "egress", "ingress ns", "kernel ns");
    println!(
        "  {:<8} {:>6.1} instr {:>6.1} instr",
        "removed", removed.ingress_instructions, removed.egress_instructions
    );
    for row in &rows {
        let times = |times: &Times| format!("{:.1} ({:.1}-{:.1})", times.median, times.least, times.most);
        println!(
            "  {:<8} {:>6.1} instr {:>6.1} instr {:>22} {:>22}",
            row.module,
            row.ingress_instructions,
            row.egress_instructions,
            times(&row.ingress_ns),
            times(&row.kernel_ns)
        );
    }
    if let Some(splicing) = splicing {
        println!();
        let rounds = side_by_side::Options::within((options.rounds as usize).min(MOST_SPLICED));
        side_by_side::print(&rounds, "a proxy, spliced under Towpath, 1 connection (bytes/s)", &splicing);
    }
    Ok(())
}

/// What the module that splices gains a proxy, beside Linux. Without a veth there are no figures, and the report says why.
fn splicing(rounds: usize) -> io::Result<Vec<side_by_side::Row>> {
    let measured = spliced_proxy::run(&side_by_side::Options::within(rounds.min(MOST_SPLICED)));
    measured.inspect_err(|why| eprintln!("no figures of splicing: {why}"))
}

fn row(measured: Measured, program: &Path, dir: &Path, rounds: u32) -> io::Result<Row> {
    let Measured { name, source, role, .. } = measured;
    eprintln!("{name}: {rounds} timed rounds, and counting ...");
    let object = clang(name, source, dir)?;
    let parsed = Object::parse(&std::fs::read(&object)?).map_err(io::Error::other)?;
    let accepted = verify(&parsed).map_err(io::Error::other)?;
    let prepared = Prepared { code: compiled(&parsed, name, dir)?, object };
    let frame = frame();
    let (mut own, mut kernel) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let without = nanoseconds(program, dir, role, None)?;
        own.push(nanoseconds(program, dir, role, Some(&prepared))? - without);
        kernel.push(time_of_runs(&accepted.programs[0], &frame, TIMED as u32)?);
    }
    let object = prepared.object.display().to_string();
    Ok(Row {
        module: name,
        role,
        ingress_instructions: counted(program, dir, [role, "ingress"], &object, &prepared.code)?,
        egress_instructions: counted(program, dir, [role, "egress"], &object, &prepared.code)?,
        ingress_ns: times(own),
        kernel_ns: times(kernel),
        target_instructions: measured.instructions,
        target_ns: measured.nanoseconds,
    })
}

/// From 10.0.0.2:40000 to 10.0.0.1:7000. Nobody checks sums. The kernel and we run programs on the same one.
fn frame() -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
    frame[34..38].copy_from_slice(&[156, 64, 27, 88]);
    frame[46..48].copy_from_slice(&[0x80, 0x10]);
    frame
}

/// The same in a file.
fn frame_file(dir: &Path) -> io::Result<PathBuf> {
    let path = dir.join("frame");
    std::fs::write(&path, frame())?;
    Ok(path)
}

fn times(rounds: Vec<f64>) -> Times {
    let mut sorted = rounds.clone();
    sorted.sort_by(f64::total_cmp);
    Times { median: sorted[sorted.len() / 2], least: sorted[0], most: sorted[sorted.len() - 1], rounds }
}

/// Instructions for each frame, at ingress and at egress: of the null module, of a capture whose filter matches nothing, and of one
/// of all frames. They need no privileges.
pub fn guarded(program: &Path, dir: &Path) -> io::Result<[[f64; 2]; 3]> {
    let code = compiled(&Object::null(), "null", dir)?;
    let null = |side| counted(program, dir, ["module", side], "null", &code);
    let object = clang(FILTER.name, FILTER.source, dir)?;
    let code = compiled(&Object::parse(&std::fs::read(&object)?).map_err(io::Error::other)?, FILTER.name, dir)?;
    let filter = |side| counted(program, dir, [FILTER.role, side], &object.display().to_string(), &code);
    let all = |side| counted(program, dir, ["capture", side], "all", &code);
    Ok([
        [null("ingress")?, null("egress")?],
        [filter("ingress")?, filter("egress")?],
        [all("ingress")?, all("egress")?],
    ])
}

/// Instructions for each frame of the command that captures: from the memory to the file.
pub fn written(program: &Path, dir: &Path) -> io::Result<f64> {
    let out = dir.join("writer.out");
    let mut command = callgrind("writer_turn", &out);
    // So many that what is made once for each connection hardly counts.
    command.arg(program).arg("writer").arg(frame_file(dir)?).arg((10 * COUNTED).to_string());
    per_request(&out, &command.output().map_err(absent)?)
}

fn removed(program: &Path, dir: &Path) -> io::Result<Removed> {
    let code = compiled(&Object::null(), "null", dir)?;
    let left = |side| counted(program, dir, ["module", side], "removed", &code);
    Ok(Removed {
        ingress_instructions: left("ingress")?,
        egress_instructions: left("egress")?,
        target_instructions: 0.0,
    })
}

/// The instructions that a module or a filter adds to a frame. `stands`: what it is, and where it stands.
fn counted(program: &Path, dir: &Path, stands: [&str; 2], object: &str, code: &Path) -> io::Result<f64> {
    let count = |object: &str| {
        let out = dir.join("modules.out");
        let mut command = callgrind("modules_turn", &out);
        command.arg(program).args(stands).arg(object).arg(code).arg(frame_file(dir)?).arg(COUNTED.to_string());
        per_request(&out, &command.output().map_err(absent)?)
    };
    Ok(count(object)? - count("none")?)
}

/// The time of a received frame, with a module or without.
fn nanoseconds(program: &Path, dir: &Path, role: &str, module: Option<&Prepared>) -> io::Result<f64> {
    let mut command = Command::new(program);
    command.args([role, "ingress"]);
    match module {
        Some(module) => command.arg(&module.object).arg(&module.code),
        None => command.args(["none", "none"]),
    };
    let output = command.arg(frame_file(dir)?).arg(TIMED.to_string()).output()?;
    let report = json_report(&output, "towpath-instructions")?;
    Ok(number(&report, "nanoseconds")? / number(&report, "requests")?)
}

/// Writes the machine code of an object's only function to a file, behind where it begins and where the two loops around it do.
fn compiled(object: &Object, name: &str, dir: &Path) -> io::Result<PathBuf> {
    let made = compile(&object.programs).map_err(io::Error::other)?;
    if made.functions.len() != 3 {
        return Err(io::Error::other(format!("{name} has more than one function")));
    }
    let path = dir.join(format!("{name}.code"));
    let functions = made.functions.iter().flat_map(|offset| offset.to_le_bytes());
    std::fs::write(&path, functions.chain(made.code).collect::<Vec<_>>())?;
    Ok(path)
}
