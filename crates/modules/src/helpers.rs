//! What programs may call. Compiled programs call these functions as they are; the interpreter checks the arguments
//! first, by their kinds.

use crate::action::Action;
use crate::clock::clock;
use crate::map::{Map, Ring, clear, copy, error};
use crate::run::{COUNT, Helper, Run};
use crate::trace;

/// What an argument is. The interpreter checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything.
    Number,
    /// The context.
    Context,
    /// A map, or a map of this kind.
    Map,
    /// See `Map`.
    RingBuf,
    /// See `Map`.
    ProgArray,
    /// See `Map`: one of either kind.
    DevMap,
    /// A key or a value of the map that is the first argument.
    Key,
    /// See `Key`.
    Value,
    /// Bytes that are read; the next argument says how many.
    Read,
    /// Bytes that are written; the next argument says how many.
    Write,
    /// A record that `ringbuf_reserve` has given in this run.
    Record,
}

use Kind::{Context, DevMap, Key, Number, ProgArray, Read, Record, RingBuf, Value, Write};

/// The kernel's number, the arguments, and the function.
pub const HELPERS: [(i32, &[Kind], Helper); COUNT] = [
    (1, &[Kind::Map, Key], map_lookup),
    (2, &[Kind::Map, Key, Value, Number], map_update),
    (3, &[Kind::Map, Key], map_delete),
    (5, &[], ktime_get_ns),
    (6, &[Read, Number], trace_printk),
    (7, &[], get_prandom_u32),
    (8, &[], get_smp_processor_id),
    (12, &[Context, ProgArray, Number], tail_call),
    (23, &[Number, Number], redirect),
    (28, &[Read, Number, Read, Number, Number], csum_diff),
    (44, &[Context, Number], xdp_adjust_head),
    (51, &[DevMap, Number, Number], redirect_map),
    (54, &[Context, Number], xdp_adjust_meta),
    (65, &[Context, Number], xdp_adjust_tail),
    (125, &[], ktime_get_boot_ns),
    (130, &[RingBuf, Read, Number, Number], ringbuf_output),
    (131, &[RingBuf, Number, Number], ringbuf_reserve),
    (132, &[Record, Number], ringbuf_submit),
    (133, &[Record, Number], ringbuf_discard),
    (177, &[Read, Number, Read, Number], trace_vprintk),
    (188, &[Context], xdp_get_buff_len),
    (189, &[Context, Number, Write, Number], xdp_load_bytes),
    (190, &[Context, Number, Read, Number], xdp_store_bytes),
];

/// The place of a helper.
pub fn place(number: i32) -> Option<usize> {
    HELPERS.iter().position(|(known, ..)| *known == number)
}

/// Does a helper have the context, and so know where the frame is?
pub fn takes_context(number: i32) -> bool {
    HELPERS.iter().any(|(known, kinds, _)| *known == number && kinds.contains(&Context))
}

/// Numbers of those that programs treat as instructions of their own.
pub const TAIL_CALL: i32 = 12;
/// Those that need room around the frame.
pub const MOVERS: [i32; 3] = [44, 54, 65];

/// The flags of `redirect_map` that say what becomes of a frame if there is no element.
const IF_MISSING: u64 = 3;
/// Most tail calls of a run.
pub const MAX_TAIL_CALLS: u32 = 33;
/// Bytes of an Ethernet header: no frame is shorter.
const ETHERNET: u64 = 14;
/// Bytes at the start of the buffer that the kernel keeps for itself (`struct xdp_frame`).
const XDP_FRAME: u64 = 40;
/// Most bytes of metadata.
const MAX_META: u64 = 255;
/// Most bytes that one call copies from or to a frame.
const MAX_COPY: u64 = 0xffff;

const fn failed(errno: i32) -> u64 {
    error(errno).cast_unsigned()
}

fn bytes(at: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// The map that a program names.
///
/// # Safety
/// It is one of the module's, which are there as long as it runs.
unsafe fn map<'a>(named: u64) -> &'a Map {
    // SAFETY: as promised by the caller.
    unsafe { &*std::ptr::with_exposed_provenance::<Map>(named as usize) }
}

/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn map_lookup(run: *mut Run, named: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { map(named).lookup(bytes(key), (*run).group).expose_provenance() as u64 }
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn map_update(run: *mut Run, named: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { map(named).update(bytes(key), bytes(value), flags, (*run).group).cast_unsigned() }
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn map_delete(_: *mut Run, named: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { map(named).delete(bytes(key)).cast_unsigned() }
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ktime_get_ns(_: *mut Run, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ktime_get_boot_ns(_: *mut Run, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}
/// Counts a line, and keeps it for a reader. The answer is the length of the format.
///
/// # Safety
/// That of [`Helper`].
unsafe fn print(run: *mut Run, format: u64, length: u64, arguments: &[u64]) -> u64 {
    // SAFETY: as the contract of helpers says; the module keeps the trace as long as it runs.
    unsafe {
        (*run).traced += 1;
        if let Some(trace) = (*run).trace.as_ref() {
            trace.print((*run).group, (bytes(format), (length & 0xffff_ffff) as usize), arguments);
        }
    }
    length
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn trace_printk(run: *mut Run, format: u64, length: u64, one: u64, two: u64, three: u64) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { print(run, format, length, &[one, two, three]) }
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn trace_vprintk(run: *mut Run, format: u64, length: u64, data: u64, size: u64, _: u64) -> u64 {
    let mut arguments = [0; trace::MOST_ARGUMENTS];
    let count = ((size & 0xffff_ffff) as usize / 8).min(arguments.len());
    // SAFETY: the data has as many bytes, as the contract of helpers says.
    unsafe {
        copy(bytes(data), arguments.as_mut_ptr().cast(), 8 * count);
        print(run, format, length, &arguments[..count])
    }
}
/// Those that print.
pub const PRINTERS: [i32; 2] = [6, 177];
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn get_prandom_u32(run: *mut Run, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    let state = unsafe { &mut (*run).random };
    // xorshift64* (Vigna 2016): for samples, and for no secrets. Not testing/rng: it is the modules' own helper.
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn get_smp_processor_id(run: *mut Run, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    u64::from(unsafe { (*run).processor })
}

/// `XDP_REDIRECT`: if the program returns that, the frame goes over the interface of this number.
///
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn redirect(run: *mut Run, interface: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    if flags != 0 {
        return Action::Aborted as u64;
    }
    // SAFETY: as the contract of helpers says.
    unsafe { (*run).over = interface as u32 };
    Action::Redirect as u64
}
/// The same for the interface that a map has at a key. Without one it is the action that the flags say.
///
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn redirect_map(run: *mut Run, named: u64, key: u64, flags: u64, _: u64, _: u64) -> u64 {
    // Also those that ask for all interfaces of the map (`BPF_F_BROADCAST`): a frame goes one way.
    if flags & !IF_MISSING != 0 {
        return Action::Aborted as u64;
    }
    let key = (key as u32).to_ne_bytes();
    // SAFETY: as the contract of helpers says. Keys of such a map have four bytes, and its values begin with four.
    unsafe {
        let at = map(named).lookup(key.as_ptr(), 0);
        let mut interface = [0; 4];
        if !at.is_null() {
            copy(at, interface.as_mut_ptr(), 4);
        }
        // What an earlier call has said is over, too.
        (*run).over = u32::from_ne_bytes(interface);
        if (*run).over == 0 { flags } else { Action::Redirect as u64 }
    }
}

/// Compiled code calls what this returns, if it is not 0.
///
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn tail_call(run: *mut Run, _: u64, named: u64, place: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe {
        match next_program(&mut *run, map(named), place) {
            Some(program) => *(*run).functions.add(program),
            None => 0,
        }
    }
}

/// The program that a tail call goes to.
pub fn next_program(run: &mut Run, map: &Map, place: u64) -> Option<usize> {
    let program = map.program(place as u32).filter(|program| *program < run.programs)?;
    if run.tail_calls >= MAX_TAIL_CALLS {
        return None;
    }
    run.tail_calls += 1;
    Some(program)
}

/// # Safety
/// There are `length` bytes, which may be read.
unsafe fn sum(at: u64, length: u64, seed: u32) -> u64 {
    let mut sum = u64::from(seed);
    for place in (0..length).step_by(4) {
        let mut word = [0; 4];
        // SAFETY: it lies within the bytes, as the caller promises.
        unsafe { copy(bytes(at + place), word.as_mut_ptr(), (length - place).min(4) as usize) };
        sum += u64::from(u32::from_ne_bytes(word));
    }
    while sum >> 32 != 0 {
        sum = (sum & 0xffff_ffff) + (sum >> 32);
    }
    sum
}

/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn csum_diff(_: *mut Run, from: u64, from_size: u64, to: u64, to_size: u64, seed: u64) -> u64 {
    let (from_size, to_size, seed) = (from_size & 0xffff_ffff, to_size & 0xffff_ffff, seed as u32);
    let not = |sum: u64| !sum & 0xffff_ffff;
    // SAFETY: as the contract of helpers says.
    let sum = unsafe {
        match (from_size, to_size) {
            (0, 0) => u64::from(seed),
            (0, _) => sum(to, to_size, seed),
            (_, 0) => not(sum(from, from_size, !seed)),
            _ => sum(to, to_size, seed) + not(sum(from, from_size, 0)),
        }
    };
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
    (sum & 0xffff) + (sum >> 16)
}

/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_adjust_head(run: *mut Run, _: u64, by: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    let run = unsafe { &mut *run };
    let (by, meta) = (by as i32, run.data - run.data_meta);
    let data = run.data.wrapping_add_signed(by.into());
    if run.room_start == 0 || data < run.room_start + XDP_FRAME + meta || data + ETHERNET > run.data_end {
        return failed(libc::EINVAL);
    }
    let start = data - meta;
    // SAFETY: both places of the metadata lie within the buffer, which is ours.
    unsafe { std::ptr::copy(bytes(run.data_meta), bytes(start), meta as usize) };
    (run.data, run.data_meta) = (data, start);
    0
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_adjust_meta(run: *mut Run, _: u64, by: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    let run = unsafe { &mut *run };
    let meta = run.data_meta.wrapping_add_signed((by as i32).into());
    if run.room_start == 0 || meta < run.room_start + XDP_FRAME || meta > run.data {
        return failed(libc::EINVAL);
    }
    let length = run.data - meta;
    if length & 3 != 0 || length > MAX_META {
        return failed(libc::EACCES);
    }
    run.data_meta = meta;
    0
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_adjust_tail(run: *mut Run, _: u64, by: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    let run = unsafe { &mut *run };
    let end = run.data_end.wrapping_add_signed((by as i32).into());
    if run.room_start == 0 || end > run.room_end || end < run.data + ETHERNET {
        return failed(libc::EINVAL);
    }
    if end > run.data_end {
        // SAFETY: the room lies within the buffer, which is ours.
        unsafe { clear(bytes(run.data_end), (end - run.data_end) as usize) };
    }
    run.data_end = end;
    0
}

/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ringbuf_reserve(_: *mut Run, named: u64, size: u64, flags: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    match unsafe { map(named) }.ring() {
        Some(ring) if flags == 0 => ring.reserve(size).expose_provenance() as u64,
        _ => 0,
    }
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ringbuf_submit(_: *mut Run, record: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { Ring::finish(bytes(record), false) };
    0
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ringbuf_discard(_: *mut Run, record: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { Ring::finish(bytes(record), true) };
    0
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn ringbuf_output(_: *mut Run, named: u64, data: u64, size: u64, flags: u64, _: u64) -> u64 {
    // `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`: nobody sleeps.
    if flags & !3 != 0 {
        return failed(libc::EINVAL);
    }
    // SAFETY: as the contract of helpers says.
    let record = unsafe { map(named) }.ring().map_or(std::ptr::null_mut(), |ring| ring.reserve(size));
    if record.is_null() {
        return failed(libc::EAGAIN);
    }
    // SAFETY: the record has this many bytes, and so has the data.
    unsafe {
        copy(bytes(data), record, size as usize);
        Ring::finish(record, false);
    }
    0
}

/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_get_buff_len(run: *mut Run, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says.
    unsafe { (*run).data_end - (*run).data }
}
/// Where these bytes of the frame are.
fn part(run: &Run, offset: u64, length: u64) -> Result<u64, u64> {
    let (offset, length) = (offset & 0xffff_ffff, length & 0xffff_ffff);
    if offset > MAX_COPY || length > MAX_COPY {
        return Err(failed(libc::EFAULT));
    }
    if offset + length > run.data_end - run.data {
        return Err(failed(libc::EINVAL));
    }
    Ok(run.data + offset)
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_load_bytes(run: *mut Run, _: u64, offset: u64, to: u64, length: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says; `part` lies within the frame. The two may overlap.
    unsafe {
        match part(&*run, offset, length) {
            Ok(part) => std::ptr::copy(bytes(part), bytes(to), length as u32 as usize),
            Err(error) => return error,
        }
    }
    0
}
/// # Safety
/// That of [`Helper`].
unsafe extern "C" fn xdp_store_bytes(run: *mut Run, _: u64, offset: u64, from: u64, length: u64, _: u64) -> u64 {
    // SAFETY: as the contract of helpers says; `part` lies within the frame. The two may overlap.
    unsafe {
        match part(&*run, offset, length) {
            Ok(part) => std::ptr::copy(bytes(from), bytes(part), length as u32 as usize),
            Err(error) => return error,
        }
    }
    0
}
