//! Figures of the kernel stack.

use super::{NOT_EXAMINED, higher, lower};
use crate::figure::{Figure, Kind, Section, Target, Unit};

const APART: Kind = Kind {
    section: Section::KernelStack,
    benchmark: "offload",
    way: "kernel stack",
    metric: higher("per_s", Unit::Bits, "to_best_linux"),
};
const FREE: Kind = APART.by("kernel stack, free");
const CPU: Kind = Kind { metric: lower("app_ns_per_send", Unit::Ns, ""), ..APART };
const P50: Kind = Kind { metric: lower("p50_us", Unit::Us, ""), ..APART };
const FILE: Kind = Kind { metric: lower("app_ms_per_gb", Unit::MsPerGb, "app_to_linux"), ..APART };
const FILE_HOST: Kind = Kind { metric: lower("host_ms_per_gb", Unit::MsPerGb, "host_to_linux"), ..APART };

const SHARE: &str = "kernel stack and other end share one CPU, which limits large sends";
const SENDS: &str = "the program's CPU, which its sends keep busy, all the time if apart and four fifths of it if free: the library's \
    instructions for each";
const MANY_SENDS: &str = "the program's CPU, busy with its sends for four fifths of the time; stack and other end, which share the other CPU, have \
    the rest";
const COPY: &str = "the copy into the ring, 0.07 to 0.1 ns a byte: with 16 KiB nine tenths of what the program does";
const COMMANDS: &str = "eight system calls for each call of `sendfile`, by which the program looks at the file, wakes the stack and sleeps; it \
    touches no byte";
const CACHE: &str = "Linux, free, copies a large send while it is in one CPU's cache";
const ONE_CPU: &str = "Linux, free, may keep both ends on one CPU, where no wake-up of another CPU is needed";
const SECOND: &str = "user-mode Linux traces its system calls";
const SECOND_TLS: &str = "user-mode Linux traces its system calls and encrypts without AES instructions";

pub const FIGURES: &[Figure] = &[
    APART.figure("sends of 64 B, apart", "sends of 64 bytes", Target::None, SENDS),
    FREE.figure("sends of 64 B, free", "sends of 64 bytes", Target::None, SENDS),
    CPU.figure("sends of 64 B, apart: program's CPU per send", "sends of 64 bytes", Target::None, SENDS),
    APART.figure("sends of 256 B, apart", "sends of 256 bytes", Target::None, MANY_SENDS),
    CPU.figure("sends of 256 B, apart: program's CPU per send", "sends of 256 bytes", Target::None, SENDS),
    APART.figure("sends of 1448 B, apart", "sends of 1448 bytes", Target::None, SHARE),
    CPU.figure("sends of 1448 B, apart: program's CPU per send", "sends of 1448 bytes", Target::None, COPY),
    APART.figure("sends of 16 KiB, apart", "sends of 16384 bytes", Target::None, SHARE),
    CPU.figure("sends of 16 KiB, apart: program's CPU per send", "sends of 16384 bytes", Target::None, COPY),
    APART.figure("sends of 64 KiB, apart", "sends of 65536 bytes", Target::None, SHARE),
    FREE.figure("sends of 64 KiB, free", "sends of 65536 bytes", Target::None, CACHE),
    CPU.figure("sends of 64 KiB, apart: program's CPU per send", "sends of 65536 bytes", Target::None, COPY),
    P50.figure("64 bytes back and forth, apart: p50", "64 bytes back and forth", Target::None, ONE_CPU),
    FILE.figure("sendfile: program's CPU for 10⁹ bytes", "sendfile", Target::None, COMMANDS),
    FILE_HOST.figure("sendfile: whole machine's CPU for 10⁹ bytes", "sendfile", Target::None, NOT_EXAMINED),
    FILE.by("second kernel").figure(
        "sendfile in a second kernel: program's CPU for 10⁹ bytes",
        "sendfile",
        Target::None,
        COMMANDS,
    ),
    FILE_HOST.by("second kernel").figure(
        "sendfile in a second kernel: whole machine's CPU for 10⁹ bytes",
        "sendfile",
        Target::None,
        SECOND,
    ),
    FILE.by("second kernel, kTLS").figure(
        "nginx with TLS 1.3, a second kernel encrypts: nginx's CPU for 10⁹ bytes",
        "nginx, TLS",
        Target::None,
        NOT_EXAMINED,
    ),
    FILE_HOST.by("second kernel, kTLS").figure(
        "nginx with TLS 1.3, a second kernel encrypts: whole machine's CPU for 10⁹ bytes",
        "nginx, TLS",
        Target::None,
        SECOND_TLS,
    ),
];
