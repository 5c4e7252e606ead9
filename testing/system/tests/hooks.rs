//! Two ways to catch a program's calls: a preloaded library, and injection into programs that load none.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use towpath_system_tests::{Program, Scratch, Service, bin, require_program};

/// libc's names of the functions that act on descriptors of sockets, without the variants `__`, `_chk`, `64` and `v2`.
const CALLS: &str = "socket bind listen accept accept4 connect close shutdown getsockname getpeername getsockopt \
    setsockopt fcntl ioctl sockatmark read readv preadv write writev pwritev recv recvfrom recvmsg recvmmsg send sendto \
    sendmsg sendmmsg sendfile splice poll ppoll select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait \
    epoll_pwait2 dup dup2 dup3 close_range closefrom fclose pthread_cancel dprintf \
    vdprintf";
/// These are not caught: with a position they give ESPIPE on every socket, of the library or the kernel.
const POSITIONED: [&str; 4] = ["preadv", "preadv64", "pwritev", "pwritev64"];

/// The public names that a library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    require_program("nm", "binutils");
    let list = Program::line("nm -D --defined-only --with-symbol-versions").arg(library).run(20).ok();
    let names = list.lines().filter_map(|line| line.split_whitespace().nth(2));
    // Names of version GLIBC_PRIVATE are for glibc's own libraries.
    let public = names.filter(|name| !name.ends_with("GLIBC_PRIVATE"));
    public.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

/// A variant's plain name.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('_').trim_end_matches("_chk").replace("64", "");
    match name.as_str() {
        "preadv2" => "preadv".into(),
        "pwritev2" => "pwritev".into(),
        _ => name,
    }
}

#[test]
fn every_name_that_libc_has_for_a_caught_call_is_caught() {
    let libc = std::fs::read_to_string("/proc/self/maps").expect("own maps");
    let libc =
        libc.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.contains("libc.so")));
    let (theirs, ours) = (exported(Path::new(libc.expect("linked with libc"))), exported(&bin("libtowpath.so")));
    let calls: BTreeSet<&str> = CALLS.split_whitespace().collect();
    let wanted: Vec<_> = theirs.iter().filter(|name| calls.contains(plain(name).as_str())).collect();
    assert!(wanted.len() >= 60, "the test no longer understands libc's names: {wanted:?}");
    let missing: Vec<_> =
        wanted.into_iter().filter(|name| !ours.contains(*name) && !POSITIONED.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "libc exports these, and the library does not: {missing:?}");
}

/// The builds of a test program: its name, the compiler's line, and the value of `--hook`.
const BUILDS: [(&str, &str, &str); 5] = [
    ("static", "gcc -static", "auto"),
    ("static-pie", "gcc -static-pie", "auto"),
    ("musl", "musl-gcc -static", "auto"),
    ("musl-dynamic", "musl-gcc", "auto"),
    ("dynamic", "gcc", "inject"),
];

/// Builds one of the programs in `testing/system/hooks`.
fn build(scratch: &Scratch, source: &str, name: &str, compiler: &str) -> PathBuf {
    require_program("gcc", "gcc");
    require_program("musl-gcc", "musl-tools");
    let path = scratch.path(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks").join(source);
    // Libraries come behind what uses them.
    let (compiler, libraries) = compiler.split_once(" -- ").unwrap_or((compiler, ""));
    let line = Program::line(compiler).arg("-O1").arg("-pthread").arg("-o").arg(&path).arg(source);
    libraries.split_whitespace().fold(line, Program::arg).run(60).ok();
    path
}

/// `towpath run` with this `--hook`.
fn hooked(service: &Service, hook: &str, program: &Path, arguments: &str) -> Program {
    let towpath = bin("towpath");
    let prefix = Program::new(&[&towpath]).arg("run").arg("--require").arg("--hook").arg(hook);
    let whole = prefix.arg("--socket").arg(&service.socket).arg("--").arg(program);
    arguments.split_whitespace().fold(whole, Program::arg)
}

/// Runs each build of `echo.c` with one argument. Each time the stack must have carried at least so many segments.
fn echo(argument: &str, segments_min: u64) {
    let (service, scratch) = (Service::embedded(), Scratch::new("hooks"));
    for (name, compiler, hook) in BUILDS {
        let program = build(&scratch, "echo.c", name, compiler);
        let kernel = Program::new(&[&program]).arg(argument).run(60).ok();
        let before = service.segments();
        let out = hooked(&service, hook, &program, argument).run(60);
        assert_eq!((out.code, out.out.as_str()), (0, kernel.as_str()), "{name}: {out:?}");
        let moved = service.segments() - before;
        assert!(moved >= segments_min, "{name}: the stack carried only {moved} segments, expected {segments_min}");
    }
}

#[test]
fn threads_and_signals_in_programs_that_load_no_library() {
    // 4 connections, 100 times 50,000 bytes each way; a segment carries 64 KiB at most.
    echo("threads", 800);
}

#[test]
fn forked_children_of_programs_that_load_no_library() {
    // 20 exchanges. The counters may lag behind by a turn of the worker.
    echo("fork", 30);
}

#[test]
fn handlers_may_leave_interrupted_calls_by_a_jump() {
    echo("jump", 30);
}

#[test]
fn calls_from_code_made_at_run_time() {
    echo("jit", 200);
}

#[test]
fn what_a_program_executes_is_hooked_by_its_own_way() {
    let (service, scratch) = (Service::embedded(), Scratch::new("chain"));
    let static_echo = build(&scratch, "echo.c", "static", "gcc -static");
    let musl_echo = build(&scratch, "echo.c", "musl-dynamic", "musl-gcc");
    let plain_echo = build(&scratch, "echo.c", "dynamic", "gcc");
    for (number, compiler) in ["gcc", "gcc -static", "musl-gcc"].into_iter().enumerate() {
        let chain = build(&scratch, "chain.c", &format!("chain{number}"), compiler);
        let script = scratch.path(&format!("script{number}"));
        let (chain, line) = (chain.display().to_string(), |echo: &Path| format!("{} fork", echo.display()));
        let ways = ["execv", "execl", "execlp", "execle", "execvp", "fexecve", "vfork"];
        let programs = [&static_echo, &musl_echo, &plain_echo];
        let lines = ways.iter().enumerate().map(|(n, way)| format!("{chain} {way} {}\n", line(programs[n % 3])));
        // The last one replaces the script (`exec`).
        let last = format!("exec {chain} spawn {chain} execv {}\n", line(&static_echo));
        let text = ["#!/bin/sh\n".into()].into_iter().chain(lines).chain([last]).collect::<String>();
        std::fs::write(&script, text).expect("script");
        let before = service.segments();
        let out = hooked(&service, "auto", Path::new("/bin/sh"), &script.display().to_string()).run(60);
        let name = format!("chain{number}");
        let expected = ways.map(|way| format!("{name} {way}\ndone\n")).concat();
        let expected = format!("{expected}{name} spawn\n{name} execv\ndone\n");
        assert_eq!((out.code, out.out.as_str()), (0, expected.as_str()), "{out:?}");
        let moved = service.segments() - before;
        assert!(moved >= 8 * 30, "{compiler}: the stack carried only {moved} segments of the eight programs");
    }
}

#[test]
fn the_hook_can_be_chosen_and_is_named() {
    let (service, scratch) = (Service::embedded(), Scratch::new("choice"));
    let program = build(&scratch, "echo.c", "static", "gcc -static");
    let run = |hook: &str, program: &Path| {
        let line = Program::new(&[bin("towpath")]).arg("run").arg("-v").arg("--hook").arg(hook);
        line.arg("--socket").arg(&service.socket).arg("--").arg(program).arg("jit").run(60)
    };
    let out = run("auto", &program);
    assert!(out.code == 0 && out.err.contains("is statically linked: its system calls are hooked (inject)"), "{out:?}");
    let before = service.segments();
    let out = run("preload", &program);
    assert!(out.code == 0 && out.err.contains("it runs on the kernel's TCP"), "{out:?}");
    assert_eq!(service.segments(), before, "the kernel carries all of it");
    let out = run("auto", Path::new("/bin/echo"));
    assert!(out.code == 0 && out.err.contains("is hooked by preload"), "{out:?}");
    assert_eq!(run("nonsense", &program).code, 2);
}

#[test]
fn programs_that_wait_by_system_calls_of_their_own() {
    let (service, scratch) = (Service::embedded(), Scratch::new("own"));
    let library = build(&scratch, "own.c", "libown.so", "gcc -DLIBRARY -shared -fPIC");
    let directory = library.parent().expect("a directory").display().to_string();
    let bundled = format!("gcc -DPROGRAM -Wl,-rpath,$ORIGIN -L{directory} -- -lown");
    for (name, compiler) in [("own", "gcc"), ("slow", "gcc -g -O0 -fno-inline"), ("bundled", &bundled)] {
        let program = build(&scratch, "own.c", name, compiler);
        for way in ["wait", "pwait", "pwait2"] {
            let before = service.segments();
            let out = hooked(&service, "auto", &program, way).run(60);
            assert_eq!((out.code, out.out.as_str()), (0, "done\n"), "{name} {way}: {out:?}");
            let moved = service.segments() - before;
            assert!(moved >= 200, "{name} {way}: the stack carried only {moved} segments");
        }
        // Half of the program is worse than nothing of it.
        let before = service.segments();
        let under = |line: Program| line.arg("run").arg("-v").arg("--hook").arg("preload").arg("--socket");
        let out =
            under(Program::new(&[bin("towpath")])).arg(&service.socket).arg("--").arg(&program).arg("wait").run(60);
        assert!(out.code == 0 && out.err.contains("makes system calls itself"), "{name}: {out:?}");
        let shell = under(Program::new(&[bin("towpath")])).arg(&service.socket).arg("--").arg("/bin/sh").arg("-c");
        let out = shell.arg(format!("{} pwait2; true", program.display())).run(60);
        assert_eq!((out.code, out.out.as_str()), (0, "done\n"), "{name} as a child: {out:?}");
        assert_eq!(service.segments(), before, "{name}: the kernel carries all of it");
    }
}

/// Nobody finds the waits of this program in its text, so it is preloaded into. The library finds them when they hide its
/// events, and has the kernel tell of them.
#[test]
fn programs_whose_own_waits_nobody_finds() {
    let (service, scratch) = (Service::embedded(), Scratch::new("past"));
    let past = build(&scratch, "past.c", "past", "gcc");
    let usual = build(&scratch, "past.c", "usual", "gcc -DLIBC");
    for trigger in ["level", "edge", "oneshot"] {
        for way in ["wait", "pwait", "pwait2"] {
            for (program, expected, warns) in [(&past, "done with a helper\n", true), (&usual, "done\n", false)] {
                let before = service.segments();
                let out = hooked(&service, "auto", program, &format!("{way} {trigger}")).run(60);
                assert_eq!((out.code, out.out.as_str()), (0, expected), "{way} {trigger}: {out:?}");
                assert_eq!(out.err.contains("--hook inject is faster"), warns, "{way} {trigger}: {out:?}");
                let moved = service.segments() - before;
                assert!(moved >= 500, "{way} {trigger}: the stack carried only {moved} segments");
            }
        }
    }
}

#[test]
fn programs_with_code_on_the_stack() {
    let (service, scratch) = (Service::embedded(), Scratch::new("nested"));
    for (name, compiler, hook) in BUILDS {
        let program = build(&scratch, "nested.c", name, compiler);
        assert_eq!(hooked(&service, hook, &program, "").run(60).ok(), "done\n", "{name}");
    }
}

#[test]
fn programs_with_sanitizers() {
    let (service, scratch) = (Service::embedded(), Scratch::new("sanitized"));
    let builds = ["-fsanitize=address", "-fsanitize=leak", "-fsanitize=address -static-libasan"];
    for (number, flags) in builds.into_iter().enumerate() {
        let name = format!("sanitized{number}");
        let program = build(&scratch, "own.c", &name, &format!("gcc -DLIBC {flags}"));
        let before = service.segments();
        assert_eq!(hooked(&service, "auto", &program, "pwait2").run(60).ok(), "done\n", "{flags}");
        let moved = service.segments() - before;
        assert!(moved >= 200, "{flags}: the stack carried only {moved} segments");
        let script = scratch.path(&format!("script{number}"));
        std::fs::write(&script, format!("#!/bin/sh\n{} wait\n", program.display())).expect("script");
        // An injected program executes it: it gets the library back.
        let out = hooked(&service, "inject", Path::new("/bin/sh"), &script.display().to_string()).run(60);
        assert_eq!((out.code, out.out.as_str()), (0, "done\n"), "{flags} as a child: {out:?}");
        // What cannot be hooked has a named reason, and runs.
        let own = build(&scratch, "own.c", &format!("own{number}"), &format!("gcc {flags}"));
        for (hook, program, why) in [
            ("inject", &program, "is built with a sanitizer, so only preload can hook it"),
            ("auto", &own, "makes system calls itself and is built with a sanitizer"),
        ] {
            let line = Program::new(&[bin("towpath")]).arg("run").arg("-v").arg("--hook").arg(hook);
            let out = line.arg("--socket").arg(&service.socket).arg("--").arg(program).arg("wait").run(60);
            assert!(out.code == 0 && out.out == "done\n" && out.err.contains(why), "{flags}: {out:?}");
        }
    }
}

#[test]
#[ignore = "builds Go's standard library: make test-slow"]
fn a_go_server_and_its_clients() {
    require_program("go", "golang-go");
    let (service, scratch) = (Service::embedded(), Scratch::new("go"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/main.go");
    // Without libc and with it.
    for cgo in ["0", "1"] {
        let program = scratch.path(&format!("go{cgo}"));
        Program::line("go build -o").arg(&program).arg(&source).env("CGO_ENABLED", cgo).run(600).ok();
        for round in 0..5 {
            let before = service.segments();
            let out = hooked(&service, "auto", &program, "").run(60).ok();
            let own = program.display();
            let expected = format!("child\n{own}\ndial tcp 127.0.0.1:1: connect: connection refused\ndone\n");
            assert_eq!(out, expected, "cgo {cgo}, round {round}");
            // 400 bodies of 100,000 bytes, and their answers.
            let moved = service.segments() - before;
            assert!(moved >= 1200, "cgo {cgo}: the stack carried only {moved} segments");
        }
    }
}

#[test]
fn a_policy_knows_an_injected_program_by_its_own_name() {
    let (service, scratch) = (Service::embedded(), Scratch::new("named"));
    let program = build(&scratch, "echo.c", "named", "gcc -static");
    let policy = |line: &str| {
        let command = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
        line.split_whitespace().fold(command, Program::arg).run(20).ok()
    };
    hooked(&service, "auto", &program, "jit").run(60).ok();
    policy(&format!("add deny listen program {}", program.display()));
    let out = hooked(&service, "auto", &program, "jit").run(60);
    assert!(out.code == 1 && out.err.contains("Permission denied"), "{out:?}");
    policy("flush");
    policy("add deny listen program towpath-loader");
    hooked(&service, "auto", &program, "jit").run(60).ok();
}
