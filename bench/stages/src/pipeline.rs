//! The stages of the pipeline: time per stage, the price of a hand-over, and threads that share one connection.
//!
//! Frames are replayed: the peer is a template whose numbers go on, and there is no client. All data are in order, the
//! application reads them at once, and the answers are acknowledgements.

use crate::stream::{FRAME_BYTES, Frame, Memory, PORT, Stream};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use towpath_tcp::fast::FastPath;
use towpath_tcp::fast::pipeline::{Abilities, Output, Parts, Shape};
use towpath_tcp::messages::AppUpdate;
use towpath_tcp::time::Micros;
use towpath_wire::offload::RxChecksum;

/// Frames of a batch.
pub const BATCH: usize = 64;
/// Received frames in the pipeline at most.
const FRAMES: usize = 4 * BATCH;
/// Frames to send with.
const ANSWERS: usize = 256;

/// The stages, as they are counted and timed.
pub const STAGES: [&str; 6] = ["sequence", "pre", "protocol", "deliver", "build", "commit"];

/// A pipeline with one replica of each stage, and its one connection.
struct Line {
    parts: Parts<Frame>,
    stream: Stream,
    free: Vec<Frame>,
    /// Up to where the application has been told.
    told: u32,
    now: Micros,
    frames: u64,
}

impl Line {
    fn new(payload: usize) -> io::Result<Self> {
        let stream = Stream::new(payload);
        let shape = Shape { pre: 1, deliver: 1, build: 1, run: 8, frames: FRAMES, events: 16 };
        let abilities = Abilities { checksum: true, gso_max_bytes: 0 };
        let answers = (0..ANSWERS).map(|_| Frame::default()).collect();
        let parts = Parts::new(stream.fast_path(), shape, abilities, answers).map_err(io::Error::other)?;
        let free = (0..FRAMES).map(|_| Frame::default()).collect();
        Ok(Self { parts, stream, free, told: 0, now: Micros(1_000_000), frames: 0 })
    }
}

/// The counted functions: a batch's way through each stage.
macro_rules! turn {
    ($name:ident, $line:ident, $body:block) => {
        #[inline(never)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($line: &mut Line) {
            $body
        }
    };
}

turn!(sequence_turn, line, {
    let Line { parts, stream, free, now, .. } = line;
    while let Some(frame) = parts.sequencer.spent() {
        free.push(frame);
    }
    let batch = free.drain(free.len() - BATCH..).map(|frame| (stream.next(frame, *now), RxChecksum::Valid));
    let taken = parts.sequencer.receive(PORT, batch).is_ok();
    debug_assert!(taken, "the frames are back");
});
turn!(pre_turn, line, { while line.parts.pre[0].step() {} });
turn!(protocol_turn, line, {
    let Line { parts, stream, told, now, .. } = line;
    let group = &mut parts.group;
    while group.receive(*now) {}
    let update = AppUpdate { rx_head: *told, ..AppUpdate::default() };
    let honest = group.app_update(*now, stream.flow(), update).is_ok();
    debug_assert!(honest);
    group.transmit(*now, BATCH);
    group.publish();
    group.report();
});
turn!(deliver_turn, line, { while line.parts.deliver[0].step(&mut line.stream.memory) {} });
turn!(build_turn, line, { while line.parts.build[0].step(&line.stream.memory) {} });
turn!(commit_turn, line, {
    let Line { parts, told, frames, .. } = line;
    while let Some(output) = parts.commit.next_output() {
        match output {
            Output::Frame { frame, .. } => {
                *frames += 1;
                parts.commit.give_back(frame);
            }
            Output::Event(_, view) => *told = view.rx_tail,
            Output::Message(message) => drop(black_box(message)),
        }
    }
});

fn checked(payload: usize) -> io::Result<()> {
    if (1..=FRAME_BYTES - 100).contains(&payload) {
        return Ok(());
    }
    Err(io::Error::other(format!("a frame has 1 to {} bytes of payload", FRAME_BYTES - 100)))
}

/// All stages in turn, in one thread: nanoseconds of each for a frame, and the frames.
pub fn stages(payload: usize, frames: u64) -> io::Result<([f64; 6], u64)> {
    checked(payload)?;
    let mut line = Box::new(Line::new(payload)?);
    let turns: [extern "C" fn(&mut Line); 6] =
        [sequence_turn, pre_turn, protocol_turn, deliver_turn, build_turn, commit_turn];
    let (mut spent, mut count) = ([Duration::ZERO; 6], 0);
    while count < frames {
        line.now = line.now.after(20);
        for (turn, spent) in turns.iter().zip(&mut spent) {
            let begin = Instant::now();
            turn(&mut line);
            *spent += begin.elapsed();
        }
        count += BATCH as u64;
    }
    let received = line.stream.taken(&line.parts.group.measures(line.stream.flow()));
    if u64::from(received) != count * payload as u64 % (1 << 32) || line.frames == 0 {
        return Err(io::Error::other(format!("{received} bytes of {count} frames came through")));
    }
    Ok((spent.map(|spent| spent.as_nanos() as f64 / count as f64), count))
}

/// Run-to-completion with the same connection.
struct Whole {
    fast: FastPath,
    stream: Stream,
    batch: Vec<Frame>,
    now: Micros,
}

impl Whole {
    fn new(payload: usize) -> Self {
        let stream = Stream::new(payload);
        let batch = (0..BATCH).map(|_| Frame::default()).collect();
        Self { fast: stream.fast_path(), stream, batch, now: Micros(1_000_000) }
    }

    fn receive(&mut self) {
        self.now = self.now.after(20);
        for frame in &mut self.batch {
            *frame = self.stream.next(std::mem::take(frame), self.now);
        }
    }
}

/// The counted function of run-to-completion; the port's frames are there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn whole_turn(whole: &mut Whole) {
    let Whole { fast, stream, batch, now } = whole;
    stream.whole_turn(fast, batch, *now);
}

/// Run-to-completion for so many frames.
pub fn count_whole(payload: usize, frames: u64) {
    let mut whole = Whole::new(payload);
    for _ in 0..frames.div_ceil(BATCH as u64) {
        whole.receive();
        whole_turn(&mut whole);
    }
}

/// Frames per second of run-to-completion on the thread's CPU.
pub fn whole(payload: usize, time: Duration) -> f64 {
    let (mut whole, mut count, begin) = (Whole::new(payload), 0u64, Instant::now());
    while begin.elapsed() < time {
        whole.receive();
        whole_turn(&mut whole);
        count += BATCH as u64;
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Frames per second of two groups, each to completion on a CPU of its own.
pub fn groups(payload: usize, time: Duration, cpus: [usize; 2]) -> f64 {
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            pin(cpus[1]);
            whole(payload, time)
        });
        pin(cpus[0]);
        whole(payload, time) + other.join().unwrap_or(0.0)
    })
}

/// Frames per second of one connection on two CPUs. One has ports and applications: sequencer, pre and commit. The other one has
/// the flow group, deliver and build.
pub fn two(payload: usize, time: Duration, cpus: [usize; 2]) -> io::Result<f64> {
    let Line { parts, mut stream, mut free, .. } = Line::new(payload)?;
    let Parts { mut sequencer, mut pre, mut group, mut deliver, mut build, mut commit } = parts;
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (mut memory, flow) = (Memory::default(), stream.flow());
    pin(cpus[0]);
    thread::scope(|scope| {
        let (ends, read) = (Arc::clone(&stop), Arc::clone(&told));
        scope.spawn(move || {
            pin(cpus[1]);
            let (mut now, mut head) = (Micros(1_000_000), 0);
            while !ends.load(Ordering::Relaxed) {
                now = now.after(20);
                let came = group.receive(now);
                while deliver[0].step(&mut memory) {}
                let (before, update) = (head, read.load(Ordering::Acquire));
                if update != before {
                    head = update;
                    let update = AppUpdate { rx_head: head, ..AppUpdate::default() };
                    let honest = group.app_update(now, flow, update).is_ok();
                    debug_assert!(honest);
                }
                if came || update != before {
                    group.transmit(now, BATCH);
                    group.publish();
                    group.report();
                    while build[0].step(&memory) {}
                }
            }
        });
        let (mut now, mut count, begin) = (Micros(1_000_000), 0u64, Instant::now());
        while begin.elapsed() < time {
            now = now.after(20);
            while let Some(frame) = sequencer.spent() {
                free.push(frame);
            }
            // Not more than the peer would have out.
            if free.len() >= BATCH
                && stream.out(told.load(Ordering::Relaxed)) + (BATCH * payload) as u32 <= stream.window()
            {
                let batch = free.drain(free.len() - BATCH..).map(|frame| (stream.next(frame, now), RxChecksum::Valid));
                if sequencer.receive(PORT, batch).is_ok() {
                    count += BATCH as u64;
                }
                while pre[0].step() {}
            }
            while let Some(output) = commit.next_output() {
                match output {
                    Output::Frame { frame, .. } => commit.give_back(frame),
                    Output::Event(_, view) => told.store(view.rx_tail, Ordering::Release),
                    Output::Message(message) => drop(black_box(message)),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        Ok(count as f64 / begin.elapsed().as_secs_f64())
    })
}

/// Nanoseconds that a frame takes from a thread that hands it on to one that only takes it, on two CPUs: as many as fit, and one
/// at a time, there and back, halved.
pub fn hand_over(time: Duration, cpus: [usize; 2]) -> (f64, f64) {
    /// About what a stage reads of a parsed frame.
    type Item = [u64; 20];
    let ring = || rtrb::RingBuffer::<Item>::new(FRAMES);
    let ((mut there, mut there_end), (mut back, mut back_end)) = (ring(), ring());
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    pin(cpus[0]);
    thread::scope(|scope| {
        let (ends, answered) = (Arc::clone(&stop), Arc::clone(&answers));
        scope.spawn(move || {
            pin(cpus[1]);
            while !ends.load(Ordering::Relaxed) {
                if let Ok(item) = there_end.pop()
                    && answered.load(Ordering::Relaxed)
                {
                    let _ = back.push(item);
                }
            }
        });
        let (mut count, begin) = (0u64, Instant::now());
        while begin.elapsed() < time {
            for _ in 0..BATCH {
                count += u64::from(there.push(black_box([count; 20])).is_ok());
            }
        }
        let streamed = begin.elapsed().as_nanos() as f64 / count as f64;
        // What is still on its way is not answered.
        while there.slots() < FRAMES {}
        answers.store(true, Ordering::Relaxed);
        let (mut count, begin) = (0u64, Instant::now());
        while begin.elapsed() < time {
            let sent = there.push([count; 20]).is_ok();
            while sent && back_end.pop().is_err() && begin.elapsed() < 2 * time {}
            count += 1;
        }
        stop.store(true, Ordering::Relaxed);
        (streamed, begin.elapsed().as_nanos() as f64 / count as f64 / 2.0)
    })
}

/// Keeps this thread on a CPU; a CPU that is not there changes nothing.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// The first two CPUs that this process may use.
fn cpus() -> io::Result<[usize; 2]> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut mine = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    match (mine.next(), mine.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(io::Error::other("this needs two CPUs; the process may use one")),
    }
}

/// All of it, in rounds that alternate: one JSON object with a list for each figure.
pub fn run(payload: usize, rounds: u64, milliseconds: u64) -> io::Result<String> {
    checked(payload)?;
    let (cpus, time) = (cpus()?, Duration::from_millis(milliseconds));
    let names = ["one", "two", "groups", "hand_over", "there_and_back"];
    let mut figures: Vec<(&str, Vec<f64>)> = STAGES.into_iter().chain(names).map(|name| (name, vec![])).collect();
    for _ in 0..rounds {
        pin(cpus[0]);
        let (stages, _) = stages(payload, 200_000)?;
        let one = whole(payload, time);
        let two = two(payload, time, cpus)?;
        let groups = groups(payload, time, cpus);
        let (streamed, alone) = hand_over(time, cpus);
        let all = stages.into_iter().chain([one, two, groups, streamed, alone]);
        figures.iter_mut().zip(all).for_each(|((_, list), figure)| list.push(figure));
    }
    let lists = figures.iter().map(|(name, list)| format!("\"{name}\":{list:?}"));
    Ok(format!("{{{}}}", lists.collect::<Vec<_>>().join(",")))
}
