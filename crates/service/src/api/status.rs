//! The answer to [`super::Command::Status`].

use super::OtherStackStatus;
use super::sizing::Sizing;
use crate::auto::report::ClassReport;
use crate::config::FirewallSetting;
use crate::policy::request::PolicyTotals;
use crate::sandbox::SandboxStatus;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use towpath_runtime::named_counts::NamedCounts;
use towpath_runtime::status::{ClientStatus, EndedStatus, FlowGroupStatus, PortStatus, Tally, WorkerStatus};

/// Answer to [`super::Command::Status`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The service's version.
    pub version: String,
    /// The kind of its stack: `fast`, `kernel`, `uml`, `qemu` or `remote`.
    #[serde(default)]
    pub stack: String,
    /// Its process.
    pub pid: u32,
    /// Time since its start, µs.
    pub uptime_us: u64,
    /// Its registration socket.
    pub socket: PathBuf,
    /// The interfaces that it serves, and their state.
    #[serde(default)]
    pub interfaces: Vec<InterfaceStatus>,
    /// The stack's flow groups.
    pub flow_groups: Vec<NumberedFlowGroup>,
    /// The workers, which serve flow groups.
    #[serde(default)]
    pub workers: Vec<WorkerStatus>,
    /// The number of workers that run, and the reason.
    #[serde(default)]
    pub sizing: Sizing,
    /// The slow path's counters.
    pub slow: Tally,
    /// Connects and listens of programs that were left to the kernel, by reason. The reason `stack` counts those that
    /// were given to another stack.
    #[serde(default)]
    pub kernel: NamedCounts,
    /// Listeners that the kernel has, too. `accepted_by_kernel` counts connections, and the others first SYNs. `taken`: by
    /// the stack. `limited`: dropped, as their listener is flooded. `passed_stale`: left to the kernel, as the service was stuck or gone. `passed_full`: left to it, as too
    /// many waited. `unknown_listener`: dropped, as the listener had ended. `refused`: dropped, as the policy refuses the
    /// peer to the kernel.
    #[serde(default)]
    pub listeners: NamedCounts,
    /// The other stacks that the configuration names.
    #[serde(default)]
    pub stacks: Vec<OtherStackStatus>,
    /// The policy's totals.
    pub policy: PolicyTotals,
    /// What it was configured by. Operators alone are told.
    #[serde(default)]
    pub configuration: Option<ConfigurationStatus>,
    /// The measurements and decisions of `auto`.
    #[serde(default)]
    pub auto: Vec<ClassReport>,
    /// What the process that serves has given up.
    #[serde(default)]
    pub sandbox: SandboxStatus,
    /// Its clients.
    pub clients: Vec<ClientStatus>,
    /// What clients have used that have ended, by program.
    #[serde(default)]
    pub ended: Vec<EndedStatus>,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationStatus {
    /// Its file.
    pub file: Option<PathBuf>,
    /// Grows with each text of the file that is taken ([`crate::fingerprint::first_generation`]).
    pub generation: u64,
    /// SHA-256 of the file, as it was read last.
    pub hash: Option<String>,
    /// Keys of it whose values need a restart.
    pub restart: Vec<String>,
}

/// A served interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// The VLAN of the frames that are served; none: those without a tag.
    pub vlan: Option<u16>,
    /// It is administratively up.
    pub up: bool,
    /// The cable, or the other end of a virtual device, is there.
    pub carrier: bool,
    /// The service's program is attached to it.
    pub steering: bool,
    /// The number of the XDP program that is attached to it, whoever has attached it.
    pub program: Option<u32>,
    /// How frames come to the stack: by `xdp` in the driver, by `xdp-generic` in the kernel's receive path, or by `packet`
    /// sockets.
    pub mode: String,
    /// Why they come in this way.
    pub reason: String,
    /// Who judges first SYNs over it: with `respect` the kernel's firewall and the policy, with `own` the policy alone.
    #[serde(default)]
    pub firewall: FirewallSetting,
    /// Its receive queues.
    pub queues: u32,
    /// Those that have a socket of the service.
    pub sockets: u32,
    /// Frames of accelerated connections that came on the other queues, and took a slower way.
    pub strays: u64,
    /// What is wrong, and what to do.
    pub trouble: Option<String>,
}

impl InterfaceStatus {
    /// Its name and its VLAN, if it has one.
    pub fn title(&self) -> String {
        let vlan = self.vlan.map(|vlan| format!(" (VLAN {vlan})"));
        format!("{}{}", self.name, vlan.unwrap_or_default())
    }
}

/// One flow group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedFlowGroup {
    /// Its number.
    pub flow_group: usize,
    /// Its counters.
    #[serde(flatten)]
    pub status: FlowGroupStatus,
    /// Its ports.
    pub ports: Vec<NamedPort>,
}

/// One port of a flow group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPort {
    /// `memory`, or the interface's name.
    pub name: String,
    /// Its counters.
    #[serde(flatten)]
    pub status: PortStatus,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counters_keep_their_order() {
        let stages = [("pre", 7), ("egress", 0)].into_iter().collect();
        let drops = [("truncated", 0), ("paws", 1), ("land", 0)].into_iter().collect();
        let tally = Tally { stages, drops, ..Tally::default() };
        let text = serde_json::to_string(&tally).unwrap();
        assert!(text.starts_with(r#"{"stages":{"pre":7,"egress":0},"drops":{"truncated":0,"#));
        assert!(text.contains(r#""paws":1,"#));
        assert_eq!(serde_json::from_str::<Tally>(&text).unwrap(), tally);
        let status = FlowGroupStatus { tally, flows: 3, ..FlowGroupStatus::default() };
        let ports =
            vec![NamedPort { name: "memory".into(), status: PortStatus { rx_frames: 5, ..Default::default() } }];
        let group = NumberedFlowGroup { flow_group: 1, status, ports };
        let text = serde_json::to_string(&group).unwrap();
        assert!(text.contains(r#""flow_group":1,"#) && text.contains(r#"{"name":"memory","rx_frames":5,"#), "{text}");
        assert_eq!(serde_json::from_str::<NumberedFlowGroup>(&text).unwrap(), group);
    }
}
