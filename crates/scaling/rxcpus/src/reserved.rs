//! The CPUs that a running `towpath cores enforce` has reserved, for those who must keep off them.

use crate::cpulist::CpuSet;
use crate::own::own_text;
use crate::tree::Tree;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Version of the format of its status file.
pub const STATE_VERSION: u32 = 1;
/// Most bytes of that file that are read.
pub const MOST_STATE_BYTES: u64 = 1 << 20;

/// The fields of the status file that are needed here.
#[derive(Deserialize)]
struct EnforcerState {
    version: u32,
    boot_id: String,
    pid: u32,
    began: u64,
    mode: String,
    reserved: String,
}

/// The path of the journal.
pub fn journal_place() -> PathBuf {
    // The variable is for tests: only root can enforce.
    std::env::var_os("TOWPATH_CORES_JOURNAL").map_or_else(|| PathBuf::from("/run/towpath/cores.journal"), PathBuf::from)
}

/// The path of the status file, beside the journal.
pub fn state_place() -> PathBuf {
    journal_place().with_extension("state")
}

/// When a process began, in ticks after the boot (proc_pid_stat(5), field 22). `None`: there is no such process, or it
/// is a zombie.
pub fn began(tree: &Tree, pid: u32) -> Option<u64> {
    let stat = tree.text(&format!("/proc/{pid}/stat"))?;
    // The name may contain spaces and brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ended = matches!(fields.first(), Some(&("Z" | "X")));
    fields.get(19).filter(|_| !ended)?.parse().ok()
}

/// The CPUs that are reserved now, by the status file at this path. Empty unless its writer is alive and the file can
/// be trusted.
pub fn reserved(place: &Path, tree: &Tree) -> CpuSet {
    let text = own_text(place, MOST_STATE_BYTES).ok().flatten();
    let state = text.and_then(|text| serde_json::from_str::<EnforcerState>(&text).ok());
    let enforced = state.filter(|state| state.version == STATE_VERSION && state.mode == "enforce");
    let lives = |state: &EnforcerState| {
        let boot_id = tree.text("/proc/sys/kernel/random/boot_id");
        boot_id.as_ref() == Some(&state.boot_id) && began(tree, state.pid) == Some(state.began)
    };
    enforced.filter(lives).and_then(|state| CpuSet::of_list(&state.reserved)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn cpus_are_reserved_by_who_enforces_and_lives() {
        let root = std::env::temp_dir().join(format!("towpath-reserved-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/random/boot_id", "boot-1\n");
        put("proc/77/stat", &format!("77 (tow) path) S {} 4321 0", "0 ".repeat(17)));
        let tree = Tree::at(&root);
        assert_eq!(began(&tree, 77), Some(0), "that is the one after it");
        put("proc/77/stat", &format!("77 (tow) path) S {} 4321 0", "0 ".repeat(18)));
        let place = root.join("cores.state");
        let said = |from: &str, to: &str| {
            let state = r#"{"version":1,"boot_id":"boot-1","pid":77,"began":4321,"time_ms":5,"mode":"enforce","reserved":"2-3"}"#;
            fs::write(&place, state.replace(from, to)).unwrap();
            reserved(&place, &tree).list()
        };
        assert_eq!(said("", ""), "2-3");
        for (from, to) in [
            ("enforce", "observe"),
            ("boot-1", "boot-0"),
            (":77", ":78"),
            ("4321", "4322"),
            ("n\":1", "n\":2"),
            ("2-3", "3-2"),
            ("}", ""),
        ] {
            assert_eq!(said(from, to), "", "{from} {to}");
        }
        fs::remove_file(&place).unwrap();
        assert_eq!(reserved(&place, &tree), CpuSet::default());
        fs::remove_dir_all(&root).unwrap();
    }
}
