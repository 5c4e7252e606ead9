//! Spliced connections: what the module is told, and the kernel while it sends segments on without the module.

use crate::host::SlowHost;
use towpath_modules::Map;
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::{Forwarded, Translation};

/// Both maps have each element: that of the module, and the kernel's while it sends segments on by itself.
impl SlowHost {
    pub fn begin_splice(&mut self, translations: &[Translation; 2]) -> Result<(), i32> {
        let [first, second] = translations.each_ref().map(|translation| translation.link.port);
        let ways = [first, second].map(|port| self.network.interface(port));
        if first != second && ways.contains(&None) {
            return Err(libc::EOPNOTSUPP);
        }
        self.splices.insert(translations, ways.map(Option::unwrap_or_default))?;
        translations.iter().for_each(|translation| self.forward(translation));
        Ok(())
    }

    /// Another link, or another way: the kernel's copy is made anew. False: the link leads over no interface.
    pub fn change_splice(&mut self, translation: &Translation) -> bool {
        self.end_forwarding(&translation.from);
        let interface = self.network.interface(translation.link.port);
        if let Some(interface) = interface {
            self.splices.relink(translation, interface);
            self.forward(translation);
        }
        interface.is_some()
    }

    /// The map of which the kernel has copies now. None while somebody captures: he would not see what the kernel sends on.
    pub fn forwards_by(&self) -> Option<*const Map> {
        self.splices.first_map().filter(|_| self.watch.is_none()).map(std::ptr::from_ref)
    }

    pub fn look_at_splice(&mut self, tuple: &FourTuple) -> Option<Forwarded> {
        let Self { splices, network, .. } = self;
        splices.look(tuple, || network.forwarded(tuple))
    }

    pub fn end_splice(&mut self, tuple: &FourTuple) {
        self.end_forwarding(tuple);
        self.splices.remove(tuple);
    }

    /// Has the kernel send on what comes on a connection.
    fn forward(&mut self, Translation { from, .. }: &Translation) {
        if self.forwards_by().is_some()
            && let Some(copy) = self.splices.for_kernel(from)
        {
            self.network.forward(from, &copy);
        }
    }

    fn end_forwarding(&mut self, tuple: &FourTuple) {
        if let Some(copy) = self.network.end_forwarding(tuple) {
            self.splices.note(tuple, &copy);
        }
    }
}
