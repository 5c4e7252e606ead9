//! Files that the kernel stack itself reads and encrypts, beside Linux's own `sendfile` and nginx's own TLS. The rows
//! say what they cost the program.

use super::{Options, rounds};
use crate::cpu_time::{busy_ns, tasks_ns};
use crate::process::Process;
use crate::programs::{json_report, number, rpc, run_on, status_flow_groups, towpath};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use towpath_bench_report::{median, print_json_rows};

/// Bytes of the file: it is read from the page cache.
const FILE_BYTES: usize = 128 << 20;
/// The addresses of the client's and the second kernel's ends of their wire.
const TAP: [&str; 2] = ["10.79.0.1", "10.79.0.2"];
/// Port of the drain on CPU 1; the next is that of the one on any CPU.
const DRAIN: usize = 9020;
/// nginx's port.
const HTTPS: usize = 9443;
/// How often nginx's client asks on one connection.
const REQUESTS: usize = 4;
/// How long a second kernel may take to boot.
const BOOT: Duration = Duration::from_secs(90);

/// The TCP that sends the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    /// Linux's, by the program's own calls.
    Linux,
    /// The kernel stack in a process beside the other end, on CPU 1.
    Process,
    /// The kernel stack in user-mode Linux, on CPU 1.
    Second,
}

/// One of the things compared.
struct Variant {
    /// Its name in the table.
    name: &'static str,
    stack: Stack,
    /// True: the program on CPU 0, the other end on CPU 1. Else both wherever the kernel puts them.
    apart: bool,
}

const fn variant(name: &'static str, stack: Stack, apart: bool) -> Variant {
    Variant { name, stack, apart }
}

const SENDFILE: [Variant; 4] = [
    variant("linux", Stack::Linux, true),
    variant("linux, free", Stack::Linux, false),
    variant("kernel stack", Stack::Process, true),
    variant("second kernel", Stack::Second, true),
];
const TLS: [Variant; 3] = [
    variant("linux", Stack::Linux, true),
    variant("linux, free", Stack::Linux, false),
    variant("second kernel, kTLS", Stack::Second, true),
];

/// One run.
#[derive(Clone, Copy)]
struct Run {
    /// Bytes of the file that arrived.
    bytes: f64,
    seconds: f64,
    /// CPU time of the program's own threads, ns.
    app_ns: f64,
    /// Busy time of all CPUs of this machine, ns.
    host_ns: f64,
}

#[derive(Serialize)]
struct Row {
    /// `sendfile` or `nginx, TLS`.
    shape: &'static str,
    way: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    /// `app_ms_per_gb` divided by that of Linux's cheapest way in the same rounds (median of the rounds' ratios).
    app_to_linux: f64,
    /// The same of `host_ms_per_gb`.
    host_to_linux: f64,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// Payload bits per second.
    per_s: f64,
    /// CPU time of the application's own threads for 10⁹ bytes, ms.
    app_ms_per_gb: f64,
    /// Busy time of all CPUs of this machine for 10⁹ bytes, ms: the program, the stack, the second kernel and the
    /// receiving end together.
    host_ms_per_gb: f64,
}

impl Round {
    fn of(run: &Run) -> Self {
        // ns per byte are s per 10⁹ bytes.
        let per_gb = |ns: f64| 1e3 * ns / run.bytes;
        Self {
            per_s: 8.0 * run.bytes / run.seconds,
            app_ms_per_gb: per_gb(run.app_ns),
            host_ms_per_gb: per_gb(run.host_ns),
        }
    }
}

/// A file by `sendfile` in blocking calls, each of as much as there is.
pub fn sendfile(options: &Options) -> io::Result<()> {
    let bench = Bench::new(true)?;
    bench.compare(options, "sendfile", &SENDFILE, Bench::send_file)
}

/// A file that nginx sends by TLS 1.3 with AES-128-GCM.
pub fn tls(options: &Options) -> io::Result<()> {
    for (program, package) in [("nginx", "nginx-light"), ("openssl", "openssl"), ("curl", "curl")] {
        if Command::new(program).arg(if program == "nginx" { "-v" } else { "version" }).output().is_err() {
            return Err(io::Error::other(format!("{program} is missing: apt-get install {package}")));
        }
    }
    let bench = Bench::new(false)?;
    bench.certify()?;
    bench.compare(options, "nginx, TLS", &TLS, Bench::fetch)
}

/// Everything that the runs share.
struct Bench {
    pair: VethPair,
    rpc: OsString,
    process: Option<(Process, PathBuf)>,
    second: (Process, PathBuf),
    _drains: Vec<Process>,
}

impl Bench {
    fn new(drains: bool) -> io::Result<Self> {
        let (rpc, pair) = (rpc()?.into_os_string(), VethPair::new()?);
        let body: Vec<u8> = (0..FILE_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(pair.dir().join("body"), &body)?;
        let second = second_kernel(&pair)?;
        let (mut process, mut running) = (None, Vec::new());
        if drains {
            process = Some(pair.kernel_stack("kernel", Some(1))?);
            for (number, cpu) in [Some(1), None].into_iter().enumerate() {
                let words = [rpc.clone(), "drain".into(), format!("0.0.0.0:{}", DRAIN + number).into()];
                let command = pair.command_on(Side::Client, cpu, &words);
                running.push(pair.start(command, &format!("drain-{number}.log"), "ready")?);
            }
        }
        Ok(Self { pair, rpc, process, second, _drains: running })
    }

    /// Runs the variants in turn and prints their rows.
    fn compare<const N: usize>(
        &self,
        options: &Options,
        shape: &'static str,
        variants: &[Variant; N],
        one: impl Fn(&Self, &Options, &Variant) -> io::Result<Run>,
    ) -> io::Result<()> {
        let runs = rounds(
            options,
            shape,
            variants,
            |variant| variant.name,
            |variant| {
                self.place_receive_work(variant)?;
                let before = self.file_bytes(variant)?;
                let run = one(self, options, variant)?;
                let read_by_stack = (self.file_bytes(variant)? - before) as f64;
                if variant.stack != Stack::Linux && read_by_stack < 0.9 * run.bytes {
                    let dir = self.pair.dir().display();
                    return Err(io::Error::other(format!("the stack does not read files in {dir}; set TMPDIR")));
                }
                Ok(run)
            },
        )?;
        print(options, &rows(shape, variants, &runs));
        Ok(())
    }

    /// The socket of the variant's stack.
    fn socket(&self, variant: &Variant) -> Option<&Path> {
        match variant.stack {
            Stack::Linux => None,
            Stack::Process => self.process.as_ref().map(|(_, socket)| socket.as_path()),
            Stack::Second => Some(&self.second.1),
        }
    }

    /// The first words of the program's command line.
    fn words(&self, variant: &Variant) -> io::Result<Vec<OsString>> {
        self.socket(variant).map_or(Ok(Vec::new()), run_on)
    }

    /// Puts receive work on the CPUs of the variant.
    fn place_receive_work(&self, variant: &Variant) -> io::Result<()> {
        let served = usize::from(variant.stack != Stack::Linux);
        self.pair.receive_on(Side::Server, variant.apart.then_some(served))?;
        self.pair.receive_on(Side::Client, variant.apart.then_some(1))
    }

    /// Bytes of files that the variant's stack has read itself so far.
    fn file_bytes(&self, variant: &Variant) -> io::Result<u64> {
        let Some(socket) = self.socket(variant) else { return Ok(0) };
        let of = |group: &serde_json::Value| group["stages"]["file_bytes"].as_u64();
        Ok(status_flow_groups(socket)?.iter().filter_map(of).sum())
    }

    fn send_file(&self, options: &Options, variant: &Variant) -> io::Result<Run> {
        let mut words = self.words(variant)?;
        let address = if variant.stack == Stack::Second { TAP[0] } else { "10.77.0.2" };
        let port = DRAIN + usize::from(!variant.apart);
        words.extend([self.rpc.clone(), "send-file".into(), format!("{address}:{port}").into(), "body".into()]);
        let mut command = self.pair.command_on(Side::Server, variant.apart.then_some(0), &words);
        let host = busy_ns()?;
        let output = command.args(["--seconds", &options.seconds.to_string()]).output()?;
        let host_ns = busy_ns()? - host;
        let report = json_report(&output, "the sender")?;
        let field = |name: &str| number(&report, name);
        Ok(Run { bytes: field("bytes")?, seconds: field("seconds")?, app_ns: field("cpu_ns")?, host_ns })
    }

    /// A key and nginx's configuration. With an elliptic curve the handshakes cost next to nothing.
    fn certify(&self) -> io::Result<()> {
        let line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost -keyout key.pem -out cert.pem";
        let mut words = line.split(' ');
        let output =
            Command::new(words.next().unwrap_or_default()).args(words).current_dir(self.pair.dir()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("openssl: {}", String::from_utf8_lossy(&output.stderr))));
        }
        let dir = self.pair.dir().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {dir}/{name}; "))
            .concat();
        let config = format!(
            "user root; worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log stderr notice;
             events {{ worker_connections 64; }}
             http {{ access_log off; sendfile on; sendfile_max_chunk 64m; {temporary}
                    server {{ listen 0.0.0.0:{HTTPS} ssl; root {dir}; ssl_certificate {dir}/cert.pem;
                              ssl_certificate_key {dir}/key.pem; ssl_protocols TLSv1.3;
                              ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
                              ssl_conf_command Options KTLS; }} }}"
        );
        std::fs::write(self.pair.dir().join("nginx.conf"), config)
    }

    fn fetch(&self, options: &Options, variant: &Variant) -> io::Result<Run> {
        let mut words = self.words(variant)?;
        words.extend(["nginx".into(), "-c".into(), self.pair.dir().join("nginx.conf").into_os_string()]);
        let command = self.pair.command_on(Side::Server, variant.apart.then_some(0), &words);
        let nginx = self.pair.start(command, "nginx.log", "start worker process")?;
        let address = if variant.stack == Stack::Second { TAP[1] } else { SERVER };
        let url = format!("https://{address}:{HTTPS}/body");
        let line = "curl -sSk --noproxy * --retry 20 --retry-connrefused --retry-delay 1 --max-time 300 -w %{size_download}\\n";
        let fetch = |requests: usize| {
            let mut words: Vec<&str> = line.split(' ').collect();
            (0..requests).for_each(|_| words.extend(["-o", "/dev/null", &url]));
            let output = self.pair.command_on(Side::Client, variant.apart.then_some(1), &words).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            match text.lines().map_while(|line| line.parse::<f64>().ok()).sum::<f64>() {
                bytes if bytes as usize == requests * FILE_BYTES => Ok(bytes),
                _ => Err(io::Error::other(format!("curl: {text}{}", String::from_utf8_lossy(&output.stderr)))),
            }
        };
        // It listens, and it has sent the file once.
        fetch(1)?;
        let (start, host, app, mut bytes) = (Instant::now(), busy_ns()?, tasks_ns(&[nginx.pid()]), 0.0);
        while start.elapsed().as_secs_f64() < options.seconds {
            bytes += fetch(REQUESTS)?;
        }
        let (app_ns, host_ns) = (tasks_ns(&[nginx.pid()]) - app, busy_ns()? - host);
        Ok(Run { bytes, seconds: start.elapsed().as_secs_f64(), app_ns, host_ns })
    }
}

/// The kernel stack in user-mode Linux on CPU 1, whose network device is joined to the client's namespace.
fn second_kernel(pair: &VethPair) -> io::Result<(Process, PathBuf)> {
    let lines = format!(
        "ip tuntap add dev tap0 mode tap && ip addr add {}/24 dev tap0 && ip link set tap0 up && \
         ip route replace 10.79.0.0/24 dev tap0 src {0} congctl cubic",
        TAP[0]
    );
    if !pair.command_on(Side::Client, None, &["sh", "-c", &lines]).status()?.success() {
        return Err(io::Error::other("cannot make the second kernel's wire"));
    }
    let (exe, socket) = (towpath()?, pair.dir().join("second.sock"));
    let words = [exe.as_os_str(), "kernel-stack".as_ref(), "--uml".as_ref(), "--socket".as_ref(), socket.as_os_str()];
    let mut command = pair.command_on(Side::Client, Some(1), &words);
    command.args(["--guest-tap", "tap0", "--guest-address", &format!("{}/24", TAP[1]), "--guest-gateway", TAP[0]]);
    let process =
        Process::start_within(BOOT, command, &pair.dir().join("second.log"), |text| text.contains("serving"))?;
    Ok((process, socket))
}

/// The rows of a shape from its runs by variant and round.
fn rows<const N: usize>(shape: &'static str, variants: &[Variant; N], runs: &[Vec<Run>; N]) -> Vec<Row> {
    let linux = || variants.iter().zip(runs).filter(|(variant, _)| variant.stack == Stack::Linux);
    let cost = |run: &Run, ns: fn(&Run) -> f64| ns(run) / run.bytes;
    let cheapest = |round: usize, ns| linux().map(|(_, runs)| cost(&runs[round], ns)).fold(f64::INFINITY, f64::min);
    let row = |(variant, own): (&Variant, &Vec<Run>)| {
        let rounds: Vec<Round> = own.iter().map(Round::of).collect();
        let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
        let to_linux = |ns| median(own.iter().enumerate().map(|(round, run)| cost(run, ns) / cheapest(round, ns)));
        Row {
            shape,
            way: variant.name,
            median: Round {
                per_s: of(|round| round.per_s),
                app_ms_per_gb: of(|round| round.app_ms_per_gb),
                host_ms_per_gb: of(|round| round.host_ms_per_gb),
            },
            app_to_linux: to_linux(|run| run.app_ns),
            host_to_linux: to_linux(|run| run.host_ns),
            rounds,
        }
    };
    variants.iter().zip(runs).map(row).collect()
}

fn print(options: &Options, rows: &[Row]) {
    if print_json_rows(options.json, rows) {
        return;
    }
    println!(
        "{:12} {:20} {:>14} {:>10} {:>11} {:>13} {:>14}",
        "file by", "way", "per second", "app ms/GB", "host ms/GB", "app to linux", "host to linux"
    );
    for row in rows {
        println!(
            "{:12} {:20} {:>9.2} Gbit {:>10.1} {:>11.1} {:>12.3}x {:>13.2}x",
            row.shape,
            row.way,
            row.median.per_s / 1e9,
            row.median.app_ms_per_gb,
            row.median.host_ms_per_gb,
            row.app_to_linux,
            row.host_to_linux
        );
    }
}
