//! The thread that does for the card what one kernel cannot do in another: wakes applications. It also sees when the card dies.

use crate::funeral;
use crate::host::Inner;
use crate::places::Served;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_ring::card::Wake;
use towpath_ring::wake::{drain, futex_wake, futex_wake_one, ring, spin_until};

/// How long it looks for more before it sleeps, µs.
const SPIN_US: u64 = 20;
/// How often it looks at the heartbeat.
const LOOK: Duration = Duration::from_millis(500);
/// Wakes in one go before it looks at everything else.
const BATCH: usize = 256;

/// Its own positions.
#[derive(Default)]
struct Positions {
    taken: u32,
    lost: u32,
    sleeps: u32,
}

/// The body of the thread: until the card is stopped or dead, and then for those whom a dead card has left.
pub fn run(inner: &Arc<Inner>) {
    let mut at = Positions::default();
    let mut heart = (inner.memory.heartbeat(), Instant::now());
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
        sleep(inner, &mut at);
        let beat = inner.memory.heartbeat();
        if beat != heart.0 {
            heart = (beat, Instant::now());
        } else if heart.1.elapsed() >= inner.patience {
            tracing::error!("the card has shown no life for {:?}; it is ended", inner.patience);
            inner.kill();
        }
        if inner.has_ended() {
            return mourn(inner);
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

fn sleep(inner: &Inner, at: &mut Positions) {
    inner.memory.arm(&mut at.sleeps);
    if !inner.memory.has_wakes(at.taken, at.lost) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut waiting = [
            PollFd::new(&inner.wakes, PollFlags::IN),
            PollFd::new(&inner.process, PollFlags::IN),
            PollFd::new(&inner.stop, PollFlags::IN),
        ];
        let _ = poll(&mut waiting, Some(&timeout));
        drain_all(inner);
    }
    inner.memory.disarm();
}

fn drain_all(inner: &Inner) {
    let mut bytes = [0u8; 512];
    while matches!(rustix::io::read(&inner.wakes, &mut bytes), Ok(n) if n == bytes.len()) {}
}

/// The card is dead.
fn mourn(inner: &Inner) {
    if inner.stopping.load(Ordering::Acquire) {
        return;
    }
    inner.dead.store(true, Ordering::Release);
    inner.places.all().iter().for_each(|(_, client)| funeral::bury(client));
    inner.died();
    // What applications ring now is ours to answer.
    while !inner.stopping.load(Ordering::Acquire) {
        let mut waiting = [PollFd::new(&inner.doorbells, PollFlags::IN), PollFd::new(&inner.stop, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let _ = poll(&mut waiting, Some(&timeout));
        while drain(inner.doorbells.as_fd()) {}
        inner.places.all().iter().for_each(|(_, client)| funeral::answer(client));
    }
}
