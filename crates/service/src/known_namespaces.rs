//! The network namespaces of the configuration's other stacks, as the kernel names them.

use crate::policy::Namespaces;
use crate::{netns, port_proof};
use std::io;

/// See the module.
#[derive(Debug, Default)]
pub struct KnownNamespaces {
    names: Namespaces,
    /// By their place in `names`. `None`: it was not there at the start, or this process may not enter it.
    cookies: Vec<Option<u64>>,
}

impl KnownNamespaces {
    /// Enters all of them, to know their cookies. For the process that serves, while it has the right.
    pub fn of(names: Namespaces) -> Self {
        let known = |netns: Option<&str>| {
            cookie(netns)
                .inspect_err(|error| tracing::info!(netns, %error, "no program of this namespace is joined"))
                .ok()
        };
        let cookies = names.others.iter().map(|other| known(other.netns.as_deref())).collect();
        Self { names, cookies }
    }

    /// Their names.
    pub fn names(&self) -> &Namespaces {
        &self.names
    }

    /// Place and name of the namespace with this cookie.
    pub fn of_cookie(&self, cookie: u64) -> Option<(u32, &str)> {
        let place = self.cookies.iter().position(|known| *known == Some(cookie))?;
        Some((u32::try_from(place).ok()?, &self.names.others.get(place)?.name))
    }
}

/// The kernel's cookie of a network namespace, by its name in the configuration.
pub fn cookie(netns: Option<&str>) -> io::Result<u64> {
    let asked = || -> io::Result<u64> {
        netns::enter_named(netns)?;
        port_proof::own_namespace().ok_or_else(|| io::ErrorKind::Unsupported.into())
    };
    // A thread of its own, because it does not come back.
    std::thread::scope(|scope| scope.spawn(asked).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::namespaces::OtherNamespace;

    #[test]
    fn a_cookie_names_a_namespace_that_was_there_at_the_start() {
        let other = |name: &str, netns: Option<&str>| OtherNamespace {
            name: name.into(),
            number: 0,
            netns: netns.map(str::to_owned),
        };
        let others = vec![other("gone", Some("/nonexistent/ns")), other("home", None)];
        let known = KnownNamespaces::of(Namespaces { own: "blue".into(), others });
        let own = port_proof::own_namespace().unwrap();
        assert_eq!(known.of_cookie(own), Some((1, "home")));
        assert_eq!((known.of_cookie(0), known.of_cookie(own + 1_000_000)), (None, None));
    }
}
