//! Any text in the status file or in feedback leads to a page that is safe for a terminal.
#![allow(clippy::unwrap_used)]

use super::cpu_owners::{Known, OwnerTable, Times};
use super::decider_status::{DeciderStatus, RecentDecision};
use super::explanation::{Condition, Explanation, MeanStats, Measured, Resting, TrialStats};
use super::feedback_sources::Said;
use super::metrics::Metrics;
use super::show::Entry;
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use towpath_rxcpus::{CpuSet, Tree};
use towpath_scaling::Reason;

/// A status with all possible fields.
fn whole() -> DeciderStatus {
    let said = Said { source: "redis".into(), throughput: Some(1.0), problem: Some("late".into()), ..Said::default() };
    let entry = Entry {
        time_ms: 1_700_000_000_000,
        tick: 7,
        cores: 1,
        reason: "busy".into(),
        why: "each is busy".into(),
        losses: vec!["dropped".into()],
        latency_us: Some(80.0),
        feedback: vec![said],
        commands: vec!["echo 1".into()],
        ..Entry::default()
    };
    let figures = MeanStats {
        busy: 0.5,
        offered: 9.0,
        pressed: 0.0,
        throughput: Some(1.0),
        latency_us: Some(2.0),
        p99_us: Some(3.0),
    };
    let terms = ["busy-per-core", "pressure", "calm", "busy", "other"].map(|what| Measured {
        what: what.into(),
        seen: 0.5,
        limit: 0.75,
        above: true,
    });
    let condition = Condition {
        reason: "busy".into(),
        to: Some(2),
        terms: terms.into(),
        held: 1,
        needed: 3,
        barred: Some("no".into()),
    };
    let trial = TrialStats {
        from: 1,
        reason: "busy".into(),
        seen: 1,
        needed: 3,
        before: figures.clone(),
        after: Some(figures),
    };
    let explanation = Explanation {
        conditions: vec![condition],
        trial: Some(trial),
        resting: vec![Resting { cores: 2, ticks: 9 }],
        chosen_at: Some(5.0),
        ..Explanation::default()
    };
    DeciderStatus {
        version: 1,
        boot_id: "boot-1".into(),
        pid: 7,
        began: 19,
        mode: "enforce".into(),
        interface: "eth1".into(),
        way: "irq".into(),
        cgroup: Some("/sys/fs/cgroup/app/cpuset.cpus".into()),
        cores: 1,
        reserved: "1".into(),
        drifted: vec!["/proc/irq/4/smp_affinity_list".into()],
        decisions: vec![RecentDecision { ticks: 3, entry }],
        explanation,
        ..DeciderStatus::default()
    }
}

/// Four CPUs, and the process that the status names.
struct Folder(PathBuf);
impl Folder {
    fn new() -> Self {
        let folder = Self(std::env::temp_dir().join(format!("towpath-cores-fuzz-{}", std::process::id())));
        let rest = (0..30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for (path, text) in [
            ("sys/devices/system/cpu/online", "0-3".to_owned()),
            ("proc/stat", "cpu0 1 0 1 9 0 0 0 0\ncpu1 1 0 1 9 0 0 0 0".to_owned()),
            ("proc/7/stat", format!("7 (a) {rest}")),
            ("proc/sys/kernel/random/boot_id", "boot-1".to_owned()),
        ] {
            let path = folder.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The JSON pointers (RFC 6901) of all its values.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(nth, value)| places(value, &format!("{at}/{nth}"), into));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), into)),
        _ => {}
    }
    into.push(at.to_owned());
}

/// Values that replace them.
fn values() -> Vec<Value> {
    let texts = ["", "\u{1b}[2J\n\r", "0-4294967295", "1", "é\u{202e}", "saturated", "fused", "explore", "pressure"];
    let numbers = [u64::MAX, 0, 1, 1 << 32].map(Value::from).into_iter();
    let floats = [-1.0, 1e308, 0.5].map(Value::from).into_iter();
    let others = [Value::Null, Value::Bool(true), Value::Array(Vec::new())].into_iter();
    numbers.chain(floats).chain(others).chain(texts.map(Value::from)).collect()
}

/// Checks that nothing moves the cursor, and that the page has a sensible length.
fn check(page: &str) {
    assert!(page.len() < 100_000, "{} bytes", page.len());
    let moves = page.chars().find(|character| character.is_control() && *character != '\n');
    assert_eq!(moves, None, "{page:?}");
}

#[test]
fn fuzz_state_files() {
    let folder = Folder::new();
    let (tree, file) = (AssertUnwindSafe(Tree::at(&folder.0)), folder.0.join("state"));
    let whole = serde_json::to_value(whole()).unwrap();
    let (values, mut all) = (values(), Vec::new());
    places(&whole, "", &mut all);
    assert!(all.len() > 60, "{}", all.len());
    let before = Times::read(&tree);
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        DeciderStatus::read(&file, &tree, "boot-1")
    };
    assert!(read(&whole.to_string()).unwrap().is_some(), "its writer lives");
    type Bent = (Vec<(u16, u8)>, Option<(u16, char)>);
    bolero::check!().with_type::<Bent>().with_iterations(1_000).for_each(|(bends, noise)| {
        let mut bent = whole.clone();
        for (place, value) in bends.iter().take(4) {
            if let Some(place) = bent.pointer_mut(&all[usize::from(*place) % all.len()]) {
                *place = values[usize::from(*value) % values.len()].clone();
            }
        }
        let mut text: Vec<char> = bent.to_string().chars().collect();
        if let Some((place, character)) = noise {
            text.insert(usize::from(*place) % (text.len() + 1), *character);
        }
        let status = match read(&text.iter().collect::<String>()) {
            Ok(Some(status)) => status,
            Ok(None) => return,
            Err(why) => return check(&why),
        };
        // Services trust exactly the status that is shown.
        let enforced = Some(&status.reserved).filter(|_| status.mode == "enforce");
        let shown = enforced.and_then(|list| CpuSet::of_list(list)).unwrap_or_default();
        assert_eq!(towpath_rxcpus::reserved(&file, &tree), shown);
        let known = Known { status: Some(&status), journal: true, before: &before };
        check(&OwnerTable::read(&tree, &known).text());
        check(&super::explain::page(&status));
        let entry = status.last().cloned().unwrap_or_default();
        let mut metrics = Metrics::new();
        metrics.count(Reason::Busy, &entry);
        for line in metrics.text(&status, &entry).lines() {
            assert!(line.starts_with('#') || line.starts_with("towpath_cores_"), "{line:?}");
        }
    });
}
