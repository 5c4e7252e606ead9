//! Header prediction changes nothing but the number of instructions: the same trace gives the same frames, events,
//! messages and counts with and without it.
use super::*;
use crate::fast::prediction::{all_unsent, expected, plain};
use crate::fast::segment;
use crate::messages::AppMarks;
use crate::table::Lines;
use towpath_rng::Rng;

/// How often a trace has met each predicted path.
#[derive(Default)]
struct Predicted {
    segments: u32,
    updates: u32,
    turns: u32,
    replies: u32,
}

fn lines(h: &Harness) -> &Lines {
    h.fast.table.get(FLOW).unwrap()
}

/// A peer and an application that mostly behave, with all that is rare now and then.
pub(in crate::fast) struct Trace {
    pub rng: Rng,
    /// Bytes that the peer has sent.
    sent: u32,
    clock: u32,
    ended: bool,
}

impl Trace {
    pub fn new(rng: Rng) -> Self {
        Self { rng, sent: 0, clock: 1, ended: false }
    }

    fn now_and_then(&mut self) -> bool {
        self.rng.chance(40_000)
    }

    /// The peer's next segment: in order, acknowledging what is out, and sometimes not.
    pub fn segment(&mut self, h: &Harness) -> Seg {
        let now = h.snapshot();
        let out = now.snd_max.bytes_since(h.setup.snd_start);
        // What was not taken comes again.
        if self.rng.chance(900_000) {
            self.sent = now.rcv_nxt.bytes_since(h.setup.rcv_start);
        }
        self.clock += self.rng.below(3) as u32;
        let len = self.rng.between(1, 1200) as u32;
        let mut s = seg(self.sent, out, &bytes(self.sent, len)).ts(self.clock, self.clock).with(ACK | PSH);
        s.wnd = 60_000;
        self.sent += len;
        if self.rng.chance(700_000) {
            return s;
        }
        match self.rng.below(22) {
            0 => s.data.clear(),
            1 => s.ack = now.snd_una.bytes_since(h.setup.snd_start),
            2 => s.ack = s.ack.wrapping_sub(self.rng.below(3000) as u32),
            3 => s.ack = s.ack.wrapping_add(self.rng.below(3) as u32),
            4 => s.seq = s.seq.wrapping_add(self.rng.below(3000) as u32),
            5 => s.seq = s.seq.wrapping_sub(self.rng.below(3000) as u32),
            6 => s.ts = Some((self.clock.wrapping_sub(self.rng.below(10) as u32), self.clock)),
            7 => s.ts = None,
            8 => s.wnd = self.rng.below(3000) as u16,
            9 => s.wnd = 0,
            10 => (s.flags, s.urgent) = (ACK | flags::URG, self.rng.below(2000) as u16),
            11 => s.flags = self.rng.below(256) as u8 & !(RST | SYN | FIN),
            12 => s.flags = ACK | flags::ECE,
            13 => s.flags = ACK | flags::CWR,
            14 => s.sack = vec![(s.ack.wrapping_add(100), s.ack.wrapping_add(self.rng.below(3000) as u32))],
            15 => s.data = bytes(s.seq, 3000),
            16 if self.now_and_then() => s.flags |= FIN,
            17 if self.now_and_then() => s.flags = RST | ACK,
            18 if self.now_and_then() => s.flags = SYN | ACK,
            19 => s.data = bytes(s.seq, self.rng.between(40_000, 60_000) as u32),
            _ => {}
        }
        s
    }

    /// What the application writes and asks for next.
    pub fn update(&mut self, h: &Harness) -> AppUpdate {
        let (view, mut app) = (h.view(), h.app);
        app.rx_head = if self.rng.chance(800_000) { view.rx_tail } else { app.rx_head };
        // Nobody checks the words of a flow that is dead.
        let room = h.setup.tx_bytes.saturating_sub(app.tx_tail.wrapping_sub(view.tx_head));
        let len = if self.rng.chance(50_000) { 30_000 } else { self.rng.below(1200) as u32 };
        app.tx_tail = app.tx_tail.wrapping_add(len.min(room));
        if !self.now_and_then() {
            return app;
        }
        match self.rng.below(8) {
            0 => app.nodelay = !app.nodelay,
            1 => app.cork = !app.cork,
            2 => app.quickack = !app.quickack,
            3 => app.marks = Some(AppMarks { urgent: Some(app.tx_tail), ..AppMarks::default() }),
            4 => app.marks = Some(AppMarks { record: Some(app.tx_tail), ..AppMarks::default() }),
            5 if self.now_and_then() => app.shut_rd = true,
            6 if self.now_and_then() => app.shut_wr = true,
            7 if self.now_and_then() => (app.closed, app.abort) = (true, self.rng.chance(300_000)),
            _ if self.now_and_then() => app.tx_tail = app.tx_tail.wrapping_add(70_000),
            _ => {}
        }
        app
    }

    pub fn message(&mut self, h: &Harness) -> ToFast {
        let mss = self.rng.between(500, 1000);
        let now = h.snapshot();
        let window = Window { cwnd: now.cwnd.max(1000), ssthresh: 5000, growth: 256, beta: 512, pacing: 0 };
        match self.rng.below(7) {
            0 => ToFast::SetMss(FLOW, mss as u16),
            1 => ToFast::SetWindow(FLOW, Window { pacing: self.rng.below(2) * 1_000_000, ..window }),
            2 => ToFast::Timeout(FLOW, window),
            3 => ToFast::ProbeWindow(FLOW),
            4 => ToFast::KeepAlive(FLOW),
            5 => ToFast::SendAck(FLOW),
            _ => ToFast::SetLimit { class: 0, bytes_per_s: self.rng.below(2) * 10_000_000 },
        }
    }
}

/// What both must agree on after each step.
fn seen(h: &mut Harness) -> String {
    let sent = std::mem::take(&mut h.tx.sent);
    let lines = format!("{:?}", lines(h));
    let deadline = h.fast.next_deadline();
    let (events, slow) = (h.take_events(), h.slow_names());
    format!("{sent:?} {events} {slow:?} {deadline:?} {:?} {:?} {lines}", h.view(), h.fast.counters())
}

fn trace(seed: u64, found: &mut Predicted) {
    let mut rng = Rng::new(seed);
    let setup = FlowSetup {
        timestamps: rng.chance(900_000),
        sack: rng.chance(800_000),
        ecn: [Ecn::Off, Ecn::Off, Ecn::Off, Ecn::Classic, Ecn::Dctcp][rng.below(5) as usize],
        link: Link { vlan: rng.chance(100_000).then_some(7), ..setup().link },
        ..setup()
    };
    let config = |prediction| FastConfig { seed: 1, prediction, ..FastConfig::default() };
    let mut both = [true, false].map(|on| Harness::configured(setup.clone(), config(on)));
    let mut trace = Trace::new(rng);
    for step in 0..300 {
        let act = trace.rng.below(20);
        let count = if trace.rng.chance(800_000) { 1 } else { 2 };
        let segments: Vec<Seg> = (0..count).map(|_| trace.segment(&both[0])).collect();
        let (app, message) = (trace.update(&both[0]), trace.message(&both[0]));
        let at_once = trace.rng.chance(700_000);
        let (us, room) = (trace.rng.below(3000), if trace.rng.chance(50_000) { 0 } else { usize::MAX });
        for h in &mut both {
            h.now = h.now.after(us);
            h.tx.room = room;
            match act {
                0..8 => {
                    let frame = h.frame(&segments[0]);
                    let first = segment::Segment::of(&parse(&frame).unwrap(), &mut Vec::new());
                    let single = segments.len() == 1;
                    found.segments += u32::from(single && expected(&lines(h).protocol, &first).is_some());
                    h.batch(&segments);
                }
                8..15 => {
                    found.updates += u32::from(plain(&lines(h).protocol, &app).is_some());
                    let before = std::mem::replace(&mut h.app, app);
                    let frames = h.tx.sent.len();
                    let told = if at_once { h.update_at_once() } else { h.update() };
                    if told.is_err() {
                        h.app = before;
                    }
                    found.replies += (h.tx.sent.len() - frames) as u32;
                }
                15 if step % 4 == 0 => h.message(message.clone()),
                _ => {}
            }
            if u64::is_multiple_of(act, 2) {
                found.turns += u32::from(all_unsent(lines(h)).is_some());
                h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx);
            }
            h.collect();
        }
        let [first, second] = both.each_mut().map(seen);
        assert_eq!(first, second, "seed {seed}, step {step}");
        trace.ended |= both[0].app.closed;
        if trace.ended {
            break;
        }
    }
    let [first, second] = both.map(|h| (h.rings.rx, h.rings.tx));
    assert!(first == second, "seed {seed}: the rings differ");
}

#[test]
fn the_same_with_and_without_prediction() {
    let mut found = Predicted::default();
    for seed in 0..120 {
        trace(seed, &mut found);
    }
    let Predicted { segments, updates, turns, replies } = found;
    let found = format!("{segments} segments, {updates} updates, {turns} turns, {replies} replies");
    assert!(segments > 500 && updates > 500 && turns > 200 && replies > 200, "{found}");
}

/// The prediction's limits: a segment beyond one takes the path that looks closer.
#[test]
fn what_is_expected_fits_the_window_and_acknowledges_what_is_out() {
    for (len, ack, wanted) in
        [(512, 100, true), (513, 100, false), (1, 1, true), (0, 100, false), (1, 0, false), (1, 101, false)]
    {
        let mut h = Harness::of(FlowSetup { timestamps: true, sack: true, rx_bytes: 512, rcv_wnd: 512, ..setup() });
        h.write(100);
        let frame = h.frame(&seg(0, ack, &bytes(0, len)).ts(1, 0));
        let segment = segment::Segment::of(&parse(&frame).unwrap(), &mut Vec::new());
        assert_eq!(expected(&lines(&h).protocol, &segment).is_some(), wanted, "{len} bytes, acknowledging {ack}");
    }
}
