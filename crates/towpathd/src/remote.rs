//! Starts the client of a kernel stack at the other end of a link.

use std::io;
use towpath_remote::address::Address;
use towpath_remote::client::{Remote, RemoteError};
use towpath_ring::Geometry;
use towpath_runtime::AdmissionPolicy;
use towpath_service::config::Config;
use towpath_service::stack_factory::{StackError, StartedStack};

/// Connects to the other end and serves clients with it.
pub fn start(config: &Config, geometry: Geometry, guard: Box<dyn AdmissionPolicy>) -> Result<StartedStack, StackError> {
    let text = config.remote.as_deref().unwrap_or_default();
    let address = text.parse::<Address>().map_err(|why| config.error_at("remote", why))?;
    let link = address.connect(config.trust_network);
    let link = link.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")));
    let remote = Remote::start(link.map_err(|error| StackError::of(RemoteError::from(error)))?, geometry, guard);
    Ok(StartedStack::alone(remote.map_err(StackError::of)?))
}
