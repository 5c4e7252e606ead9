//! Which maps outlive their module, and what a map must have for a program that was judged with another one.

use crate::object::{MapKind, MapSpec};

/// Names that begin so are the stack's: it writes to these maps itself.
const OF_THE_STACK: &str = "towpath_";

impl MapSpec {
    /// Why no other module can have this map, if none can.
    pub fn own_alone(&self) -> Option<&'static str> {
        match () {
            () if self.read_only => Some("it is constants of the program"),
            () if !self.initial.is_empty() => Some("it is variables of the program"),
            () if self.kind == MapKind::ProgArray => Some("a prog_array names programs of its own module"),
            () if self.name.starts_with(OF_THE_STACK) => {
                Some("the stack writes to it, and begins anew with each module")
            }
            () => None,
        }
    }

    /// What keeps a program that names this map from having that one instead. The verifier has judged it with this one.
    pub fn differs(&self, that: &Self) -> Option<String> {
        let mut differences = Vec::new();
        if self.kind != that.kind {
            differences.push(format!("it is a {}, and not a {}", that.kind.name(), self.kind.name()));
        }
        for (what, ours, theirs) in [
            ("key size", self.key_size, that.key_size),
            ("value size", self.value_size, that.value_size),
            ("max_entries", self.entries, that.entries),
            ("flags", self.flags, that.flags),
        ] {
            if ours != theirs {
                differences.push(format!("its {what} is {theirs}, and not {ours}"));
            }
        }
        (!differences.is_empty()).then(|| differences.join("; "))
    }
}
