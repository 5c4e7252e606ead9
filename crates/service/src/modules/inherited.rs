//! What a process that serves leaves to the one that follows when it has died: its modules, and the elements of maps that
//! an operator has set. What programs have written to their maps ends with it.

use super::{Entry, Modules, add, set};
use crate::api::ModuleRequest;
use crate::kept::Kept;
use std::sync::OnceLock;
use towpath_runtime::Stack;

/// Where the modules are written.
#[derive(Debug, Default)]
pub struct Inherited(OnceLock<Kept>);

impl Inherited {
    /// Leaves these. A service that has no other process to follow leaves nothing.
    pub fn write(&self, modules: &[Entry]) -> Result<(), String> {
        let Some(kept) = self.0.get() else { return Ok(()) };
        let all: Vec<ModuleRequest> = modules.iter().flat_map(requests).collect();
        let written = serde_json::to_vec(&all).map_err(std::io::Error::from).and_then(|text| kept.write(&text));
        written.map_err(|why| format!("it is done, but would be lost if the process that serves died: {why}"))
    }
}

/// The requests that lead to this module as it is.
fn requests(module: &Entry) -> impl Iterator<Item = ModuleRequest> {
    let set = |((map, _), (key, value)): (&(String, Vec<u8>), &(String, String))| ModuleRequest::Set {
        name: module.name.clone(),
        map: map.clone(),
        key: key.clone(),
        value: value.clone(),
    };
    std::iter::once((*module.request).clone()).chain(module.settings.iter().map(set))
}

impl Modules {
    /// Begins with the modules that the last process has left here, and leaves all later changes. What does not come back
    /// is told in the log.
    pub fn inherit(&self, stack: &dyn Stack, kept: Kept) {
        let left = kept.read().and_then(|text| match text.is_empty() {
            true => Ok(Vec::new()),
            false => serde_json::from_slice::<Vec<ModuleRequest>>(&text).map_err(std::io::Error::from),
        });
        let left = left.unwrap_or_else(|error| {
            tracing::error!(%error, "the modules are lost: nobody knows which there were; add them again");
            Vec::new()
        });
        for request in &left {
            let (name, done) = match request {
                ModuleRequest::Add { name, .. } => (name, add((self, stack), name, request).map(drop)),
                ModuleRequest::Set { name, map, key, value } => (name, set(self, (name, map), key, value).map(drop)),
                _ => continue,
            };
            if let Err(why) = done {
                tracing::error!(name, why, "a module is not as it was before the process that serves died");
            }
        }
        let _ = self.kept.0.set(kept);
    }
}
