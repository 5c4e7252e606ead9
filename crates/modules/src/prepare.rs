//! What a process with privileges does for one without: it has the verifier judge an object, and compiles it.

use crate::check::check;
use crate::compile::{Compiled, compile};
use crate::error::LoadError;
use crate::object::Object;
use crate::verify::{may_ask, verify};

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

/// An answer to a process without privileges, as bytes.
pub fn answer(prepared: &Result<Option<Compiled>, LoadError>) -> Vec<u8> {
    match prepared {
        Ok(Some(compiled)) => {
            let functions = compiled.functions.iter().flat_map(|offset| offset.to_le_bytes());
            std::iter::once(b'+').chain(functions).collect()
        }
        Ok(None) => b"~".to_vec(),
        Err(why) => format!("-{why}").into_bytes(),
    }
}

/// What such an answer says: the functions' offsets, or that the programs are to be interpreted. An error is a reason.
pub fn answered(bytes: &[u8]) -> Result<Option<Vec<u32>>, String> {
    match bytes.split_first() {
        Some((b'+', functions)) => {
            Ok(Some(functions.as_chunks().0.iter().map(|offset| u32::from_le_bytes(*offset)).collect()))
        }
        Some((b'~', [])) => Ok(None),
        Some((b'-', why)) => Err(String::from_utf8_lossy(why).into_owned()),
        _ => Err("nobody knows what the kernel's verifier says: the broker did not answer".into()),
    }
}
