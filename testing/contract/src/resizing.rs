//! Traffic while the number of a stack's workers changes.

use crate::app::{App, Sock};
use std::fs::{read_dir, read_to_string};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use towpath_rng::Rng;
use towpath_runtime::{Stack, WorkerCount};

/// Set when it goes out of scope, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends random bytes over each connection and back from its other end, until `meanwhile` is over. Every byte is
/// compared. Then all ends are closed.
pub fn echo(pairs: Vec<(Sock, Sock)>, meanwhile: impl FnOnce()) {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(over);
        for (number, (mut near, mut far)) in pairs.into_iter().enumerate() {
            scope.spawn(move || {
                let mut noise = Rng::new(number as u64 + 1);
                let (mut sent, mut got) = (vec![0; 3000], vec![0; 3000]);
                let mut rounds = 0u64;
                while !over.load(Relaxed) || rounds < 10 {
                    noise.fill(&mut sent);
                    near.write_all(&sent).unwrap();
                    near.read_exact(&mut got).unwrap();
                    assert_eq!(sent, got, "connection {number}, round {rounds}");
                    rounds += 1;
                }
                near.shutdown();
                assert_eq!(near.read(&mut got), Ok(0));
                near.close();
            });
            scope.spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    match far.read(&mut buffer).unwrap() {
                        0 => break,
                        n => far.write_all(&buffer[..n]).unwrap(),
                    }
                }
                far.close();
            });
        }
        meanwhile();
    });
}

/// Changes the number of workers `times` times, to a random one.
pub fn shuffle(stack: &dyn Stack, times: usize) {
    let most = stack.workers().most;
    let mut random = Rng::new(1);
    for _ in 0..times {
        let running = random.between(1, most as u64) as usize;
        stack.set_workers(running).unwrap();
        assert_eq!(stack.workers(), WorkerCount { running, most });
        thread::sleep(Duration::from_micros(random.below(2048)));
    }
}

/// Makes `count` connections of `client` to a listener of `server`, which is closed again.
pub fn pairs(server: &Arc<App>, client: &Arc<App>, port: u16, count: usize) -> Vec<(Sock, Sock)> {
    let mut listener = server.listen(crate::LOCAL, port, count as u32).unwrap();
    let pairs = (0..count).map(|_| client.pair(&mut listener, port)).collect();
    listener.close();
    pairs
}

/// A thread of this process.
pub struct Thread(String);

impl Thread {
    /// The threads of a name, in the order of their numbers.
    pub fn named(name: &str) -> Vec<Thread> {
        let mut found = Vec::new();
        for entry in read_dir("/proc/self/task").unwrap().flatten() {
            let path = entry.path().display().to_string();
            // The thread may have just ended.
            let Ok(comm) = read_to_string(format!("{path}/comm")) else { continue };
            if let Some(number) = comm.trim().strip_prefix(name) {
                found.push((number.parse::<usize>().unwrap(), Thread(path)));
            }
        }
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, thread)| thread).collect()
    }
    /// True if it sleeps.
    pub fn sleeps(&self) -> bool {
        let stat = read_to_string(format!("{}/stat", self.0)).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    }
    /// Time on CPUs (ns), time waiting for one, and number of time slices.
    pub fn schedstat(&self) -> String {
        read_to_string(format!("{}/schedstat", self.0)).unwrap()
    }
}

/// Parked workers use no CPU while the one that runs serves everything. `name` is the name of the stack's threads
/// without their numbers.
pub fn parked(stack: &dyn Stack, name: &str, pairs: Vec<(Sock, Sock)>) {
    let threads = Thread::named(name);
    let most = stack.workers().most;
    assert_eq!(threads.len(), most);
    stack.set_workers(1).unwrap();
    crate::app::eventually("the others are parked", || threads[1..].iter().all(Thread::sleeps));
    let slices = || threads[1..].iter().map(Thread::schedstat).collect::<Vec<_>>();
    let (before, status) = (slices(), stack.status().workers);
    assert!(status[1..].iter().all(|thread| thread.flow_groups.is_empty()), "{status:?}");
    assert_eq!(status[0].flow_groups, (0..most).collect::<Vec<_>>());
    echo(pairs, || {
        crate::app::eventually("the one that runs is busy", || stack.status().workers[0].turns > status[0].turns + 100);
    });
    assert_eq!(slices(), before, "not one time slice");
    assert_eq!(stack.status().workers[1..], status[1..]);
}
