//! What a worker that an attacker has taken over can still reach: nothing of the host.
#![allow(clippy::unwrap_used)]

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use towpath_service::config::{Config, SandboxSetting, StackKind};
use towpath_service::sandbox::Sandbox;

/// Names the stack for the process that is confined.
const STACK: &str = "TOWPATH_TEST_SANDBOX";

/// The error of a raw system call.
fn call(number: libc::c_long, arguments: [usize; 5]) -> io::Result<libc::c_long> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the callers pass null, numbers, or addresses of memory that lives on.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn refused<T>(what: &str, result: io::Result<T>, errno: &[i32]) {
    match result {
        Ok(_) => panic!("{what}: done"),
        Err(error) => assert!(error.raw_os_error().is_some_and(|e| errno.contains(&e)), "{what}: {error}"),
    }
}

/// `client`: a socket that a client has sent, and somebody's address to which it connects. Every attempt is refused, in a thread that was started before the system calls were taken.
fn attack(stack: StackKind, listener: &TcpListener, client: &(OwnedFd, SocketAddrUnix)) {
    let (perm, acces) = ([libc::EPERM], [libc::EACCES]);
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as usize;
    let path = |text: &'static std::ffi::CStr| text.as_ptr() as usize;
    refused("execve", call(libc::SYS_execve, [path(c"/bin/true"), 0, 0, 0, 0]), &perm);
    refused("fork", call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0]), &perm);
    refused("clone3", call(libc::SYS_clone3, [0; 5]), &[libc::ENOSYS]);
    refused("ptrace", call(libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, parent, 0, 0, 0]), &perm);
    refused("process_vm_readv", call(libc::SYS_process_vm_readv, [parent, 0, 0, 0, 0]), &perm);
    refused("pidfd_getfd", call(libc::SYS_pidfd_getfd, [0; 5]), &perm);
    refused("kill", call(libc::SYS_kill, [parent, 0, 0, 0, 0]), &perm);
    refused("tgkill", call(libc::SYS_tgkill, [parent, parent, 0, 0, 0]), &perm);
    // The lower half of this address is 0.
    let limits = 1usize << 32;
    let fixed = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: nothing else is there.
    let place = unsafe { libc::mmap(limits as *mut _, 4096, libc::PROT_READ, fixed as i32, -1, 0) };
    assert_eq!(place as usize, limits);
    let core = libc::RLIMIT_CORE as usize;
    refused("the parent's limits", call(libc::SYS_prlimit64, [parent, core, limits, 0, 0]), &perm);
    // F_SETOWN, F_SETSIG, F_SETOWN_EX
    for command in [8, 10, 15] {
        refused("the owner of a descriptor", call(libc::SYS_fcntl, [0, command, 0, 0, 0]), &perm);
    }
    refused("FIOSETOWN", call(libc::SYS_ioctl, [0, 0x8901, 0, 0, 0]), &perm);
    refused("TIOCSTI", call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, 0, 0, 0]), &perm);
    refused("io_uring_setup", call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]), &perm);
    refused("io_uring_register", call(libc::SYS_io_uring_register, [0; 5]), &perm);
    refused("setns", call(libc::SYS_setns, [0; 5]), &perm);
    refused("unshare", call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0]), &perm);
    refused("mount", call(libc::SYS_mount, [0; 5]), &perm);
    refused("chmod", call(libc::SYS_fchmodat, [0; 5]), &perm);
    refused("init_module", call(libc::SYS_init_module, [0; 5]), &perm);
    refused("userfaultfd", call(libc::SYS_userfaultfd, [0; 5]), &perm);
    refused("keyctl", call(libc::SYS_keyctl, [0; 5]), &perm);
    refused("setuid", call(libc::SYS_setuid, [1, 0, 0, 0, 0]), &perm);
    // BPF_PROG_LOAD, BPF_MAP_CREATE, BPF_LINK_CREATE
    for command in [5, 0, 28] {
        refused("bpf", call(libc::SYS_bpf, [command, 0, 0, 0, 0]), &perm);
    }
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    refused("executable memory", call(libc::SYS_mmap, [0, 4096, executable, private, usize::MAX]), &perm);
    refused("mprotect", call(libc::SYS_mprotect, [0, 4096, executable, 0, 0]), &perm);
    let socket = |family, kind| rustix::net::socket(family, kind, None).map_err(io::Error::from);
    refused("AF_XDP", socket(AddressFamily::from_raw(libc::AF_XDP as u16), SocketType::RAW), &perm);
    refused("AF_UNIX", socket(AddressFamily::UNIX, SocketType::STREAM), &acces);
    refused("AF_VSOCK", socket(AddressFamily::from_raw(libc::AF_VSOCK as u16), SocketType::STREAM), &perm);
    if matches!(stack, StackKind::Fast | StackKind::Uml) {
        refused("AF_PACKET", socket(AddressFamily::PACKET, SocketType::RAW), &perm);
        refused(
            "raw socket",
            rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(rustix::net::ipproto::TCP))
                .map_err(io::Error::from),
            &perm,
        );
        refused("a port of root", TcpListener::bind("127.0.0.1:1"), &acces);
        refused("connect", TcpStream::connect(listener.local_addr().unwrap()), &perm);
        let (given, theirs) = client;
        refused("a client's socket", rustix::net::connect(given, theirs).map_err(io::Error::from), &perm);
        let tcp = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let tcp = tcp.as_raw_fd() as usize;
        let fast_open = libc::MSG_FASTOPEN as usize;
        for (send, at) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
            let mut arguments = [tcp, 0, 0, 0, 0];
            arguments[at] = fast_open;
            refused("a connect that sends", call(send, arguments), &perm);
        }
        refused("UDP", socket(AddressFamily::INET, SocketType::DGRAM).map(drop), &perm);
        refused("UDP", socket(AddressFamily::INET6, SocketType::DGRAM).map(drop), &perm);
        refused("listen", call(libc::SYS_listen, [tcp, 1, 0, 0, 0]), &perm);
    }
    let open = |path: &str, write: bool| std::fs::OpenOptions::new().read(!write).write(write).open(path);
    refused("/etc/shadow", open("/etc/shadow", false), &acces);
    refused("/proc/sys", open("/proc/sys/kernel/core_pattern", true), &acces);
    refused("debugging in /sys", std::fs::read_dir("/sys/kernel").map(drop), &acces);
    refused("/dev", open("/dev/mem", false), &[libc::EACCES, libc::ENOENT]);
    refused("a new file", std::fs::write(std::env::temp_dir().join("towpath-sandbox-new"), ""), &acces);
    refused("/run", std::fs::read_dir("/run").map(drop), &acces);
    refused("removing", std::fs::remove_file("/nonexistent/a"), &perm);
    refused("the parent's memory", open(&format!("/proc/{parent}/mem"), false), &acces);
    refused("the parent's environment", open(&format!("/proc/{parent}/environ"), false), &acces);
}

fn confined(stack: StackKind) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = std::env::temp_dir().join(format!("towpath-sandbox-{}", std::process::id()));
    let theirs = UnixListener::bind(&path).unwrap();
    let given = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let client = (given, SocketAddrUnix::new(&path).unwrap());
    let sandbox = Sandbox::new(&Config { stack, ..Config::default() });
    sandbox.before_threads();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        wait.recv().unwrap();
        attack(stack, &listener, &client);
    });
    sandbox.before_clients();
    let status = sandbox.status();
    assert!(status.missing.is_empty(), "{status:?}");
    assert_eq!(status.refused, 0, "{status:?}");
    go.send(()).unwrap();
    thread.join().unwrap();
    let status = sandbox.status();
    assert!(status.refused >= 20 && status.line().contains("REFUSED"), "{status:?}");
    // What it needs works.
    assert!(Path::new("/proc/self/status").exists() && std::fs::read("/proc/stat").is_ok());
    let socket = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).map(drop);
    std::thread::spawn(socket).join().unwrap().unwrap();
    drop(theirs);
}

#[test]
fn a_fallen_worker_reaches_nothing_of_the_host() {
    if let Ok(stack) = std::env::var(STACK) {
        return confined(match &*stack {
            "kernel" => StackKind::Kernel,
            "remote" => StackKind::Remote,
            "uml" => StackKind::Uml,
            _ => StackKind::Fast,
        });
    }
    for stack in ["fast", "kernel", "remote", "uml"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_fallen_worker_reaches_nothing_of_the_host", "--nocapture"]).env(STACK, stack);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let path = std::env::temp_dir().join(format!("towpath-sandbox-{}", child.id()));
        let output = child.wait_with_output().unwrap();
        let _ = std::fs::remove_file(path);
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{stack}: {text}");
        // Nothing is refused silently: the first of each kind is a line of the log.
        let line = format!("the sandbox has refused system call {} ", libc::SYS_execve);
        assert!(text.contains(&line), "{stack}: {text}");
    }
}

#[test]
fn a_service_without_a_sandbox_says_so() {
    let config = |stack, sandbox| Config { stack, sandbox, ..Config::default() };
    let standby = Config { standby: Some("lo".into()), ..config(StackKind::Uml, SandboxSetting::On) };
    for (config, why) in
        [(config(StackKind::Fast, SandboxSetting::Off), "sandbox = \"off\""), (standby, "a standby moves an address")]
    {
        let sandbox = Sandbox::new(&config);
        sandbox.before_threads();
        sandbox.before_clients();
        let line = sandbox.status().line();
        assert!(line.starts_with("OFF; missing: ") && line.contains(why), "{line}");
    }
}
