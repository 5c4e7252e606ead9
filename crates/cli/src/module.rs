//! `towpath module`: programs of the operator in the data path.

use crate::json;
use crate::locate::{NoService, Which};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_modules::kernel_types::{Resolved, resolve};
use towpath_service::api::{
    self, AskError, Command, Elements, MAX_COMMAND_BYTES, MapOf, ModuleLine, ModuleList, ModuleRequest, NewModule,
    PinLine, PinList, TraceLines,
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
  towpath module add guest guest.bpf.o --tenant carol --budget 10
  towpath module add watch statistics.bpf.o --direct     direct connections, too, which have no frames of their own
  towpath module stats                                   what became of the frames
  towpath module maps firewall                           its maps
  towpath module maps firewall blocked_ports set 5001 1
  towpath module maps firewall dropped dump
  towpath module maps firewall dropped pin               keep the map beyond the module
  towpath module add newer newer.bpf.o --map dropped=dropped
  towpath module maps --pin dropped dump                 whether a module uses it or not
  towpath module pins                                    the maps that are kept
  towpath module trace firewall --follow                 what it prints by bpf_printk
  towpath module rm firewall

A key or value is a number (256, 0x100), an address (10.0.0.1), or hex: and two digits for each byte in their order; a key
of an lpm_trie is a block (10.0.0.0/8), a value of a prog_array a program's name, and one of a devmap an interface's index
(/sys/class/net/NAME/ifindex). To dump a ringbuf takes its records.
An object that includes vmlinux.h gets the types of this kernel when it is added (CO-RE).
SELECTOR is WHO of the rules of `towpath policy`; all of its conditions must hold for the process that has registered. The module
has the frames of the connections and listeners of such programs alone, of those that are open already, too.
Modules with a lower priority run first. A frame that one drops is not shown to the next. Modules end with the service.
The first ten lines of a module are in docs/guide/modules.md.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
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
        /// Who is charged for its time: all modules of a tenant share one budget. Else it is charged for itself
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Share of a core's time that the tenant's modules may take, in percent. Who takes more is detached; 100, which is usual, never
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
        budget: Option<u8>,
        /// Only frames of these programs' connections: user, group, program and cgroup, as in rules of `towpath policy`
        #[arg(long, value_name = "SELECTOR")]
        app: Option<String>,
        /// A map of the module is the one with this pin, and no new one. May be given several times
        #[arg(long, value_name = "MAP=PIN", value_parser = map_and_pin)]
        map: Vec<(String, String)>,
        /// Show it direct connections, too, as frames made of what has passed; what it says of those changes nothing
        #[arg(long)]
        direct: bool,
    },
    /// List the modules, in the order in which they run
    List,
    /// Count what became of their frames
    Stats,
    /// List the maps of a module, or show, change and pin one
    Maps {
        /// The module
        #[arg(required_unless_present = "pin")]
        name: Option<String>,
        /// The map
        map: Option<String>,
        /// The map with this pin, whether a module uses it or not
        #[arg(long, conflicts_with_all = ["name", "map"])]
        pin: Option<String>,
        #[command(subcommand)]
        act: Option<Act>,
    },
    /// List the pins: maps that are kept beyond their modules
    Pins,
    /// Remove a pin. Its map goes with the last module that uses it
    Unpin {
        /// The pin
        pin: String,
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
    /// Keep the map beyond the module, for modules that are added later
    Pin {
        /// The pin's name, if not the map's
        #[arg(long = "as", value_name = "PIN")]
        name: Option<String>,
    },
}

fn map_and_pin(text: &str) -> Result<(String, String), String> {
    let (map, pin) = text.split_once('=').ok_or("write MAP=PIN: the map's name in the object, and that of the pin")?;
    Ok((map.into(), pin.into()))
}

/// Asks the service.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let mut missing = Vec::new();
    // A wrong file needs no service.
    let request = match &arguments.action {
        Action::Add { name, object, program, hook, priority, tenant, budget, app, map, direct } => {
            let (name, program, hook, app) = (name.clone(), program.clone(), hook.clone(), app.clone());
            let (priority, budget, maps, direct) = (*priority, *budget, each_once(map)?, *direct);
            let tenant = tenant.clone();
            let (object, lacks) = read(object)?;
            missing = lacks;
            ModuleRequest::Add(NewModule { name, object, program, hook, priority, tenant, budget, app, maps, direct })
        }
        Action::List | Action::Stats => ModuleRequest::List { name: None },
        Action::Maps { name, map, pin, act } => maps((name.as_deref(), map.as_deref()), pin.as_deref(), act.as_ref())?,
        Action::Pins => ModuleRequest::Pins,
        Action::Unpin { pin } => ModuleRequest::Unpin { pin: pin.clone() },
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
        return Ok(if arguments.json { json::line(&elements) } else { element_lines(&elements) });
    }
    if matches!(request, ModuleRequest::Pin { .. } | ModuleRequest::Pins | ModuleRequest::Unpin { .. }) {
        let pins: PinList = api::ask(&socket, Command::Module(request.clone()))?;
        return Ok(if arguments.json { json::line(&pins) } else { pin_answer(&request, &pins.pins) });
    }
    let ModuleList { modules } =
        api::ask(&socket, Command::Module(request)).map_err(|why| with_missing(why, &missing))?;
    if arguments.json {
        return Ok(json::line(&ModuleList { modules }));
    }
    Ok(match &arguments.action {
        Action::Add { .. } => modules.iter().map(added).collect(),
        Action::Stats => stats(&modules),
        Action::Maps { .. } => map_lines(&modules),
        Action::Rm { name } => {
            modules.iter().fold(format!("module {name} is removed\n"), |text, one| text + &pinned(one))
        }
        _ => list(&modules),
    })
}

/// The object in hexadecimal digits, with the types of this kernel, and what it relies on that this kernel has not.
pub fn read(object: &std::path::Path) -> Result<(String, Vec<String>), AskError> {
    let refused = |why: String| AskError::Refused(format!("{}: {why}", object.display()));
    let bytes = std::fs::read(object).map_err(|why| refused(why.to_string()))?;
    // The service has no part in it, so that it reads less of what is not its own.
    let Resolved { file: bytes, missing } = resolve(bytes).map_err(|why| refused(why.to_string()))?;
    // The rest of the line has a name and numbers.
    let most = MAX_COMMAND_BYTES as usize / 2 - 512;
    if bytes.len() > most {
        return Err(AskError::Refused(format!(
            "{} has {} bytes, and {most} are the most: `llvm-strip -g` takes off what only debuggers need",
            object.display(),
            bytes.len()
        )));
    }
    let digits = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok((digits, missing))
}

/// A verifier that refuses a program says nothing of the kernel's types.
fn with_missing(why: AskError, missing: &[String]) -> AskError {
    match why {
        AskError::Refused(why) if !missing.is_empty() && why.contains("verifier") => AskError::Refused(format!(
            "{why}\nthis kernel does not have, as the program wants it: {}: ask by bpf_core_field_exists first",
            missing.join(", ")
        )),
        why => why,
    }
}

/// Each map is one pin's.
fn each_once(maps: &[(String, String)]) -> Result<BTreeMap<String, String>, AskError> {
    let mut all = BTreeMap::new();
    for (map, pin) in maps {
        if all.insert(map.clone(), pin.clone()).is_some() {
            return Err(AskError::Refused(format!("--map {map}={pin}: {map} is given twice, and is one map")));
        }
    }
    Ok(all)
}

fn maps(
    (name, map): (Option<&str>, Option<&str>),
    pin: Option<&str>,
    act: Option<&Act>,
) -> Result<ModuleRequest, AskError> {
    let of = match (name.map(str::to_owned), map.map(str::to_owned), pin) {
        (_, _, Some(pin)) => MapOf::Pin { pin: pin.into() },
        (Some(name), Some(map), None) => MapOf::Module { name, map },
        (name, ..) if act.is_none() => return Ok(ModuleRequest::List { name }),
        (name, ..) => {
            let name = name.unwrap_or_default();
            return Err(AskError::Refused(format!("which map? `towpath module maps {name}` lists those of {name}")));
        }
    };
    Ok(match (act, of) {
        (None | Some(Act::Dump), of) => ModuleRequest::Dump { of },
        (Some(Act::Set { key, value }), of) => ModuleRequest::Set { of, key: key.clone(), value: value.clone() },
        (Some(Act::Delete { key }), of) => ModuleRequest::Delete { of, key: key.clone() },
        (Some(Act::Pin { name: pin }), MapOf::Module { name, map }) => {
            ModuleRequest::Pin { name, map, pin: pin.clone() }
        }
        (Some(Act::Pin { .. }), MapOf::Pin { pin }) => {
            return Err(AskError::Refused(format!(
                "{pin} is a pin already: `towpath module maps NAME MAP pin` pins a map of a module"
            )));
        }
    })
}

fn added(module: &ModuleLine) -> String {
    let how = if module.compiled {
        "the kernel's verifier has accepted it, and it is compiled"
    } else {
        "it is interpreted, as the service may not ask the kernel's verifier (CAP_BPF), or makes no code for this processor"
    };
    let copies = if module.copies { "; it has a copy of each frame" } else { "" };
    let only = module.app.as_ref().map_or(String::new(), |app| format!(" for {app} only"));
    let direct = if module.direct { " and watches direct connections" } else { "" };
    format!("module {} runs at {}{direct}{only}: {how}{copies}\n{}", module.name, module.hook, pinned(module))
}

/// Which of its maps are there without it.
fn pinned(module: &ModuleLine) -> String {
    let line = |map: &api::MapLine| Some(format!("map {} is kept: its pin is {}\n", map.name, map.pin.as_deref()?));
    module.maps.iter().filter_map(line).collect()
}

fn list(modules: &[ModuleLine]) -> String {
    if modules.is_empty() {
        return "no modules\n".into();
    }
    let mut text = format!(
        "{:<20} {:<14} {:>8}  {:<20} {:>6}  {:<12} {:<20} {}\n",
        "NAME", "HOOK", "PRIORITY", "TENANT", "BUDGET", "RUNS", "PROGRAM", "APP"
    );
    for module in modules {
        let how = match module {
            ModuleLine { detached: true, .. } => "detached",
            ModuleLine { compiled: true, .. } => "compiled",
            _ => "interpreted",
        };
        let ModuleLine { name, priority, tenant, budget, program, .. } = module;
        let hook = format!("{}{}", module.hook, if module.direct { "+direct" } else { "" });
        let app = module.app.as_deref().unwrap_or("all");
        let _ = writeln!(
            text,
            "{name:<20} {hook:<14} {priority:>8}  {tenant:<20} {budget:>4} %  {how:<12} {program:<20} {app}"
        );
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
        let text = if as_json { json::line(&lines) } else { trace_lines(&lines) };
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
    let mut text = format!("{:<20} {:<14} {:>8} {:>8} {:>12}  {}\n", "NAME", "TYPE", "KEY", "VALUE", "ENTRIES", "PIN");
    for map in modules.iter().flat_map(|module| &module.maps) {
        let api::MapLine { name, kind, key_size, value_size, max_entries, pin } = map;
        let pin = pin.as_deref().unwrap_or("none");
        let _ = writeln!(text, "{name:<20} {kind:<14} {key_size:>8} {value_size:>8} {max_entries:>12}  {pin}");
    }
    text
}

fn pin_answer(request: &ModuleRequest, pins: &[PinLine]) -> String {
    match (request, pins) {
        (ModuleRequest::Pin { map, .. }, [pin, ..]) => format!("map {map} is kept: its pin is {}\n", pin.name),
        (ModuleRequest::Unpin { .. }, [pin, ..]) if pin.modules.is_empty() => {
            format!("pin {} is removed, and its map\n", pin.name)
        }
        (ModuleRequest::Unpin { .. }, [pin, ..]) => {
            format!(
                "pin {} is removed; its map ends with the modules that use it: {}\n",
                pin.name,
                pin.modules.join(", ")
            )
        }
        (_, []) => "no pins\n".into(),
        _ => pin_lines(pins),
    }
}

fn pin_lines(pins: &[PinLine]) -> String {
    let mut text = format!(
        "{:<20} {:<14} {:>8} {:>8} {:>12} {:>12}  {}\n",
        "PIN", "TYPE", "KEY", "VALUE", "ENTRIES", "BYTES", "MODULES"
    );
    for pin in pins {
        let PinLine { name, kind, key_size, value_size, max_entries, bytes, modules } = pin;
        let modules = if modules.is_empty() { "none".into() } else { modules.join(", ") };
        let sizes = format!("{key_size:>8} {value_size:>8} {max_entries:>12} {bytes:>12}");
        let _ = writeln!(text, "{name:<20} {kind:<14} {sizes}  {modules}");
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
