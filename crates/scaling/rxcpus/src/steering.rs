//! The knobs that bring packets to reserved CPUs, for each way.

use crate::cpulist::CpuSet;
use crate::knob::Knob;
use crate::machine::Interface;
use crate::partition::Partition;
use crate::setting::Setting;
use crate::steering_way::SteeringWay;
use towpath_scaling::{counted, rebalance};

/// A network device whose packets are steered, and the control group for threads that poll it.
pub struct Steering<'a> {
    /// The device.
    pub interface: &'a Interface,
    /// See [`Steering`].
    pub partition: Option<&'a Partition>,
}

impl Steering<'_> {
    /// Brings packets to these CPUs.
    pub fn to(&self, way: SteeringWay, cpus: &[u32]) -> Vec<Knob> {
        let interrupts = matches!(way, SteeringWay::Rss | SteeringWay::Irq | SteeringWay::IrqRps);
        let mut knobs = Vec::new();
        // A queue's interrupt goes to its CPU before packets go to the queue.
        if interrupts {
            knobs.extend(self.interrupts(cpus));
        }
        if way == SteeringWay::Rss {
            knobs.extend(self.shares(cpus.len() as u32));
        }
        if way == SteeringWay::Threads {
            knobs.extend(self.pollers(cpus));
        }
        if self.interface.rps {
            knobs.extend(self.software(way, cpus));
        }
        knobs
    }

    /// Sends each interrupt to a CPU. A queue's interrupts for receiving and for sending go to the same one.
    fn interrupts(&self, cpus: &[u32]) -> Vec<Knob> {
        let device = self.interface;
        let queues = device.receive_queues.max(device.transmit_queues);
        let queue = |irq: &u32| device.queue_of.get(irq).copied().filter(|queue| *queue < queues);
        let known = device.irqs.iter().any(|irq| queue(irq).is_some());
        let mut knobs = Vec::new();
        for (place, irq) in device.irqs.iter().enumerate() {
            // If queues are known, an interrupt without one brings no packets.
            let Some(place) = (if known { queue(irq).map(|queue| queue as usize) } else { Some(place) }) else {
                continue;
            };
            let cpu = cpus[place % cpus.len()];
            let why = format!("{} interrupts CPU {cpu}", device.name);
            knobs.push(Knob::new(format!("/proc/irq/{irq}/smp_affinity_list"), cpu.to_string(), why));
        }
        knobs
    }

    /// The device's table, with as few buckets moved as possible.
    fn shares(&self, queues: u32) -> Option<Knob> {
        let device = self.interface;
        let table = device.table.as_ref()?;
        let after = rebalance(&table.buckets, queues)?;
        let moved = table.buckets.iter().zip(&after).filter(|(now, then)| now != then).count();
        let why = format!("packets come by {}; {moved} of {} buckets move", counted(queues, "queue"), after.len());
        Some(Knob::new(Setting::Table(device.name.clone()).to_string(), table.text(&after), why))
    }

    /// Has threads poll the device, each on its CPU.
    fn pollers(&self, cpus: &[u32]) -> Vec<Knob> {
        let device = self.interface;
        let mut knobs = Vec::new();
        let why = format!("{} is polled by threads", device.name);
        if device.napis.iter().any(|napi| napi.threaded.is_none()) {
            knobs.push(Knob::new(format!("/sys/class/net/{}/threaded", device.name), "1".into(), why.clone()));
        }
        for (place, napi) in device.napis.iter().enumerate() {
            if napi.threaded.is_some() {
                let name = Setting::NapiThreaded(device.name.clone(), napi.id).to_string();
                knobs.push(Knob::new(name, "1".into(), why.clone()));
            }
            let cpu = cpus[napi.queue.map_or(place, |queue| queue as usize) % cpus.len()];
            let name = Setting::NapiCpus(device.name.clone(), napi.id).to_string();
            knobs.push(Knob::new(name, cpu.to_string(), format!("that thread has CPU {cpu}")));
            if let Some(partition) = self.partition {
                let name = Setting::NapiGroup(device.name.clone(), napi.id).to_string();
                knobs.push(Knob::new(name, partition.folder().to_owned(), "no other thread may be there"));
            }
        }
        knobs
    }

    /// Steering in software (RPS). It is off unless the way needs it: it would only move packets a second time.
    fn software(&self, way: SteeringWay, cpus: &[u32]) -> Vec<Knob> {
        let name = &self.interface.name;
        let reserved = CpuSet(cpus.iter().copied().collect());
        let (mask, why) = match way {
            SteeringWay::Rps | SteeringWay::IrqRps => {
                (reserved.mask(), format!("packets of {name} are received on {}", reserved.named()))
            }
            _ => (CpuSet::default().mask(), format!("packets of {name} stay where they arrive")),
        };
        let queue = |queue: u32, file: &str| format!("/sys/class/net/{name}/queues/rx-{queue}/{file}");
        let both = |number| {
            // RFS moves packets to the applications' CPUs, which is the opposite.
            let follow = Knob::new(queue(number, "rps_flow_cnt"), "0".into(), "packets do not follow applications");
            [Knob::new(queue(number, "rps_cpus"), mask.clone(), why.clone()), follow]
        };
        (0..self.interface.receive_queues).flat_map(both).collect()
    }

    /// Send queues (XPS): each serves some of the CPUs, so that senders wait for each other as little as possible.
    pub fn sending(&self, applications: &CpuSet, reserved: &CpuSet) -> Vec<Knob> {
        let queues = self.interface.transmit_queues;
        if queues < 2 {
            return Vec::new();
        }
        let cpus: Vec<u32> = applications.0.iter().chain(&reserved.0).copied().collect();
        let share = |queue: u32| CpuSet(cpus.iter().skip(queue as usize).step_by(queues as usize).copied().collect());
        let knob = |queue: u32| {
            let path = format!("/sys/class/net/{}/queues/tx-{queue}/xps_cpus", self.interface.name);
            Knob::new(path, share(queue).mask(), format!("{} send by queue {queue}", share(queue).named()))
        };
        (0..queues).filter(|queue| !share(*queue).is_empty()).map(knob).collect()
    }
}
