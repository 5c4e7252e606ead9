//! A flood of SYNs, step by step in one thread: their listener has no room, so the stack answers each with a cookie. What the limiter
//! on the listener's socket drops costs the stack nothing, and is not here.

use crate::stages::{FRAME_BYTES, LOCAL, MOST, Memory, Out, PORT};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{FlowId, FlowSetup, FourTuple, Link, Owner, RingBytes};
use towpath_tcp::messages::ToFast;
use towpath_tcp::slow::{Host, Route, SlowConfig, SlowPath, Steered};
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit};
use towpath_wire::segment::{Options, Timestamps, flags};

const LISTENER: Owner = Owner(1);
/// Fewer than [`MOST`] half-open connections fill it.
const BACKLOG: u32 = 8;
/// The time between two turns, µs. It leaves their SYNs under the limit of cookies per second.
const TURN_US: u64 = 100_000;

/// The service around the slow path.
#[derive(Default)]
struct Service {
    /// Messages to the flow group.
    messages: Vec<ToFast>,
    children: u64,
}

impl Host for Service {
    fn route(&mut self, _: IpAddr, _: Option<IpAddr>) -> Route {
        let link = Link { port: PORT, source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2], vlan: None };
        Route::Via { link, source: LOCAL.0, mtu: 1500 }
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        addr == LOCAL.0
    }
    fn flow_group_for(&self, _: &FourTuple, _: Option<usize>) -> usize {
        0
    }
    fn send(&mut self, _: usize, message: ToFast) {
        self.messages.push(message);
    }
    fn steer(&mut self, _: &FourTuple, _: Steered) {}
    fn names_listeners(&self) -> bool {
        true
    }
    fn steer_listener(&mut self, _: IpAddr, _: u16, _: bool) {}
    fn new_child(&mut self, _: Owner) -> Option<Owner> {
        self.children += 1;
        Some(Owner(LISTENER.0 + self.children))
    }
    fn drop_child(&mut self, _: Owner) {}
    fn ring_bytes(&self, _: Owner) -> RingBytes {
        RingBytes::fixed(8192, 8192)
    }
    fn established(&mut self, _: Owner, _: &FlowSetup, _: usize) {}
    fn accept_queue_full(&mut self, _: Owner) -> bool {
        false
    }
    fn accepted(&mut self, _: Owner, _: Owner, _: &FourTuple) -> bool {
        false
    }
    fn connect_failed(&mut self, _: Owner, _: i32) {}
    fn released(&mut self, _: Owner, _: Option<FlowId>) {}
    fn random(&mut self) -> u64 {
        1
    }
}

struct Stack {
    fast: FastPath,
    slow: SlowPath,
    service: Service,
    memory: Memory,
    out: Out,
    now: Micros,
    /// The SYNs of this turn.
    syns: Vec<Box<[u8]>>,
}

/// Answers at least `syns` SYNs, `batch` of them per turn; returns how many were counted.
pub fn run(batch: usize, syns: u64) -> io::Result<u64> {
    if !(1..=MOST).contains(&batch) {
        return Err(io::Error::other(format!("a turn has 1 to {MOST} SYNs")));
    }
    let config = FastConfig { seed: 1, ..FastConfig::default() };
    let mut stack = Box::new(Stack {
        fast: FastPath::new(0, config, Arc::new(FlowTable::new(MOST as u32))),
        slow: SlowPath::new(SlowConfig { max_flows: MOST as u32, ..SlowConfig::default() }),
        service: Service::default(),
        memory: Memory { receive: Vec::new(), send: Vec::new() },
        out: Out { frames: [[0; FRAME_BYTES]; MOST], count: 0 },
        now: Micros(1_000_000),
        syns: Vec::with_capacity(MOST),
    });
    let Stack { slow, service, .. } = &mut *stack;
    let listened = slow.listen(Micros(0), LISTENER, LOCAL.0, LOCAL.1, false, BACKLOG, service);
    listened.map_err(io::Error::from_raw_os_error)?;
    // Half-open connections that nobody answers fill the backlog.
    let mut number = 0;
    for _ in 0..MOST {
        stack.syns.push(syn(number)?);
        number += 1;
        flood(&mut stack);
    }
    let turns = syns.div_ceil(batch as u64);
    for _ in 0..turns {
        stack.now = stack.now.after(TURN_US);
        for _ in 0..batch {
            stack.syns.push(syn(number)?);
            number += 1;
        }
        let children = stack.service.children;
        stack.out.count = 0;
        flood_turn(&mut stack);
        if stack.out.count != batch || stack.service.children != children {
            return Err(io::Error::other(format!("{} cookies for {batch} SYNs", stack.out.count)));
        }
    }
    Ok(turns * batch as u64)
}

/// The counted function: the turn in which SYNs come, and cookies go.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flood_turn(stack: &mut Stack) {
    flood(stack);
}

#[inline(always)]
fn flood(stack: &mut Stack) {
    let Stack { fast, slow, service, memory, out, now, syns } = stack;
    for frame in syns.drain(..) {
        slow.on_syn(*now, 0, PORT, frame, LISTENER, service);
    }
    for message in service.messages.drain(..) {
        fast.message(*now, message, memory);
    }
    fast.transmit(*now, MOST, memory, out);
}

/// A first SYN as Linux sends it, each from another port and address.
fn syn(number: u32) -> io::Result<Box<[u8]>> {
    let mut frame = [0; FRAME_BYTES];
    let header = Header {
        vlan: None,
        source_mac: [2, 0, 0, 0, 0, 2],
        destination_mac: [2, 0, 0, 0, 0, 1],
        source: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0100 + number / 60_000)),
        destination: LOCAL.0,
        source_port: 1024 + (number % 60_000) as u16,
        destination_port: LOCAL.1,
        seq: number.wrapping_mul(0x9e37_79b9),
        ack: 0,
        flags: flags::SYN,
        window: 64_240,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: number, echo: 0 }),
            ..Options::default()
        },
    };
    let length = emit(&header, 0, &mut frame).ok_or_else(|| io::Error::other("the frame does not fit"))?;
    Ok(frame[..length].into())
}
