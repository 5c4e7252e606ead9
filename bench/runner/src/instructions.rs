//! Instructions per 64-byte echo request, counted by callgrind: stable where times are not.

use crate::callgrind::{absent, callgrind, per_request};
use crate::modules;
use crate::programs::{ScratchDir, rpc, towpath};
use clap::Args;
use serde::Serialize;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_bench_report::print_json;
use towpath_service::programs::find;

/// How long a counted program may take to end, with callgrind's report.
const ENDING: Duration = Duration::from_secs(20);

/// Neither side spins before it sleeps. So each request finds both asleep, on a busy machine too, and the counts of
/// two runs are equal.
const NO_SPIN: (&str, &str) = ("TOWPATH_SPIN_US", "0");

/// Arguments of `towpath bench instructions`.
#[derive(Args)]
pub struct Options {
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Requests to count.
    #[arg(long, default_value_t = 2000)]
    requests: u64,
}

/// Instructions per request.
#[derive(Serialize)]
struct Counts {
    /// In the stages of the fast path: a request in, its reply out, one flow per turn.
    stages_1: f64,
    /// The same with 64 flows per turn.
    stages_64: f64,
    /// In a core's two turns for 64 flows: one takes their requests, and one sends the replies. Counted are stages,
    /// flow group, rings and a port in memory.
    engine_64: f64,
    /// Of that, what is not in the stages.
    engine_and_port: f64,
    /// `engine_64` and `library`: what the server's side does for a request.
    together_64: f64,
    /// In the socket library and libc, over the stack: `epoll_wait`, `read`, `write`.
    library: f64,
    /// In the native API, over the stack: `wait`, `received`, `reserve`, the copy, `commit`, `consume`.
    native: f64,
    /// In the socket library and libc, on a direct connection.
    library_direct: f64,
    /// In the native API, on a direct connection.
    native_direct: f64,
    /// In the socket library and libc, over the stack: one send of 64 bytes of a busy sender.
    send: f64,
    /// In slow path and stages: a SYN in, a cookie out, 64 per turn.
    flood_syn: f64,
    /// That a module which lets all pass adds to a received frame.
    module_ingress: f64,
    /// The same for a sent frame.
    module_egress: f64,
    /// That a capture adds to a received frame, whose filter matches nothing.
    capture_ingress: f64,
    /// The same for a sent frame.
    capture_egress: f64,
    /// That a capture of all frames adds to a received frame, of which it keeps 96 bytes.
    capture_all_ingress: f64,
    /// The same for a sent frame.
    capture_all_egress: f64,
    /// What the command that captures does for a frame: it takes it out of the memory, and writes it to the file.
    capture_written: f64,
}

/// Counts all and prints them.
pub fn run(options: &Options) -> io::Result<()> {
    let (program, scratch) = (find("towpath-instructions")?, ScratchDir::new("instructions")?);
    let server = |role, direct| server(role, direct, &program, &scratch.0, options.requests);
    let [[module_ingress, module_egress], [capture_ingress, capture_egress], [capture_all_ingress, capture_all_egress]] =
        modules::guarded(&program, &scratch.0)?;
    let capture_written = modules::written(&program, &scratch.0)?;
    let stepped = |what, batch| stepped(what, &program, &scratch.0, batch, options.requests);
    let (stages_64, engine_64, library) = (stepped("stages", 64)?, stepped("engine", 64)?, server("library", false)?);
    let counts = Counts {
        stages_1: stepped("stages", 1)?,
        stages_64,
        engine_64,
        engine_and_port: engine_64 - stages_64,
        together_64: engine_64 + library,
        library,
        native: server("native", false)?,
        library_direct: server("library", true)?,
        native_direct: server("native", true)?,
        send: server("sends", false)?,
        flood_syn: stepped("flood", 64)?,
        module_ingress,
        module_egress,
        capture_ingress,
        capture_egress,
        capture_all_ingress,
        capture_all_egress,
        capture_written,
    };
    if !print_json(options.json, &counts) {
        println!("instructions per 64-byte echo request ({} requests, callgrind)", options.requests);
        println!("  stages, 1 flow       {:>8.1}", counts.stages_1);
        println!("  stages, 64 flows     {:>8.1}", counts.stages_64);
        println!("  core's turns, 64     {:>8.1}", counts.engine_64);
        println!("    without stages     {:>8.1}", counts.engine_and_port);
        println!("    with the library   {:>8.1}", counts.together_64);
        println!("  library over stack   {:>8.1}", counts.library);
        println!("  native over stack    {:>8.1}", counts.native);
        println!("  library directly     {:>8.1}", counts.library_direct);
        println!("  native directly      {:>8.1}", counts.native_direct);
        println!("instructions per 64-byte send of a busy sender");
        println!("  library over stack   {:>8.1}", counts.send);
        println!("instructions per SYN that is answered with a cookie");
        println!("  slow path and stages {:>8.1}", counts.flood_syn);
        println!("instructions that a module adds to a frame that it lets pass");
        println!("  received             {:>8.1}", counts.module_ingress);
        println!("  sent                 {:>8.1}", counts.module_egress);
        println!("instructions that a capture adds to a frame that its filter does not match");
        println!("  received             {:>8.1}", counts.capture_ingress);
        println!("  sent                 {:>8.1}", counts.capture_egress);
        println!("instructions of a capture of all frames, 96 bytes of each");
        println!("  received             {:>8.1}", counts.capture_all_ingress);
        println!("  sent                 {:>8.1}", counts.capture_all_egress);
        println!("  written to the file  {:>8.1}", counts.capture_written);
    }
    Ok(())
}

/// The instructions of the stages, or of a core's turns (`engine`), with a request of each of `batch` flows per turn. One
/// thread takes every step, so two runs are equal to the instruction.
fn stepped(what: &str, program: &Path, dir: &Path, batch: u64, requests: u64) -> io::Result<f64> {
    let out = dir.join(format!("{what}-{batch}.out"));
    let output = callgrind(&format!("{what}_turn"), &out)
        .arg(program)
        .args([what, &batch.to_string(), &requests.to_string()])
        .output()
        .map_err(absent)?;
    per_request(&out, &output)
}

/// The instructions of a server in this role, over the stack or directly. The roles: `library` (sockets), `native` (the
/// native API) and `sends` (it only sends).
fn server(role: &str, direct: bool, program: &Path, dir: &Path, requests: u64) -> io::Result<f64> {
    let name = format!("{role}-{}", if direct { "direct" } else { "stack" });
    let socket = dir.join(format!("{name}.sock"));
    let towpath = towpath()?;
    let mut serve = Command::new(&towpath);
    serve.args(["serve", "--direct", if direct { "true" } else { "false" }, "--socket"]).arg(&socket);
    let serve = Guard(serve.stderr(Stdio::null()).spawn()?);
    until(|| socket.exists())?;
    let out = dir.join(format!("{name}.out"));
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let count = requests.to_string();
    let log = dir.join(format!("{name}.log"));
    let mut server = callgrind(&format!("{role}_turn"), &out);
    server
        .arg(program)
        .args([role, "127.0.0.1", &port, &count])
        .env("TOWPATH_SOCKET", &socket)
        .env(NO_SPIN.0, NO_SPIN.1);
    if role == "sends" {
        server.arg(serve.0.id().to_string());
    }
    if role != "native" {
        server.env("LD_PRELOAD", towpath.with_file_name("libtowpath.so"));
    }
    let mut server = server.stdout(std::fs::File::create(&log)?).stderr(Stdio::piped()).spawn().map_err(absent)?;
    until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    let client = Command::new(&towpath)
        .env(NO_SPIN.0, NO_SPIN.1)
        .args(["run", "--require", "--socket"])
        .arg(&socket)
        .arg("--")
        .arg(rpc()?)
        .args(["client", &format!("127.0.0.1:{port}"), "--seconds", "300", "--warm-up-seconds", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut client = Guard(client);
    // A client that cannot run would leave the server waiting for ever. One that can run also fails, when the server
    // has counted enough and is about to end.
    let mut failed = None;
    while server.try_wait()?.is_none() {
        if failed.is_none() {
            failed = client.0.try_wait()?.filter(|status| !status.success()).map(|status| (status, Instant::now()));
        }
        if let Some((status, since)) = &failed
            && since.elapsed() > ENDING
        {
            let _ = server.kill();
            return Err(io::Error::other(format!(
                "the client of the counted program failed ({status}): is towpath-rpc built?"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut output = server.wait_with_output()?;
    output.stdout =
        std::fs::read(&log)?.split(|&byte| byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default().to_vec();
    per_request(&out, &output)
}

fn until(mut condition: impl FnMut() -> bool) -> io::Result<()> {
    for _ in 0..2000 {
        if condition() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("a program did not get ready within 20 s"))
}

/// A child that is killed with this value.
struct Guard(std::process::Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
