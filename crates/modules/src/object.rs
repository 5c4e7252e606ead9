//! What a module is made of: programs with their functions, and maps.

use crate::btf::{Btf, Definition};
use crate::elf::{Elf, Relocation, Section, Symbol};
use crate::error::LoadError;
use crate::insn::{self, Insn};
use crate::kernel_types::is_unresolved;
pub use crate::kind::MapKind;
use crate::kind::kind_name;
use std::collections::BTreeMap;

/// A map to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements; of a ring buffer, its bytes.
    pub entries: u32,
    /// The definition's flags.
    pub flags: u32,
    /// The first bytes of a section of variables.
    pub initial: Vec<u8>,
    /// The program's constants, which nobody changes.
    pub read_only: bool,
    /// Of a [`MapKind::ProgArray`]: programs by their place.
    pub programs: Vec<(u32, String)>,
    /// It asks to be pinned under its own name, or to be the map that is (`LIBBPF_PIN_BY_NAME`).
    pub pinned: bool,
}

/// A program with all functions that it calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSpec {
    /// The function's name.
    pub name: String,
    /// May its frames have several parts (`xdp.frags`)?
    pub frags: bool,
    /// Instructions. `LD_IMM64` has the number of a map where the kernel takes a descriptor.
    pub insns: Vec<Insn>,
    /// Where each function begins; the program's own is the first.
    pub functions: Vec<usize>,
}

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// By their place in the file.
    pub programs: Vec<ProgramSpec>,
    /// Maps, by number.
    pub maps: Vec<MapSpec>,
    /// The licence, as the kernel asks for it.
    pub license: String,
}

/// More instructions than a program of ours has. Each is compiled.
const MAX_INSNS: usize = 1 << 16;
/// Most maps of an object (the kernel: 64 in a program).
const MAX_MAPS: usize = 64;
/// What a definition's `pinning` says to have it pinned.
const PIN_BY_NAME: u32 = 1;
/// Bytes of an element beside its key and values, about.
const ELEMENT: u64 = 16;
/// Most bytes that all maps of a module take.
pub const MAX_MAP_BYTES: u64 = 1 << 30;

impl MapSpec {
    /// A map of these sizes. The kind is the kernel's number.
    pub fn new(name: &str, kind: u32, sizes: [u32; 3], flags: u32) -> Result<Self, LoadError> {
        let [key_size, value_size, entries] = sizes;
        checked(&Definition { name: name.into(), kind, key_size, value_size, entries, flags, ..Definition::default() })
    }

    /// Bytes that it takes for this many flow groups.
    pub fn bytes(&self, groups: usize) -> u64 {
        if self.kind == MapKind::RingBuf {
            return 2 * u64::from(self.entries);
        }
        let copies = if self.kind.is_per_cpu() { groups as u64 } else { 1 };
        let each = u64::from(self.key_size) + u64::from(self.value_size).saturating_mul(copies) + ELEMENT;
        each.saturating_mul(self.entries.into())
    }
}

impl Object {
    /// A program that lets all frames pass. What it costs is the way to a module and back.
    pub fn null() -> Self {
        let insn = |code, imm| Insn { code, dst: 0, src: 0, off: 0, imm };
        // r0 = XDP_PASS; exit
        let insns = vec![insn(0xb7, 2), insn(0x95, 0)];
        let program = ProgramSpec { name: "null".into(), frags: false, insns, functions: vec![0] };
        Self { programs: vec![program], maps: Vec::new(), license: "GPL".into() }
    }

    /// Reads an object file.
    pub fn parse(file: &[u8]) -> Result<Self, LoadError> {
        let elf = Elf::parse(file)?;
        if is_unresolved(&elf)? {
            return Err(LoadError::Unrelocated);
        }
        let mut maps = defined_maps(&elf)?;
        let sections = variables(&elf, &mut maps)?;
        if maps.len() > MAX_MAPS {
            return Err(LoadError::Broken("it has more than 64 maps"));
        }
        let linker = Linker { elf: &elf, maps: &maps, variables: &sections };
        let mut programs = Vec::new();
        for symbol in elf.symbols.iter().filter(|symbol| symbol.function) {
            let Some(section) = elf.sections.get(symbol.section).filter(|section| section.code) else { continue };
            if is_xdp(section.name) {
                programs.push(linker.program(symbol, section.name.starts_with("xdp.frags"))?);
            }
        }
        if programs.is_empty() {
            let other = elf.sections.iter().filter(|section| section.code && !section.data.is_empty());
            let names: Vec<_> = other.map(|section| format!("\"{}\"", section.name)).collect();
            let names = if names.is_empty() { "none at all".into() } else { names.join(", ") };
            return Err(LoadError::NoProgram(names));
        }
        let license = elf.section("license").and_then(|(_, section)| crate::elf::text_at(section.data, 0));
        let object = Self {
            programs,
            maps: maps.into_iter().map(|(_, map)| map).collect(),
            license: license.unwrap_or("").into(),
        };
        // Whoever has it judged makes each map once.
        object.fits(1)?;
        Ok(object)
    }

    /// Are its maps small enough together, with copies for this many flow groups?
    pub fn fits(&self, groups: usize) -> Result<(), LoadError> {
        let bytes = self.maps.iter().fold(0u64, |sum, map| sum.saturating_add(map.bytes(groups)));
        let most = MAX_MAP_BYTES;
        if bytes > most { Err(LoadError::Memory { bytes, groups, most }) } else { Ok(()) }
    }

    /// The number of the program of this name, or of the only one that no tail call is for.
    pub fn program(&self, name: Option<&str>) -> Result<usize, LoadError> {
        let named = |wanted: &str| self.programs.iter().position(|program| program.name == wanted);
        let called = |name: &str| self.maps.iter().flat_map(|map| &map.programs).any(|(_, program)| program == name);
        let mut first = (0..self.programs.len()).filter(|at| !called(&self.programs[*at].name));
        let found = match (name, first.next(), first.next()) {
            (Some(name), ..) => named(name),
            (None, Some(only), None) => Some(only),
            _ => None,
        };
        let names: Vec<_> = self.programs.iter().map(|program| program.name.as_str()).collect();
        found.ok_or_else(|| LoadError::Which(names.join(", ")))
    }
}

/// The names that libbpf takes, and those of old examples (`xdp_prog`). Programs for elements of a devmap or a cpumap are left
/// out: the frames that they are for have been redirected.
fn is_xdp(section: &str) -> bool {
    let rest = section.strip_prefix("xdp.frags").or_else(|| section.strip_prefix("xdp"));
    let is_ours = |rest: &str| rest.is_empty() || rest.starts_with(['/', '_']);
    rest.is_some_and(|rest| is_ours(rest) && !matches!(rest, "/devmap" | "/cpumap"))
}

/// Where a map is defined: the section's number, and its place there.
type Place = (usize, u64);

fn defined_maps(elf: &Elf<'_>) -> Result<Vec<(Place, MapSpec)>, LoadError> {
    if elf.section("maps").is_some() {
        let why =
            "it is defined in the section \"maps\", as before BTF: define it in \".maps\", as libbpf 1.0 asks for";
        return Err(LoadError::Map { map: "of this object".into(), why: why.into() });
    }
    let Some((section, data)) = elf.section(".maps") else { return Ok(Vec::new()) };
    let btf = elf.section(".BTF").ok_or(LoadError::Broken("its maps have no BTF: compile it with -g"))?.1;
    let definitions = Btf::parse(btf.data).and_then(|btf| btf.maps());
    let definitions = definitions.ok_or(LoadError::Broken("its BTF cannot be read"))?;
    let mut maps = Vec::new();
    for definition in definitions {
        let mut map = checked(&definition)?;
        // BTF leaves the places to the symbols.
        let symbol = elf.symbols.iter().find(|symbol| symbol.section == section && symbol.name == map.name);
        let place = symbol.ok_or(LoadError::Broken("a map has no symbol"))?.value;
        if let Some(values) = definition.values {
            map.programs = listed(elf, section, data, place.saturating_add(values.into()), &map)?;
        }
        maps.push(((section, place), map));
    }
    Ok(maps)
}

fn checked(definition: &Definition) -> Result<MapSpec, LoadError> {
    let Definition { name, kind, key_size, value_size, entries, flags, pinning, unknown, .. } = definition.clone();
    let fail = |why: String| Err(LoadError::Map { map: name.clone(), why });
    if let Some(member) = unknown {
        return fail(format!("modules know nothing of \"{member}\""));
    }
    let Some(kind) = MapKind::of(kind) else {
        let (its, known) = (kind_name(kind), MapKind::names().join(", "));
        return fail(format!("modules have no maps of type {kind} ({its}), but {known}"));
    };
    let (key_size, value_size) = if kind == MapKind::ProgArray { (4, 4) } else { (key_size, value_size) };
    let spec = MapSpec {
        name: name.clone(),
        kind,
        key_size,
        value_size,
        entries,
        flags,
        initial: Vec::new(),
        read_only: false,
        programs: Vec::new(),
        pinned: pinning == PIN_BY_NAME,
    };
    let bytes = spec.bytes(1);
    let ring = kind == MapKind::RingBuf;
    let by_number = matches!(kind, MapKind::Array | MapKind::PerCpuArray | MapKind::ProgArray) || kind.is_of_devices();
    match () {
        () if pinning > PIN_BY_NAME => {
            fail(format!("its pinning is {pinning}, and modules know LIBBPF_PIN_NONE (0) and LIBBPF_PIN_BY_NAME (1)"))
        }
        () if entries == 0 => fail("it has no max_entries".into()),
        () if bytes > MAX_MAP_BYTES => fail(format!("it would take {bytes} bytes, more than {MAX_MAP_BYTES}")),
        () if ring && (key_size, value_size) != (0, 0) => fail("a ring buffer has no keys and values".into()),
        () if ring && (!entries.is_power_of_two() || entries % 4096 != 0) => {
            fail(format!("the size of a ring buffer is a power of two of at least 4096, and not {entries}"))
        }
        () if !ring && value_size == 0 => fail("its values have no bytes".into()),
        () if by_number && key_size != 4 => fail(format!("its keys are numbers of 4 bytes, and not {key_size}")),
        () if kind.is_of_devices() && !matches!(value_size, 4 | 8) => fail(format!(
            "its values are indexes of interfaces (4 bytes, or 8 with an empty program), and not {value_size}"
        )),
        () if key_size > 512 => fail(format!("a key of {key_size} bytes does not fit the stack of a program (512)")),
        () if !ring && key_size == 0 => fail("its keys have no bytes".into()),
        () if kind == MapKind::LpmTrie && !(5..=260).contains(&key_size) => {
            fail(format!("a key is a length of 4 bytes and 1 to 256 more, and not {key_size} in all"))
        }
        () => Ok(spec),
    }
}

/// The programs that a definition lists (`.values`).
fn listed(
    elf: &Elf<'_>,
    section: usize,
    data: &Section<'_>,
    start: u64,
    map: &MapSpec,
) -> Result<Vec<(u32, String)>, LoadError> {
    // The definitions' list ends where the next one begins; a program stands in one list.
    let end = start.saturating_add(8 * u64::from(map.entries)).min(data.size);
    let mut programs = Vec::new();
    for relocation in elf.relocations_of(section).filter(|one| (start..end).contains(&one.offset)) {
        let symbol = elf.symbols.get(relocation.symbol).filter(|symbol| symbol.function);
        let symbol = symbol.filter(|_| map.kind == MapKind::ProgArray).ok_or_else(|| LoadError::Map {
            map: map.name.clone(),
            why: "only programs can be listed, in a prog_array".into(),
        })?;
        programs.push((((relocation.offset - start) / 8) as u32, symbol.name.to_owned()));
    }
    Ok(programs)
}

/// Sections of variables become arrays of one value. Returns by section the number of its map.
fn variables(elf: &Elf<'_>, maps: &mut Vec<(Place, MapSpec)>) -> Result<BTreeMap<usize, usize>, LoadError> {
    let mut found = BTreeMap::new();
    for (number, section) in elf.sections.iter().enumerate() {
        let named =
            |name: &str| section.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if !(named(".rodata") || named(".data") || named(".bss")) || section.size == 0 || section.kind == 9 {
            continue;
        }
        if section.size > MAX_MAP_BYTES / 64 {
            return Err(LoadError::Map { map: section.name.into(), why: "it is larger than 16 MiB".into() });
        }
        let mut initial = section.data.to_vec();
        initial.resize(section.size as usize, 0);
        let spec = MapSpec {
            name: section.name.into(),
            kind: MapKind::Array,
            key_size: 4,
            value_size: section.size as u32,
            entries: 1,
            flags: 0,
            initial,
            read_only: named(".rodata"),
            programs: Vec::new(),
            pinned: false,
        };
        found.insert(number, maps.len());
        // No symbol of `.maps` stands there.
        maps.push(((number, u64::MAX), spec));
    }
    Ok(found)
}

struct Linker<'a> {
    elf: &'a Elf<'a>,
    maps: &'a [(Place, MapSpec)],
    variables: &'a BTreeMap<usize, usize>,
}

impl Linker<'_> {
    fn program(&self, symbol: &Symbol<'_>, frags: bool) -> Result<ProgramSpec, LoadError> {
        let mut program = ProgramSpec { name: symbol.name.to_owned(), frags, insns: Vec::new(), functions: Vec::new() };
        let mut done: BTreeMap<Place, usize> = BTreeMap::new();
        let mut calls: Vec<(usize, Place)> = Vec::new();
        self.append(&mut program, &mut done, &mut calls, (symbol.section, symbol.value))?;
        while let Some((at, callee)) = calls.pop() {
            let start = match done.get(&callee) {
                Some(start) => *start,
                None => self.append(&mut program, &mut done, &mut calls, callee)?,
            };
            program.insns[at].imm = start as i32 - at as i32 - 1;
        }
        Ok(program)
    }

    /// Appends a function, and notes what it calls.
    fn append(
        &self,
        program: &mut ProgramSpec,
        done: &mut BTreeMap<Place, usize>,
        calls: &mut Vec<(usize, Place)>,
        place: Place,
    ) -> Result<usize, LoadError> {
        let (section, value) = place;
        let symbol = self.elf.symbols.iter().find(|one| one.function && (one.section, one.value) == place);
        let data = self.elf.sections.get(section).filter(|section| section.code).map(|section| section.data);
        let end = symbol.and_then(|symbol| value.checked_add(symbol.size));
        let bytes = data.zip(end).and_then(|(data, end)| data.get(value as usize..end as usize));
        let bytes = bytes.filter(|bytes| !bytes.is_empty() && bytes.len() % 8 == 0);
        let bytes = bytes.ok_or(LoadError::Broken("a function does not lie within its section"))?;
        let start = program.insns.len();
        done.insert(place, start);
        program.functions.push(start);
        program.insns.extend(bytes.as_chunks().0.iter().map(|bytes| Insn::read(*bytes)));
        if program.insns.len() > MAX_INSNS {
            return Err(LoadError::Broken("a program has more than 65536 instructions"));
        }
        let end = value + bytes.len() as u64;
        let mut related = vec![None; bytes.len() / 8];
        for relocation in self.elf.relocations_of(section).filter(|one| (value..end).contains(&one.offset)) {
            related[((relocation.offset - value) / 8) as usize] = Some(relocation);
        }
        for (at, relocation) in related.iter().enumerate() {
            let insn = program.insns[start + at];
            if insn.code == insn::JMP | insn::CALL && insn.src == insn::FUNCTION {
                calls.push((
                    start + at,
                    self.callee(program, insn, relocation.as_ref(), (section, value + 8 * at as u64))?,
                ));
            } else if let Some(relocation) = relocation {
                self.relocate(program, start + at, relocation)?;
            }
        }
        Ok(start)
    }

    fn symbol(&self, program: &str, relocation: &Relocation) -> Result<&Symbol<'_>, LoadError> {
        let symbol = self.elf.symbols.get(relocation.symbol).ok_or(LoadError::Broken("a relocation has no symbol"))?;
        if symbol.section == 0 {
            return Err(LoadError::Extern { program: program.into(), symbol: symbol.name.into() });
        }
        Ok(symbol)
    }

    fn callee(
        &self,
        program: &ProgramSpec,
        insn: Insn,
        relocation: Option<&Relocation>,
        (section, at): Place,
    ) -> Result<Place, LoadError> {
        let from = |start: u64| start.wrapping_add_signed((i64::from(insn.imm) + 1) * 8);
        Ok(match relocation {
            None => (section, from(at)),
            Some(relocation) => {
                let symbol = self.symbol(&program.name, relocation)?;
                (symbol.section, if symbol.function { symbol.value } else { from(symbol.value) })
            }
        })
    }

    /// A map or a variable is named.
    fn relocate(&self, program: &mut ProgramSpec, at: usize, relocation: &Relocation) -> Result<(), LoadError> {
        let symbol = self.symbol(&program.name, relocation)?;
        if program.insns[at].code != insn::LD_IMM64 || at + 1 >= program.insns.len() {
            return Err(LoadError::Broken("a relocation changes an instruction that names nothing"));
        }
        let place = (symbol.section, symbol.value);
        if let Some(map) = self.maps.iter().position(|(defined, _)| *defined == place) {
            (program.insns[at].src, program.insns[at].imm) = (insn::MAP, map as i32);
            program.insns[at + 1].imm = 0;
            return Ok(());
        }
        let Some(map) = self.variables.get(&symbol.section) else {
            let why = format!("\"{}\" is neither a map nor a variable", symbol.name);
            return Err(LoadError::Instruction { program: program.name.clone(), at, why });
        };
        let offset = (symbol.value as i64).wrapping_add(i64::from(program.insns[at].imm));
        (program.insns[at].src, program.insns[at].imm) = (insn::MAP_VALUE, *map as i32);
        program.insns[at + 1].imm = i32::try_from(offset).map_err(|_| LoadError::Broken("a variable lies nowhere"))?;
        Ok(())
    }
}
