//! The interfaces that the broker holds for its worker: the attached programs, their maps, and the sockets of their queues.
//! They stay when the worker dies, so that no segment of its connections reaches the kernel, which would reset them.

use crate::attach::{
    ASK_AGAIN, IN_PLACE, InterfaceError, SERVED_ALREADY, attach, check_privileges, interface_index, tables_of,
};
use crate::health::receive_queues;
use crate::network::matching::{Named, matching};
use crate::network::netlink::Netlink;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_broker::Refusal;
use towpath_ports::attachment::{
    AttachConfig, AttachError, Attachment, Description, NOWHERE, Parts, SteerMode, Tables,
};
use towpath_ports::link::Link;
use towpath_ports::xsk::XskError;
use towpath_service::config::{FirewallSetting, PATTERN_PLACES, Selector, VlanSetting};
use towpath_service::privileged;

/// Most queues for which the worker can demand a socket. The steering program knows no more.
const MOST_QUEUES: u32 = towpath_ports::attachment::QUEUES;

/// How long queues may be in use whose sockets were closed just now.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The interfaces of the configuration, by their numbers there.
pub struct HeldInterfaces {
    /// How frames leave the kernel; `None`: chosen by what the interface is.
    mode: Option<SteerMode>,
    /// SYNs are taken before the kernel's firewall.
    own: bool,
    /// Of the worker that lives now; `None`: it has not opened anything.
    tables: Option<Tables>,
    all: Vec<HeldInterface>,
}

/// One of them.
struct HeldInterface {
    /// Its name, or the pattern that chooses one.
    name: String,
    /// Of a pattern, or of the default routes.
    selector: Option<Selector>,
    /// Most sockets for which the worker has ports; of a pattern's interface.
    most: usize,
    /// The tag of its frames.
    vlan: Option<u16>,
    attachment: Option<Attachment>,
    /// The worker that lives now has it.
    given: bool,
}

impl HeldInterfaces {
    /// Those of these names, which are not attached to yet.
    pub fn new(names: &[String], vlans: &VlanSetting, mode: Option<SteerMode>, firewall: FirewallSetting) -> Self {
        let held = |(place, name): (usize, String)| {
            let vlan = vlans.of(place);
            let selector = Selector::parse(&name).ok().filter(|selector| !matches!(selector, Selector::Name(_)));
            HeldInterface { name, selector, most: 0, vlan, attachment: None, given: false }
        };
        let own = firewall == FirewallSetting::Own;
        Self { mode, own, tables: None, all: places(names).into_iter().enumerate().map(held).collect() }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Is there one of this number?
    pub fn has(&self, number: u32) -> bool {
        (number as usize) < self.all.len()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// The tag of one's frames.
    pub fn vlan(&self, number: u32) -> Option<u16> {
        self.all.get(number as usize)?.vlan
    }

    /// The index of one. An interface that is served keeps it when its name changes.
    pub fn index(&self, number: u32) -> Option<u32> {
        let held = self.all.get(number as usize)?;
        let served = held.attachment.as_ref().filter(|attachment| attachment.is_in_place());
        let by_name = || interface_index(&held.name).filter(|_| held.selector.is_none());
        served.map(Attachment::index).or_else(by_name)
    }

    /// Prepares one for the worker. Returns what the worker must know of it. A worker that has it can ask again when it was
    /// made anew: the tables stay the same then.
    pub fn open(&mut self, number: u32, queues: u32) -> Result<String, (i32, String)> {
        let least = queues.min(MOST_QUEUES) as usize;
        if let Some(selector) = self.all.get(number as usize).and_then(|held| held.selector.clone()) {
            return self.open_chosen(number, &selector, least);
        }
        let held = self.all.get_mut(number as usize).ok_or((libc::EPERM, "no such interface is served".to_owned()))?;
        let config = AttachConfig { tagged: held.vlan.is_some(), mode: self.mode, own: self.own };
        let attachment = match held.attachment.take() {
            Some(attachment) if held.given => {
                let attachment = held.attachment.insert(attachment);
                let queues = attachment.queues().max(least);
                follow(attachment, &held.name, queues)?;
                return Ok(attachment.description().encode());
            }
            Some(left) => again(left, &mut self.tables, number, config, &held.name, least),
            None => attach(&mut self.tables, number, &held.name, config, least),
        };
        let attachment = attachment.map_err(|error| error.told())?;
        let description = held.attachment.insert(attachment).description().encode();
        held.given = true;
        Ok(description)
    }

    /// [`HeldInterfaces::open`] for a place of a pattern. It has the first interface that matches and that no other place has.
    /// Where there is none, the place waits: the worker has its tables, and asks again when something has changed.
    fn open_chosen(&mut self, number: u32, selector: &Selector, least: usize) -> Result<String, (i32, String)> {
        let place = number as usize;
        let is_free = |held: &HeldInterface| held.attachment.as_ref().is_none_or(|one| !exists(one.index()));
        // Of several free places of a pattern the first one asks.
        let is_first = !self.all[..place].iter().any(|held| held.selector.as_ref() == Some(selector) && is_free(held));
        let mut candidates = if is_first { self.candidates(selector) } else { Vec::new() };
        let Self { mode, own, tables, all } = self;
        let held = all.get_mut(place).ok_or((libc::EPERM, "no such interface is served".to_owned()))?;
        let config = AttachConfig { tagged: false, mode: *mode, own: *own };
        if let Some(attachment) = held.attachment.as_mut().filter(|_| held.given) {
            if exists(attachment.index()) {
                let (name, queues) = (attachment.name().unwrap_or_default(), attachment.queues());
                follow(attachment, &name, queues)?;
                return Ok(attachment.description().encode());
            }
            let none = format!("no interface matches {}", held.name);
            let mut failed = (libc::ENODEV, none);
            for Named { name, .. } in candidates {
                let queues = receive_queues(&name).min(held.most).max(least);
                match follow(attachment, &name, queues) {
                    Ok(()) => return Ok(attachment.description().encode()),
                    Err((ASK_AGAIN, why)) => return Err((ASK_AGAIN, why)),
                    Err(error) => failed = error,
                }
            }
            return Err(failed);
        }
        let left = held.attachment.take().filter(|left| exists(left.index()));
        let attachment = match left {
            Some(left) => {
                let name = left.name().unwrap_or_else(|| held.name.clone());
                again(left, tables, number, config, &name, least).map_err(|error| error.told())?
            }
            None => {
                let mut chosen = None;
                while chosen.is_none() && !candidates.is_empty() {
                    let Named { name, .. } = candidates.remove(0);
                    match attach(tables, number, &name, config, least) {
                        Ok(attachment) => chosen = Some(attachment),
                        Err(error) => tracing::warn!(%error, "an interface that matches is left out"),
                    }
                }
                match chosen {
                    Some(attachment) => attachment,
                    None => wait(tables, number, &held.name, config, least).map_err(|error| error.told())?,
                }
            }
        };
        held.most = attachment.queues();
        held.given = true;
        Ok(held.attachment.insert(attachment).description().encode())
    }

    /// What matches and is not served yet.
    fn candidates(&self, selector: &Selector) -> Vec<Named> {
        let found = Netlink::connect().and_then(|mut netlink| matching(&mut netlink, selector));
        let mut found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot ask the kernel for its interfaces");
            Vec::new()
        });
        // A port of a VRF would take early SYNs from all interfaces.
        found.retain(|device| !self.own || device.controller.is_none());
        found.retain(|device| {
            !self.all.iter().any(|held| {
                let index = held.attachment.as_ref().map(Attachment::index);
                // One that is named and has gone will have the next one of its name.
                let is_named = held.selector.is_none() && held.name == device.name && !index.is_some_and(exists);
                is_named || index == Some(device.index)
            })
        });
        found
    }

    fn given(&mut self, number: u32) -> Result<&mut Attachment, i32> {
        let held = self.all.get_mut(number as usize).ok_or(libc::EPERM)?;
        held.attachment.as_mut().filter(|_| held.given).ok_or(libc::EBADF)
    }

    /// A copy of a descriptor.
    pub fn part(&mut self, number: u32, part: u32) -> Result<OwnedFd, i32> {
        let all = self.given(number)?.descriptors().map_err(|_| libc::EIO)?;
        all.into_iter().nth(part as usize).ok_or(libc::ENOENT)
    }

    /// Has the driver run the program on new queues.
    pub fn renew(&mut self, number: u32) -> Result<(), i32> {
        self.given(number)?.renew().map_err(|error| {
            tracing::error!(%error, "the steering program");
            libc::EIO
        })
    }

    /// The worker has ended. Its listeners' SYNs are the kernel's at once, and segments of its connections are dropped.
    pub fn leave(&mut self) {
        self.tables = None;
        for held in &mut self.all {
            held.given = false;
            held.attachment.iter_mut().for_each(Attachment::leave);
        }
    }

    /// Closes the descriptors of this process.
    pub fn close(&mut self) {
        self.tables = None;
        self.all.iter_mut().for_each(|held| held.attachment = None);
    }
}

/// An attachment that an earlier worker has left, for another one. What cannot be served now is served when it can: other
/// interfaces do not wait for it.
fn again(
    mut left: Attachment,
    tables: &mut Option<Tables>,
    number: u32,
    config: AttachConfig,
    name: &str,
    least: usize,
) -> Result<Attachment, InterfaceError> {
    let now = tables_of(tables, name, config.own)?;
    // It is the same one under another name.
    let name = &*left.name().unwrap_or_else(|| name.to_owned());
    if left.is_in_place() {
        match left.begin_again(&now, receive_queues(name).max(least)) {
            Ok(()) => return Ok(left),
            Err(error) => tracing::warn!(%error, "the interface is opened anew"),
        }
    }
    left.wait_for_it(&now);
    if is_up(name) {
        match attach(tables, number, name, config, least) {
            Ok(attachment) => return Ok(attachment),
            Err(error) => tracing::error!(%error, "it is served when that is over"),
        }
    }
    Ok(left)
}

/// A place of a pattern that nothing matches yet.
fn wait(
    tables: &mut Option<Tables>,
    number: u32,
    name: &str,
    config: AttachConfig,
    least: usize,
) -> Result<Attachment, InterfaceError> {
    check_privileges(name, config.own)?;
    Ok(Attachment::waiting(&tables_of(tables, name, config.own)?, number, name, config, least))
}

/// What has a number each: first the names of the configuration, then the places of its patterns, dealt out to them in turn.
pub fn places(names: &[String]) -> Vec<String> {
    let (patterns, named): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| Selector::is_open(name));
    let chosen = patterns.iter().cycle().take(if patterns.is_empty() { 0 } else { PATTERN_PLACES });
    named.into_iter().chain(chosen.cloned()).collect()
}

/// Is there an interface with this index?
fn exists(index: u32) -> bool {
    index != NOWHERE && Link::of(index).ok().flatten().is_some()
}

/// Is there such an interface, and is it up?
fn is_up(name: &str) -> bool {
    is_there(interface_index(name))
}

/// Is there an interface with this index, and is it up?
fn is_there(index: Option<u32>) -> bool {
    index.and_then(|index| Link::of(index).ok().flatten()).is_some_and(|link| link.up)
}

/// Attaches to the interface that has the name now, if the one that was served has gone. It gets a socket for as many
/// queues as before. One that has lost the program alone gets that back, and keeps its sockets. It waits for nothing, as the
/// broker has other requests: [`ASK_AGAIN`].
fn follow(attachment: &mut Attachment, name: &str, queues: usize) -> Result<(), (i32, String)> {
    // One that is still there may have another name. One that has gone is found by its own.
    let name = &*attachment.name().unwrap_or_else(|| name.to_owned());
    if attachment.is_in_place() {
        return Err((IN_PLACE, format!("{name} is open already")));
    }
    if attachment.has_sockets() && is_there(Some(attachment.index())) {
        attachment.attach_again().map_err(|error| InterfaceError::from(error).told())?;
        tracing::warn!(interface = name, "somebody had taken Towpath's program off; it is attached again");
        return Err((IN_PLACE, format!("{name} has its program again")));
    }
    if !is_up(name) {
        return Err((libc::ENODEV, format!("{name} is not there, or down")));
    }
    attachment.follow(name, queues).map_err(|error| {
        let busy = matches!(error, AttachError::Xsk(XskError::QueueBusy(..)));
        let (errno, why) = InterfaceError::from(error).told();
        (if busy { ASK_AGAIN } else { errno }, why)
    })
}

/// The process that holds an interface, for the one that serves it.
pub enum Holder {
    /// The broker. The number is the interface's in the configuration.
    Broker(u32),
    /// This process, with that number.
    Own(Arc<Mutex<HeldInterfaces>>, u32),
}

impl Holder {
    /// Of each interface in the configuration.
    pub fn of_all(
        names: &[String],
        vlans: &VlanSetting,
        mode: Option<SteerMode>,
        firewall: FirewallSetting,
    ) -> Vec<Self> {
        let own = Arc::new(Mutex::new(HeldInterfaces::new(names, vlans, mode, firewall)));
        let holder = |number| match privileged::broker() {
            Some(_) => Self::Broker(number),
            None => Self::Own(Arc::clone(&own), number),
        };
        (0..places(names).len() as u32).map(holder).collect()
    }

    /// The interface's number in the configuration.
    pub fn number(&self) -> u32 {
        let (Self::Broker(number) | Self::Own(_, number)) = self;
        *number
    }

    /// Opens the interface: a socket for each receive queue, for `least` of them at least. Only the caller waits until the
    /// kernel has freed queues whose sockets were closed just now.
    pub fn open(&self, least: usize) -> Result<Parts, InterfaceError> {
        let until = Instant::now() + LONGEST_CLOSE;
        let (text, descriptors) = loop {
            match self.try_open(least) {
                Ok(opened) => break opened,
                Err(Refusal { errno: ASK_AGAIN, .. }) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(Refusal { errno, why }) => {
                    return Err(match errno {
                        SERVED_ALREADY => InterfaceError::ServedAlready(why),
                        IN_PLACE => InterfaceError::InPlace(why),
                        libc::ENODEV => InterfaceError::NotThere(why),
                        _ => InterfaceError::Broker(why),
                    });
                }
            }
        };
        let parts = Description::decode(&text).and_then(|description| Parts::of(description, descriptors));
        parts.ok_or_else(|| InterfaceError::Broker("the broker has answered what it never would".into()))
    }

    fn try_open(&self, least: usize) -> Result<(String, Vec<OwnedFd>), Refusal> {
        match (self, privileged::broker()) {
            (Self::Broker(number), Some(broker)) => broker.open_port(*number, least as u32),
            (Self::Broker(_), None) => Err(Refusal { errno: libc::EIO, why: "there is no broker".into() }),
            (Self::Own(held, number), _) => {
                open_here(&mut held.lock().unwrap_or_else(PoisonError::into_inner), *number, least)
            }
        }
    }

    /// Has the driver run the program on new queues.
    pub fn renew(&self) -> io::Result<()> {
        match (self, privileged::broker()) {
            (Self::Broker(number), Some(broker)) => broker.renew_port(*number),
            (Self::Broker(_), None) => Ok(()),
            (Self::Own(held, number), _) => {
                let renewed = held.lock().unwrap_or_else(PoisonError::into_inner).renew(*number);
                renewed.map_err(io::Error::from_raw_os_error)
            }
        }
    }
}

fn open_here(held: &mut HeldInterfaces, number: u32, least: usize) -> Result<(String, Vec<OwnedFd>), Refusal> {
    let text = held.open(number, least as u32).map_err(|(errno, why)| Refusal { errno, why })?;
    let mut all = Vec::new();
    loop {
        match held.part(number, all.len() as u32) {
            Ok(part) => all.push(part),
            Err(libc::ENOENT) => return Ok((text, all)),
            Err(errno) => return Err(Refusal { errno, why: io::Error::from_raw_os_error(errno).to_string() }),
        }
    }
}
