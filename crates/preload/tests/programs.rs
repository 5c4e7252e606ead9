//! Unmodified programs under the preloaded library, with the stack without a protocol of `examples/fake-stack.rs`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The path at which cargo has put the library or an example of this build.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let path = profile.join(name);
    assert!(path.exists(), "{} is missing: cargo build -p towpath-preload --lib --examples", path.display());
    path
}

struct Stack {
    process: Child,
    dir: PathBuf,
}

impl Stack {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// A stack whose listeners keep a kernel half.
    fn with_halves(name: &str) -> Self {
        Self::start_with(&format!("{name}-halves"), &["halves"])
    }

    fn start_with(name: &str, options: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("towpath-programs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let socket = dir.join("s");
        let process =
            Command::new(built("examples/fake-stack")).arg(&socket).args(options).spawn().expect("fake-stack");
        let start = Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "the stack does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        // From bind to listen.
        std::thread::sleep(Duration::from_millis(20));
        Self { process, dir }
    }

    /// Runs a Python script under the library. `stack_pid` and `check` are defined for it.
    fn python(&self, script: &str) -> Output {
        let prelude = include_str!("programs/prelude.py");
        let mut command = Command::new("timeout");
        command.args(["90", "python3", "-c"]).arg(format!("{prelude}\n{script}"));
        command.env("LD_PRELOAD", built("libtowpath.so")).env("TOWPATH_SOCKET", self.dir.join("s"));
        command.env("STACK_PID", self.process.id().to_string()).env("TOWPATH_REQUIRE", "1");
        command.stdin(Stdio::null()).output().expect("timeout and python3 (apt-get install coreutils python3)")
    }

    /// Runs a script that must succeed. Returns what it wrote to standard error.
    fn passes(&self, script: &str) -> String {
        let output = self.python(script);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.ends_with("done\n"), "{}\n{out}\n{err}", output.status);
        err.into_owned()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn http_between_threads() {
    Stack::start("http").passes(include_str!("programs/http.py"));
    Stack::with_halves("http").passes(include_str!("programs/http.py"));
}

#[test]
fn a_server_that_forks_and_closes_everything_it_does_not_know() {
    Stack::start("fork").passes(include_str!("programs/fork.py"));
    Stack::with_halves("fork").passes(include_str!("programs/fork.py"));
}

#[test]
fn a_program_that_closes_all_from_a_number_on_and_goes_on() {
    Stack::start("close-range").passes(include_str!("programs/close_range.py"));
    Stack::with_halves("close-range").passes(include_str!("programs/close_range.py"));
}

#[test]
fn event_loops() {
    Stack::start("asyncio").passes(include_str!("programs/asyncio_echo.py"));
    Stack::with_halves("asyncio").passes(include_str!("programs/asyncio_echo.py"));
}

#[test]
fn children_that_only_execute_do_not_disturb() {
    Stack::start("spawn").passes(include_str!("programs/spawn.py"));
    Stack::with_halves("spawn").passes(include_str!("programs/spawn.py"));
}

#[test]
fn nothing_hangs_when_the_service_dies() {
    Stack::start("death").passes(include_str!("programs/death.py"));
    Stack::with_halves("death").passes(include_str!("programs/death.py"));
}

#[test]
fn listeners_go_on_with_their_kernel_half_when_the_service_dies() {
    let errors = Stack::with_halves("survive").passes(include_str!("programs/survive.py"));
    assert_eq!(errors.matches("towpath: the service is gone").count(), 1, "{errors}");
}

#[test]
fn listeners_with_a_kernel_half_are_inherited() {
    Stack::with_halves("inherit").passes(include_str!("programs/inherit.py"));
}

#[test]
fn without_a_service_programs_use_the_kernel_or_fail_as_told() {
    let script = "import socket; l=socket.create_server(('127.0.0.1',0)); print(l.getsockname()[1] > 0)";
    let run = |require: &str| {
        let mut command = Command::new("timeout");
        command.args(["10", "python3", "-c", script]).env("LD_PRELOAD", built("libtowpath.so"));
        command.env("TOWPATH_SOCKET", "/nonexistent/socket").env("TOWPATH_REQUIRE", require);
        command.output().expect("timeout and python3 (apt-get install coreutils python3)")
    };
    assert_eq!(run("0").stdout, b"True\n");
    let output = run("1");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("Network is down"), "{errors}");
    assert_eq!(errors.matches("towpath: no service").count(), 1, "{errors}");
}

/// The functions came with glibc 2.39. A library that stands in for it says what they would start.
#[test]
fn programs_that_are_started_by_a_pidfd_are_hooked() {
    let dir = std::env::temp_dir().join(format!("towpath-pidfd-spawn-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/newer_libc.c");
    let compile = |line: &str| {
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&dir).arg(&source).args(line.split(' '));
        assert!(gcc.status().expect("gcc (apt-get install gcc)").success());
    };
    compile("-DLIBRARY -shared -fPIC -o libnewer.so");
    compile("-o program -L. -lnewer -Wl,-rpath,$ORIGIN");
    let mut command = Command::new(dir.join("program"));
    command.arg("/bin/true").env("LD_PRELOAD", built("libtowpath.so")).env("TOWPATH_HOOK", "inject");
    let output = command.env("TOWPATH_SOCKET", dir.join("s")).output().expect("the program");
    let _ = std::fs::remove_dir_all(&dir);
    let loader = built("towpath-loader").display().to_string();
    let expected = format!("path towpath-loader, {loader}\nname towpath-loader, {loader}\n");
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()), (expected.as_str(), Some(0)));
}
