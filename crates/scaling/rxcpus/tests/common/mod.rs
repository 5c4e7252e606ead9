//! A machine made of files.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of this test's own, removed when dropped.
pub struct Files(pub PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Files {
    /// Empty.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-rxcpus-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    /// Writes a file.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    /// Eight CPUs, two threads a core, two caches; `eth0` with the default route, `eth1` with four queues and five
    /// interrupts (one of them cannot be moved), `veth1` with two queues and none.
    pub fn machine() -> Self {
        let files = Self::new();
        files.put("/sys/devices/system/cpu/online", "0-7");
        for cpu in 0..8 {
            let at = format!("/sys/devices/system/cpu/cpu{cpu}");
            files.put(&format!("{at}/topology/thread_siblings_list"), &format!("{},{}", cpu % 4, cpu % 4 + 4));
            for (index, level, shared) in [(0, 1, cpu % 4), (3, 3, cpu % 4 / 2 * 2)] {
                files.put(&format!("{at}/cache/index{index}/level"), &level.to_string());
                files.put(&format!("{at}/cache/index{index}/shared_cpu_list"), &shared.to_string());
            }
            fs::create_dir_all(files.0.join(at.trim_start_matches('/')).join("node0")).unwrap();
        }
        files.put("/proc/sys/kernel/random/boot_id", "boot-1");
        files.put("/proc/net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000");
        files.put("/sys/class/net/lo/queues/rx-0/rps_cpus", "00");
        for (name, queues, irqs) in [("eth0", 1, 30..31), ("eth1", 4, 40..45), ("veth1", 2, 0..0)] {
            for queue in 0..queues {
                files.put(&format!("/sys/class/net/{name}/queues/rx-{queue}/rps_cpus"), "00");
                files.put(&format!("/sys/class/net/{name}/queues/rx-{queue}/rps_flow_cnt"), "4096");
                files.put(&format!("/sys/class/net/{name}/queues/tx-{queue}/xps_cpus"), "ff");
            }
            if !irqs.is_empty() {
                files.put(&format!("/sys/class/net/{name}/device/numa_node"), "-1");
            }
            for irq in irqs {
                files.put(&format!("/sys/class/net/{name}/device/msi_irqs/{irq}"), "msix");
                if irq != 44 {
                    files.put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-7");
                }
            }
        }
        files.put("/sys/fs/cgroup/app/cpuset.cpus", "");
        files
    }
    /// The same machine with everything that can be set. `eth1` has a table of queues, interrupts with known queues
    /// (and one without), and NAPI instances with threads. There is also a process of two threads.
    pub fn complete() -> Self {
        let files = Self::machine();
        files.put("/kernel/rss:eth1", "default");
        files.put("/proc/version", "Linux version 6.18 #1 SMP PREEMPT_DYNAMIC");
        files.put("/sys/class/net/eth1/ifindex", "3");
        files.put("/sys/class/net/eth1/carrier_changes", "1");
        for (irq, name) in
            [(40, "virtio1-config"), (41, "virtio1-input.0"), (42, "virtio1-output.0"), (43, "virtio1-input.1")]
        {
            fs::create_dir_all(files.0.join(format!("proc/irq/{irq}/{name}"))).unwrap();
            files.put(&format!("/sys/kernel/irq/{irq}/per_cpu_count"), "5,0,0,1");
            files.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0");
        }
        for id in 516..520 {
            files.put(&format!("/kernel/napi-threaded:eth1:{id}"), "0");
            files.put(&format!("/kernel/napi-cpus:eth1:{id}"), "0-7");
        }
        (900..902).for_each(|thread| files.born(thread, "0-7"));
        files
    }
    /// A thread of process 900.
    pub fn born(&self, thread: u32, cpus: &str) {
        let rest = (0..30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        self.put(&format!("/proc/900/task/{thread}/stat"), &format!("{thread} (a) b) {rest}"));
        self.put(&format!("/kernel/task:900:{thread}:19"), cpus);
    }
    /// Every file and its text.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        fn walk(at: &Path, into: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(at).unwrap().flatten() {
                if entry.path().is_dir() {
                    walk(&entry.path(), into);
                } else {
                    into.insert(entry.path(), fs::read_to_string(entry.path()).unwrap().trim().to_owned());
                }
            }
        }
        let mut all = BTreeMap::new();
        walk(&self.0, &mut all);
        all
    }
}
