//! An interface that the broker holds for its worker: the attached program, its maps, and the sockets of its queues. They
//! stay when the worker dies, so that no segment of its connections reaches the kernel, which would reset them.

use crate::attach::{InterfaceError, SERVED_ALREADY, attach, interface_index};
use crate::health::receive_queues;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use towpath_broker::Refusal;
use towpath_ports::attachment::{Attachment, Description, Parts};
use towpath_ports::link::Link;
use towpath_service::privileged;

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

    /// Its number. An interface that is served keeps it when its name changes.
    pub fn index(&self) -> Option<u32> {
        let served = self.attachment.as_ref().filter(|attachment| attachment.is_in_place());
        served.map(Attachment::index).or_else(|| interface_index(&self.name))
    }

    /// Prepares it for the worker. Returns what the worker must know of it. A worker that has it can ask again when it was
    /// made anew: the tables stay the same then.
    pub fn open(&mut self, queues: u32) -> Result<String, (i32, String)> {
        let least = queues.min(MOST_QUEUES) as usize;
        let attachment = match self.attachment.take() {
            Some(attachment) if self.given => {
                let attachment = self.attachment.insert(attachment);
                follow(attachment, &self.name, least)?;
                return Ok(attachment.description().encode());
            }
            Some(left) => match again(left, &self.name, least) {
                Some(attachment) => attachment,
                None => attach(&self.name, self.vlan, least).map_err(|error| error.told())?,
            },
            None => attach(&self.name, self.vlan, least).map_err(|error| error.told())?,
        };
        let description = self.attachment.insert(attachment).description().encode();
        self.given = true;
        Ok(description)
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

/// An attachment that an earlier worker has left, for another one. `None`: all must be made anew.
fn again(mut left: Attachment, name: &str, least: usize) -> Option<Attachment> {
    let begun = if left.is_in_place() {
        left.begin_again(receive_queues(name).max(least))
    } else if is_up(name) {
        return None;
    } else {
        left.wait_for_it().map_err(Into::into)
    };
    match begun {
        Ok(()) => Some(left),
        Err(error) => {
            tracing::warn!(%error, "the interface is opened anew");
            None
        }
    }
}

/// Is there such an interface, and is it up?
fn is_up(name: &str) -> bool {
    let link = interface_index(name).and_then(|index| Link::of(index).ok().flatten());
    link.is_some_and(|link| link.up)
}

/// Attaches to the interface that has the name now, if the one that was served has gone. It gets a socket for as many
/// queues as before.
fn follow(attachment: &mut Attachment, name: &str, least: usize) -> Result<(), (i32, String)> {
    if attachment.is_in_place() {
        return Err((libc::EALREADY, format!("{name} is open already")));
    }
    if !is_up(name) {
        return Err((libc::ENODEV, format!("{name} is not there, or down")));
    }
    let queues = attachment.queues().max(least);
    attachment.follow(queues).map_err(|error| InterfaceError::from(error).told())
}

/// The process that holds an interface, for the one that serves it.
pub enum Holder {
    /// The broker. The number is the interface's in the configuration.
    Broker(u32),
    /// This process.
    Own(Box<Mutex<HeldInterface>>),
}

impl Holder {
    /// Of the interface of this number in the configuration.
    pub fn of(number: u32, name: &str, vlan: Option<u16>) -> Self {
        match privileged::broker() {
            Some(_) => Self::Broker(number),
            None => Self::Own(Box::new(Mutex::new(HeldInterface::new(name, vlan)))),
        }
    }

    /// Opens the interface: a socket for each receive queue, for `least` of them at least.
    pub fn open(&self, least: usize) -> Result<Parts, InterfaceError> {
        let opened = match (self, privileged::broker()) {
            (Self::Broker(number), Some(broker)) => broker.open_port(*number, least as u32),
            (Self::Broker(_), None) => Err(Refusal { errno: libc::EIO, why: "there is no broker".into() }),
            (Self::Own(held), _) => open_here(&mut held.lock().unwrap_or_else(PoisonError::into_inner), least),
        };
        let (text, descriptors) = opened.map_err(|Refusal { errno, why }| match errno {
            SERVED_ALREADY => InterfaceError::ServedAlready(why),
            libc::ENODEV => InterfaceError::NotThere(why),
            _ => InterfaceError::Broker(why),
        })?;
        let parts = Description::decode(&text).and_then(|description| Parts::of(description, descriptors));
        parts.ok_or_else(|| InterfaceError::Broker("the broker has answered what it never would".into()))
    }

    /// Has the driver run the program on new queues.
    pub fn renew(&self) -> io::Result<()> {
        match (self, privileged::broker()) {
            (Self::Broker(number), Some(broker)) => broker.renew_port(*number),
            (Self::Broker(_), None) => Ok(()),
            (Self::Own(held), _) => {
                let renewed = held.lock().unwrap_or_else(PoisonError::into_inner).renew();
                renewed.map_err(io::Error::from_raw_os_error)
            }
        }
    }
}

fn open_here(held: &mut HeldInterface, least: usize) -> Result<(String, Vec<OwnedFd>), Refusal> {
    let text = held.open(least as u32).map_err(|(errno, why)| Refusal { errno, why })?;
    let mut all = Vec::new();
    loop {
        match held.part(all.len() as u32) {
            Ok(part) => all.push(part),
            Err(libc::ENOENT) => return Ok((text, all)),
            Err(errno) => return Err(Refusal { errno, why: io::Error::from_raw_os_error(errno).to_string() }),
        }
    }
}
