//! The answer to [`super::Command::Events`].

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The last rare events of each thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Of the process that serves.
    pub threads: Vec<ThreadEvents>,
    /// Of the process that served before it and has died.
    #[serde(default)]
    pub before: Vec<ThreadEvents>,
}

/// Those of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadEvents {
    /// Its name.
    pub thread: String,
    /// The newest last.
    pub events: Vec<EventLine>,
}

/// An event. What it does not have is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// When it happened last, µs since 1970.
    pub at_us: u64,
    /// When it happened first.
    pub since_us: u64,
    /// How often: the same event one after the other is one.
    pub times: u32,
    /// What has happened.
    pub kind: String,
    /// In words.
    pub text: String,
    /// The flow group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_group: Option<u32>,
    /// The number of the connection in the fast path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<u32>,
    /// The place of the client, which another has later. The event `client` has its number and its process in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u32>,
    /// Its slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// The peer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
}
