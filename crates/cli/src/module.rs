//! `towpath module`: programs of the operator in the data path.

use crate::locate::{NoService, Which};
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_service::api::{
    self, AskError, Command, Elements, MAX_COMMAND_BYTES, ModuleLine, ModuleList, ModuleRequest, NewModule, TraceLines,
};

/// Adds programs of your own to the data path of the fast stack: XDP objects as clang compiles them.
///
/// The kernel's verifier judges a module before it runs. It runs in the service, on each frame of the fast stack, and says
/// whether the frame passes, is dropped, or goes back. Only the service's own user and root may change modules.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clang -O2 -g -target bpf -c firewall.bpf.c -o firewall.bpf.o
  towpath module add firewall firewall.bpf.o             frames that are received go through it
  towpath module add push vlan.bpf.o --program vlan_push --hook egress --priority 10
  towpath module add web firewall.bpf.o --app 'user www-data program nginx'
  towpath module stats                                   what became of the frames
  towpath module maps firewall                           its maps
  towpath module maps firewall blocked_ports set 5001 1
  towpath module maps firewall dropped dump
  towpath module trace firewall --follow                 what it prints by bpf_printk
  towpath module rm firewall

A key or value is a number (256, 0x100), an address (10.0.0.1), or hex: and two digits for each byte in their order; a key
of an lpm_trie is a block (10.0.0.0/8), and a value of a prog_array a program's name. To dump a ringbuf takes its records.
SELECTOR is WHO of the rules of `towpath policy`; all of its conditions must hold for the process that has registered. The module
has the frames of the connections and listeners of such programs alone, of those that are open already, too.
Modules with a lower priority run first. A frame that one drops is not shown to the next. Modules end with the service.
The first ten lines of a module are in docs/guide/modules.md.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Add a module
    Add {
        /// Its name
        name: String,
        /// The object file
        object: PathBuf,
        /// The program, if the object has several
        #[arg(long, value_name = "FUNCTION")]
        program: Option<String>,
        /// Frames that are received (ingress) or sent (egress)
        #[arg(long, value_parser = ["ingress", "egress"], default_value = "ingress")]
        hook: String,
        /// Lower ones run first
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
        /// Share of a core's time that it may take, in percent. One that takes more is detached, and with 100 it never is
        #[arg(long, value_name = "PERCENT", default_value_t = api::USUAL_BUDGET, value_parser = clap::value_parser!(u8).range(1..=100))]
        budget: u8,
        /// Only frames of these programs' connections: user, group, program and cgroup, as in rules of `towpath policy`
        #[arg(long, value_name = "SELECTOR")]
        app: Option<String>,
    },
    /// List the modules, in the order in which they run
    List,
    /// Count what became of their frames
    Stats,
    /// List the maps of a module, or show and change one
    Maps {
        /// The module
        name: String,
        /// The map
        map: Option<String>,
        #[command(subcommand)]
        act: Option<Act>,
    },
    /// Take the lines that a module has printed by bpf_printk
    Trace {
        /// Its name
        name: String,
        /// Go on until ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
    /// Remove a module
    Rm {
        /// Its name
        name: String,
    },
}

#[derive(clap::Subcommand)]
enum Act {
    /// Show all elements
    Dump,
    /// Set an element
    Set {
        /// The key
        key: String,
        /// The value
        value: String,
    },
    /// Delete an element
    Delete {
        /// The key
        key: String,
    },
}

/// Asks the service.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    // A wrong file needs no service.
    let request = match &arguments.action {
        Action::Add { name, object, program, hook, priority, budget, app } => {
            let (name, program, hook, app) = (name.clone(), program.clone(), hook.clone(), app.clone());
            let (priority, budget) = (*priority, *budget);
            ModuleRequest::Add(NewModule { name, object: read(object)?, program, hook, priority, budget, app })
        }
        Action::List | Action::Stats => ModuleRequest::List { name: None },
        Action::Maps { name, map, act } => maps(name, map.as_deref(), act.as_ref()),
        Action::Trace { name, .. } => ModuleRequest::Trace { name: name.clone() },
        Action::Rm { name } => ModuleRequest::Remove { name: name.clone() },
    };
    let socket = arguments.which.find()?;
    if let Action::Trace { follow, .. } = &arguments.action {
        return trace(&socket, &request, *follow, arguments.json);
    }
    let elements =
        matches!(request, ModuleRequest::Dump { .. } | ModuleRequest::Set { .. } | ModuleRequest::Delete { .. });
    if elements {
        let elements: Elements = api::ask(&socket, Command::Module(request))?;
        return Ok(if arguments.json { json(&elements) } else { element_lines(&elements) });
    }
    let ModuleList { modules } = api::ask(&socket, Command::Module(request))?;
    if arguments.json {
        return Ok(json(&ModuleList { modules }));
    }
    Ok(match &arguments.action {
        Action::Add { .. } => modules.iter().map(added).collect(),
        Action::Stats => stats(&modules),
        Action::Maps { .. } => map_lines(&modules),
        Action::Rm { name } => format!("module {name} is removed\n"),
        Action::List | Action::Trace { .. } => list(&modules),
    })
}

fn json<T: serde::Serialize>(answer: &T) -> String {
    serde_json::to_string(answer).unwrap_or_default() + "\n"
}

/// The object in hexadecimal digits.
pub fn read(object: &std::path::Path) -> Result<String, AskError> {
    let bytes = std::fs::read(object).map_err(|why| AskError::Refused(format!("{}: {why}", object.display())))?;
    // The rest of the line has a name and numbers.
    let most = MAX_COMMAND_BYTES as usize / 2 - 512;
    if bytes.len() > most {
        return Err(AskError::Refused(format!(
            "{} has {} bytes, and {most} are the most: `llvm-strip -g` takes off what only debuggers need",
            object.display(),
            bytes.len()
        )));
    }
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn maps(name: &str, map: Option<&str>, act: Option<&Act>) -> ModuleRequest {
    let name = name.to_owned();
    let Some(map) = map.map(str::to_owned) else { return ModuleRequest::List { name: Some(name) } };
    match act {
        None | Some(Act::Dump) => ModuleRequest::Dump { name, map },
        Some(Act::Set { key, value }) => ModuleRequest::Set { name, map, key: key.clone(), value: value.clone() },
        Some(Act::Delete { key }) => ModuleRequest::Delete { name, map, key: key.clone() },
    }
}

fn added(module: &ModuleLine) -> String {
    let how = if module.compiled {
        "the kernel's verifier has accepted it, and it is compiled"
    } else {
        "it is interpreted, as the service may not ask the kernel's verifier (CAP_BPF), or makes no code for this processor"
    };
    let copies = if module.copies { "; it has a copy of each frame" } else { "" };
    let only = module.app.as_ref().map_or(String::new(), |app| format!(" for {app} only"));
    format!("module {} runs at {}{only}: {how}{copies}\n", module.name, module.hook)
}

fn list(modules: &[ModuleLine]) -> String {
    if modules.is_empty() {
        return "no modules\n".into();
    }
    let mut text = format!(
        "{:<20} {:<8} {:>8} {:>7}  {:<12} {:<20} {}\n",
        "NAME", "HOOK", "PRIORITY", "BUDGET", "RUNS", "PROGRAM", "APP"
    );
    for module in modules {
        let how = match module {
            ModuleLine { detached: true, .. } => "detached",
            ModuleLine { compiled: true, .. } => "compiled",
            _ => "interpreted",
        };
        let ModuleLine { name, hook, priority, budget, program, .. } = module;
        let app = module.app.as_deref().unwrap_or("all");
        let _ = writeln!(text, "{name:<20} {hook:<8} {priority:>8} {budget:>5} %  {how:<12} {program:<20} {app}");
    }
    text
}

fn stats(modules: &[ModuleLine]) -> String {
    if modules.is_empty() {
        return "no modules\n".into();
    }
    let mut text = String::new();
    for module in modules {
        let counts: Vec<_> = module.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let only = module.app.as_ref().map_or(String::new(), |app| format!(" ({app} only)"));
        let _ = writeln!(text, "{}{only}: {}", module.name, counts.join(", "));
    }
    text
}

/// Time between two looks at what a module prints.
const LOOK: Duration = Duration::from_millis(100);

/// What a module has printed; with `follow` it is shown as it comes, and the answer is empty.
fn trace(socket: &Path, request: &ModuleRequest, follow: bool, as_json: bool) -> Result<String, NoService> {
    loop {
        let lines: TraceLines = api::ask(socket, Command::Module(request.clone()))?;
        let text = if as_json { json(&lines) } else { trace_lines(&lines) };
        if !follow {
            return Ok(text);
        }
        let empty = lines.lines.is_empty() && lines.lost == 0;
        let mut out = std::io::stdout().lock();
        // Whoever has read enough ends it.
        if !empty && out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(String::new());
        }
        std::thread::sleep(LOOK);
    }
}

/// With the seconds that `dmesg` and the kernel's own trace show, too.
fn trace_lines(lines: &TraceLines) -> String {
    let mut text = String::new();
    for api::TraceLine { time_ns, flow_group, text: line } in &lines.lines {
        let (seconds, micros) = (time_ns / 1_000_000_000, time_ns / 1000 % 1_000_000);
        let _ = writeln!(text, "{seconds}.{micros:06} flow group {flow_group}: {line}");
    }
    if lines.lost > 0 {
        let _ = writeln!(text, "{} lines more were printed, and there was no room for them", lines.lost);
    }
    text
}

fn map_lines(modules: &[ModuleLine]) -> String {
    let mut text = format!("{:<20} {:<14} {:>8} {:>8} {:>12}\n", "NAME", "TYPE", "KEY", "VALUE", "ENTRIES");
    for map in modules.iter().flat_map(|module| &module.maps) {
        let api::MapLine { name, kind, key_size, value_size, max_entries } = map;
        let _ = writeln!(text, "{name:<20} {kind:<14} {key_size:>8} {value_size:>8} {max_entries:>12}");
    }
    text
}

fn element_lines(elements: &Elements) -> String {
    let line = |element: &api::ElementLine| {
        let shown: Vec<String> = match element.numbers.is_empty() {
            true => element.values.iter().map(|value| format!("hex:{value}")).collect(),
            false => element.numbers.iter().map(u64::to_string).collect(),
        };
        let key = if element.key.is_empty() { String::new() } else { format!("hex:{}  ", element.key) };
        format!("{key}{}\n", shown.join(" "))
    };
    elements.elements.iter().map(line).collect()
}
