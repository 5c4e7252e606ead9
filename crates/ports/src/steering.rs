//! The XDP program that steers frames of an interface to us. All other frames stay with the kernel.

use crate::interface::Interface;
use crate::keys::{FlowKey, FlowKey6, Key};
use crate::link_holder;
use crate::listening::{Listening, monotonic};
use crate::object::{LoadError, OBJECT};
use crate::strays::Strays;
use crate::xsk::XskPort;
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode, loaded_programs};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

/// The same program twice: one is attached, and the other can take its place.
const PROGRAMS: [&str; 2] = ["towpath_steer", "towpath_steer2"];
/// Indices of the map `stats`.
const STEERED: u32 = 0;
const PASSED: u32 = 1;
const TAKEN: u32 = 2;
const STALE: u32 = 3;
const FULL: u32 = 4;
const STRAY: u32 = 5;
const LOST: u32 = 6;
/// Values of the maps `flows` and `flows6`.
const ACTIVE: u32 = 1;
const PASSIVE: u32 = 2;
/// Index of the map `settings`.
const VLAN: u32 = 0;
/// In that setting, beside the VLAN's number.
const ALL_TCP: u32 = 1 << 31;

/// Which segments of a connection are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// All of them. Our side has sent the first SYN.
    All,
    /// All but first SYNs, which the kernel shows to its listening sockets.
    ButFirstSyns,
}

/// Why steering could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// No interface of this name.
    #[error("there is no network interface {0:?} in this network namespace (`ip link` lists them)")]
    NoInterface(String),
    /// EPERM.
    #[error(
        "steering on {0}: not permitted: needs CAP_NET_ADMIN and CAP_BPF (run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` on the program)"
    )]
    Permission(String),
    /// Another XDP program is attached.
    #[error(
        "steering on {interface}: another XDP program is attached: {program}{}; end the program that holds it, or \
         serve another interface (`ip link set {interface} xdp off` removes one that no process holds)",
        holder.map(|pid| format!(", held by process {pid}")).unwrap_or_default()
    )]
    Occupied {
        /// Interface.
        interface: String,
        /// Name and id of the program, as far as the kernel tells.
        program: String,
        /// The process that holds it, if it can be seen.
        holder: Option<u32>,
        /// Is it the steering program of another service?
        is_ours: bool,
    },
    /// The kernel has no memory for the maps.
    #[error(
        "steering on {0}: no memory for the maps: raise the limit of locked memory (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit) or the memory limit of the control group"
    )]
    Memory(String),
    /// A table of the program is full.
    #[error("steering on {0}: the table is full")]
    Full(String),
    /// The kernel cannot bind the program's lifetime to this process.
    #[error("steering on {0}: this kernel has no XDP links (5.9 and newer have)")]
    OldKernel(String),
    /// Any other error.
    #[error("steering on {interface}: {doing}: {text}")]
    Other {
        /// Interface.
        interface: String,
        /// The step that failed.
        doing: &'static str,
        /// The causes, joined.
        text: String,
    },
}

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerMode {
    /// In the driver ("native").
    Driver,
    /// In the kernel's receive path, after a socket buffer has been allocated ("generic"). It works with every driver,
    /// but is slow. The sender's segmentation offloads and GRO must be off. Sockets must be opened with `copy`.
    Generic,
}

/// Counted since the program was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteerStats {
    /// Frames steered to us, whether or not a socket was bound to their queue.
    pub steered: u64,
    /// Frames passed to the kernel.
    pub passed: u64,
    /// SYNs taken from listening sockets.
    pub taken: u64,
    /// SYNs left to listening sockets, because this service did not run.
    pub passed_stale: u64,
    /// SYNs left to listening sockets, because too many were waiting.
    pub passed_full: u64,
    /// Steered frames of queues without a socket, for [`Steering::strays`].
    pub stray: u64,
    /// Steered frames that were dropped, because nobody reads those.
    pub lost: u64,
}

/// The steering program on one interface. Dropping this value detaches it. The kernel detaches it when the process
/// ends.
pub struct Steering {
    // Field order matters: the program is detached before the sockets go, so that no frame is dropped.
    link: Option<FdLink>,
    /// The attached one of the programs.
    attached: usize,
    interface: Interface,
    mode: SteerMode,
    program_ids: [u32; 2],
    sockets: XskMap<MapData>,
    flows: HashMap<MapData, FlowKey, u32>,
    flows6: HashMap<MapData, FlowKey6, u32>,
    half_open: HashMap<MapData, FlowKey, u64>,
    half_open6: HashMap<MapData, FlowKey6, u64>,
    listening: Listening,
    strays: Strays,
    settings: Array<MapData, u32>,
    vlan: Option<u16>,
    stats: PerCpuArray<MapData, u64>,
    program: Ebpf,
}

impl Steering {
    /// Attaches the program to an interface of the thread's network namespace, in the driver if possible, else generic.
    /// All frames pass to the kernel until flows are added.
    pub fn attach(interface: &str) -> Result<Self, SteerError> {
        let other = |doing, error: &(dyn Error + 'static)| SteerError::Other {
            interface: interface.into(),
            doing,
            text: chain(error),
        };
        let found = Interface::find(interface)
            .map_err(|e| other("ioctl", &e))?
            .ok_or_else(|| SteerError::NoInterface(interface.into()))?;
        let mut program = Ebpf::load(OBJECT).map_err(|e| explain(&found, "loading maps", &e))?;
        let mut program_ids = [0; 2];
        for (name, id) in PROGRAMS.iter().zip(&mut program_ids) {
            let xdp = xdp_program(&mut program, &found, name)?;
            xdp.load().map_err(|e| explain(&found, "loading the program", &e))?;
            *id = xdp.info().map_err(|e| explain(&found, "asking for the program", &e))?.id();
        }
        let (link, mode) = attach(xdp_program(&mut program, &found, PROGRAMS[0])?, &found)?;
        let listening = Listening::load(&mut program).map_err(|error| match error {
            LoadError::Refused(error) => explain(&found, "loading the filter of listeners", &*error),
            LoadError::Missing => other("loading", &io::Error::other("the object lacks the filter or one of its maps")),
        })?;
        let missing = || other("loading", &io::Error::other("the object lacks a map"));
        let strays = program.take_map("strays").and_then(|m| m.try_into().ok()).ok_or_else(missing)?;
        Ok(Self {
            link: Some(link),
            mode,
            program_ids,
            attached: 0,
            sockets: program.take_map("sockets").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            flows: program.take_map("flows").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            flows6: program.take_map("flows6").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            half_open: program.take_map("half_open").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            half_open6: program.take_map("half_open6").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            listening,
            strays: Strays::new(strays, found.rx_checksum()),
            settings: program.take_map("settings").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            stats: program.take_map("stats").and_then(|m| m.try_into().ok()).ok_or_else(missing)?,
            vlan: None,
            interface: found,
            program,
        })
    }

    /// Where the program runs.
    pub fn mode(&self) -> SteerMode {
        self.mode
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// Delivers steered frames of a queue to a port. The binding ends with the port; [`Steering::strays`] has the frames then. When
    /// the port that was bound last has gone, no SYNs are taken from listening sockets.
    pub fn bind(&mut self, queue: u32, port: &XskPort) -> Result<(), SteerError> {
        let result = self.sockets.set(queue, port.as_fd().as_raw_fd(), 0).and_then(|()| self.listening.live_with(port));
        result.map_err(|e| explain(&self.interface, "binding a socket to a queue", &e))
    }

    /// Frames of queues to which no port is bound.
    pub fn strays(&mut self) -> &mut Strays {
        &mut self.strays
    }

    /// The ids of both programs, one of which is attached, and the interface's index.
    pub fn ids(&self) -> ([u32; 2], u32) {
        (self.program_ids, self.interface.index)
    }

    /// Has the driver run the program on queues that have been made since it was attached. Not all do so by themselves:
    /// veth does not (Linux 6.18). No frame is left out.
    pub fn renew(&mut self) -> Result<(), SteerError> {
        let doing = "putting the program on new queues";
        let Some(link) = self.link.take() else { return Ok(()) };
        let link = XdpLink::try_from(link).map_err(|e| explain(&self.interface, doing, &e))?;
        self.attached = 1 - self.attached;
        let xdp = xdp_program(&mut self.program, &self.interface, PROGRAMS[self.attached])?;
        let id = xdp.attach_to_link(link).map_err(|e| explain(&self.interface, doing, &e))?;
        let link = xdp.take_link(id).map_err(|e| explain(&self.interface, doing, &e))?;
        self.link = FdLink::try_from(link).ok();
        Ok(())
    }

    /// The filter for listening sockets.
    pub fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    /// Steers only frames with this IEEE 802.1Q tag, or only untagged ones. All others pass to the kernel.
    pub fn set_vlan(&mut self, vlan: Option<u16>) -> Result<(), SteerError> {
        let result = self.settings.set(VLAN, u32::from(vlan.unwrap_or(0)), 0);
        self.vlan = vlan;
        result.map_err(|e| explain(&self.interface, "choosing a VLAN", &e))
    }

    /// Takes first SYNs from listening sockets if they came over the device with this index: the interface, or the kernel's
    /// device for the VLAN. `None`: the kernel has none, so all TCP of the VLAN is steered to us.
    pub fn serve(&mut self, device: Option<u32>) -> Result<(), SteerError> {
        let all = if device.is_none() { ALL_TCP } else { 0 };
        let set = self.settings.set(VLAN, u32::from(self.vlan.unwrap_or(0)) | all, 0);
        let result = set.and_then(|()| self.listening.serve(device));
        result.map_err(|e| explain(&self.interface, "choosing the device of listeners", &e))
    }

    /// Adds, changes or (`None`) removes one connection. Doing so twice is no error.
    pub fn steer_flow(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        ours: Option<Segments>,
    ) -> Result<(), SteerError> {
        let result = match Key::of(local, remote) {
            Key::V4(key) => change(&mut self.flows, &key, ours),
            Key::V6(key) => change(&mut self.flows6, &key, ours),
        };
        result.map_err(|e| explain(&self.interface, "steering a connection", &e))
    }

    /// Steers all segments but first SYNs of a connection that may come to be within this time. When there are too many,
    /// the oldest are forgotten.
    pub fn steer_half_open(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        within: Duration,
    ) -> Result<(), SteerError> {
        let until = (monotonic() + within).as_nanos() as u64;
        let result = match Key::of(local, remote) {
            Key::V4(key) => self.half_open.insert(key, until, 0),
            Key::V6(key) => self.half_open6.insert(key, until, 0),
        };
        result.map_err(|e| explain(&self.interface, "steering a half-open connection", &e))
    }

    /// The program's counters.
    pub fn stats(&self) -> Result<SteerStats, SteerError> {
        let sum = |index| self.stats.get(&index, 0).map(|cpus| cpus.iter().sum());
        let read = || {
            Ok(SteerStats {
                steered: sum(STEERED)?,
                passed: sum(PASSED)?,
                taken: sum(TAKEN)?,
                passed_stale: sum(STALE)?,
                passed_full: sum(FULL)?,
                stray: sum(STRAY)?,
                lost: sum(LOST)?,
            })
        };
        read().map_err(|e: MapError| explain(&self.interface, "reading the counters", &e))
    }
}

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steering")
            .field("interface", &self.interface.name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

fn change<K: aya::Pod>(map: &mut HashMap<MapData, K, u32>, key: &K, ours: Option<Segments>) -> Result<(), MapError> {
    match ours {
        Some(Segments::All) => return map.insert(key, ACTIVE, 0),
        Some(Segments::ButFirstSyns) => return map.insert(key, PASSIVE, 0),
        None => {}
    }
    match map.remove(key) {
        Err(error) if os_error(&error) == Some(libc::ENOENT) || matches!(error, MapError::KeyNotFound) => Ok(()),
        other => other,
    }
}

fn xdp_program<'a>(program: &'a mut Ebpf, interface: &Interface, name: &str) -> Result<&'a mut Xdp, SteerError> {
    program.program_mut(name).and_then(|p| p.try_into().ok()).ok_or_else(|| SteerError::Other {
        interface: interface.name.clone(),
        doing: "loading",
        text: "the object has no such program".into(),
    })
}

/// Why an attempt to attach failed.
enum AttachError {
    /// Only attaching by netlink works. That would outlive this process, so it has been undone.
    NotALink,
    Refused(ProgramError),
}

fn try_attach(xdp: &mut Xdp, interface: &Interface, mode: XdpMode) -> Result<FdLink, AttachError> {
    let id = xdp.attach_to_if_index(interface.index, mode).map_err(AttachError::Refused)?;
    let link = xdp.take_link(id).map_err(AttachError::Refused)?;
    FdLink::try_from(link).map_err(|_| AttachError::NotALink)
}

/// Attaches in the driver, else generic. Never replaces another program, or runs beside one.
fn attach(xdp: &mut Xdp, interface: &Interface) -> Result<(FdLink, SteerMode), SteerError> {
    let final_error = |error| match error {
        AttachError::NotALink => SteerError::OldKernel(interface.name.clone()),
        AttachError::Refused(error) => explain(interface, "attaching in the driver or generic", &error),
    };
    match try_attach(xdp, interface, XdpMode::Driver) {
        Ok(link) => return Ok((link, SteerMode::Driver)),
        Err(AttachError::Refused(error))
            if !matches!(os_error(&error), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) => {}
        Err(error) => return Err(final_error(error)),
    }
    let link = try_attach(xdp, interface, XdpMode::Skb).map_err(final_error)?;
    Ok((link, SteerMode::Generic))
}

fn explain(interface: &Interface, doing: &'static str, error: &(dyn Error + 'static)) -> SteerError {
    let name = interface.name.clone();
    match os_error(error) {
        Some(libc::EPERM | libc::EACCES) => SteerError::Permission(name),
        Some(libc::EBUSY | libc::EEXIST) => occupied(interface),
        Some(libc::ENOMEM) => SteerError::Memory(name),
        Some(libc::E2BIG) => SteerError::Full(name),
        _ => SteerError::Other { interface: name, doing, text: chain(error) },
    }
}

/// The error for an interface that has a program. Names the program as `name (id 7)`, or as much as is known.
fn occupied(interface: &Interface) -> SteerError {
    let id = interface.xdp_program().ok().flatten();
    let info = id.and_then(|id| loaded_programs().flatten().find(|info| info.id() == id));
    let name = info.as_ref().and_then(|info| info.name_as_str()).filter(|name| !name.is_empty());
    let program = match (name, id) {
        (Some(name), Some(id)) => format!("{name} (id {id})"),
        (None, Some(id)) => format!("id {id}"),
        (_, None) => "unknown".into(),
    };
    SteerError::Occupied {
        interface: interface.name.clone(),
        program,
        holder: id.and_then(|id| link_holder::of_program(Path::new("/proc"), id)),
        is_ours: name.is_some_and(|name| PROGRAMS.contains(&name)),
    }
}

/// The errno at the bottom of an error.
fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut error = Some(error);
    while let Some(this) = error {
        if let Some(code) = this.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        error = this.source();
    }
    None
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
