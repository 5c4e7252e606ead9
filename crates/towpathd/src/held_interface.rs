//! An interface that the broker holds for its worker: the attached program, its maps, and the sockets of its queues. They
//! stay when the worker dies, so that no segment of its connections reaches the kernel, which would reset them.

use crate::health::receive_queues;
use crate::interface::attach;
use std::os::fd::OwnedFd;
use towpath_ports::attachment::Attachment;

/// Most queues for which the worker can demand a socket. The steering program knows no more.
const MOST_QUEUES: u32 = 256;

/// An interface of the configuration.
#[derive(Default)]
pub struct HeldInterface {
    /// Its name.
    pub name: String,
    /// The tag of its frames.
    pub vlan: Option<u16>,
    attachment: Option<Attachment>,
    /// The worker that lives now has it.
    given: bool,
}

impl HeldInterface {
    /// One that is not attached to yet.
    pub fn new(name: &str, vlan: Option<u16>) -> Self {
        Self { name: name.into(), vlan, ..Self::default() }
    }

    /// Prepares it for the worker. Returns what the worker must know of it.
    pub fn open(&mut self, queues: u32) -> Result<String, (i32, String)> {
        if self.given {
            return Err((libc::EALREADY, format!("{} is open already", self.name)));
        }
        let least = queues.min(MOST_QUEUES) as usize;
        let attachment = match self.again(least) {
            Some(attachment) => attachment,
            None => attach(&self.name, self.vlan, least).map_err(|error| error.told())?,
        };
        let description = self.attachment.insert(attachment).description().encode();
        self.given = true;
        Ok(description)
    }

    /// The attachment that an earlier worker has left, for another one. `None`: all must be made anew.
    fn again(&mut self, least: usize) -> Option<Attachment> {
        let mut attachment = self.attachment.take().filter(Attachment::is_in_place)?;
        match attachment.begin_again(receive_queues(&self.name).max(least)) {
            Ok(()) => Some(attachment),
            Err(error) => {
                tracing::warn!(%error, "the interface is opened anew");
                None
            }
        }
    }

    /// A copy of a descriptor.
    pub fn part(&self, number: u32) -> Result<OwnedFd, i32> {
        let attachment = self.attachment.as_ref().filter(|_| self.given).ok_or(libc::EBADF)?;
        let all = attachment.descriptors().map_err(|_| libc::EIO)?;
        let part = all.get(number as usize).ok_or(libc::ENOENT)?;
        part.try_clone_to_owned().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))
    }

    /// Has the driver run the program on new queues.
    pub fn renew(&mut self) -> Result<(), i32> {
        let attachment = self.attachment.as_mut().filter(|_| self.given).ok_or(libc::EBADF)?;
        attachment.renew().map_err(|error| {
            tracing::error!(%error, "the steering program");
            libc::EIO
        })
    }

    /// The worker has ended. Its listeners' SYNs are the kernel's at once, and segments of its connections are dropped.
    pub fn leave(&mut self) {
        self.given = false;
        if let Some(attachment) = &mut self.attachment {
            attachment.leave();
        }
    }

    /// Closes the descriptors of this process.
    pub fn close(&mut self) {
        self.attachment = None;
    }
}
