//! What says which frames a capture keeps: a classic BPF program, or a module.

use crate::cbpf::{self, Program};
use std::io::IoSliceMut;
use std::sync::Arc;
use towpath_modules::{Action, Frame, Instance, Module, TOWPATH_FRAME_BYTES, TowpathFrame};

/// A filter, for all threads.
#[derive(Clone, Debug)]
pub enum Filter {
    /// Keeps as many bytes of a frame as the program says.
    Program(Arc<Program>),
    /// Keeps the frames that the module lets pass. One that may write has a copy of each: that changes nothing.
    Module(Arc<Module>),
}

/// The filter of one thread.
pub enum ThreadFilter {
    /// Keeps all frames.
    None,
    /// See [`Filter::Program`].
    Program(Arc<Program>),
    /// See [`Filter::Module`].
    Module(Box<Copies>),
}

/// A module with the memory for the frame that it has now.
pub struct Copies {
    instance: Instance,
    /// It has frames of a batch where they lie.
    only_looks: bool,
    buffer: Vec<u8>,
}

/// Room before and behind a frame, as the kernel's driver of a veth has it.
const HEADROOM: usize = 256;
const TAILROOM: usize = 320;
/// Most bytes of a frame that a module sees: a super-segment with all headers. No frame is longer.
const MOST: usize = (64 << 10) + 256;

impl ThreadFilter {
    /// Of this filter.
    pub fn new(filter: Option<&Filter>) -> Self {
        match filter {
            None => Self::None,
            Some(Filter::Program(program)) => Self::Program(Arc::clone(program)),
            Some(Filter::Module(module)) => {
                // The threads share a module's maps; those with a copy for each flow group have one.
                let instance = Instance::new(module, 0);
                let (only_looks, buffer) = (module.only_looks(), vec![0; HEADROOM + MOST + TAILROOM]);
                Self::Module(Box::new(Copies { instance, only_looks, buffer }))
            }
        }
    }

    /// Does it keep all frames?
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Can [`ThreadFilter::search`] be asked?
    pub fn searches(&self) -> bool {
        matches!(self, Self::Module(copies) if copies.only_looks)
    }

    /// How many frames at this place are not to be kept, before the first that is.
    #[inline]
    pub fn search(&mut self, place: u16, frames: &mut [IoSliceMut<'_>]) -> usize {
        match self {
            Self::Module(copies) if copies.only_looks => {
                copies.instance.stands_at(place.into(), 0);
                copies.instance.search(frames)
            }
            _ => 0,
        }
    }

    /// How many bytes of a frame at this place are to be kept. 0 = it is not.
    pub fn wanted(&mut self, place: u16, outgoing: bool, bytes: &[u8]) -> u32 {
        match self {
            Self::None => u32::MAX,
            Self::Program(program) => program.run(cbpf::Frame { bytes, outgoing }),
            Self::Module(copies) => {
                if copies
                    .lets_pass(TowpathFrame { egress: outgoing, port: place.into(), ..TowpathFrame::default() }, bytes)
                {
                    u32::MAX
                } else {
                    0
                }
            }
        }
    }
}

impl Copies {
    fn lets_pass(&mut self, about: TowpathFrame, bytes: &[u8]) -> bool {
        let length = bytes.len().min(MOST);
        self.buffer[HEADROOM - TOWPATH_FRAME_BYTES..HEADROOM].copy_from_slice(&about.bytes());
        self.buffer[HEADROOM..HEADROOM + length].copy_from_slice(&bytes[..length]);
        let buffer = &mut self.buffer[..HEADROOM + length + TAILROOM];
        let (meta, ifindex) = (TOWPATH_FRAME_BYTES, about.port);
        let mut frame = Frame { start: HEADROOM, length, meta, room: true, ifindex, ..Frame::whole(buffer) };
        self.instance.run(&mut frame) == Action::Pass
    }
}
