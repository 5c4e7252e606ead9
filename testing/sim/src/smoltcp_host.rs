//! A host that runs another TCP stack, smoltcp.

use crate::errno::EAGAIN;
use crate::smoltcp_stall::SmoltcpStall;
use crate::{TimedPort, earlier};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use towpath_ports::TxOffload;
use towpath_tcp::time::Micros;
use towpath_wire::checksum;

thread_local! {
    /// The clock of smoltcp's timestamps. It is thread-local because smoltcp's generator is a plain function.
    static CLOCK_MS: Cell<u32> = const { Cell::new(0) };
}

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOLICITED_OVERRIDE: u8 = 0x60;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;

/// A host that runs smoltcp.
pub struct SmoltcpHost {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    now: Micros,
    /// Offer timestamps on sockets that are opened from now on?
    pub timestamps: bool,
}

/// smoltcp's view of a port. It answers ARP and neighbour discovery, which our nodes leave to a kernel.
struct Wire {
    port: Box<dyn TimedPort>,
    waiting: VecDeque<Vec<u8>>,
    neighbours: Vec<(IpAddr, [u8; 6])>,
    stall: SmoltcpStall,
}

impl SmoltcpHost {
    /// A host with this address on `port`. `neighbours` are the answers of ARP and neighbour discovery.
    pub fn new(
        address: IpAddr,
        mac: [u8; 6],
        seed: u64,
        neighbours: Vec<(IpAddr, [u8; 6])>,
        port: Box<dyn TimedPort>,
    ) -> Self {
        let mut wire = Wire { port, waiting: VecDeque::new(), neighbours, stall: SmoltcpStall::default() };
        let mut config = Config::new(EthernetAddress(mac).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, Instant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            let pushed = addresses.push(IpCidr::new(address.into(), if address.is_ipv4() { 24 } else { 64 }));
            assert!(pushed.is_ok(), "room for one address");
        });
        Self { interface, sockets: SocketSet::new(Vec::new()), wire, now: Micros(0), timestamps: false }
    }

    fn add(&mut self, rings: usize) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; rings]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        if self.timestamps {
            socket.set_tsval_generator(Some(|| CLOCK_MS.get()));
        }
        self.sockets.add(socket)
    }

    /// A socket with buffers of `rings` bytes that accepts one connection on `port`.
    pub fn listen(&mut self, port: u16, rings: usize) -> SocketHandle {
        let handle = self.add(rings);
        let listened = self.sockets.get_mut::<tcp::Socket>(handle).listen(port);
        assert!(listened.is_ok(), "{listened:?}");
        handle
    }

    /// A socket that connects to `remote`.
    pub fn connect(&mut self, remote: (IpAddr, u16), local_port: u16, rings: usize) -> SocketHandle {
        let handle = self.add(rings);
        let socket = self.sockets.get_mut::<tcp::Socket>(handle);
        let connected = socket.connect(self.interface.context(), remote, local_port);
        assert!(connected.is_ok(), "{connected:?}");
        handle
    }

    /// smoltcp's socket.
    pub fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Queues bytes and returns how many fitted. `EAGAIN` = none now. Tests cause no other errors.
    pub fn send(&mut self, handle: SocketHandle, bytes: &[u8]) -> Result<usize, i32> {
        let socket = self.socket(handle);
        if !socket.can_send() {
            return Err(EAGAIN);
        }
        socket.send_slice(bytes).map_err(|_| EAGAIN)
    }

    /// Reads bytes; 0 = end of stream.
    pub fn recv(&mut self, handle: SocketHandle, out: &mut [u8]) -> Result<usize, i32> {
        let socket = self.socket(handle);
        match socket.recv_slice(out) {
            Ok(0) => Err(EAGAIN),
            Ok(n) => Ok(n),
            Err(tcp::RecvError::Finished) => Ok(0),
            Err(tcp::RecvError::InvalidState) => match socket.state() {
                tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived => Err(EAGAIN),
                _ => Err(104),
            },
        }
    }

    /// Does the work that is possible at `now`.
    pub fn step(&mut self, now: Micros) -> bool {
        self.now = now;
        CLOCK_MS.set((now.0 / 1000) as u32);
        self.wire.port.advance(now);
        self.wire.port.flush();
        let result = self.interface.poll(Instant::from_micros(now.0 as i64), &mut self.wire, &mut self.sockets);
        self.wire.port.flush();
        result == PollResult::SocketStateChanged
    }

    /// Has it stalled as [`crate::smoltcp_stall`] describes? Valid only for a host with one connection.
    pub fn has_stalled(&self) -> bool {
        self.wire.stall.is_there()
    }

    /// When [`SmoltcpHost::step`] must be called again.
    pub fn next_deadline(&mut self) -> Option<Micros> {
        let timer = self.interface.poll_at(Instant::from_micros(self.now.0 as i64), &self.sockets);
        let timer = timer.map(|at| Micros(at.total_micros().max(0) as u64));
        earlier(timer, self.wire.port.next_deadline())
    }
}

impl Wire {
    fn transmit(&mut self, frame: &[u8]) {
        if frame.len() >= 42 && frame[12..14] == [8, 6] {
            self.answer_arp(frame);
            return;
        }
        if frame.len() >= 86 && frame[12..14] == [0x86, 0xdd] && frame[20] == ICMPV6 && frame[54] == SOLICITATION {
            self.answer_solicitation(frame);
            return;
        }
        self.stall.sent(frame);
        if let Some(buffer) = self.port.reserve() {
            buffer[..frame.len()].copy_from_slice(frame);
            self.port.commit(frame.len(), TxOffload::default());
        }
    }

    fn answer_arp(&mut self, request: &[u8]) {
        let target = Ipv4Addr::new(request[38], request[39], request[40], request[41]);
        let Some((_, mac)) = self.neighbours.iter().find(|(address, _)| *address == IpAddr::V4(target)) else { return };
        let mut reply = request[..42].to_vec();
        reply[..6].copy_from_slice(&request[6..12]);
        reply[6..12].copy_from_slice(mac);
        reply[21] = 2;
        reply[22..28].copy_from_slice(mac);
        reply[28..32].copy_from_slice(&target.octets());
        reply[32..42].copy_from_slice(&request[22..32]);
        self.waiting.push_back(reply);
    }

    /// Neighbour discovery (RFC 4861 §4.3, §4.4).
    fn answer_solicitation(&mut self, request: &[u8]) {
        let Ok(target) = <[u8; 16]>::try_from(&request[62..78]) else { return };
        let address = IpAddr::V6(target.into());
        let Some((_, mac)) = self.neighbours.iter().find(|(known, _)| *known == address) else { return };
        let mut reply = request[..86].to_vec();
        reply[..6].copy_from_slice(&request[6..12]);
        reply[6..12].copy_from_slice(mac);
        reply[22..38].copy_from_slice(&target);
        reply[38..54].copy_from_slice(&request[22..38]);
        reply[54..62].copy_from_slice(&[ADVERTISEMENT, 0, 0, 0, SOLICITED_OVERRIDE, 0, 0, 0]);
        reply[78..80].copy_from_slice(&[TARGET_LINK_LAYER_ADDRESS, 1]);
        reply[80..86].copy_from_slice(mac);
        // The pseudo-header has the addresses, the length and the next header (RFC 4443 §2.3).
        let sum = checksum::add(checksum::add(0, &[0, 32, 0, ICMPV6]), &reply[22..86]);
        reply[56..58].copy_from_slice(&checksum::finish(sum));
        self.waiting.push_back(reply);
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.waiting.pop_front() {
            return Some(frame);
        }
        let mut frames = Vec::with_capacity(1);
        self.port.receive(&mut frames, 1);
        let bytes = self.port.bytes(frames.first()?).to_vec();
        self.port.release(&frames);
        self.stall.told(&bytes);
        Some(bytes)
    }
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut Wire);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.transmit(&frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        let frame = self.next_frame()?;
        Some((Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.port.capabilities().mtu_bytes as usize + 14;
        capabilities
    }
}
