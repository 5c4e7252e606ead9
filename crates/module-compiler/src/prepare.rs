//! What a process with privileges does for one without: it has the verifier judge an object, and compiles it.

use crate::compile::compile;
use towpath_modules::compiled::Compiled;
use towpath_modules::verify::{may_ask, verify};
use towpath_modules::{LoadError, Object, check};

/// Compiles the programs of an object that the verifier accepts. `None` = they are to be interpreted: this process may
/// not ask the verifier, or this is no machine that code is made for.
pub fn prepare(object: &Object) -> Result<Option<Compiled>, LoadError> {
    for program in &object.programs {
        check(program, object.maps.len())?;
    }
    // On others, new code needs more than the memory that it stands in.
    if !cfg!(target_arch = "x86_64") || !may_ask() {
        return Ok(None);
    }
    // The maps and programs of the kernel are only for its judgement.
    drop(verify(object)?);
    compile(&object.programs).map(Some)
}
