//! From the configuration to the stack, by its kind.

use crate::privileges::ServicePrivileges;
use crate::{fast, guest, remote};
use towpath_broker::Privileges;
use towpath_kernel::{Kernel, KernelConfig};
use towpath_ring::Geometry;
use towpath_runtime::{AdmissionPolicy, OrphanLimits};
use towpath_service::config::{Config, StackKind};
use towpath_service::stack_factory::{StackError, StackFactory, StartedStack};

/// Builds all kinds of stacks.
pub struct Stacks;

impl StackFactory for Stacks {
    fn flow_groups(&self, config: &Config) -> usize {
        fast::most_cores(config)
    }

    fn privileges(&self, config: &Config) -> Box<dyn Privileges> {
        Box::new(ServicePrivileges::new(config))
    }

    fn start(
        &self,
        config: &Config,
        geometry: Geometry,
        guard: &dyn Fn() -> Box<dyn AdmissionPolicy>,
        before_threads: &dyn Fn(),
    ) -> Result<StartedStack, StackError> {
        match config.stack {
            StackKind::Fast => fast::start(config, guard(), before_threads),
            StackKind::Kernel => {
                before_threads();
                start_kernel(config, guard)
            }
            StackKind::Uml | StackKind::Qemu => guest::start(config, geometry, guard, before_threads),
            StackKind::Remote => remote::start(config, geometry, guard(), before_threads),
        }
    }
}

fn start_kernel(config: &Config, guard: &dyn Fn() -> Box<dyn AdmissionPolicy>) -> Result<StartedStack, StackError> {
    if config.standby.is_some() {
        tracing::warn!("only the stack \"uml\" can be a standby");
    }
    let kernel = KernelConfig {
        cores: fast::most_cores(config),
        spin_us: config.spin.as_micros(),
        cpus: config.cpus.clone(),
        orphans: OrphanLimits::default(),
    };
    let kernel = Kernel::start(&kernel, guard).map_err(StackError::doing("starting the cores"))?;
    Ok(StartedStack::alone(kernel))
}
