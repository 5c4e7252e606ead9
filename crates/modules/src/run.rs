//! One run of a program: its context, and what its helpers need.

use crate::clock::{self, random};
use crate::context::Base;
use crate::insn::{self, Insn, LDX};
use crate::map::Map;
use crate::trace::Trace;
use std::io::IoSliceMut;
use std::mem::offset_of;

/// A helper as programs call it: five arguments, whether it has them or not.
///
/// # Safety
/// The run is alive, and the arguments are what their kinds say: the kernel's verifier has found that, or the interpreter.
pub type Helper = unsafe extern "C" fn(*mut Run, u64, u64, u64, u64, u64) -> u64;

/// How many helpers there are.
pub const COUNT: usize = 23;

/// The state of a run, and the program's context at its beginning. Compiled code names its fields by their offsets.
#[repr(C)]
pub struct Run {
    /// Where the frame begins and ends, and its metadata begins.
    pub data: u64,
    /// See `data`.
    pub data_end: u64,
    /// See `data`.
    pub data_meta: u64,
    /// Number of the interface that the frame came from or goes to.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// The module's maps.
    pub maps: *const MapRef,
    /// Compiled functions, by number. The first ones are the programs'.
    pub functions: *const u64,
    /// By their places.
    pub helpers: [Helper; COUNT],
    /// How many maps and programs there are.
    pub map_count: usize,
    /// See `map_count`.
    pub programs: usize,
    /// The buffer around the frame. 0 = it may not be moved.
    pub room_start: u64,
    /// See `room_start`.
    pub room_end: u64,
    /// Number of the flow group.
    pub group: u32,
    /// What stands for the number of its CPU.
    pub processor: u32,
    /// Tail calls of this run.
    pub tail_calls: u32,
    /// What ended a batch.
    pub result: u32,
    /// Random numbers: the state of their generator.
    pub random: u64,
    /// Lines that programs have printed.
    pub traced: u64,
    /// Where they are kept.
    pub trace: *const Trace,
    /// Number of the interface over which a program has last asked a frame to go. It is none's at first.
    pub over: u32,
}

/// A map, and its first value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapRef {
    /// The map.
    pub map: *const Map,
    /// Of an array.
    pub values: *mut u8,
}

/// Where compiled code finds the fields.
pub mod place {
    use super::{IoSliceMut, MapRef, Run, offset_of};
    /// The table of maps.
    pub const MAPS: i32 = offset_of!(Run, maps) as i32;
    /// The table of compiled functions.
    pub const FUNCTIONS: i32 = offset_of!(Run, functions) as i32;
    /// The first helper.
    pub const HELPERS: i32 = offset_of!(Run, helpers) as i32;
    /// Bytes of an entry of the table of maps.
    pub const MAP_BYTES: i32 = size_of::<MapRef>() as i32;
    /// In such an entry: where the map's first value is.
    pub const VALUES: i32 = offset_of!(MapRef, values) as i32;
    /// Tail calls of a run.
    pub const TAIL_CALLS: i32 = offset_of!(Run, tail_calls) as i32;
    /// What ended a batch.
    pub const RESULT: i32 = offset_of!(Run, result) as i32;
    /// Bytes of a frame's place in a batch, which is laid out as C's `struct iovec`.
    pub const SLICE_BYTES: i32 = size_of::<IoSliceMut<'_>>() as i32;
    /// In such a place: where the frame begins.
    pub const SLICE_START: i32 = offset_of!(libc::iovec, iov_base) as i32;
    /// In such a place: its length.
    pub const SLICE_LENGTH: i32 = offset_of!(libc::iovec, iov_len) as i32;
}

/// A field of the context (`struct xdp_md`) that modules have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Where the frame begins.
    Data,
    /// Where it ends.
    DataEnd,
    /// Where its metadata begins.
    DataMeta,
    /// `ingress_ifindex`.
    Interface,
    /// `rx_queue_index`.
    Queue,
}

impl Field {
    /// By its offset, as a program names it.
    pub fn at(offset: i16) -> Option<Self> {
        Some(match offset {
            0 => Self::Data,
            4 => Self::DataEnd,
            8 => Self::DataMeta,
            12 => Self::Interface,
            16 => Self::Queue,
            _ => return None,
        })
    }

    /// The field that a load reads, if its base is the context or may be.
    pub fn of_load(insn: Insn, base: Base) -> Option<Self> {
        let may_be = insn.code == LDX | insn::MEM && matches!(base, Base::Context | Base::Either | Base::Unreached);
        Self::at(insn.off).filter(|_| may_be)
    }

    /// Where it is in a run, and is it a pointer?
    pub fn place(self) -> (i32, bool) {
        match self {
            Self::Data => (offset_of!(Run, data) as i32, true),
            Self::DataEnd => (offset_of!(Run, data_end) as i32, true),
            Self::DataMeta => (offset_of!(Run, data_meta) as i32, true),
            Self::Interface => (offset_of!(Run, ifindex) as i32, false),
            Self::Queue => (offset_of!(Run, queue) as i32, false),
        }
    }

    /// Its value.
    pub fn of(self, run: &Run) -> u64 {
        match self {
            Self::Data => run.data,
            Self::DataEnd => run.data_end,
            Self::DataMeta => run.data_meta,
            Self::Interface => run.ifindex.into(),
            Self::Queue => run.queue.into(),
        }
    }
}

/// A frame for a run: a buffer, and where in it the frame is.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The frame with the room before and behind it.
    pub buffer: &'a mut [u8],
    /// Where the frame begins.
    pub start: usize,
    /// Its length.
    pub length: usize,
    /// Bytes of metadata before it.
    pub meta: usize,
    /// May the program move its ends?
    pub room: bool,
    /// The interface that it came from or goes to.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
}

impl<'a> Frame<'a> {
    /// A frame that fills its buffer.
    pub fn whole(buffer: &'a mut [u8]) -> Self {
        let length = buffer.len();
        Self { buffer, start: 0, length, meta: 0, room: false, ifindex: 0, queue: 0 }
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.start + self.length).unwrap_or(&[])
    }
}

impl Run {
    /// For a flow group. The pointers are set before the first run.
    pub fn new(group: u32, helpers: [Helper; COUNT]) -> Self {
        Self {
            data: 0,
            data_end: 0,
            data_meta: 0,
            ifindex: 0,
            queue: 0,
            maps: std::ptr::null(),
            functions: std::ptr::null(),
            helpers,
            map_count: 0,
            programs: 0,
            room_start: 0,
            room_end: 0,
            group,
            processor: group.min(clock::processors().saturating_sub(1)),
            tail_calls: 0,
            result: 0,
            random: random() | 1,
            traced: 0,
            trace: std::ptr::null(),
            over: u32::MAX,
        }
    }

    /// Before a run on this frame, which lies within its buffer.
    #[inline]
    pub fn begin(&mut self, frame: &mut Frame<'_>) {
        let buffer = frame.buffer.as_mut_ptr().expose_provenance() as u64;
        self.data = buffer + frame.start as u64;
        self.data_end = self.data + frame.length as u64;
        self.data_meta = self.data - frame.meta as u64;
        (self.ifindex, self.queue) = (frame.ifindex, frame.queue);
        self.room_start = if frame.room { buffer } else { 0 };
        self.room_end = buffer + frame.buffer.len() as u64;
        self.tail_calls = 0;
    }

    /// Before a run on a frame that fills its buffer, from or to the interface and queue of the run before.
    #[inline]
    pub fn begin_in_place(&mut self, bytes: &mut [u8]) {
        self.data = bytes.as_mut_ptr().expose_provenance() as u64;
        self.data_end = self.data + bytes.len() as u64;
        self.data_meta = self.data;
        self.tail_calls = 0;
    }

    /// After [`Run::begin`] and the run: where the frame is now.
    #[inline]
    pub fn end(&mut self, frame: &mut Frame<'_>) {
        let buffer = frame.buffer.as_ptr() as u64;
        frame.start = (self.data - buffer) as usize;
        frame.length = (self.data_end - self.data) as usize;
        frame.meta = (self.data - self.data_meta) as usize;
        self.room_start = 0;
    }

    /// The map that a program names by this value.
    pub fn map(&self, named: u64) -> Option<&Map> {
        let place = (0..self.map_count).find(|place| {
            // SAFETY: there are `map_count` entries.
            (unsafe { &*self.maps.add(*place) }).map as u64 == named
        })?;
        // SAFETY: there are `map_count` entries, whose maps are there as long as the module is.
        Some(unsafe { &*(*self.maps.add(place)).map })
    }

    /// All maps.
    pub fn all_maps(&self) -> impl Iterator<Item = &Map> {
        // SAFETY: there are `map_count` entries, whose maps are there as long as the module is.
        (0..self.map_count).map(|place| unsafe { &*(*self.maps.add(place)).map })
    }
}
