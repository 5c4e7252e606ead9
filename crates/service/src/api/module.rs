//! Commands about modules, and their answers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use towpath_runtime::named_counts::NamedCounts;

/// What is asked about modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum ModuleRequest {
    /// Adds one. The answer is [`ModuleList`] with it alone.
    Add(NewModule),
    /// All modules, or the one of this name.
    List {
        /// The name.
        #[serde(default)]
        name: Option<String>,
    },
    /// Removes one. The answer is [`ModuleList`] as it was.
    Remove {
        /// Its name.
        name: String,
    },
    /// The elements of a map: [`Elements`].
    Dump {
        /// The map.
        #[serde(flatten)]
        of: MapOf,
    },
    /// Takes the lines that a module has printed since they were taken last: [`TraceLines`].
    Trace {
        /// The module.
        name: String,
    },
    /// Sets an element. The answer is [`Elements`] with it alone.
    Set {
        /// The map.
        #[serde(flatten)]
        of: MapOf,
        /// The key, in words.
        key: String,
        /// The value, in words.
        value: String,
    },
    /// Removes an element. The answer is [`Elements`] with none.
    Delete {
        /// The map.
        #[serde(flatten)]
        of: MapOf,
        /// The key, in words.
        key: String,
    },
    /// Keeps a map beyond its module. The answer is [`PinList`] with it alone.
    Pin {
        /// The module.
        name: String,
        /// The map.
        map: String,
        /// The pin's name. `None`: the map's.
        #[serde(default)]
        pin: Option<String>,
    },
    /// All pins: [`PinList`].
    Pins,
    /// Removes a pin. The answer is [`PinList`] with it alone, as it was.
    Unpin {
        /// Its name.
        pin: String,
    },
}

/// Which map is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MapOf {
    /// A module's.
    Module {
        /// The module.
        name: String,
        /// The map.
        map: String,
    },
    /// A pinned one, whether a module uses it or not.
    Pin {
        /// The pin.
        pin: String,
    },
}

/// A module that is to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewModule {
    /// Its name.
    pub name: String,
    /// The object file, two hexadecimal digits for each byte.
    pub object: String,
    /// The program of several.
    #[serde(default)]
    pub program: Option<String>,
    /// `ingress` or `egress`.
    pub hook: String,
    /// Modules with a lower one run first.
    pub priority: i32,
    /// Who is charged for its time. All modules of a tenant have one account. `None`: a tenant of the module's name,
    /// which is no other module's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The share of a core's time that the tenant's modules may take together, in percent. `None`: what the tenant has already, or
    /// [`USUAL_BUDGET`].
    #[serde(default)]
    pub budget: Option<u8>,
    /// The programs whose connections' frames it has, in the words of the policy's rules. `None`: it has all frames.
    #[serde(default)]
    pub app: Option<String>,
    /// Its maps that are pinned ones: by their names in the object, those of the pins.
    #[serde(default)]
    pub maps: BTreeMap<String, String>,
    /// Has it the frames that are made of direct connections, too?
    #[serde(default)]
    pub direct: bool,
}

/// What a tenant has if nothing else is said: all. Else a flood of frames could use up a firewall's, and so detach it.
pub const USUAL_BUDGET: u8 = 100;

/// Modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleList {
    /// In the order in which frames go through them; those of ingress come first.
    pub modules: Vec<ModuleLine>,
}

/// A module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleLine {
    /// Its name.
    pub name: String,
    /// `ingress` or `egress`.
    pub hook: String,
    /// Modules with a lower one run first.
    pub priority: i32,
    /// The program that frames are given to.
    pub program: String,
    /// Who is charged for its time.
    #[serde(default)]
    pub tenant: String,
    /// The share of a core's time that the tenant's modules may take together, in percent.
    pub budget: u8,
    /// Has the tenant taken more? Then none of its modules runs any more.
    pub detached: bool,
    /// The programs whose connections' frames it has; `None`: it has all frames.
    #[serde(default)]
    pub app: Option<String>,
    /// Has it the frames that are made of direct connections, too? Then `counts` has `missed`, those that could not be made.
    #[serde(default)]
    pub direct: bool,
    /// Is it compiled, or interpreted?
    pub compiled: bool,
    /// Has it a copy of each frame, with room around it?
    pub copies: bool,
    /// What became of its frames.
    pub counts: NamedCounts,
    /// Its maps.
    pub maps: Vec<MapLine>,
}

/// A map of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapLine {
    /// Its name.
    pub name: String,
    /// Its kind, as bpftool says it.
    pub kind: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// Its pin; `None`: it ends with the module.
    #[serde(default)]
    pub pin: Option<String>,
}

/// Pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinList {
    /// By their names.
    pub pins: Vec<PinLine>,
}

/// A pinned map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinLine {
    /// The pin's name.
    pub name: String,
    /// The map's kind, as bpftool says it.
    pub kind: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// Bytes of memory that it takes.
    pub bytes: u64,
    /// The modules that have this map.
    pub modules: Vec<String>,
}

/// Elements of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elements {
    /// The map.
    pub map: String,
    /// Its kind.
    pub kind: String,
    /// What it has.
    pub elements: Vec<ElementLine>,
}

/// An element of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementLine {
    /// The key, two hexadecimal digits for each byte. Records have none.
    pub key: String,
    /// The value; of a per-CPU map one for each flow group.
    pub values: Vec<String>,
    /// The same as numbers, where they are of 1, 2, 4 or 8 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<u64>,
}

/// Lines that a module has printed (`bpf_printk`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLines {
    /// In the order in which they were printed.
    pub lines: Vec<TraceLine>,
    /// Lines for which there was no room.
    pub lost: u64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// When, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The flow group.
    pub flow_group: u32,
    /// What.
    pub text: String,
}
