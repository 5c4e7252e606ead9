//! How a served interface is, for `status`, and for the log when that changes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use towpath_ports::attachment::{Description, NOWHERE, SteerMode};
use towpath_ports::link::Link;
use towpath_service::api::InterfaceStatus;
use towpath_service::config::{FirewallSetting, Selector};
use towpath_service::stack_factory::ServedInterface;

/// The kernel's choice of a listener is another one there, so none is asked for on any interface.
const NOT_EARLY: &str = "a served interface is a port of another device (a bridge, a bond, a VRF): the kernel's firewall judges \
                         first SYNs, although `firewall` is \"own\"; take it out of that device";

/// See the module.
#[derive(Debug)]
pub struct Health {
    /// Its name in the configuration.
    configured: String,
    /// The tag of its frames.
    vlan: Option<u16>,
    index: AtomicU32,
    /// How its frames leave the kernel, and why.
    way: Mutex<Way>,
    /// The mode that the configuration asks for.
    wanted: Option<SteerMode>,
    /// SYNs are to be taken before the kernel's firewall.
    own: bool,
    /// They are.
    takes_early: AtomicBool,
    /// Receive queues with a socket of ours.
    sockets: AtomicU32,
    /// Frames of ours that have come on others.
    strays: AtomicU64,
    /// The trouble that the log tells of.
    said: Mutex<Option<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Way {
    mode: SteerMode,
    reason: &'static str,
    /// Numbers of our programs, one of which is attached.
    programs: [u32; 2],
}

impl Way {
    fn of(interface: &Description, wanted: Option<SteerMode>) -> Self {
        Self { mode: interface.mode, reason: interface.reason(wanted), programs: interface.programs }
    }

    /// Does the kernel tell everybody which program is on it? Of the ingress hook it does not: only the interface's holder
    /// can ask.
    fn shows_program(self) -> bool {
        self.mode != SteerMode::Packet
    }
}

impl Health {
    /// Of an interface with one of these programs, and this many sockets. `wanted`: the mode that the configuration asks for.
    pub fn new(
        name: &str,
        vlan: Option<u16>,
        wanted: Option<SteerMode>,
        interface: &Description,
        sockets: usize,
    ) -> Self {
        Self {
            configured: name.into(),
            vlan,
            index: interface.index.into(),
            way: Mutex::new(Way::of(interface, wanted)),
            wanted,
            own: interface.own,
            takes_early: interface.own.into(),
            sockets: (sockets as u32).into(),
            strays: AtomicU64::new(0),
            said: Mutex::default(),
        }
    }

    /// The number of its receive queues.
    pub fn queues(&self) -> usize {
        receive_queues(&self.name())
    }

    fn way(&self) -> Way {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Was it chosen by a pattern, and not by its name?
    pub fn is_chosen(&self) -> bool {
        Selector::is_open(&self.configured)
    }

    /// Has it had an interface?
    pub fn has_been(&self) -> bool {
        self.index.load(Ordering::Relaxed) != NOWHERE
    }

    /// The name of the interface with this number; the configured one, if there is none.
    pub fn name_of(&self, index: u32) -> String {
        Link::of(index).ok().flatten().map_or_else(|| self.configured.clone(), |link| link.name)
    }

    /// It was made anew, or another one was chosen, with so many sockets.
    pub fn moved_to(&self, interface: &Description, sockets: usize) {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Way::of(interface, self.wanted);
        self.index.store(interface.index, Ordering::Relaxed);
        self.sockets.store(sockets as u32, Ordering::Relaxed);
    }

    /// Is it there, with one of our programs?
    pub fn is_in_place(&self) -> bool {
        self.link().is_some_and(|link| self.steers(&link))
    }

    /// Does it tell everybody of each of our programs there?
    pub fn shows_all(&self) -> bool {
        self.way().shows_program() && !self.own
    }

    /// Is one of our programs on it, as far as is shown?
    fn steers(&self, link: &Link) -> bool {
        let way = self.way();
        !way.shows_program() || link.program.is_some_and(|program| way.programs.contains(&program))
    }

    fn link(&self) -> Option<Link> {
        let index = Some(self.index.load(Ordering::Relaxed)).filter(|index| *index != NOWHERE)?;
        Link::of(index).ok().flatten()
    }

    /// SYNs are taken before the kernel's firewall from now on, or are not.
    pub fn set_takes_early(&self, takes: bool) {
        if self.takes_early.swap(takes, Ordering::Relaxed) != takes {
            self.look();
        }
    }

    /// A frame has come on a queue without a socket.
    pub fn stray(&self) {
        if self.strays.fetch_add(1, Ordering::Relaxed) == 0 {
            self.look();
        }
    }

    /// Logs a trouble that has come, and its end.
    pub fn look(&self) {
        // A place that waits is no trouble; that nothing matches was said at the start.
        let now = self.status().trouble.filter(|_| self.waits_for().is_none());
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match &now {
            _ if *said == now => {}
            Some(trouble) => tracing::warn!(interface = self.name(), "{trouble}"),
            None => tracing::info!(interface = self.name(), "all is well with the interface again"),
        }
        *said = now;
    }
}

impl ServedInterface for Health {
    fn name(&self) -> String {
        self.link().map_or_else(|| self.configured.clone(), |link| link.name)
    }

    fn pattern(&self) -> Option<&str> {
        self.is_chosen().then_some(&self.configured)
    }

    fn waits_for(&self) -> Option<&str> {
        self.pattern().filter(|_| self.link().is_none())
    }

    fn status(&self) -> InterfaceStatus {
        let (link, way) = (self.link(), self.way());
        let is_there = link.is_some();
        // One that has gone is looked for by the name that the configuration has.
        let link = link.unwrap_or_else(|| Link { name: self.configured.clone(), ..Link::default() });
        let queues = if is_there { receive_queues(&link.name) } else { 0 };
        let steering = is_there && self.steers(&link);
        let takes_early = self.takes_early.load(Ordering::Relaxed);
        let mut status = InterfaceStatus {
            name: link.name,
            vlan: self.vlan,
            up: link.up,
            carrier: is_there && link.carrier,
            steering,
            program: if way.shows_program() { link.program } else { is_there.then_some(way.programs[0]) },
            mode: match way.mode {
                SteerMode::Packet => SteerMode::Packet,
                _ if link.generic => SteerMode::Generic,
                _ => SteerMode::Driver,
            }
            .to_string(),
            reason: way.reason.into(),
            firewall: if takes_early { FirewallSetting::Own } else { FirewallSetting::Respect },
            queues: queues as u32,
            sockets: self.sockets.load(Ordering::Relaxed),
            strays: self.strays.load(Ordering::Relaxed),
            trouble: None,
        };
        let not_early = (self.own && !takes_early).then(|| NOT_EARLY.into());
        status.trouble = match self.waits_for() {
            Some(pattern) => Some(format!(
                "no interface that is up matches {pattern}: the next one that appears is served; `ip -br link` lists all"
            )),
            None => trouble(&status, is_there).or(not_early),
        };
        status
    }
}

/// The number of the interface's receive queues; 1 if sysfs does not tell.
pub fn receive_queues(name: &str) -> usize {
    let Ok(queues) = std::fs::read_dir(format!("/sys/class/net/{name}/queues")) else { return 1 };
    queues.flatten().filter(|queue| queue.file_name().as_encoded_bytes().starts_with(b"rx-")).count().max(1)
}

/// What is wrong, and what to do.
fn trouble(status: &InterfaceStatus, is_there: bool) -> Option<String> {
    let InterfaceStatus { name, mode, queues, sockets, .. } = status;
    Some(if !is_there {
        format!(
            "{name} has gone: it was deleted, or moved to another namespace; it is served again when it is back and up"
        )
    } else if !status.up {
        format!("{name} is down: `ip link set {name} up`")
    } else if !status.carrier {
        format!("{name} has no carrier: its cable, or the other end of the virtual device, is missing or down")
    } else if !status.steering {
        format!(
            "{name} has lost Towpath's program, so nothing reaches the stack; it is attached again if nobody else has one there"
        )
    } else if queues > sockets && *mode != SteerMode::Packet.to_string() {
        format!(
            "{name} has {queues} receive queues, and {sockets} had it when the service started; packets of the others take \
             a slower way; start the service again"
        )
    } else {
        return None;
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_mode_has_its_reason() {
        let (generic, tagged, is_virtual, packet) = (1, 2, 4, 16);
        let says = |wanted, flags: u32, what: &str| {
            let description = Description::decode(&format!("7 0 {flags} 1 2 1 0 0 0 1500")).unwrap();
            let reason = description.reason(wanted);
            assert!(reason.contains(what), "{reason:?}, not {what:?}");
        };
        says(None, is_virtual | packet, "a virtual device");
        says(None, is_virtual | generic, "no tcx hook");
        says(None, is_virtual | tagged, "a VLAN");
        says(None, 0, "hardware");
        says(None, generic, "hardware whose driver");
        says(Some(SteerMode::Packet), packet, "configured");
        says(Some(SteerMode::Driver), 0, "configured");
        says(Some(SteerMode::Driver), generic, "its driver runs no XDP program");
    }

    #[test]
    fn each_trouble_has_its_sentence() {
        let good = InterfaceStatus {
            name: "eth1".into(),
            up: true,
            carrier: true,
            steering: true,
            queues: 2,
            sockets: 2,
            ..InterfaceStatus::default()
        };
        assert_eq!(trouble(&good, true), None);
        let says = |status: InterfaceStatus, is_there, what: &str| {
            let text = trouble(&status, is_there).unwrap();
            assert!(text.contains(what), "{text}");
        };
        says(good.clone(), false, "has gone");
        says(InterfaceStatus { up: false, carrier: false, ..good.clone() }, true, "ip link set eth1 up");
        says(InterfaceStatus { carrier: false, ..good.clone() }, true, "no carrier");
        says(InterfaceStatus { steering: false, ..good.clone() }, true, "Towpath's program");
        says(InterfaceStatus { queues: 4, ..good.clone() }, true, "4 receive queues, and 2");
        // Packet sockets have the frames of all queues.
        assert_eq!(trouble(&InterfaceStatus { queues: 4, mode: "packet".into(), ..good }, true), None);
    }

    #[test]
    fn an_interface_that_is_not_there_is_said() {
        let gone = Description::decode(&format!("{} 0 0 1 2 1 0 0 0 1500", u32::MAX >> 1)).unwrap();
        let health = Health::new("eth77", Some(7), None, &gone, 1);
        let status = health.status();
        assert_eq!((status.vlan, status.reason.as_str()), (Some(7), "hardware"));
        assert!(status.trouble.unwrap().contains("has gone") && !status.carrier && !status.steering);
    }
}
