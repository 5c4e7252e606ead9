//! Soft errors: reports to the application about a connection before it ends (RFC 9293 §3.8.3 SHLD-9, §3.9.1.8
//! MUST-47).

use super::SlowPath;
use super::connections::Phase;
use super::errno::ETIMEDOUT;
use super::host::Host;
use crate::flow::FlowId;

impl SlowPath {
    /// Records a transient error of an installed flow's path. If the connection ends, this is its errno (SHLD-25).
    /// An application that has asked for it is told at once (MUST-47). Others are not disturbed (SHLD-20).
    pub(super) fn soft_error(&mut self, id: FlowId, errno: i32, host: &mut dyn Host) {
        if let Some(installed) = self.table.running(id) {
            installed.soft_error = Some(errno);
            self.tell(id, errno, host);
        }
    }

    /// R1 has been reached. The application is told before R2 (RFC 9293 §3.8.3 SHLD-9), with the cause if it is known.
    pub(super) fn delivery_problem(&mut self, id: FlowId, host: &mut dyn Host) {
        if let Some(installed) = self.table.running(id) {
            let errno = installed.soft_error.unwrap_or(ETIMEDOUT);
            self.tell(id, errno, host);
        }
    }

    fn tell(&mut self, id: FlowId, errno: i32, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Installed(installed) = &connection.phase else { return };
        let options = &installed.options;
        let wanted = if connection.tuple.remote.is_ipv6() { options.soft_errors_v6 } else { options.soft_errors };
        if wanted && !installed.orphan {
            host.soft_error(connection.owner, errno);
        }
    }
}
