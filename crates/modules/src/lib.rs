//! Modules: XDP programs as clang compiles them, in user space. This crate knows frames, object files and maps; it knows
//! neither TCP nor services.
//!
//! [`Object`] reads an object file. The kernel's verifier judges its programs ([`verify`]), a compiler makes machine code of
//! them ([`abi`]), and a [`Module`] has the maps. Each flow group runs an [`Instance`] of it. Without the
//! verifier's word programs are interpreted, each access checked.

pub mod abi;
mod action;
pub mod attached;
mod btf;
pub mod budget;
mod chain;
mod check;
mod clock;
pub mod code;
pub mod compiled;
mod context;
pub mod data_flow;
mod elf;
mod error;
mod helpers;
pub mod insn;
mod interpreter;
pub mod kernel_types;
mod kind;
pub mod map;
pub mod module;
mod names;
mod object;
mod run;
mod shape;
mod towpath_frame;
mod trace;
pub mod verify;
pub mod words;
mod writes;

pub use attached::{Attached, Chains, Counts, Hook};
pub use budget::{Overrun, Tenant, Tenants};
pub use chain::{Chain, EVERY, Left, Whose};
pub use check::check;
pub use error::LoadError;
pub use insn::Insn;
pub use interpreter::Fault;
pub use map::Map;
pub use module::{Action, Instance, Module, helper_names};
pub use object::{MAX_MAP_BYTES, MapKind, MapSpec, Object, ProgramSpec};
pub use run::Frame;
pub use towpath_frame::{TOWPATH_FRAME_BYTES, TowpathFrame};
pub use trace::{Line, Trace};
