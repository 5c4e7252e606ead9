//! The settings that a reload changes beside the policy. A clone is another handle of the same.

use crate::admission::Admission;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The values.
#[derive(Clone, Debug)]
pub struct LiveValues {
    /// Users that are admitted.
    pub admission: Arc<Admission>,
    /// Most client processes of one user.
    pub clients_per_user: u32,
    /// The service ends after this time without a client.
    pub idle_exit: Option<Duration>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct LiveSettings(Arc<RwLock<LiveValues>>);

impl LiveSettings {
    /// Begins with these.
    pub fn new(admission: Admission, clients_per_user: u32, idle_exit: Option<Duration>) -> Self {
        let admission = Arc::new(admission);
        Self(Arc::new(RwLock::new(LiveValues { admission, clients_per_user, idle_exit })))
    }

    /// All of one moment. A change is one step, so a thread that panicked with the lock has left it consistent.
    pub fn values(&self) -> LiveValues {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Users that are admitted now.
    pub fn admission(&self) -> Arc<Admission> {
        self.values().admission
    }

    /// From now on these.
    pub fn set(&self, values: LiveValues) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = values;
    }

    /// Changes some.
    pub fn change(&self, change: impl FnOnce(&mut LiveValues)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
