//! The thread that does for the card what one kernel cannot do in another: wakes applications. It also sees when the card dies.

use crate::funeral::{self, Listeners};
use crate::inner::Inner;
use crate::places::Served;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_ring::card::Wake;
use towpath_ring::wake::{drain, futex_wake, futex_wake_one, ring, spin_until};

/// How long it looks for more before it sleeps, µs.
const SPIN_US: u64 = 20;
/// How often it looks at the heartbeat.
const LOOK: Duration = Duration::from_millis(500);
/// How often it looks, while there is no card, whether there is one again. The next card may have read what an application has rung.
const ANSWERS: Duration = Duration::from_millis(20);
/// Wakes in one go before it looks at everything else.
const BATCH: usize = 256;

/// Its own positions.
#[derive(Default)]
struct Positions {
    taken: u32,
    lost: u32,
    sleeps: u32,
}

/// How soon a card that has died is started again, and how long after failures at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(30)];

/// The body of the thread: one life of the card after the other, until it is stopped.
pub fn run(inner: &Arc<Inner>) {
    while !inner.stopping.load(Ordering::Acquire) {
        live(inner);
        if !inner.stopping.load(Ordering::Acquire) {
            mourn(inner);
            start_again(inner);
        }
    }
}

/// Until the card is stopped or dead.
fn live(inner: &Arc<Inner>) {
    let mut at = Positions::default();
    let mut heart = (inner.memory.heartbeat(), Instant::now());
    let Some(process) = inner.process() else { return };
    while !inner.stopping.load(Ordering::Acquire) {
        inner.memory.beat_of_host();
        let mut woken = 0;
        while woken < BATCH
            && let Some(wake) = inner.memory.take(&mut at.taken, &mut at.lost)
        {
            act(inner, wake);
            woken += 1;
        }
        if woken > 0 || spin_until(SPIN_US, || inner.memory.has_wakes(at.taken, at.lost)) {
            continue;
        }
        sleep(inner, &process, &mut at);
        let beat = inner.memory.heartbeat();
        if beat != heart.0 {
            heart = (beat, Instant::now());
        } else if heart.1.elapsed() >= inner.patience {
            tracing::error!("the card has shown no life for {:?}; it is ended", inner.patience);
            inner.kill();
        }
        if inner.has_ended() {
            return;
        }
    }
}

fn act(inner: &Inner, wake: Wake) {
    match wake {
        Wake::Slot { place, slot, first } => {
            let Some(client) = inner.places.of(place) else { return };
            if let Some(slot) = client.region.slot(slot) {
                let word = &client.region.stack(slot).event_seq;
                if first { futex_wake_one(word) } else { futex_wake(word) }
            }
        }
        Wake::Context { place, context } => {
            let bell = inner.places.of(place).and_then(|client| client.bell(context));
            if let Some(bell) = bell {
                ring(bell.as_fd());
            }
        }
        Wake::All => inner.places.all().iter().for_each(|(_, client)| wake_all(client)),
    }
}

fn wake_all(client: &Served) {
    client.slots().for_each(|slot| futex_wake(&client.region.stack(slot).event_seq));
    client.contexts().iter().for_each(|(_, bell)| ring(bell.as_fd()));
}

fn sleep(inner: &Inner, process: &OwnedFd, at: &mut Positions) {
    inner.memory.arm(&mut at.sleeps);
    if !inner.memory.has_wakes(at.taken, at.lost) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut waiting = [
            PollFd::new(&inner.lines.wakes, PollFlags::IN),
            PollFd::new(process, PollFlags::IN),
            PollFd::new(&inner.stop, PollFlags::IN),
        ];
        let _ = poll(&mut waiting, Some(&timeout));
        drain_all(inner);
    }
    inner.memory.disarm();
}

fn drain_all(inner: &Inner) {
    let mut bytes = [0u8; 512];
    while matches!(rustix::io::read(&inner.lines.wakes, &mut bytes), Ok(n) if n == bytes.len()) {}
}

/// The card is dead.
fn mourn(inner: &Inner) {
    inner.dead.store(true, Ordering::Release);
    inner.clients().iter().for_each(|(_, client)| funeral::bury(client, Listeners::Wait));
    inner.died();
}

/// Starts it again, as often as it takes. What applications ring meanwhile is ours to answer.
fn start_again(inner: &Arc<Inner>) {
    let [mut pause, longest] = AGAIN;
    while !inner.stopping.load(Ordering::Acquire) {
        let until = Instant::now() + pause;
        answer_while(inner, || Instant::now() < until);
        let booting = Arc::clone(inner);
        let Ok(boot) = std::thread::Builder::new().name("card-boot".into()).spawn(move || booting.boot()) else {
            continue;
        };
        answer_while(inner, || !boot.is_finished());
        match boot.join() {
            Ok(Ok(())) => return inner.revive(),
            Ok(Err(error)) => tracing::error!("{error}; it is tried again after {pause:?}"),
            Err(_) => tracing::error!("starting the card ended by a panic"),
        }
        pause = (2 * pause).min(longest);
    }
}

/// Answers applications in the place of the card.
fn answer_while(inner: &Inner, goes_on: impl Fn() -> bool) {
    while goes_on() && !inner.stopping.load(Ordering::Acquire) {
        let mut waiting = [PollFd::new(&inner.lines.doorbells, PollFlags::IN), PollFd::new(&inner.stop, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: ANSWERS.as_nanos() as i64 };
        let _ = poll(&mut waiting, Some(&timeout));
        while drain(inner.lines.doorbells.as_fd()) {}
        inner.clients().iter().for_each(|(_, client)| funeral::answer(client));
    }
}
