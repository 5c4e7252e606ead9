//! `towpath cdi`: a container engine puts Towpath into containers, whose programs are unmodified. Podman runs them.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use towpath_system_tests::{Program, Scratch, Service, bin, require_program, require_root, until};

/// A program in a container with the described device.
fn contained(description: &Path, program: &str) -> Program {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("cdi/run");
    let words: Vec<&str> = program.split_whitespace().collect();
    Program::new(&words).under(&[run.as_os_str(), description.as_os_str()])
}

/// An image that has musl, two programs and nothing else, like Alpine's.
fn musl_image(scratch: &Scratch) -> PathBuf {
    require_program("musl-gcc", "musl-tools");
    let image = scratch.path("image");
    for directory in ["bin", "lib", "etc", "dev", "proc", "sys", "run", "tmp"] {
        std::fs::create_dir_all(image.join(directory)).unwrap();
    }
    std::fs::copy("/lib/ld-musl-x86_64.so.1", image.join("lib/ld-musl-x86_64.so.1")).unwrap();
    for name in ["echo", "chain"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("hooks/{name}.c"));
        let gcc = Program::line("musl-gcc -O1 -pthread -o").arg(image.join(format!("bin/musl-{name}")));
        gcc.arg(source).run(60).ok();
    }
    image
}

/// Podman, and a description of the service's device.
fn described(service: &Service, scratch: &Scratch) -> PathBuf {
    require_root();
    for (program, package) in [("podman", "podman"), ("crun", "crun"), ("unshare", "util-linux")] {
        require_program(program, package);
    }
    generated(service, scratch, "--output")
}

/// A description that is made with this option, the last of which is that with the file.
fn generated(service: &Service, scratch: &Scratch, options: &str) -> PathBuf {
    let file = scratch.path("towpath.json");
    let generate = Program::new(&[bin("towpath")]).arg("cdi").arg("generate").arg("--socket").arg(&service.socket);
    assert_eq!(options.split_whitespace().fold(generate, Program::arg).arg(&file).run(20).ok(), "");
    file
}

#[test]
fn a_container_of_podman_is_accelerated_and_its_root_gives_no_orders() {
    let (service, scratch) = (Service::direct(), Scratch::new("cdi"));
    let file = described(&service, &scratch);
    let mut server =
        contained(&file, "redis-server --port 7300 --save --appendonly no").start(scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 120);
    let listens = |socket: &serde_json::Value| {
        socket["state"] == "LISTEN" && socket["local"].as_str().unwrap().ends_with(":7300")
    };
    until("the stack has the container's listener", 30, || {
        service.sockets()["sockets"].as_array().unwrap().iter().any(listens)
    });
    assert_eq!(service.accelerated("redis-cli -p 7300 set key value").run(60).ok(), "OK\n");
    // The other way round: the client is in a container.
    assert_eq!(contained(&file, "redis-cli -p 7300 get key").run(120).ok(), "value\n");
    let order = format!("{} stop --socket {}", bin("towpath").display(), service.socket.display());
    let refused = contained(&file, &order).run(120);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.err.contains("from a container nobody may"), "{refused:?}");
    // It sees what belongs to its user, as any user does.
    let look = order.replace(" stop ", " sockets -a ");
    assert!(contained(&file, &look).run(120).ok().contains(":7300"));
}

/// The image has no glibc, so the loader runs with the host's. `--require`: nothing of it may be the kernel's.
#[test]
fn programs_of_an_image_with_musl_are_accelerated() {
    let (service, scratch) = (Service::embedded(), Scratch::new("cdi-musl"));
    described(&service, &scratch);
    let (file, image) = (generated(&service, &scratch, "--require --output"), musl_image(&scratch));
    let run = |line: &str| contained(&file, &format!("--image {} {line}", image.display())).run(300);
    // What a program executes comes back to the loader, in children of fork and of vfork.
    for (line, out) in [
        ("/bin/musl-echo threads", "done\n"),
        ("/bin/musl-echo fork", "done\n"),
        ("/bin/musl-chain vfork /bin/musl-echo fork", "musl-chain vfork\ndone\n"),
        (
            "/bin/musl-chain spawn /bin/musl-chain execv /bin/musl-echo fork",
            "musl-chain spawn\nmusl-chain execv\ndone\n",
        ),
    ] {
        let before = service.segments();
        assert_eq!(run(line).ok(), out, "{line}");
        let moved = service.segments() - before;
        assert!(moved >= 30, "{line}: the stack carried only {moved} segments");
    }
    // The policy knows it by its own name.
    let policy = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
    "add deny listen program musl-echo".split(' ').fold(policy, Program::arg).run(20).ok();
    let denied = run("/bin/musl-echo fork");
    assert!(denied.code == 1 && denied.err.contains("Permission denied"), "{denied:?}");
}

#[test]
fn a_users_own_process_namespace_is_a_container_too() {
    let service = Service::direct();
    require_root();
    let order = |words: &str| {
        let towpath = Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(&service.socket);
        let under: Vec<&str> = words.split_whitespace().collect();
        towpath.under(&under).run(60)
    };
    for apart in ["unshare --pid --fork --mount-proc", "unshare --user --map-root-user"] {
        let refused = order(apart);
        assert_eq!(refused.code, 3, "{apart}: {refused:?}");
        assert!(refused.err.contains("from a container nobody may"), "{apart}: {refused:?}");
    }
    // Other namespaces make no container.
    order("unshare --mount --uts --ipc --net").ok();
}

#[test]
fn without_a_service_containers_have_the_kernels_tcp() {
    let (mut service, scratch) = (Service::direct(), Scratch::new("cdi"));
    let file = described(&service, &scratch);
    service.running.stop();
    let script = scratch.path("both.py");
    let text = "import socket\nlistener = socket.create_server(('127.0.0.1', 7301))\nsocket.create_connection(listener.getsockname()).sendall(b'yes')\nprint(listener.accept()[0].recv(3).decode())\n";
    std::fs::write(&script, text).unwrap();
    let line = format!("/usr/bin/python3 {}", script.display());
    assert_eq!(contained(&file, &line).run(120).ok(), "yes\n");
}
