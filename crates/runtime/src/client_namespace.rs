//! The network namespace of a client, by the kernel's cookie (`SO_NETNS_COOKIE`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No namespace. The kernel gives none this cookie.
const NONE: u64 = 0;

/// The namespace in which all processes of a client are. A client with processes of several namespaces belongs to none,
/// because all of them can write its region. Clones are the same namespace.
#[derive(Clone, Debug, Default)]
pub struct ClientNamespace(Arc<AtomicU64>);

impl ClientNamespace {
    /// That of its first process; `None` = it is not known.
    pub fn new(cookie: Option<u64>) -> Self {
        Self(Arc::new(cookie.unwrap_or(NONE).into()))
    }

    /// One more process joins the client.
    pub fn join(&self, cookie: Option<u64>) {
        if cookie.is_none() || !self.is(cookie) {
            self.0.store(NONE, Ordering::Release);
        }
    }

    /// Is it this one? `None`, which a stack has that needs no namespace, is every client's.
    pub fn is(&self, home: Option<u64>) -> bool {
        home.is_none_or(|home| home != NONE && self.0.load(Ordering::Acquire) == home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_processes_of_several_namespaces_belongs_to_none() {
        let client = ClientNamespace::new(Some(7));
        assert!(client.is(Some(7)) && !client.is(Some(8)) && client.is(None));
        client.join(Some(7));
        assert!(client.is(Some(7)));
        let same = client.clone();
        client.join(Some(8));
        assert!(!same.is(Some(7)) && !same.is(Some(8)) && same.is(None));
        client.join(Some(7));
        assert!(!client.is(Some(7)), "the process of the other namespace still has the region");
        for unknown in [ClientNamespace::new(None), ClientNamespace::default()] {
            assert!(!unknown.is(Some(7)) && !unknown.is(Some(NONE)) && unknown.is(None));
        }
        client.join(None);
        assert!(!client.is(Some(7)));
    }

    #[test]
    fn a_process_of_an_unknown_namespace_takes_it_away() {
        let client = ClientNamespace::new(Some(7));
        client.join(None);
        assert!(!client.is(Some(7)));
    }
}
