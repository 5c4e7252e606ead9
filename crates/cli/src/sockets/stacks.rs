//! The stacks whose sockets are listed: one that is named, or all of this host that answer.

use crate::locate::{NoService, StackName, Which};
use std::path::{Path, PathBuf};
use towpath_service::api::{self, Command, Status};
use towpath_service::paths;

/// The name of a service's own stack, as metrics have it.
const HOME: &str = "home";
/// A user's kernel stack without a name. `kernel` is this host's.
const KERNEL_STACK: &str = "kernel-stack";
/// The same of the user's own service beside that of the machine.
const OWN: &str = "own";

/// A stack, and where it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is called.
    pub name: String,
    /// Its registration socket.
    pub socket: PathBuf,
}

/// The stacks to ask. An error if there is none.
pub fn find(which: &Which) -> Result<Vec<Place>, NoService> {
    let socket = which.find()?;
    if which.names_one() {
        let name = match which.other_stack() {
            Some(StackName::Configured(name)) => name.clone(),
            Some(StackName::Kernel(name)) => {
                name.as_ref().map_or_else(|| KERNEL_STACK.into(), |name| format!("kernel={name}"))
            }
            Some(StackName::Fast) | None => HOME.to_owned(),
        };
        return Ok(vec![Place { name, socket }]);
    }
    let mut places = of_service(HOME, &socket);
    if let Ok(own) = paths::per_user_socket() {
        if own != socket {
            places.extend(of_service(OWN, &own));
        }
        places.extend(kernel_stacks(&own));
    }
    if places.is_empty() {
        // It says why.
        return Ok(vec![Place { name: HOME.into(), socket }]);
    }
    let mut seen = Vec::new();
    places.retain(|place| {
        !seen.contains(&place.socket) && {
            seen.push(place.socket.clone());
            true
        }
    });
    Ok(places)
}

/// A service that answers, and the stacks of its configuration that run.
fn of_service(name: &str, socket: &Path) -> Vec<Place> {
    let Ok(status) = api::ask::<Status>(socket, Command::Status) else { return Vec::new() };
    let own = Place { name: name.into(), socket: socket.into() };
    let others = status.stacks.into_iter().filter(|other| other.running);
    let others = others.map(|other| Place { name: other.name, socket: other.socket });
    std::iter::once(own).chain(others).collect()
}

/// The user's own kernel stacks that answer. Nothing is started.
fn kernel_stacks(own: &Path) -> Vec<Place> {
    let files = std::fs::read_dir(paths::parent(own)).into_iter().flatten().flatten();
    let mut found: Vec<Place> = files.filter_map(|file| kernel_stack(&file.path())).collect();
    found.retain(|place| crate::locate::admitted(&place.socket).is_ok());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The kernel stack whose registration socket this is, if it is one.
fn kernel_stack(socket: &Path) -> Option<Place> {
    let file = socket.file_name()?.to_str()?;
    let name = file.strip_prefix("kernel-")?.strip_suffix(".sock").filter(|name| !name.ends_with(".control"))?;
    // That of a network namespace has the namespace's number.
    let name = if name.starts_with('@') { KERNEL_STACK.to_owned() } else { format!("kernel={name}") };
    Some(Place { name, socket: socket.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_stacks_are_known_by_their_sockets() {
        let name = |file: &str| kernel_stack(&Path::new("/tmp/towpath-0").join(file)).map(|place| place.name);
        assert_eq!(name("kernel-blue.sock").as_deref(), Some("kernel=blue"));
        assert_eq!(name("kernel-@4026531840.sock").as_deref(), Some("kernel-stack"));
        for other in ["towpath.sock", "control.sock", "kernel-blue.control.sock", "kernel-blue.lock", "kernel-"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
