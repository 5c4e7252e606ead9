//! Objects that include `vmlinux.h` were compiled against the types of some kernel. Relocations (CO-RE, in `.BTF.ext`) say
//! where the program relies on them. Here each gets the value that it has with the running kernel's types.
//!
//! It is done on the file, by whoever adds the module: no process with more rights reads these relocations or the kernel's types.

mod access;
mod patch;
mod value;

use crate::btf::Btf;
use crate::elf::{Elf, u16_at, u32_at};
use crate::error::LoadError;
use access::{Access, Kind};
use std::collections::BTreeMap;
use std::fs;
use value::Value;

/// Where the kernel shows its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// A header of `.BTF.ext` with relocations has these bytes, and the last two words are their place and length.
const HEADER: u32 = 32;
const MAGIC: u16 = 0xeb9f;
/// More candidates of one name than any kernel has.
const MAX_CANDIDATES: usize = 64;

/// An object that relies on no kernel's types any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The file.
    pub file: Vec<u8>,
    /// What it relies on, and the kernel does not have. A program that comes there is refused by the verifier.
    pub missing: Vec<String>,
}

/// What the relocations of an object stand for.
struct Relocations {
    /// Places in the file: of the section's bytes, and of the length of all relocations.
    section: u64,
    /// Each: its section's name, its number there, and itself.
    all: Vec<(String, usize, Relocation)>,
}

/// A relocation (`struct bpf_core_relo`).
#[derive(Clone, Copy, Debug)]
struct Relocation {
    insn: u32,
    root: u32,
    access: u32,
    kind: u32,
}

/// Puts the running kernel's types into an object. One without relocations is left as it is, and the kernel is not asked.
pub fn resolve(file: Vec<u8>) -> Result<Resolved, LoadError> {
    let kernel = || {
        let read = fs::read(KERNEL_TYPES);
        read.map_err(|why| LoadError::KernelTypes { path: KERNEL_TYPES, why: why.to_string() })
    };
    resolve_with(file, kernel)
}

/// The same with types that are given, as BTF.
pub fn resolve_with(
    mut file: Vec<u8>,
    kernel: impl FnOnce() -> Result<Vec<u8>, LoadError>,
) -> Result<Resolved, LoadError> {
    let elf = Elf::parse(&file)?;
    let Some(found) = relocations(&elf)? else { return Ok(Resolved { file, missing: Vec::new() }) };
    let kernel = kernel()?;
    let unreadable =
        || LoadError::KernelTypes { path: KERNEL_TYPES, why: "it is no BTF that this version can read".into() };
    let kernel = Btf::parse(&kernel).ok_or_else(unreadable)?;
    let own = own_types(&elf)?;
    let (mut changes, mut missing) = (Vec::new(), Vec::new());
    let mut candidates = BTreeMap::new();
    for (section, number, relocation) in &found.all {
        let fail = |why: String| LoadError::Relocation { section: section.clone(), number: *number, why };
        let (local, value) = judged(&own, &kernel, *relocation, &mut candidates).map_err(fail)?;
        let code = elf.section(section).filter(|(_, section)| section.code);
        let (_, code) = code.ok_or_else(|| fail("there is no such program".into()))?;
        let changed = patch::change(code.data, relocation.insn, local.computed, value).map_err(fail)?;
        if changed.is_poison {
            missing.push(local.described);
        }
        let start = code.start + u64::from(relocation.insn);
        changes.push((start as usize, changed.bytes));
    }
    let end = found.section as usize + HEADER as usize;
    changes.push((end - 4, vec![0; 4]));
    for (start, bytes) in changes {
        // Both were read from there.
        if let Some(place) = file.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
    }
    missing.sort();
    missing.dedup();
    Ok(Resolved { file, missing })
}

/// Has an object relocations of which nothing has become?
pub fn is_unresolved(elf: &Elf<'_>) -> Result<bool, LoadError> {
    relocations(elf).map(|found| found.is_some())
}

fn own_types<'a>(elf: &Elf<'a>) -> Result<Btf<'a>, LoadError> {
    let own = elf.section(".BTF").and_then(|(_, section)| Btf::parse(section.data));
    own.ok_or(LoadError::Broken("its BTF cannot be read"))
}

/// All relocations of an object. `None`: it has none.
fn relocations(elf: &Elf<'_>) -> Result<Option<Relocations>, LoadError> {
    let Some((_, section)) = elf.section(".BTF.ext") else { return Ok(None) };
    let broken = LoadError::Broken("its section .BTF.ext cannot be read");
    let (header, data) = (u32_at(section.data, 4), section.data);
    if u16_at(data, 0) != Some(MAGIC) {
        return Err(broken);
    }
    let header = header.ok_or(broken.clone())?;
    let (start, length) = match header {
        HEADER.. => (u32_at(data, 24).ok_or(broken.clone())?, u32_at(data, 28).ok_or(broken.clone())?),
        _ => (0, 0),
    };
    if length == 0 {
        return Ok(None);
    }
    let own = own_types(elf)?;
    let all = listed(data, header, (start, length), &own).ok_or(broken)?;
    Ok(Some(Relocations { section: section.start, all }))
}

fn listed(
    data: &[u8],
    header: u32,
    (start, length): (u32, u32),
    own: &Btf<'_>,
) -> Option<Vec<(String, usize, Relocation)>> {
    let start = (header as usize).checked_add(start as usize)?;
    let data = data.get(start..start.checked_add(length as usize)?)?;
    let each = u32_at(data, 0)? as usize;
    if each < size_of::<Relocation>() {
        return None;
    }
    let (mut rest, mut all) = (data.get(4..)?, Vec::new());
    while !rest.is_empty() {
        let (name, count) = (own.name(u32_at(rest, 0)?)?, u32_at(rest, 4)? as usize);
        let records = rest.get(8..)?.get(..count.checked_mul(each)?)?;
        for (number, record) in records.chunks_exact(each).enumerate() {
            let word = |at| u32_at(record, at);
            let relocation = Relocation { insn: word(0)?, root: word(4)?, access: word(8)?, kind: word(12)? };
            all.push((name.to_owned(), number, relocation));
        }
        rest = &rest[8 + records.len()..];
    }
    Some(all)
}

/// What a relocation stands for in the object.
struct Local {
    computed: Option<Value>,
    described: String,
}

/// Types of the kernel that have a name: for the number of a type of the object.
type Candidates = BTreeMap<u32, Vec<u32>>;

/// What a relocation stands for in the object, and in the kernel. There it may be nothing.
fn judged(
    own: &Btf<'_>,
    kernel: &Btf<'_>,
    relocation: Relocation,
    candidates: &mut Candidates,
) -> Result<(Local, Option<Value>), String> {
    let kind = Kind::of(relocation.kind)?;
    let text = own.name(relocation.access).ok_or("its access cannot be read")?;
    let local = Access::parse(own, relocation.root, text, kind)?;
    let computed = value::of(own, kind, Some(&local))?;
    let local_value = Local { computed, described: local.describe(own, kind) };
    if kind == Kind::TypeIdLocal {
        return Ok((local_value, computed));
    }
    let name = own.name_of(relocation.root).filter(|name| !name.is_empty());
    let name = name.ok_or("its type has no name to look for in the kernel")?;
    let root = own.get(relocation.root).ok_or("it has no type")?;
    let known = candidates.entry(relocation.root).or_insert_with(|| named(kernel, root.kind, name));
    if known.len() > MAX_CANDIDATES {
        return Err(format!("the kernel has too many types {name}"));
    }
    let mut target: Option<(u32, Option<Value>)> = None;
    for candidate in known {
        let Some(access) = local.in_kernel(own, kernel, *candidate, kind)? else { continue };
        let found = (access.bit, value::of(kernel, kind, Some(&access))?);
        match target {
            Some(before) if before != found => {
                return Err(format!("the kernel has several types {name}, in which it is not the same"));
            }
            _ => target = Some(found),
        }
    }
    let value = match target {
        Some((_, value)) => value,
        None => value::of(kernel, kind, None)?,
    };
    Ok((local_value, value))
}

/// A name without its flavour: `task_struct___old` is the kernel's `task_struct`.
fn essential(name: &str) -> &str {
    name.find("___").filter(|at| *at > 0).map_or(name, |at| &name[..at])
}

/// Numbers of the kernel's types of this kind and name.
fn named(kernel: &Btf<'_>, kind: u8, name: &str) -> Vec<u32> {
    let wanted = essential(name);
    let is_kind = |number: &u32| kernel.get(*number).is_some_and(|found| access::same_kind(found.kind, kind));
    let is_name = |number: &u32| kernel.name_of(*number).is_some_and(|found| essential(found) == wanted);
    kernel.numbers().filter(|number| is_kind(number) && is_name(number)).collect()
}
