//! A fast path under load, in virtual time: many flows with endless data, whose peers acknowledge at once.

use super::*;

/// Window and rings of these flows: more than 100 Gbit/s needs for a turn of the wheel.
const WINDOW: u32 = 1 << 20;

/// Rings whose contents do not matter.
struct Blank;

impl Rings for Blank {
    fn deliver(&mut self, _: FlowId, _: u32, _: &[u8]) {}
    fn fetch(&self, _: FlowId, _: u32, _: &mut [u8]) {}
}

/// The frames of one flow that a port has sent.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Payload bytes.
    pub bytes: u64,
    /// When each frame went out, and its payload.
    pub frames: Vec<(u64, u32)>,
    end: u32,
}

/// Counts what is sent, per flow.
pub struct Tally {
    pub sent: Vec<Sent>,
    /// Frames that the port still takes.
    pub room: usize,
    now: u64,
    buffer: Vec<u8>,
}

impl TxPorts for Tally {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        (self.room > 0).then_some(&mut self.buffer[..])
    }
    fn commit(&mut self, _: PortId, len: usize, _: TxOffload) {
        let s = parse(&self.buffer[..len]).unwrap();
        let sent = &mut self.sent[usize::from(s.destination_port) - 4000];
        sent.bytes += u64::from(s.payload_len);
        sent.end = Seq(s.seq).bytes_since(setup().snd_start).wrapping_add(s.payload_len);
        sent.frames.push((self.now, s.payload_len));
        self.room -= 1;
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        true
    }
}

/// The fast path, its port and its flows.
pub struct Load {
    pub fast: FastPath,
    pub now: Micros,
    pub port: Tally,
    acked: Vec<u32>,
}

impl Load {
    /// A fast path with one flow for each of these setups. Number, port and windows are set here.
    pub fn new(flows: impl IntoIterator<Item = FlowSetup>) -> Self {
        let config = FastConfig { seed: 1, ..FastConfig::default() };
        let port = Tally { sent: vec![], room: usize::MAX, now: 0, buffer: vec![0; 2000] };
        let fast = FastPath::new(0, config, Arc::new(FlowTable::new(4096)));
        let mut load = Self { fast, now: Micros(1_000_000), port, acked: vec![] };
        flows.into_iter().for_each(|flow| load.add(flow));
        load
    }

    pub fn add(&mut self, mut flow: FlowSetup) {
        let n = self.acked.len() as u32;
        flow.flow = FlowId(n);
        flow.tuple.remote_port = 4000 + n as u16;
        (flow.snd_wnd, flow.snd_wscale, flow.tx_bytes, flow.window.cwnd) = (WINDOW, 7, WINDOW, WINDOW);
        (flow.mss, flow.window.ssthresh) = (1448, 1);
        self.message(ToFast::Install(Box::new(flow)));
        self.acked.push(0);
        self.port.sent.push(Sent::default());
        self.write(n, WINDOW);
    }

    pub fn message(&mut self, message: ToFast) {
        self.fast.message(self.now, message, &mut Blank);
    }

    pub fn write(&mut self, flow: u32, tx_tail: u32) {
        let update = AppUpdate { tx_tail, nodelay: true, ..AppUpdate::default() };
        self.fast.app_update(self.now, FlowId(flow), update).unwrap();
    }

    /// One turn. Everything that it sends is acknowledged, and as much is written again.
    pub fn step(&mut self) -> usize {
        self.port.now = self.now.0;
        let sent = self.fast.transmit(self.now, 256, &Blank, &mut self.port);
        self.fast.events().for_each(drop);
        while self.fast.pop_to_slow().is_some() {}
        for flow in 0..self.acked.len() {
            let end = self.port.sent[flow].end;
            if end != self.acked[flow] {
                self.acked[flow] = end;
                let ack = self.ack(flow as u16, end);
                self.fast.receive(self.now, PortId(1), &Frames(vec![ack]), &mut Blank);
                self.write(flow as u32, end.wrapping_add(WINDOW));
            }
        }
        sent
    }

    fn ack(&self, flow: u16, end: u32) -> Vec<u8> {
        let (t, s) = (tuple(), setup());
        let header = Header {
            vlan: None,
            source_mac: [4; 6],
            destination_mac: [2; 6],
            source: t.remote,
            destination: t.local,
            source_port: 4000 + flow,
            destination_port: t.local_port,
            seq: s.rcv_start.0,
            ack: s.snd_start.add(end).0,
            flags: ACK,
            window: (WINDOW >> 7) as u16,
            ident: 0,
            tos: 0,
            ttl: 0,
            urgent: 0,
            options: Options::default(),
        };
        let mut frame = vec![0; 100];
        let start = emit(&header, 0, &mut frame).unwrap();
        frame.truncate(start);
        fill_checksum(&mut frame);
        frame
    }

    /// Runs for `us`. The fast path is called up to `late_us` after its deadlines.
    pub fn run(&mut self, us: u64, late_us: u64) {
        let end = self.now.after(us);
        while self.now < end {
            if self.step() == 0 {
                let next = self.fast.next_deadline().map_or(end, |at| at.after(late_us));
                self.now = next.max(self.now.after(1)).min(end);
            }
        }
    }

    /// Payload bytes of each flow so far.
    pub fn bytes(&self) -> Vec<u64> {
        self.port.sent.iter().map(|sent| sent.bytes).collect()
    }
}
