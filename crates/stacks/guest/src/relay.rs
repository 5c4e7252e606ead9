//! The relay thread. It wakes applications for the guest, because one kernel cannot do that in another. It also sees
//! when the guest dies, and starts it again.

use crate::shared::Shared;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_forward::host::clients::HostClient;
use towpath_forward::host::crash_cleanup::{self, Listeners};
use towpath_ring::guest_memory::Wake;
use towpath_ring::wake::{drain, futex_wake, notify, spin_until};

/// How long it spins for more wakes before it sleeps, µs.
const SPIN_US: u64 = 20;
/// How often it checks the heartbeat.
const HEARTBEAT_CHECK: Duration = Duration::from_millis(500);
/// How often it answers applications while there is no guest. The next guest may have taken a notification that was
/// for the relay.
const ANSWER_INTERVAL: Duration = Duration::from_millis(20);
/// Wakes handled at a time, before it checks everything else.
const BATCH: usize = 256;

/// Positions of the relay in the wake queue.
#[derive(Default)]
struct WakePositions {
    taken: u32,
    lost: u32,
    sleeps: u32,
}

/// First and longest pause before a dead guest is started again.
const RESTART_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(30)];

/// The body of the thread: one life of the guest after another, until it is stopped.
pub fn run(shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::Acquire) {
        relay_wakes(shared);
        if !shared.stopping.load(Ordering::Acquire) {
            clean_up(shared);
            restart(shared);
        }
    }
}

/// Relays wakes until the guest is stopped or dead.
fn relay_wakes(shared: &Arc<Shared>) {
    let mut at = WakePositions::default();
    let mut heart = (shared.memory.heartbeat(), Instant::now());
    let Some(process) = shared.process() else { return };
    while !shared.stopping.load(Ordering::Acquire) {
        shared.memory.beat_of_host();
        let mut woken = 0;
        while woken < BATCH
            && let Some(wake) = shared.memory.take(&mut at.taken, &mut at.lost)
        {
            relay_wake(shared, wake);
            woken += 1;
        }
        if woken > 0 || spin_until(SPIN_US, || shared.memory.has_wakes(at.taken, at.lost)) {
            continue;
        }
        sleep(shared, &process, &mut at);
        let beat = shared.memory.heartbeat();
        if beat != heart.0 {
            heart = (beat, Instant::now());
        } else if heart.1.elapsed() >= shared.heartbeat_timeout {
            tracing::error!("the guest has shown no life for {:?}; it is ended", shared.heartbeat_timeout);
            shared.kill();
        }
        if shared.has_ended() {
            return;
        }
    }
}

fn relay_wake(shared: &Shared, wake: Wake) {
    match wake {
        Wake::Slot { place: index, slot, first } => {
            let Some(client) = shared.table.get(index) else { return };
            if let Some(slot) = client.region.slot(slot) {
                client.wake(slot, first);
            }
        }
        Wake::Context { place: index, context } => {
            if let Some(client) = shared.table.get(index) {
                client.notify_context(context);
            }
        }
        Wake::All => shared.table.all().iter().for_each(|(_, client)| wake_all(client)),
    }
}

fn wake_all(client: &HostClient) {
    client.slots().for_each(|slot| futex_wake(&client.region.stack(slot).event_seq));
    client.contexts().iter().for_each(|(_, doorbell)| notify(doorbell.as_fd()));
}

fn sleep(shared: &Shared, process: &OwnedFd, at: &mut WakePositions) {
    shared.memory.arm(&mut at.sleeps);
    if !shared.memory.has_wakes(at.taken, at.lost) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: HEARTBEAT_CHECK.as_nanos() as i64 };
        let mut waiting = [
            PollFd::new(&shared.lines.wakes, PollFlags::IN),
            PollFd::new(process, PollFlags::IN),
            PollFd::new(&shared.stop, PollFlags::IN),
        ];
        let _ = poll(&mut waiting, Some(&timeout));
        drain_all(shared);
    }
    shared.memory.disarm();
}

fn drain_all(shared: &Shared) {
    let mut bytes = [0u8; 512];
    while matches!(rustix::io::read(&shared.lines.wakes, &mut bytes), Ok(n) if n == bytes.len()) {}
}

/// Cleans up after the death of the guest.
fn clean_up(shared: &Shared) {
    shared.dead.store(true, Ordering::Release);
    shared.clients().iter().for_each(|(_, client)| crash_cleanup::reset_all(client, Listeners::Wait));
    shared.report_death();
}

/// Starts the guest again, as often as it takes. Meanwhile the host answers applications.
fn restart(shared: &Arc<Shared>) {
    let [mut pause, longest] = RESTART_PAUSES;
    while !shared.stopping.load(Ordering::Acquire) {
        let until = Instant::now() + pause;
        answer_while(shared, || Instant::now() < until);
        let booting = Arc::clone(shared);
        let Ok(boot) = std::thread::Builder::new().name("guest-boot".into()).spawn(move || booting.boot()) else {
            continue;
        };
        answer_while(shared, || !boot.is_finished());
        match boot.join() {
            Ok(Ok(())) => return shared.revive(),
            Ok(Err(error)) => tracing::error!("{error}; it is tried again after {pause:?}"),
            Err(_) => tracing::error!("starting the guest ended by a panic"),
        }
        pause = (2 * pause).min(longest);
    }
}

/// Answers applications in place of the guest.
fn answer_while(shared: &Shared, goes_on: impl Fn() -> bool) {
    while goes_on() && !shared.stopping.load(Ordering::Acquire) {
        let mut waiting =
            [PollFd::new(&shared.lines.doorbells, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: ANSWER_INTERVAL.as_nanos() as i64 };
        let _ = poll(&mut waiting, Some(&timeout));
        while drain(shared.lines.doorbells.as_fd()) {}
        shared.clients().iter().for_each(|(_, client)| crash_cleanup::answer_commands(client));
    }
}
