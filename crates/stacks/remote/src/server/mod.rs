//! The side with the kernel stack, which it serves on copies of the regions.

mod rx;
mod shared;
mod tx;

use self::rx::ServerRx;
use crate::link::{Broken, Link, inbox};
use crate::transfer::{UpdateSender, receive};
use crate::update::Update;
use std::io;
use std::sync::Arc;
use towpath_kernel::KernelConfig;
use towpath_runtime::mailbox::Doorbell;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its kernel stack.
    pub kernel: KernelConfig,
    /// True if the host may run programs here.
    pub may_run: bool,
}

/// Why a host is not served any longer.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The link has ended.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The server cannot serve.
    #[error("serving: {0}")]
    Io(#[from] io::Error),
}

/// Serves one host until the link has ended. Returns why it has.
pub fn serve(link: Arc<dyn Link>, config: &ServerConfig) -> ServerError {
    let served = run(link, config);
    match served {
        Ok(why) => ServerError::Broken(why),
        Err(why) => why,
    }
}

fn run(link: Arc<dyn Link>, config: &ServerConfig) -> Result<Broken, ServerError> {
    let (outbox, mut inbox) = inbox::open(&link)?;
    let doorbell = Doorbell::new()?;
    let mut sender = Some(UpdateSender::new(outbox));
    let mut reader: Option<ServerRx> = None;
    let mut failed = None;
    let why = receive(
        &*Arc::clone(&link),
        &mut inbox,
        |lane, record| match (&mut reader, record) {
            (Some(reader), record) => reader.record(lane, record),
            (None, Update::Greeting { version, geometry }) => {
                let sender = sender.take().ok_or(Broken::Rules("it greets twice"))?;
                let greeted = ServerRx::start(&link, &doorbell, (version, geometry), config, sender);
                reader = greeted.map_err(|error| failed = Some(error)).ok();
                if reader.is_some() { Ok(()) } else { Err(Broken::Ended) }
            }
            (None, _) => Err(Broken::Rules("it does not greet")),
        },
        || doorbell.notify(),
    );
    if let Some(reader) = reader {
        reader.end();
    }
    link.close();
    match failed {
        Some(error) => Err(error),
        None => Ok(why),
    }
}
