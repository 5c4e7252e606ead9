//! Starts the client of a kernel stack at the other end of a link.

use towpath_remote::address::Address;
use towpath_remote::client::{Remote, RemoteError};
use towpath_remote::connect::connect;
use towpath_remote::security::Security;
use towpath_ring::Geometry;
use towpath_runtime::AdmissionPolicy;
use towpath_service::config::Config;
use towpath_service::stack_factory::{StackError, StartedStack};

/// Connects to the other end and serves clients with it.
pub fn start(
    config: &Config,
    geometry: Geometry,
    guard: Box<dyn AdmissionPolicy>,
    before_threads: &dyn Fn(),
) -> Result<StartedStack, StackError> {
    let text = config.remote.as_deref().unwrap_or_default();
    let address = text.parse::<Address>().map_err(|why| config.error_at("remote", why))?;
    let security = Security::of(config.token.as_deref(), config.trust_network).map_err(StackError::of)?;
    let link = connect(&address, &security, before_threads);
    let link = link.map_err(|why| RemoteError::Connect(text.into(), why));
    let remote = link.and_then(|link| Remote::start(link, geometry, guard));
    Ok(StartedStack::alone(remote.map_err(StackError::of)?))
}
