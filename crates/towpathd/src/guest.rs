//! Starts a kernel stack in a second kernel of this host: user-mode Linux, or a guest of QEMU.

use towpath_guest::machine::{MachineConfig, MachineKind, Wire};
use towpath_guest::{Guest, GuestConfig, Standby, StandbyConfig};
use towpath_kernel::KernelConfig;
use towpath_ring::Geometry;
use towpath_ring::guest_memory::MAX_CLIENTS;
use towpath_runtime::{AdmissionPolicy, OrphanLimits};
use towpath_service::config::{Config, SandboxSetting, StackKind};
use towpath_service::stack_factory::{StackError, StartedStack};

/// Starts the guest; with `standby`, this kernel serves until the clients are moved there.
pub fn start(
    config: &Config,
    geometry: Geometry,
    guard: &dyn Fn() -> Box<dyn AdmissionPolicy>,
    before_threads: &dyn Fn(),
) -> Result<StartedStack, StackError> {
    let guest = GuestConfig { machine: machine(config)?, geometry, clients: MAX_CLIENTS };
    if let Some(device) = &config.standby {
        let kernel = KernelConfig {
            cores: 1,
            spin_us: config.spin.as_micros(),
            cpus: Vec::new(),
            orphans: OrphanLimits::default(),
        };
        let standby = StandbyConfig { guest, kernel, device: device.clone() };
        return Ok(StartedStack::alone(Standby::start(standby, guard).map_err(StackError::of)?));
    }
    Ok(StartedStack::alone(Guest::start(guest, guard(), before_threads).map_err(StackError::of)?))
}

fn machine(config: &Config) -> Result<MachineConfig, StackError> {
    let init = std::env::current_exe().map_err(StackError::doing("finding this program"))?;
    Ok(MachineConfig {
        kind: if config.stack == StackKind::Qemu { MachineKind::Qemu } else { MachineKind::Uml },
        program: None,
        init,
        kernel: config.guest_kernel.clone(),
        cores: config.cores.fewest(),
        memory_mib: (config.guest_memory.get() >> 20) as u32,
        wire: config.guest_tap.clone().map_or(Wire::None, Wire::Tap),
        address: config.guest_address.clone(),
        gateway: config.guest_gateway.clone(),
        confined: config.sandbox == SandboxSetting::On,
    })
}
