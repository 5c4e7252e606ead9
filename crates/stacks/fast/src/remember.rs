//! Remembers how the connections of clients end.

use crate::ended::Ended;
use crate::host::SlowHost;
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::Ending;

impl SlowHost {
    /// Remembers the end of a connection of this client.
    pub fn remember(&mut self, index: u32, tuple: &FourTuple, direct: bool, why: Ending) {
        let Some(client) = self.clients.get(index as usize).and_then(Option::as_ref) else { return };
        let program = (client.shared.name.as_str(), client.shared.pid, client.shared.uid);
        self.ended.add(Ended::new(self.now, why, *tuple, program, direct));
    }
}
