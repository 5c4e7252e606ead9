//! Machine code of a module, and how the process that has made it tells another of it.

use crate::error::LoadError;

/// Machine code, and where its functions begin. The programs' own functions are the first ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// The code of all functions. It may stand anywhere.
    pub code: Vec<u8>,
    /// Offsets in it, by the number of the function.
    pub functions: Vec<u32>,
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
