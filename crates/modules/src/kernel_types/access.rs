//! The way from a type to a part of it: an enumerator, or a field of a field. The same way, by its names, is looked for in
//! the kernel's types.

use crate::btf::{ARRAY, Btf, ENUM, ENUM64, FLOAT, FORWARD, INT, Member, PTR, STRUCT, Type, UNION};

/// Deeper than any access is.
const DEEP: usize = 64;

/// What a relocation asks for (`enum bpf_core_relo_kind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Where a field is.
    Offset,
    /// Its bytes.
    Size,
    /// Is there such a field?
    Exists,
    /// Is it signed?
    Signed,
    /// By how much a bit field is moved up, and then down.
    ShiftLeft,
    /// See [`Kind::ShiftLeft`].
    ShiftRight,
    /// The number of the type in the object.
    TypeIdLocal,
    /// The same in the kernel.
    TypeIdTarget,
    /// Is there such a type?
    TypeExists,
    /// Its bytes.
    TypeSize,
    /// Is there such an element of an enum?
    EnumExists,
    /// Its value.
    EnumValue,
}

impl Kind {
    /// By its number.
    pub fn of(number: u32) -> Result<Self, String> {
        Ok(match number {
            0 => Self::Offset,
            1 => Self::Size,
            2 => Self::Exists,
            3 => Self::Signed,
            4 => Self::ShiftLeft,
            5 => Self::ShiftRight,
            6 => Self::TypeIdLocal,
            7 => Self::TypeIdTarget,
            8 => Self::TypeExists,
            9 => Self::TypeSize,
            10 => Self::EnumExists,
            11 => Self::EnumValue,
            12 => return Err("modules cannot compare whole types: ask by bpf_core_type_exists instead".into()),
            other => return Err(format!("modules do not know this kind, {other}")),
        })
    }
    fn is_of_field(self) -> bool {
        matches!(self, Self::Offset | Self::Size | Self::Exists | Self::Signed | Self::ShiftLeft | Self::ShiftRight)
    }
    fn is_of_enum(self) -> bool {
        matches!(self, Self::EnumExists | Self::EnumValue)
    }
}

/// A step of the way. An index has no name.
#[derive(Clone, Debug)]
struct Step {
    /// Of a name: the struct, union or enum that has it. Of an index: the type of the element.
    kind: u32,
    index: u32,
    name: Option<String>,
}

/// A way.
#[derive(Clone, Debug)]
pub struct Access {
    /// The type where it begins.
    pub root: u32,
    steps: Vec<Step>,
    /// Where it ends, from the beginning.
    pub bit: u32,
}

/// Where a way ends.
pub enum End<'a> {
    /// An element of an array, of this type.
    Element(u32),
    /// A member.
    Member(Member<'a>),
}

/// Are these kinds one? Enums are, of whatever size.
pub fn same_kind(one: u8, other: u8) -> bool {
    one == other || matches!((one, other), (ENUM, ENUM64) | (ENUM64, ENUM))
}

fn missing<T>(found: Option<T>) -> Result<T, String> {
    found.ok_or_else(|| "its types cannot be read".into())
}

fn bits(types: &Btf<'_>, kind: u32, count: u32) -> Result<u32, String> {
    missing(types.bytes(kind).and_then(|bytes| bytes.checked_mul(8)?.checked_mul(count)))
}

impl Access {
    fn begin(root: u32) -> Self {
        Self { root, steps: Vec::new(), bit: 0 }
    }

    fn go(&mut self, bits: u32) -> Result<(), String> {
        self.bit = self.bit.checked_add(bits).ok_or("it leads nowhere")?;
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        if self.steps.len() >= DEEP {
            return Err("it is too deep".into());
        }
        self.steps.push(step);
        Ok(())
    }

    /// Reads a way of the object: indices with colons between them.
    pub fn parse(types: &Btf<'_>, root: u32, text: &str, kind: Kind) -> Result<Self, String> {
        let indices: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let indices = indices.map_err(|_| format!("{text:?} is no access"))?;
        let mut access = Self::begin(root);
        let first = indices.first().copied().unwrap_or(0);
        let plain = missing(types.plain_number(root))?;
        if kind.is_of_enum() {
            let found = missing(types.get(plain))?;
            let one = types.enumerators(found).nth(first as usize).flatten();
            let one = one.filter(|_| indices.len() == 1).ok_or("there is no such element of an enum")?;
            access.step(Step { kind: plain, index: first, name: Some(one.name.into()) })?;
        } else if kind.is_of_field() {
            access.fields(types, plain, &indices)?;
        } else if indices != [0] {
            return Err(format!("{text:?} is no access to a type"));
        }
        Ok(access)
    }

    fn fields(&mut self, types: &Btf<'_>, root: u32, indices: &[u32]) -> Result<(), String> {
        let mut at = root;
        for (place, index) in indices.iter().copied().enumerate() {
            if place == 0 {
                self.element(types, at, index)?;
                continue;
            }
            at = missing(types.plain_number(at))?;
            let found = missing(types.get(at))?;
            if found.is_composite() {
                let member = types.members(found).nth(index as usize).flatten().ok_or("there is no such field")?;
                self.go(member.bit)?;
                // An anonymous struct is no step: the kernel may have its fields without it.
                if !member.name.is_empty() {
                    self.step(Step { kind: at, index, name: Some(member.name.into()) })?;
                }
                at = member.kind;
            } else {
                let (element, count) = found.array().ok_or("it asks for a field of what has none")?;
                if index >= count && !self.is_open_end(types, count) {
                    return Err("there is no such element of an array".into());
                }
                at = missing(types.plain_number(element))?;
                self.element(types, at, index)?;
            }
        }
        Ok(())
    }

    fn element(&mut self, types: &Btf<'_>, kind: u32, index: u32) -> Result<(), String> {
        self.step(Step { kind, index, name: None })?;
        self.go(bits(types, kind, index)?)
    }

    /// Is the array of this length, which the last step has led to, the open end of its struct?
    fn is_open_end(&self, types: &Btf<'_>, count: u32) -> bool {
        let Some(Step { kind, index, name: Some(_) }) = self.steps.last() else { return false };
        let members = types.get(*kind).filter(|found| found.kind == STRUCT).map(|found| types.members(found).count());
        count == 0 && members == Some(*index as usize + 1)
    }

    /// Looks for the same way in the kernel, from this type on. `None`: it is not there.
    pub fn in_kernel(&self, own: &Btf<'_>, kernel: &Btf<'_>, root: u32, kind: Kind) -> Result<Option<Self>, String> {
        let mut access = Self::begin(root);
        if kind.is_of_enum() {
            let plain = missing(kernel.plain_number(root))?;
            let found = missing(kernel.get(plain))?;
            let wanted = self.steps.first().and_then(|step| step.name.as_deref()).map(super::essential);
            let mut names = kernel.enumerators(found).map(|one| one.map(|one| super::essential(one.name)));
            let Some(index) = names.position(|name| name == wanted) else { return Ok(None) };
            access.step(Step { kind: plain, index: index as u32, name: None })?;
            return Ok(Some(access));
        }
        if !kind.is_of_field() {
            return Ok(same_type(own, self.root, kernel, root, DEEP).then_some(access));
        }
        let mut at = root;
        for (place, step) in self.steps.iter().enumerate() {
            at = missing(kernel.plain_number(at))?;
            if step.name.is_some() {
                let Some(next) = access.member(own, step, kernel, at, DEEP)? else { return Ok(None) };
                at = next;
                continue;
            }
            if place > 0 {
                let Some((element, count)) = kernel.get(at).and_then(Type::array) else { return Ok(None) };
                if step.index >= count && !access.is_open_end(kernel, count) {
                    return Ok(None);
                }
                at = missing(kernel.plain_number(element))?;
            }
            access.element(kernel, at, step.index)?;
        }
        Ok(Some(access))
    }

    /// Goes to the member that a step of the object names, also through anonymous structs. Returns its type.
    fn member(
        &mut self,
        own: &Btf<'_>,
        step: &Step,
        kernel: &Btf<'_>,
        at: u32,
        deep: usize,
    ) -> Result<Option<u32>, String> {
        let at = missing(kernel.plain_number(at))?;
        let Some(found) = kernel.get(at).filter(|found| found.is_composite() && deep > 0) else { return Ok(None) };
        let local = own.get(step.kind).and_then(|found| own.members(found).nth(step.index as usize).flatten());
        let local = missing(local)?;
        for (index, member) in kernel.members(found).enumerate() {
            let member = missing(member)?;
            if member.name.is_empty() {
                let before = self.bit;
                self.go(member.bit)?;
                if let Some(kind) = self.member(own, step, kernel, member.kind, deep - 1)? {
                    return Ok(Some(kind));
                }
                self.bit = before;
            } else if member.name == local.name {
                if !same_field(own, local.kind, kernel, member.kind, DEEP) {
                    return Ok(None);
                }
                self.go(member.bit)?;
                self.step(Step { kind: at, index: index as u32, name: Some(member.name.into()) })?;
                return Ok(Some(member.kind));
            }
        }
        Ok(None)
    }

    /// Of a field: where the way ends.
    pub fn end<'a>(&self, types: &Btf<'a>) -> Result<End<'a>, String> {
        let step = self.steps.last().ok_or("it leads nowhere")?;
        if step.name.is_none() {
            return Ok(End::Element(step.kind));
        }
        let member = types.get(step.kind).and_then(|found| types.members(found).nth(step.index as usize).flatten());
        missing(member).map(End::Member)
    }

    /// Of an enum: the value of its element, if the way leads to one.
    pub fn enumerator(&self, types: &Btf<'_>) -> Option<u64> {
        let step = self.steps.first()?;
        let found = types.get(step.kind)?;
        types.enumerators(found).nth(step.index as usize).flatten().map(|one| one.value)
    }

    /// As C says it.
    pub fn describe(&self, types: &Btf<'_>, kind: Kind) -> String {
        let name = types.name_of(self.root).unwrap_or("?");
        let found = types.get(self.root).map_or(0, |found| found.kind);
        let word = match found {
            STRUCT => "struct ",
            UNION => "union ",
            ENUM | ENUM64 => "enum ",
            _ => "",
        };
        let between = if kind.is_of_enum() { " " } else { "." };
        self.steps.iter().skip(usize::from(!kind.is_of_enum())).fold(format!("{word}{name}"), |text, step| match &step
            .name
        {
            Some(name) => text + between + name,
            None => format!("{text}[{}]", step.index),
        })
    }
}

/// May a field of the object's type be read where the kernel has one of that type?
fn same_field(own: &Btf<'_>, local: u32, kernel: &Btf<'_>, target: u32, deep: usize) -> bool {
    let (Some(one), Some(other)) = (own.plain(local), kernel.plain(target)) else { return false };
    if one.is_composite() && other.is_composite() {
        return true;
    }
    if !same_kind(one.kind, other.kind) {
        return false;
    }
    match one.kind {
        PTR | FLOAT => true,
        FORWARD | ENUM | ENUM64 => {
            let name = |types: &Btf<'_>, of| Some(types.name_of(types.plain_number(of)?)?.to_owned());
            let (ours, theirs) = (name(own, local).unwrap_or_default(), name(kernel, target).unwrap_or_default());
            ours.is_empty() || theirs.is_empty() || super::essential(&ours) == super::essential(&theirs)
        }
        INT => !one.begins_within() && !other.begins_within(),
        ARRAY => elements(one, other)
            .is_some_and(|(ours, theirs)| deep > 0 && same_field(own, ours, kernel, theirs, deep - 1)),
        _ => false,
    }
}

/// Is it, but for its fields, the same type? Names of the roots were compared.
fn same_type(own: &Btf<'_>, local: u32, kernel: &Btf<'_>, target: u32, deep: usize) -> bool {
    let (Some(one), Some(other)) = (own.plain(local), kernel.plain(target)) else { return false };
    if !same_kind(one.kind, other.kind) || deep == 0 {
        return false;
    }
    match one.kind {
        0 | STRUCT | UNION | ENUM | ENUM64 | FORWARD => true,
        INT => !one.begins_within() && !other.begins_within(),
        PTR => same_type(own, one.size, kernel, other.size, deep - 1),
        ARRAY => elements(one, other).is_some_and(|(ours, theirs)| same_type(own, ours, kernel, theirs, deep - 1)),
        _ => false,
    }
}

fn elements(one: &Type<'_>, other: &Type<'_>) -> Option<(u32, u32)> {
    Some((one.array()?.0, other.array()?.0))
}
