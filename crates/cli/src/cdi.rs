//! `towpath cdi`: describes Towpath to container engines (Container Device Interface), which put it into containers.

mod glibc;

use crate::{complain, exit, fail, print, run};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use towpath_hook::exec;
use towpath_service::paths::{SOCKET_VARIABLE, SYSTEM_SOCKET};

/// What the devices are, for engines: `podman run --device KIND=NAME`.
const KIND: &str = "towpath.io/stack";
/// The oldest version of the specification that has all that is used here.
const VERSION: &str = "0.3.0";
/// The device of the machine's service.
const FAST: &str = "fast";
/// Directories with sockets of others, which no container is to have.
const SHARED: [&str; 6] = ["/", "/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm"];
/// What an installation has beside the library, and nothing else. Containers have no use for the last.
const INSTALLED: [&str; 4] = ["libtowpath.so", exec::START, exec::LOADER, "libtowpath_uml.so"];

/// Files of glibc by their names.
type Glibc = BTreeMap<String, PathBuf>;

/// Describe Towpath to container engines, which then run unmodified images on it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath cdi generate --output /etc/cdi/towpath.json
  podman run --device towpath.io/stack=fast docker.io/library/redis
  towpath cdi generate --stack blue=/run/towpath/kernel-blue.sock    also a device towpath.io/stack=blue

An engine with the Container Device Interface (Podman 4.1, containerd 1.7, Docker 28, CRI-O) reads the files in /etc/cdi. Images
may have glibc or musl (Alpine). See docs/guide/containers.md.")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print the description, or write it to a file
    #[command(after_help = "Examples:
  towpath cdi generate --output /etc/cdi/towpath.json
  towpath cdi generate --copy /opt/towpath/lib --output /etc/cdi/towpath.json    from the service's image, for its host
  towpath cdi generate --require --output /etc/cdi/towpath.json    connections fail rather than use the kernel's TCP

A device gives a container the library, the directory of the service's socket, and the variables that load the library into each
program. The service's `admit` says which users it serves; a container's root is root to it. The service gives a
container's root no orders, unless the container has the host's process namespace (`--pid host`).")]
    Generate(Generate),
}

/// Arguments of `towpath cdi generate`.
#[derive(clap::Args)]
struct Generate {
    /// The registration socket of the machine's service; containers see its directory
    #[arg(long, value_name = "PATH", default_value = SYSTEM_SOCKET)]
    socket: PathBuf,
    /// One more device, for a stack with a network of its own and the socket at PATH. Its programs never have another network
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    stack: Vec<(String, PathBuf)>,
    /// Programs fail rather than use the kernel's TCP
    #[arg(long)]
    require: bool,
    /// Copy the library, the loader and a glibc for it to DIRECTORY and DIRECTORY-glibc, and describe them there: for a service
    /// that is in a container itself
    #[arg(long, value_name = "DIRECTORY")]
    copy: Option<PathBuf>,
    /// The file, such as /etc/cdi/towpath.json; without it the description is printed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The name of a device, as the specification allows it, and a socket.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) =
        text.split_once('=').ok_or("name a device and its socket, like blue=/run/towpath/kernel-blue.sock")?;
    let inner = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if !name.chars().all(inner) || !ends(name.chars().next()) || !ends(name.chars().next_back()) {
        return Err(format!("{name:?} cannot be the name of a device; it has letters, digits and _ - . : within"));
    }
    if name == FAST {
        return Err(format!("{FAST} is the machine's service; name its socket with --socket"));
    }
    Ok((name.to_owned(), path.into()))
}

/// Runs it.
pub fn run(arguments: &Arguments) -> ExitCode {
    let Action::Generate(generate) = &arguments.action;
    let text = run::library().and_then(|library| description(generate, &library));
    let written = text.and_then(|text| match &generate.output {
        None => Ok(text),
        Some(file) => write(file, &text)
            .map(|()| String::new())
            .map_err(|error| format!("{}: {error}; make its directory, or name another file", file.display())),
    });
    match written {
        Ok(text) => print(&text),
        Err(why) => fail(&why, false, exit::FAILED),
    }
}

/// The description of all devices.
fn description(generate: &Generate, library: &Path) -> Result<String, String> {
    let mut glibc = of_loader(library).unwrap_or_else(|why| {
        complain(&format!("programs with musl are to run on the kernel's TCP: {why}"));
        BTreeMap::new()
    });
    let mut library = library.to_owned();
    if let Some(directory) = &generate.copy {
        library = copied(&library, &mut glibc, directory)?;
    }
    let library = &library;
    let device = |name, socket, require| device(name, socket, require, library, &glibc);
    let mut devices = vec![device(FAST, &generate.socket, generate.require)?];
    for (name, socket) in &generate.stack {
        if devices.iter().any(|device| device["name"] == name.as_str()) {
            return Err(format!("two devices have the name {name}"));
        }
        devices.push(device(name, socket, true)?);
    }
    let all = json!({ "cdiVersion": VERSION, "kind": KIND, "devices": devices });
    serde_json::to_string_pretty(&all).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// One device: what a container gets, and the variables of its programs.
fn device(name: &str, socket: &Path, require: bool, library: &Path, of_glibc: &Glibc) -> Result<Value, String> {
    let plain = |component: Component<'_>| matches!(component, Component::RootDir | Component::Normal(_));
    let absolute = |path: &Path| path.is_absolute() && path.to_str().is_some() && path.components().all(plain);
    let directory = socket.parent().filter(|_| absolute(socket));
    let directory = directory.filter(|directory| !SHARED.iter().any(|shared| *directory == Path::new(shared)));
    let directory = directory.ok_or_else(|| {
        format!("{}: name the whole path of a socket that has a directory of its own", socket.display())
    })?;
    let mut variables = vec![
        format!("LD_PRELOAD={}", preloaded(library).display()),
        format!("{SOCKET_VARIABLE}={}", socket.display()),
        format!("{}=auto", exec::VARIABLE),
    ];
    if require {
        variables.push("TOWPATH_REQUIRE=1".to_owned());
    }
    // The directory, because a service that begins again makes another socket.
    let mut mounts = vec![mount(directory, directory)];
    mounts.extend(of_library(library).iter().map(|path| mount(path, path)));
    mounts.extend(of_glibc.iter().map(|(name, path)| mount(path, &beside(library).join(name))));
    Ok(json!({ "name": name, "containerEdits": { "env": variables, "mounts": mounts } }))
}

/// What brings the library: its directory if it has nothing else, so that an upgrade reaches the containers' next programs.
fn of_library(library: &Path) -> Vec<PathBuf> {
    let Some(directory) = library.parent() else { return vec![library.to_owned()] };
    let names = || fs::read_dir(directory).ok()?.map(|entry| Some(entry.ok()?.file_name())).collect::<Option<Vec<_>>>();
    if names().is_some_and(|names| names.iter().all(|name| INSTALLED.iter().any(|ours| name == ours))) {
        return vec![directory.to_owned()];
    }
    INSTALLED[..3].iter().map(|name| directory.join(name)).filter(|path| path.exists()).collect()
}

/// What each program of a container loads. Programs of every libc can load the library that begins, where it is installed.
fn preloaded(library: &Path) -> PathBuf {
    let start = library.with_file_name(exec::START);
    if start.exists() { start } else { library.to_owned() }
}

/// The glibc with which the loader runs in containers, or why it cannot.
fn of_loader(library: &Path) -> Result<Glibc, String> {
    let loader = library.with_file_name(exec::LOADER);
    if preloaded(library) == library || !loader.exists() {
        return Err(format!("{} and {} are not beside {}", exec::START, exec::LOADER, library.display()));
    }
    glibc::files(&[library.to_owned(), loader])
}

/// Where containers have that glibc: where `libtowpath_start.so` looks for it. Beside the library's directory, which may be
/// read-only there.
fn beside(library: &Path) -> PathBuf {
    let mut directory = library.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
    directory.push("-glibc");
    directory.into()
}

/// Copies all that containers load to a directory, and glibc to that beside it. What glibc's files are then is changed, too.
fn copied(library: &Path, glibc: &mut Glibc, directory: &Path) -> Result<PathBuf, String> {
    if !directory.is_absolute() || directory.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(format!("{}: name a whole path without spaces and colons", directory.display()));
    }
    let copy = |from: &Path, to: &Path| {
        // Programs that run keep the file that they have loaded.
        let new = to.with_extension("new");
        let done = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(from, &new));
        let done = done.and_then(|_| fs::rename(&new, to));
        done.map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
    };
    let new = directory.join("libtowpath.so");
    for name in &INSTALLED[1..3] {
        let from = library.with_file_name(name);
        if from.exists() {
            copy(&from, &directory.join(name))?;
        }
    }
    copy(library, &new)?;
    for (name, path) in glibc {
        let to = beside(&new).join(name);
        copy(path, &to)?;
        *path = to;
    }
    Ok(new)
}

/// Nobody writes through it; a socket can be connected to all the same.
fn mount(from: &Path, to: &Path) -> Value {
    let options = ["rbind", "ro", "nosuid", "nodev"];
    json!({ "hostPath": from, "containerPath": to, "options": options })
}

/// Writes the file as a whole: engines may read it at any time.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(stack: &[&str]) -> Generate {
        let stack = stack.iter().map(|text| named(text).unwrap()).collect();
        Generate { socket: SYSTEM_SOCKET.into(), stack, require: false, copy: None, output: None }
    }

    #[test]
    fn each_stack_is_a_device_and_only_the_services_may_be_the_kernels() {
        let library = Path::new("/usr/lib/none/libtowpath.so");
        let text = description(&asked(&["blue=/run/blue/blue.sock"]), library).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&all["kind"], &all["devices"][0]["name"]), (&json!(KIND), &json!("fast")));
        let variables = |number: usize| all["devices"][number]["containerEdits"]["env"].as_array().unwrap().clone();
        assert!(variables(0).contains(&json!("TOWPATH_SOCKET=/run/towpath/towpath.sock")));
        assert!(variables(0).contains(&json!("LD_PRELOAD=/usr/lib/none/libtowpath.so")));
        assert!(
            !variables(0).contains(&json!("TOWPATH_REQUIRE=1")) && variables(1).contains(&json!("TOWPATH_REQUIRE=1"))
        );
        assert_eq!(all["devices"][1]["containerEdits"]["mounts"][0]["hostPath"], "/run/blue");
    }

    #[test]
    fn what_cannot_be_a_device_is_refused() {
        for text in ["blue", "=/run/x.sock", "-blue=/run/x.sock", "b lue=/run/x.sock", "fast=/run/x.sock"] {
            assert!(named(text).is_err(), "{text}");
        }
        let library = Path::new("/usr/lib/none/libtowpath.so");
        let twice = description(&asked(&["blue=/run/a/x.sock", "blue=/run/b/x.sock"]), library).unwrap_err();
        assert_eq!(twice, "two devices have the name blue");
        for socket in ["towpath.sock", "/towpath.sock", "/run/towpath.sock", "/tmp/t.sock", "/run/towpath/../t.sock"] {
            let why = device(FAST, Path::new(socket), false, library, &Glibc::new()).unwrap_err();
            assert!(why.contains("directory of its own"), "{why}");
        }
    }

    #[test]
    fn programs_with_musl_get_the_loader_and_a_glibc_to_run_it() {
        let scratch = std::env::temp_dir().join(format!("towpath-cdi-musl-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let library = scratch.join("libtowpath.so");
        for name in INSTALLED {
            fs::copy(std::env::current_exe().unwrap(), scratch.join(name)).unwrap();
        }
        let all: Value = serde_json::from_str(&description(&asked(&[]), &library).unwrap()).unwrap();
        let edits = &all["devices"][0]["containerEdits"];
        let variable = format!("LD_PRELOAD={}/libtowpath_start.so", scratch.display());
        assert!(edits["env"].as_array().unwrap().contains(&json!(variable)), "{edits}");
        let inside: Vec<_> = edits["mounts"].as_array().unwrap().iter().map(|mount| &mount["containerPath"]).collect();
        for name in ["ld-linux-x86-64.so.2", "libc.so.6"] {
            let path = json!(format!("{}-glibc/{name}", scratch.display()));
            assert!(inside.contains(&&path), "{path}: {inside:?}");
        }
        // Of copies nothing is where it was.
        let place = scratch.join("copy/lib");
        let copied = Generate { copy: Some(place.clone()), ..asked(&[]) };
        let text = description(&copied, &library).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        let mounts = all["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
        for mount in mounts.iter().skip(1) {
            assert!(mount["hostPath"].as_str().unwrap().starts_with(place.to_str().unwrap()), "{text}");
            assert!(Path::new(mount["hostPath"].as_str().unwrap()).exists(), "{text}");
        }
        assert!(mounts.len() >= 4 && place.join("towpath-loader").exists() && text.contains("lib-glibc/libc.so.6"));
        assert!(
            description(&Generate { copy: Some("a".into()), ..asked(&[]) }, &library).unwrap_err().contains("whole")
        );
        fs::remove_file(scratch.join("towpath-loader")).unwrap();
        assert!(of_loader(&library).unwrap_err().contains("are not beside"));
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_library_among_other_files_comes_alone() {
        let scratch = std::env::temp_dir().join(format!("towpath-cdi-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let library = scratch.join("libtowpath.so");
        for name in INSTALLED {
            fs::write(scratch.join(name), "").unwrap();
        }
        assert_eq!(of_library(&library), std::slice::from_ref(&scratch));
        fs::write(scratch.join("towpath"), "").unwrap();
        let needed = ["libtowpath.so", "libtowpath_start.so", "towpath-loader"].map(|name| scratch.join(name));
        assert_eq!(of_library(&library), needed);
        fs::remove_dir_all(&scratch).unwrap();
    }
}
