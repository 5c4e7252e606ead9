//! Objects of modules, as clang makes them, and `towpath module`.

use crate::namespace::SERVER;
use crate::{Lab, Program, Scratch, Service, bin, require_program};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A text with this word has the types of this kernel (`vmlinux.h`), and not those of `<linux/bpf.h>`.
pub const KERNEL_TYPES: &str = "KERNEL_TYPES";

fn kernel_types(scratch: &Scratch) -> &'static str {
    require_program("bpftool", "bpftool");
    let dump = Program::line("bpftool btf dump file /sys/kernel/btf/vmlinux format c").run(60).ok();
    std::fs::write(scratch.path("vmlinux.h"), dump).expect("the types are written");
    "\"vmlinux.h\""
}

/// Counts frames from or to port 7001 in one place, and all others in the place before.
pub const PORTS: &str = "
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } seen
    SEC(\".maps\");
SEC(\"xdp\") int ports(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data;
    if (frame + 38 > (__u8 *)(long)ctx->data_end) return XDP_ABORTED;
    __u32 from = frame[34] << 8 | frame[35], to = frame[36] << 8 | frame[37], place = from == 7001 || to == 7001;
    __u64 *frames = bpf_map_lookup_elem(&seen, &place);
    if (frames) __sync_fetch_and_add(frames, 1);
    return XDP_PASS;
}";

/// A module's object, from a source of this repository or from this text.
pub fn object(scratch: &Scratch, name: &str, text: Option<&str>) -> PathBuf {
    require_program("clang", "clang");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = match text {
        None => root.join(format!("bpf/modules/{name}.bpf.c")),
        Some(text) => {
            let path = scratch.path(&format!("{name}.bpf.c"));
            // The types of this kernel are those of all headers.
            let types = if text.contains(KERNEL_TYPES) { kernel_types(scratch) } else { "<linux/bpf.h>" };
            let begin = format!("#include {types}\n#include <bpf/bpf_helpers.h>\n");
            let end = "\nchar _license[] SEC(\"license\") = \"GPL\";\n";
            std::fs::write(&path, format!("{begin}{text}{end}")).expect("the source is written");
            path
        }
    };
    let object = scratch.path(&format!("{name}.bpf.o"));
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let clang = Program::line("clang -O2 -g -target bpf -mcpu=v3 -idirafter").arg(include).arg("-c").arg(source);
    clang.arg("-o").arg(&object).run(60).ok();
    object
}

/// `towpath module LINE`.
pub fn module(service: &Service, line: &str) -> Program {
    let program = Program::new(&[bin("towpath")]).arg("module").arg("--socket").arg(&service.socket);
    line.split_whitespace().fold(program, |program, word| program.arg(word))
}

/// The same as JSON.
pub fn json(service: &Service, line: &str) -> Value {
    serde_json::from_str(&module(service, line).arg("--json").run(60).ok()).expect("an answer of the service")
}

/// Counts of a module, all of one moment.
pub fn counts<const N: usize>(service: &Service, name: &str, of: [&str; N]) -> [u64; N] {
    let list = json(service, "stats");
    let found =
        list["modules"].as_array().expect("an answer of the service").iter().find(|module| module["name"] == name);
    let found = &found.unwrap_or_else(|| panic!("{name} is not in {list}"))["counts"];
    of.map(|of| found[of].as_u64().expect("an answer of the service"))
}

/// A count of a module.
pub fn count(service: &Service, name: &str, of: &str) -> u64 {
    counts(service, name, [of])[0]
}

/// A client that asks on a port, and says whether there is an answer within three seconds.
pub fn asks(lab: &Lab, port: u16) -> String {
    let script = format!(
        "import socket
try:
    s = socket.create_connection(('{SERVER}', {port}), 3); s.sendall(b'question'); print(s.recv(100).decode())
except TimeoutError: print('nothing')"
    );
    lab.on_client(Program::line("python3 -c").arg(script)).run(60).ok().trim().to_owned()
}

/// One direction of two connections that the module `splice` sends on.
pub struct Spliced {
    /// The sender's port.
    pub from: u16,
    /// The receiver's port.
    pub to: u16,
    /// Payload bytes that the module has sent on.
    pub by_module: u64,
    /// Those that the kernel has.
    pub by_kernel: u64,
}

/// Steps of peers of a proxy, in Python. `directory` is where the test gives its words, as files of their names.
pub const STEPS: &str = r"
def told(word): return os.path.exists(os.path.join(directory, word))
def wait_for(word):
    while not told(word): time.sleep(0.01)
def say(*words): print(' '.join(map(str, words)) + '\n', end='', flush=True)
def exact(s, count):
    got = b''
    while len(got) < count:
        more = s.recv(count - len(got))
        assert more, 'the stream ends early'
        got += more
    return got
";

/// What is in the map `towpath_splices`.
pub fn spliced(service: &Service) -> Vec<Spliced> {
    let dump = json(service, "maps splice towpath_splices dump");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal digits");
    let elements = dump["elements"].as_array().expect("an answer of the service");
    let one = |element: &Value| {
        let text = |value: &Value| value.as_str().expect("an answer of the service").to_owned();
        let (key, value) = (text(&element["key"]), text(&element["values"][0]));
        // Two addresses of 16 bytes, then the two ports. The value ends with what the module has counted, frames and bytes, and then
        // the kernel.
        let port = |at: usize| number(&key[at..at + 4]) as u16;
        let count = |before: usize| number(&value[value.len() - before..][..16]).swap_bytes();
        Spliced { from: port(64), to: port(68), by_module: count(48), by_kernel: count(16) }
    };
    elements.iter().map(one).collect()
}
