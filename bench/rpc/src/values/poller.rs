//! The netpoll-like server: pollers receive, worker threads process and send.

use super::connections::Connections;
use super::feedback::Answered;
use super::{modify, stamp};
use crate::sys;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A value of a connection. Empty: the connection has ended.
type Job = (i32, Vec<u8>);

/// A worker's jobs. A connection always has the same worker, so its replies are in order.
#[derive(Default)]
struct Worker {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    sleeps: bool,
}

impl Worker {
    fn give(&self, job: Job) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push(job);
        if std::mem::take(&mut queue.sleeps) {
            drop(queue);
            self.more.notify_one();
        }
    }
    /// Waits for jobs and takes all of them, in exchange for the finished ones.
    fn take(&self, done: &mut Vec<Job>) {
        done.clear();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.jobs.is_empty() {
            queue.sleeps = true;
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut queue.jobs, done);
    }
}

/// The worker threads of a server.
#[derive(Clone)]
pub struct Workers(Arc<Vec<Worker>>);

/// Starts one for each of `answered`.
pub fn workers(answered: Vec<Answered>) -> Workers {
    let workers = Workers(Arc::new(answered.iter().map(|_| Worker::default()).collect()));
    for (index, answered) in answered.into_iter().enumerate() {
        let all = workers.clone();
        std::thread::spawn(move || work(&all.0[index], &answered));
    }
    workers
}

fn work(worker: &Worker, answered: &Answered) {
    let (mut jobs, mut stamps) = (Vec::new(), Vec::new());
    loop {
        worker.take(&mut jobs);
        for (fd, value) in &mut jobs {
            if value.is_empty() {
                sys::close(*fd);
                continue;
            }
            stamps.push(stamp(value));
            modify(value);
            // A client that has gone is noticed when it is read from.
            let _ = sys::write_all(*fd, value);
        }
        answered.note(&stamps);
        stamps.clear();
    }
}

/// Receives until it cannot go on.
pub fn poll(mut connections: Connections, workers: &Workers) -> io::Result<()> {
    let all = &workers.0;
    loop {
        connections.turn(|fd, value| {
            let job = value.map_or_else(Vec::new, |value| value.to_vec());
            all[fd as usize % all.len()].give((fd, job));
        })?;
    }
}
