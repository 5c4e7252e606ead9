//! Reads and writes this machine's settings that are no files, in the calling thread's network namespace.

use crate::cpulist::CpuSet;
use crate::netdev::Napi;
use crate::setting::{Setting, Task, started};
use crate::table::Table;
use crate::{cgroup, ethtool, netdev};
use rustix::process::Pid;
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// The NAPI instances of an interface.
pub fn napis(interface: &str) -> Result<Vec<Napi>> {
    netdev::napis(index(interface)?)
}

fn index(interface: &str) -> Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, interface)?)
}

/// Reads a setting.
pub fn read(setting: &Setting) -> Result<String> {
    match setting {
        Setting::File(path) => fs::read_to_string(path),
        Setting::Table(interface) => ethtool::table(interface).map(|table| table.text(&table.buckets)),
        Setting::NapiThreaded(interface, id) => {
            let threaded = napi(interface, *id)?.threaded.ok_or(ErrorKind::Unsupported)?;
            Ok(u32::from(threaded).to_string())
        }
        Setting::NapiCpus(interface, id) => Ok(affinity(napi_thread(interface, *id)?)?.list()),
        Setting::NapiGroup(interface, id) => group_of(napi_thread(interface, *id)?),
        Setting::Group(folder) => {
            Ok(if Path::new(folder).is_dir() { Setting::PRESENT } else { Setting::ABSENT }.to_owned())
        }
        Setting::Task(task) => Ok(affinity(alive(task)?)?.list()),
    }
}

/// Writes a setting.
pub fn write(setting: &Setting, value: &str) -> Result<()> {
    let wrong = || Error::from(ErrorKind::InvalidInput);
    match setting {
        Setting::File(_) => Err(wrong()),
        Setting::Table(interface) => ethtool::set_table(interface, &Table::parse(value).ok_or_else(wrong)?),
        // The numbers are the machine's, so check that the instance is this interface's.
        Setting::NapiThreaded(interface, id) => netdev::set_threaded(napi(interface, *id)?.id, value != "0"),
        Setting::NapiCpus(interface, id) => {
            let thread = napi_thread(interface, *id)?;
            set_affinity(thread, &CpuSet::of_list(value).ok_or_else(wrong)?)
        }
        Setting::NapiGroup(interface, id) => {
            let folder = cgroup::folder(value).ok_or_else(wrong)?;
            let thread = napi_thread(interface, *id)?.as_raw_nonzero().to_string();
            write_file(&Path::new(&folder).join("cgroup.procs"), &thread)
        }
        Setting::Group(folder) if value == Setting::PRESENT => fs::create_dir(folder),
        Setting::Group(folder) => fs::remove_dir(folder),
        Setting::Task(task) => set_affinity(alive(task)?, &CpuSet::of_list(value).ok_or_else(wrong)?),
    }
}

fn napi(interface: &str, id: u32) -> Result<Napi> {
    napis(interface)?.into_iter().find(|napi| napi.id == id).ok_or_else(|| ErrorKind::NotFound.into())
}

/// The thread of a NAPI instance. The kernel gives its number in the initial PID namespace, and we may be in another.
fn napi_thread(interface: &str, id: u32) -> Result<Pid> {
    let thread = napi(interface, id)?.thread.ok_or(ErrorKind::NotFound)?;
    let named = fs::read_to_string(format!("/proc/{thread}/comm"))?;
    if !named.starts_with("napi/") {
        return Err(ErrorKind::NotFound.into());
    }
    pid(thread)
}

/// The folder of a thread's control group of version 2.
fn group_of(thread: Pid) -> Result<String> {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", thread.as_raw_nonzero()))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or(ErrorKind::NotFound)?;
    let mount = cgroup::MOUNTS.into_iter().find(|mount| Path::new(mount).join("cgroup.controllers").exists());
    let mount = mount.ok_or(ErrorKind::NotFound)?;
    Ok(format!("{mount}{}", group.trim_end_matches('/')))
}

/// The thread's number, if it is still the same thread.
fn alive(task: &Task) -> Result<Pid> {
    let Task { process, thread, started: since } = task;
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat"))?;
    if started(&stat) == Some(*since) { pid(*thread) } else { Err(ErrorKind::NotFound.into()) }
}

fn pid(number: u32) -> Result<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(|| ErrorKind::NotFound.into())
}

/// The CPUs that a thread may run on.
pub fn affinity(of: Pid) -> Result<CpuSet> {
    let mask = sched_getaffinity(Some(of))?;
    Ok(CpuSet((0..Mask::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).map(|cpu| cpu as u32).collect()))
}

/// Restricts a thread to these CPUs.
pub fn set_affinity(of: Pid, cpus: &CpuSet) -> Result<()> {
    let mut mask = Mask::new();
    for cpu in cpus.0.iter().map(|cpu| *cpu as usize) {
        if cpu >= Mask::MAX_CPU {
            return Err(ErrorKind::InvalidInput.into());
        }
        mask.set(cpu);
    }
    Ok(sched_setaffinity(Some(of), &mask)?)
}

/// Writes a value into a file that exists, in one call, as files of the kernel need it.
pub fn write_file(path: &Path, value: &str) -> Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}
