//! Modules outlive a worker process that dies, with the elements of their maps that an operator has set. What programs have
//! written to their maps does not.

use super::{Entry, Modules, add, set};
use crate::api::ModuleRequest;
use crate::successor_memory::SuccessorMemory;
use std::sync::OnceLock;
use towpath_runtime::Stack;

/// Where the modules are written.
#[derive(Debug, Default)]
pub struct Inherited(OnceLock<SuccessorMemory>);

impl Inherited {
    /// Writes these for the next worker process. Without a broker there is none.
    pub fn write(&self, modules: &[Entry]) -> Result<(), String> {
        let Some(memory) = self.0.get() else { return Ok(()) };
        let all: Vec<ModuleRequest> = modules.iter().flat_map(requests).collect();
        let written = serde_json::to_vec(&all).map_err(std::io::Error::from).and_then(|text| memory.write(&text));
        written.map_err(|why| format!("it is done, but would be lost if the worker process died: {why}"))
    }
}

/// The requests that lead to this module as it is.
fn requests(module: &Entry) -> impl Iterator<Item = ModuleRequest> {
    let set = |((map, _), (key, value)): (&(String, Vec<u8>), &(String, String))| ModuleRequest::Set {
        name: module.added.name.clone(),
        map: map.clone(),
        key: key.clone(),
        value: value.clone(),
    };
    std::iter::once(ModuleRequest::Add((*module.added).clone())).chain(module.settings.iter().map(set))
}

impl Modules {
    /// Begins with the modules of the last worker process, and writes all later changes. The log tells what does not come back.
    pub fn inherit(&self, stack: &dyn Stack, memory: SuccessorMemory) {
        let left = memory.read().and_then(|text| match text.is_empty() {
            true => Ok(Vec::new()),
            false => serde_json::from_slice::<Vec<ModuleRequest>>(&text).map_err(std::io::Error::from),
        });
        let left = left.unwrap_or_else(|error| {
            tracing::error!(%error, "the modules are lost: nobody knows which there were; add them again");
            Vec::new()
        });
        for request in &left {
            let (name, done) = match request {
                ModuleRequest::Add(new) => (&new.name, add((self, stack), new).map(drop)),
                ModuleRequest::Set { name, map, key, value } => (name, set(self, (name, map), key, value).map(drop)),
                _ => continue,
            };
            if let Err(why) = done {
                tracing::error!(name, why, "a module is not as it was before the worker process died");
            }
        }
        let _ = self.successor.0.set(memory);
    }
}
