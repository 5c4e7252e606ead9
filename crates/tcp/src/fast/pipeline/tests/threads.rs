//! The pipeline on threads: a transfer both ways, while replicas panic.
use super::traces::written;
use crate::buffers::Rings;
use crate::fast::pipeline::{Abilities, Output, Parts, Shape};
use crate::fast::tests::{ACK, FLOW, Harness, RING, Seg, seg, setup};
use crate::fast::{FastConfig, FastPath, FlowTable};
use crate::flow::FlowId;
use crate::messages::{AppUpdate, ToFast};
use crate::time::Micros;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::thread;
use towpath_wire::offload::RxChecksum;

/// Bytes in each direction.
const BYTES: u32 = 300_000;
const SEGMENT: u32 = 500;
/// Segments that the peer has out.
const WINDOW: u32 = 40;

/// A frame that ends the thread which looks at it, if it is poisoned.
struct Frame {
    bytes: Vec<u8>,
    poisoned: bool,
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        if self.poisoned {
            resume_unwind(Box::new("poison"));
        }
        &self.bytes
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Both rings, for all threads. Each `every`th access panics.
#[derive(Clone)]
struct Shared {
    send: Arc<[AtomicU8]>,
    receive: Arc<[AtomicU8]>,
    accesses: Arc<AtomicU32>,
    every: u32,
}

impl Shared {
    fn new() -> Self {
        let ring = || (0..RING).map(|_| AtomicU8::new(0)).collect();
        Self { send: ring(), receive: ring(), accesses: Arc::new(AtomicU32::new(0)), every: 97 }
    }
    fn access(&self) {
        if self.accesses.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1 {
            resume_unwind(Box::new("an access that fails"));
        }
    }
}

fn at(ring: &[AtomicU8], position: u32) -> &AtomicU8 {
    &ring[position as usize % ring.len()]
}

impl Rings for Shared {
    fn deliver(&mut self, _: FlowId, position: u32, bytes: &[u8]) {
        for (n, byte) in (0..).zip(bytes) {
            if n == bytes.len() as u32 / 2 {
                self.access();
            }
            at(&self.receive, position.wrapping_add(n)).store(*byte, Ordering::Relaxed);
        }
    }
    fn fetch(&self, _: FlowId, position: u32, out: &mut [u8]) {
        self.access();
        for (n, byte) in (0..).zip(out) {
            *byte = at(&self.send, position.wrapping_add(n)).load(Ordering::Relaxed);
        }
    }
}

/// Runs a replica until the end, over all panics.
fn runs<T>(stop: &AtomicBool, stage: &mut T, step: impl Fn(&mut T) -> bool, recover: impl Fn(&mut T)) -> u32 {
    let mut deaths = 0;
    loop {
        let run = catch_unwind(AssertUnwindSafe(|| {
            while !stop.load(Ordering::Relaxed) {
                if !step(stage) {
                    thread::yield_now();
                }
            }
        }));
        if run.is_ok() {
            return deaths;
        }
        deaths += 1;
        recover(stage);
    }
}

/// The peer and the application.
struct Ends {
    /// What the peer has sent next, what of it is acknowledged, and what it has received.
    sent: u32,
    acked: u32,
    got: u32,
    app: AppUpdate,
    turns_without_news: u32,
    frames: u32,
}

#[test]
fn a_transfer_over_threads_that_panic_is_whole() {
    let setup = setup();
    let mut fast = FastPath::new(0, FastConfig { seed: 1, ..FastConfig::default() }, Arc::new(FlowTable::new(16)));
    let mut shared = Shared::new();
    fast.message(Micros(1), ToFast::Install(Box::new(setup.clone())), &mut shared);
    let shape = Shape { pre: 2, deliver: 2, build: 2, run: 4, frames: 256, events: 16 };
    let frame = |bytes| Frame { bytes, poisoned: false };
    let frames = (0..256).map(|_| frame(vec![0; 2048])).collect();
    let Parts { mut sequencer, mut pre, mut group, mut deliver, mut build, mut commit } =
        Parts::new(fast, shape, Abilities::default(), frames).unwrap();
    // Makes frames only.
    let h = Harness::new();
    let stop = AtomicBool::new(false);
    let mut ends = Ends {
        sent: 0,
        acked: 0,
        got: 0,
        app: AppUpdate { nodelay: true, ..AppUpdate::default() },
        turns_without_news: 0,
        frames: 0,
    };
    let mut now = Micros(1_000_000);
    let deaths: u32 = thread::scope(|scope| {
        let mut threads = vec![];
        for stage in &mut pre {
            threads.push(scope.spawn(|| runs(&stop, stage, |stage| stage.step(), |stage| stage.recover())));
        }
        for stage in &mut deliver {
            let rings = shared.clone();
            threads.push(scope.spawn(|| runs(&stop, stage, move |stage| stage.step(&mut rings.clone()), |_| ())));
        }
        for stage in &mut build {
            let rings = shared.clone();
            threads.push(scope.spawn(|| runs(&stop, stage, move |stage| stage.step(&rings), |stage| stage.recover())));
        }
        while ends.acked < BYTES || ends.got < BYTES {
            now = now.after(10);
            // The peer.
            while sequencer.spent().is_some() {}
            let mut batch = vec![];
            while ends.sent < BYTES && ends.sent - ends.acked < WINDOW * SEGMENT && batch.len() < 8 {
                let data: Vec<u8> = (ends.sent..ends.sent + SEGMENT).map(written).collect();
                batch
                    .push(Frame { bytes: h.frame(&seg(ends.sent, ends.got, &data)), poisoned: ends.frames % 61 == 60 });
                (ends.sent, ends.frames) = (ends.sent + SEGMENT, ends.frames + 1);
            }
            if batch.is_empty() && ends.turns_without_news.is_multiple_of(8) {
                batch.push(frame(h.frame(&seg(ends.sent, ends.got, &[]).with(ACK))));
            }
            let batch: Vec<_> = batch.into_iter().map(|frame| (frame, RxChecksum::Unknown)).collect();
            if !batch.is_empty() && sequencer.receive(setup.link.port, batch.into_iter()).is_err() {
                ends.sent = ends.acked;
            }
            // The flow group.
            group.receive(now);
            group.transmit(now, 64);
            group.publish();
            group.report();
            ends.turns_without_news += 1;
            while let Some(output) = commit.next_output() {
                match output {
                    Output::Frame { frame, len, .. } => {
                        let s = h.seen(&frame.bytes[..len]);
                        commit.give_back(frame);
                        received(&mut ends, &s);
                    }
                    Output::Event(_, view) => {
                        for position in ends.app.rx_head..view.rx_tail {
                            let byte = at(&shared.receive, position).load(Ordering::Relaxed);
                            assert_eq!(byte, written(position), "byte {position}: shown before it was copied");
                        }
                        ends.app.rx_head = view.rx_tail;
                        let most = (view.tx_head + RING).min(BYTES);
                        for position in ends.app.tx_tail..most {
                            at(&shared.send, position).store(written(position), Ordering::Relaxed);
                        }
                        ends.app.tx_tail = most;
                        assert!(group.app_update(now, FLOW, ends.app).is_ok());
                    }
                    Output::Message(_) => {}
                }
            }
            if ends.turns_without_news > 1000 {
                // Both senders' time-outs.
                (ends.turns_without_news, ends.sent) = (0, ends.acked);
                let message = ToFast::Timeout(FLOW, setup.window);
                assert!(group.message(now, message, &mut shared).is_ok());
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let abandoned: u64 = pre.iter().map(|stage| stage.abandoned()).sum();
    assert!(deaths > 10 && abandoned > 0, "{deaths} panics, {abandoned} frames lost");
}

/// The peer receives a segment; [`Harness::seen`] has checked its checksum.
fn received(ends: &mut Ends, s: &Seg) {
    assert!(s.ack <= ends.acked.max(BYTES) && s.seq <= BYTES, "{s:?}");
    if s.ack > ends.acked {
        (ends.acked, ends.turns_without_news) = (s.ack, 0);
        ends.sent = ends.sent.max(ends.acked);
    }
    for (position, byte) in (s.seq..).zip(&s.data) {
        assert_eq!(*byte, written(position), "byte {position} of a reply");
    }
    if s.seq <= ends.got && s.seq + s.data.len() as u32 > ends.got {
        (ends.got, ends.turns_without_news) = (s.seq + s.data.len() as u32, 0);
    }
}
