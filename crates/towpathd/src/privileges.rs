//! What the broker does for the worker. It runs with all of the service's rights, so each function asks the kernel, and
//! believes the worker nothing.

use crate::attach::mode_of;
use crate::held_interface::HeldInterfaces;
use crate::interface::EPHEMERAL_PORTS;
use crate::network::device;
use crate::network::netlink::Netlink;
use crate::network::reserved::ReservedPorts;
use crate::service_manager;
use crate::ways::{self, Way};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::collections::HashSet;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use towpath_broker::{Change, Held, Notice, Privileges};
use towpath_module_compiler::prepare;
use towpath_modules::Object;
use towpath_modules::code::Writer;
use towpath_modules::compiled::answer;
use towpath_ports::first_syn;
use towpath_ports::link::Link;
use towpath_service::config::{Config, FirewallSetting};
use towpath_service::default_socket::default_socket;
use towpath_service::known_namespaces::names_of;
use towpath_service::namespace_cookies::{Names, encode};
use towpath_service::other_stacks::OtherStacks;
use towpath_service::policy::Namespaces;
use towpath_service::successor_memory::SUCCESSOR_BYTES;
use towpath_service::{config_text, paths, port_proof, privileged, proc_links, received, server};

/// Most neighbours that the kernel keeps resolved. Others are asked for again when they have gone.
const MOST_MANAGED: usize = 4096;

/// See the module.
pub struct ServicePrivileges {
    socket: Option<PathBuf>,
    /// The served interfaces and what attaches to them.
    interfaces: HeldInterfaces,
    firewall: FirewallSetting,
    stacks: OtherStacks,
    /// Of the served network namespace.
    namespace: Option<u64>,
    netlink: Option<Netlink>,
    /// Neighbours that the kernel keeps resolved for the worker, and their devices.
    managed: HashSet<(u32, IpAddr)>,
    ports: Option<ReservedPorts>,
    /// The network namespaces of the configuration's other stacks.
    namespaces: Namespaces,
    /// All that the configuration names.
    names: Names,
    /// The way to write the code of modules.
    code: Option<Writer>,
    /// What a worker leaves to the next one.
    successor: Option<OwnedFd>,
    file: Option<PathBuf>,
    /// The text that was read last.
    read: Option<String>,
    /// The text in force, if it was read after the start.
    in_force: Option<String>,
}

impl ServicePrivileges {
    /// For a service with this configuration, in this thread's network namespace.
    pub fn new(config: &Config) -> Self {
        let socket = config.socket.clone().or_else(|| default_socket(config).ok());
        let stacks = socket.as_deref().map(|socket| OtherStacks::of(config, socket)).unwrap_or_default();
        Self {
            stacks,
            socket,
            interfaces: HeldInterfaces::new(&config.interface, &config.vlan, mode_of(config.port), config.firewall),
            firewall: config.firewall,
            namespace: port_proof::own_namespace(),
            netlink: None,
            managed: HashSet::new(),
            ports: None,
            namespaces: config.namespaces(),
            names: names_of(config),
            code: None,
            successor: None,
            file: config.file.clone(),
            read: None,
            in_force: None,
        }
    }

    fn netlink(&mut self) -> Result<&mut Netlink, i32> {
        if self.netlink.is_none() {
            self.netlink = Some(Netlink::connect().map_err(|error| errno(&error))?);
        }
        self.netlink.as_mut().ok_or(libc::EIO)
    }

    /// The device whose routes and neighbours apply to the interface of this number.
    fn device(&mut self, number: u32) -> Result<u32, i32> {
        let index = self.interfaces.index(number).ok_or(libc::ENODEV)?;
        let vlan = self.interfaces.vlan(number);
        device(self.netlink()?, index, vlan).map_err(|error| errno(&error))
    }

    /// May the worker change this device's neighbours?
    fn is_served(&mut self, device: u32) -> bool {
        (0..self.interfaces.count()).any(|number| self.device(number) == Ok(device))
    }

    /// The neighbours of a device went with it, and nobody releases them.
    fn forget_gone_devices(&mut self) {
        let mut devices: HashSet<u32> = self.managed.iter().map(|(device, _)| *device).collect();
        devices.retain(|device| matches!(Link::of(*device), Ok(None)));
        self.managed.retain(|(device, _)| !devices.contains(device));
    }
}

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Memory with this text, which nobody can change any more.
fn sealed(text: &str) -> std::io::Result<OwnedFd> {
    let memory = memfd_create("towpath-configuration", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(memory);
    file.write_all(text.as_bytes())?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Memory of so many bytes, which take room when they are used. Nobody can make it larger or smaller.
fn empty(bytes: u64) -> std::io::Result<OwnedFd> {
    let memory = memfd_create("towpath-successor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes)?;
    fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(memory)
}

impl Privileges for ServicePrivileges {
    fn owner(&self, shown: &OwnedFd) -> Option<u32> {
        port_proof::owner(shown)
    }

    fn prove(&mut self, shown: OwnedFd) -> Result<(OwnedFd, Held), i32> {
        // The worker has a copy, so this close is not the last one; if it is, it does not wait.
        let shown = received::HeldSocket::new(shown);
        let (own, grant) = port_proof::prove(shown.socket(), self.namespace)?;
        Ok((own, Held { addr: grant.addr, port: grant.port, dual: grant.dual }))
    }

    fn neighbour(&mut self, device: u32, address: IpAddr, change: Change) -> Result<(), i32> {
        if !self.is_served(device) {
            return Err(libc::EPERM);
        }
        let is_new = change == Change::Manage && !self.managed.contains(&(device, address));
        if is_new && self.managed.len() >= MOST_MANAGED {
            self.forget_gone_devices();
            if self.managed.len() >= MOST_MANAGED {
                return Err(libc::ENOSPC);
            }
        }
        let netlink = self.netlink()?;
        let changed = match change {
            Change::Resolve => netlink.resolve(device, address),
            Change::Manage => netlink.manage(device, address, true),
            Change::Release => netlink.manage(device, address, false),
        };
        changed.map_err(|error| errno(&error))?;
        match change {
            Change::Resolve => {}
            Change::Manage => _ = self.managed.insert((device, address)),
            Change::Release => _ = self.managed.remove(&(device, address)),
        }
        Ok(())
    }

    fn program(&mut self, process: i32) -> Result<Vec<u8>, i32> {
        proc_links::executable_of(process).map(|path| path.into_os_string().into_vec()).ok_or(libc::ENOENT)
    }

    fn shares_network(&mut self, process: i32) -> Result<bool, i32> {
        proc_links::shares_network(process).ok_or(libc::ESRCH)
    }

    fn reserve_ports(&mut self) -> Result<(), i32> {
        if self.interfaces.is_empty() {
            return Err(libc::EPERM);
        }
        if self.ports.is_none() {
            self.ports = Some(ReservedPorts::reserve_and_keep(&EPHEMERAL_PORTS).map_err(|error| errno(&error))?);
        }
        Ok(())
    }

    fn reserved_cpus(&mut self) -> Result<Vec<u8>, i32> {
        privileged::reserved_cpus().map(|cpus| cpus.list().into()).ok_or(libc::EIO)
    }

    fn start_stack(&self, number: u32) -> Result<(), String> {
        let stack = self.stacks.all().get(number as usize).ok_or("there is no stack of this number")?;
        self.stacks.start(stack)
    }

    fn configuration(&mut self) -> Result<OwnedFd, i32> {
        let file = self.file.as_deref().ok_or(libc::ENOENT)?;
        let text = config_text::read(file).map_err(|error| errno(&error))?;
        let memory = sealed(&text).map_err(|error| errno(&error))?;
        self.read = Some(text);
        Ok(memory)
    }

    fn first_syns(&mut self, number: u32, v6: bool) -> Result<OwnedFd, i32> {
        if self.firewall == FirewallSetting::Own || !self.interfaces.has(number) {
            return Err(libc::EPERM);
        }
        let device = self.device(number)?;
        first_syn::socket(v6, device).map_err(|error| errno(&error))
    }

    fn configuration_taken(&mut self) {
        self.in_force = self.read.take().or(self.in_force.take());
    }

    fn configuration_in_force(&self) -> Option<String> {
        self.in_force.clone()
    }

    fn open_sockets(&mut self, open: bool) -> Result<(), i32> {
        let socket = self.socket.as_deref().ok_or(libc::ENOENT)?;
        paths::set_socket_modes(socket, open).map_err(|error| errno(&error))
    }

    fn open_port(&mut self, number: u32, queues: u32) -> Result<String, (i32, String)> {
        self.interfaces.open(number, queues)
    }

    fn port_part(&mut self, number: u32, part: u32) -> Result<OwnedFd, i32> {
        self.interfaces.part(number, part)
    }

    fn renew_port(&mut self, number: u32) -> Result<(), i32> {
        self.interfaces.renew(number)
    }

    fn join(&mut self, namespace: u32, process: i32, remote: IpAddr) -> Result<(OwnedFd, Held, u32), i32> {
        let Way { own, local, device } =
            ways::way(&self.namespaces, namespace, process, remote).map_err(|error| errno(&error))?;
        Ok((own, Held { addr: local.ip(), port: local.port(), dual: false }, device))
    }

    fn namespaces(&mut self) -> Result<Vec<u8>, i32> {
        Ok(encode(&self.names.ask()))
    }

    fn code_area(&mut self) -> Result<OwnedFd, i32> {
        // A worker asks once, at its beginning.
        let (writer, memory) = Writer::new().map_err(|error| errno(&error))?;
        self.code = Some(writer);
        Ok(memory)
    }

    fn module(&mut self, place: u32, object: &[u8]) -> Vec<u8> {
        let mut code = self.code.take();
        self.forget();
        let prepared = Object::parse(object).and_then(|object| prepare(&object));
        if let Ok(Some(compiled)) = &prepared {
            let written = code.as_mut().map(|code| code.write(place, &compiled.code));
            if !matches!(written, Some(Ok(()))) {
                return b"-its code has no room: more than 1 MiB, or no place".to_vec();
            }
        }
        answer(&prepared)
    }

    fn successor_memory(&mut self) -> Result<OwnedFd, i32> {
        if self.successor.is_none() {
            self.successor = Some(empty(SUCCESSOR_BYTES).map_err(|error| errno(&error))?);
        }
        let memory = self.successor.as_ref().ok_or(libc::ENOENT)?;
        memory.try_clone().map_err(|error| errno(&error))
    }

    fn forget(&mut self) {
        (self.code, self.successor) = (None, None);
        self.interfaces.close();
        self.netlink = None;
        if let Some(ports) = self.ports.take() {
            ports.forget();
        }
    }

    fn notice(&mut self, notice: Notice) {
        service_manager::tell(notice);
    }

    fn worker_ended(&mut self, last: bool) {
        self.code = None;
        self.interfaces.leave();
        self.ports = None;
        // The next worker inherits no socket of this process.
        if let Some(mut netlink) = self.netlink.take() {
            for (device, address) in std::mem::take(&mut self.managed) {
                let _ = netlink.manage(device, address, false);
            }
        }
        if let Some(socket) = self.socket.as_deref().filter(|_| last) {
            server::remove_left(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{AddressFamily, SocketType};
    use std::net::TcpListener;
    use towpath_service::config::VlanSetting;

    fn without_interface() -> ServicePrivileges {
        let socket = std::env::temp_dir().join(format!("towpath-privileges-{}", std::process::id())).join("a.sock");
        ServicePrivileges::new(&Config { socket: Some(socket), ..Config::default() })
    }

    #[test]
    fn a_fallen_worker_gets_nothing_that_its_service_does_not_serve() {
        let mut privileges = without_interface();
        let address = "192.0.2.1".parse().unwrap();
        assert_eq!(privileges.neighbour(1, address, Change::Manage), Err(libc::EPERM), "no interface is served");
        assert_eq!(privileges.reserve_ports(), Err(libc::EPERM));
        assert_eq!(privileges.open_port(0, 1).map_err(|(error, _)| error), Err(libc::EPERM));
        assert_eq!(privileges.port_part(0, 0).map(drop), Err(libc::EPERM));
        assert_eq!(privileges.renew_port(0), Err(libc::EPERM));
        assert_eq!(privileges.first_syns(0, false).unwrap_err(), libc::EPERM);
        assert!(privileges.start_stack(0).is_err(), "no stack is configured");
        assert_eq!(privileges.join(0, 1, address).map(drop), Err(libc::EINVAL), "no other namespace is configured");
        assert_eq!(
            privileges.namespaces().unwrap(),
            encode(&privileges.names.ask()),
            "what is configured, and no other"
        );
        assert_eq!(privileges.program(i32::MAX), Err(libc::ENOENT));
        assert_eq!(privileges.shares_network(i32::MAX), Err(libc::ESRCH));
        let mut serves = ServicePrivileges {
            interfaces: HeldInterfaces::new(&["lo".into()], &VlanSetting::default(), None, FirewallSetting::Own),
            ..without_interface()
        };
        assert_eq!(serves.neighbour(4_000_000, address, Change::Resolve), Err(libc::EPERM), "another device");
        assert_eq!(serves.open_port(1, 1).map_err(|(error, _)| error), Err(libc::EPERM), "another interface");
        let refused = serves.open_port(0, 1).unwrap_err();
        assert!(refused.0 == libc::EIO && refused.1.contains("loopback"), "{refused:?}");
        assert_eq!(serves.port_part(0, 0).map(drop), Err(libc::EBADF), "what it has not opened");
        serves.firewall = FirewallSetting::Own;
        assert_eq!(serves.first_syns(0, true).unwrap_err(), libc::EPERM, "its own firewall");
    }

    #[test]
    fn a_port_is_bound_only_beside_a_socket_that_has_it() {
        let mut privileges = without_interface();
        let unbound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert!(privileges.prove(unbound).is_err());
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(privileges.prove(end.into()).is_err());
        let file = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(privileges.owner(&file), None);
        assert!(privileges.prove(file).is_err());
        let listens = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, another) = (listens.local_addr().unwrap(), listens.try_clone().unwrap());
        assert!(privileges.prove(another.into()).is_err(), "somebody listens there");
        drop(listens);
        let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&bound, &address).unwrap();
        assert_eq!(privileges.owner(&bound), Some(rustix::process::geteuid().as_raw()));
        let (_own, held) = privileges.prove(bound).unwrap();
        assert_eq!((held.addr, held.port), (address.ip(), address.port()));
    }
}
