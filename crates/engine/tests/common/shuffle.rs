//! Traffic while the number of a stack's threads changes. It serves the tests of every stack.

use super::Noise;
use super::app::{App, Sock};
use std::fs::{read_dir, read_to_string};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use towpath_stack::{Cores, Stack};

/// Set when it goes out of scope, by a panic, too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends noise over each connection, and back from its other end, until `meanwhile` is over; whatever is lost, changed or out of order
/// is noticed. All ends are closed then.
pub fn echo(pairs: Vec<(Sock, Sock)>, meanwhile: impl FnOnce()) {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(over);
        for (number, (mut near, mut far)) in pairs.into_iter().enumerate() {
            scope.spawn(move || {
                let mut noise = Noise(number as u64 + 1);
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

/// Changes the number of threads so many times, to any.
pub fn shuffle(stack: &dyn Stack, times: usize) {
    let most = stack.cores().most;
    let mut random = 1u64;
    for _ in 0..times {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let running = 1 + (random >> 33) as usize % most;
        stack.set_cores(running).unwrap();
        assert_eq!(stack.cores(), Cores { running, most });
        thread::sleep(Duration::from_micros(random >> 40 & 0x7ff));
    }
}

/// So many connections of `client` to a listener of `server`, which is closed again.
pub fn pairs(server: &Arc<App>, client: &Arc<App>, port: u16, count: usize) -> Vec<(Sock, Sock)> {
    let mut listener = server.listen(super::LOCAL, port, count as u32).unwrap();
    let pairs = (0..count).map(|_| client.pair(&mut listener, port)).collect();
    listener.close();
    pairs
}

/// A thread of this process.
pub struct Thread(String);

impl Thread {
    /// Those of a name, in the order of their numbers.
    pub fn named(name: &str) -> Vec<Thread> {
        let mut found = Vec::new();
        for entry in read_dir("/proc/self/task").unwrap().flatten() {
            let path = entry.path().display().to_string();
            // It may be a thread that has just ended.
            let Ok(comm) = read_to_string(format!("{path}/comm")) else { continue };
            if let Some(number) = comm.trim().strip_prefix(name) {
                found.push((number.parse::<usize>().unwrap(), Thread(path)));
            }
        }
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, thread)| thread).collect()
    }
    /// Does it sleep?
    pub fn sleeps(&self) -> bool {
        let stat = read_to_string(format!("{}/stat", self.0)).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    }
    /// Time on CPUs (ns), time waiting for them, and times that it got one.
    pub fn schedstat(&self) -> String {
        read_to_string(format!("{}/schedstat", self.0)).unwrap()
    }
}

/// Parked threads take no CPU while the one that runs serves everything; `name` is that of the stack's threads, without their numbers.
pub fn parked(stack: &dyn Stack, name: &str, pairs: Vec<(Sock, Sock)>) {
    let threads = Thread::named(name);
    let most = stack.cores().most;
    assert_eq!(threads.len(), most);
    stack.set_cores(1).unwrap();
    super::app::eventually("the others are parked", || threads[1..].iter().all(Thread::sleeps));
    let figures = || threads[1..].iter().map(Thread::schedstat).collect::<Vec<_>>();
    let (before, status) = (figures(), stack.status().threads);
    assert!(status[1..].iter().all(|thread| thread.groups.is_empty()), "{status:?}");
    assert_eq!(status[0].groups, (0..most).collect::<Vec<_>>());
    echo(pairs, || {
        super::app::eventually("the one that runs is busy", || stack.status().threads[0].turns > status[0].turns + 100);
    });
    assert_eq!(figures(), before, "not one time slice");
    assert_eq!(stack.status().threads[1..], status[1..]);
}
