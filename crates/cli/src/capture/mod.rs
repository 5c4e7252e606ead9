//! `towpath capture`: the frames of a service's connections, as tcpdump would write them.

mod filter;
mod output;
mod session;

use crate::locate::Which;
use crate::{complain, exit, fail, print};
use filter::Filter;
use output::Output;
use session::{Captured, Session};
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_service::api::{self, CaptureRequest};
use towpath_service::units::{self, Bytes, Duration};

/// Writes the frames of a service's connections to a file that wireshark, tshark and tcpdump read (pcapng).
///
/// Each frame has a comment: the programs that it is from and for, their processes and users, and the connection. Only
/// the service's own user and root may capture, one at a time. The programs do nothing more for it than without.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath capture -w all.pcapng                           until ctrl-C
  towpath capture -w - tcp port 80 | wireshark -k -i -    live
  towpath capture -w heads.pcapng -s 96 --duration 10s host 10.0.0.2
  towpath capture -w - -c 1 --bytecode '1,6 0 0 96' | tshark -V -r -
  towpath capture -w some.pcapng --module pick.o          frames that an XDP program lets pass

What each path shows:
  an interface  the frames that the fast stack sends and receives there, both ways, as they are on the wire
  memory        the fast stack's connections within this host, each frame once; checksums may be missing
  direct        frames made from the bytes that two programs exchange in memory, with numbers from 0. The service looks
                for these bytes every millisecond. Times, and the order of the two directions, are that accurate
  kernel        the kernel's own frames of a kernel stack's connections, from a packet socket in the service's network
                namespace (CAP_NET_RAW). Segments that the network card cuts are shown whole
Sockets that stayed with the kernel (towpath doctor) are not shown: tcpdump shows them. Neither are stacks in another
kernel: run tcpdump there (towpath exec).

A frame is dropped, and counted, if the memory for frames is full, or if a program may have written over bytes of a
direct connection before they were copied. The counts come at the end, and stand in the file.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// The file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Bytes of a frame that are kept
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    snap: u32,
    /// End after so many frames
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, such as 10s
    #[arg(long, value_name = "TIME")]
    duration: Option<Duration>,
    /// Memory for frames that are not yet written, such as 32MiB; 1GiB at most
    #[arg(long, value_name = "BYTES", default_value = "32MiB")]
    buffer: Bytes,
    /// A filter as a classic BPF program for Ethernet frames, as `tcpdump -ddd` prints it, with commas or line feeds,
    /// or @FILE
    #[arg(long, value_name = "CODE", conflicts_with_all = ["filter", "module"])]
    bytecode: Option<String>,
    /// A filter as an XDP object, as `towpath module add` takes it. Frames are kept to which the program says XDP_PASS;
    /// it has copies, so it changes none
    #[arg(long, value_name = "OBJECT", conflicts_with = "filter")]
    module: Option<PathBuf>,
    /// The program of --module, if the object has several
    #[arg(long, value_name = "FUNCTION", requires = "module")]
    program: Option<String>,
    /// The summary as one JSON object: on standard output, or with `-w -` on standard error
    #[arg(long)]
    pub json: bool,
    /// A filter as tcpdump takes it (pcap-filter(7)); tcpdump compiles it
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Why there is no capture, and the exit code.
struct Failure(String, u8);

/// Captures.
pub fn run(arguments: &Arguments) -> ExitCode {
    match capture(arguments) {
        Ok(captured) => {
            let text = if arguments.json { captured.json() } else { captured.text() };
            match (arguments.json, arguments.to_standard_output()) {
                (true, false) => return print(&text),
                (true, true) => eprint!("{text}"),
                (false, _) => complain(text.trim_end()),
            }
            ExitCode::SUCCESS
        }
        // Standard output is the file.
        Err(Failure(why, code)) => fail(&why, arguments.json && !arguments.to_standard_output(), code),
    }
}

impl Arguments {
    fn to_standard_output(&self) -> bool {
        self.write.as_os_str() == "-"
    }
}

fn capture(arguments: &Arguments) -> Result<Captured, Failure> {
    let wrong = |why: String| Failure(why, exit::WRONG_LINE);
    let failed = |why: String| Failure(why, exit::FAILED);
    let absent = |why: String| Failure(why, exit::NO_SERVICE);
    let filter = match (&arguments.bytecode, &arguments.module) {
        (Some(code), _) => Filter::bytecode(code).map_err(wrong)?,
        (None, Some(object)) => Filter::module(object, arguments.program.clone()).map_err(wrong)?,
        (None, None) => Filter::compile(&arguments.filter).map_err(wrong)?,
    };
    let socket = arguments.which.find().map_err(|why| absent(why.to_string()))?;
    // Blocked before the service is asked, so that no signal ends the command between.
    let signals = towpath_service::daemon::end_signals().map_err(|why| failed(why.to_string()))?;
    let (instructions, module) = (filter.instructions(), filter.module);
    let (snap, bytes) = (arguments.snap, arguments.buffer.get());
    let request = CaptureRequest { filter: instructions, module, snap, bytes };
    let asked = api::ask_to_capture(&socket, request).map_err(|why| absent(why.to_string()))?;
    // A refused capture leaves the file as it is.
    let output = Output::open(&arguments.write, &signals).map_err(failed)?;
    let session =
        Session { asked, signals: &signals, filter: filter.text, snap: arguments.snap, count: arguments.count };
    let time = arguments.duration.map(units::Duration::to_std);
    session.run(output, time).map_err(|why| failed(format!("{}: {why}", arguments.write.display())))
}
