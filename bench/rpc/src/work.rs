//! Requests in one direction: the server works for each and says nothing.

use clap::Args;
use std::io::{self, Read};
use std::net::{SocketAddrV4, TcpListener};

/// Arguments of the server.
#[derive(Args)]
pub struct Options {
    /// Address to listen on.
    listen: SocketAddrV4,
    /// Bytes of a request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,
    /// Cycles of work for a request, by the CPU's time stamp counter.
    #[arg(long, default_value_t = 250)]
    cycles: u64,
}

/// Takes connections, one after the other, and works for each request. Prints `ready` when it listens.
pub fn serve(options: &Options) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen)?;
    println!("ready");
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut partial = 0;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            for _ in 0..whole(&mut partial, n as u64, options.bytes) {
                work(options.cycles);
            }
        }
    }
}

/// Requests that are complete with `n` more bytes. `partial` is what there is of the next one.
fn whole(partial: &mut u64, n: u64, bytes: u64) -> u64 {
    let all = *partial + n;
    *partial = all % bytes;
    all / bytes
}

/// A count of cycles, or where the processor's cannot be read, of nanoseconds.
fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has this instruction, and it touches no memory.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static BEGIN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
        BEGIN.elapsed().as_nanos() as u64
    }
}

/// Keeps the CPU busy for so many cycles.
fn work(cycles: u64) {
    let begin = now();
    while now().wrapping_sub(begin) < cycles {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_when_all_of_it_is_there() {
        let mut partial = 0;
        let counts: Vec<u64> = [31, 1, 100, 28].into_iter().map(|n| whole(&mut partial, n, 32)).collect();
        assert_eq!((counts, partial), (vec![0, 1, 3, 1], 0));
    }
}
