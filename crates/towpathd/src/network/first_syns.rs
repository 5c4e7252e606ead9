//! Who judges the first SYNs of outgoing connections: the kernel's rules, to which they go by a raw socket, or nobody.

use std::io;
use towpath_fast::FirstSyn;
use towpath_ports::first_syn::{self, FirstSyns, Outcome};
use towpath_service::config::FirewallSetting;
use towpath_service::privileged;
use towpath_tcp::flow::FourTuple;

/// See the module.
pub struct Judge {
    firewall: FirewallSetting,
    /// The interface's number in the configuration.
    number: u32,
    /// The device of the sockets; `None`: the kernel has none for our frames.
    device: Option<u32>,
    sockets: Option<FirstSyns>,
}

impl Judge {
    /// Without a device.
    pub fn new(firewall: FirewallSetting, number: u32) -> Self {
        Self { firewall, number, device: None, sockets: None }
    }

    /// First SYNs leave over this device from now on.
    pub fn follow(&mut self, device: Option<u32>) {
        if self.firewall == FirewallSetting::Own || (self.device == device && self.sockets.is_some()) {
            return;
        }
        (self.device, self.sockets) = (device, None);
        let Some(device) = device else { return };
        match open(self.number, device) {
            Ok(sockets) => self.sockets = Some(sockets),
            // The interface has gone, which its health says. It is followed when it is back.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => tracing::error!(%error, "no raw socket: the kernel has all outgoing connections"),
        }
    }

    /// Do the kernel's rules judge them?
    pub fn is_kernel(&self) -> bool {
        self.firewall == FirewallSetting::Respect && self.device.is_some()
    }

    /// Sends the SYN in this frame.
    pub fn send(&self, tuple: &FourTuple, frame: &[u8]) -> FirstSyn {
        if !self.is_kernel() {
            return FirstSyn::ByPort;
        }
        let Some(sockets) = &self.sockets else { return FirstSyn::Refused };
        match sockets.send(tuple.local, tuple.remote, first_syn::packet_of(frame)) {
            Outcome::Sent => FirstSyn::Sent,
            Outcome::Refused(errno) => {
                tracing::debug!(errno, remote = %tuple.remote, "the kernel refuses a SYN");
                FirstSyn::Refused
            }
            Outcome::Translated => {
                tracing::debug!(remote = %tuple.remote, "the kernel translates a SYN");
                FirstSyn::Refused
            }
        }
    }
}

/// The broker opens them, if there is one.
fn open(number: u32, device: u32) -> io::Result<FirstSyns> {
    let open = |v6| match privileged::broker() {
        Some(broker) => broker.first_syns(number, v6),
        None => first_syn::socket(v6, device),
    };
    Ok(FirstSyns::new(open(false)?, open(true).ok()))
}
