//! The process that keeps a program attached to an interface.

use std::path::Path;

/// The process that holds the link of a program, as far as `/proc` shows it to this one.
pub(crate) fn of_program(proc: &Path, program: u32) -> Option<u32> {
    let processes = std::fs::read_dir(proc).ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| holds(&proc.join(pid.to_string()), program))
}

fn holds(process: &Path, program: u32) -> bool {
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else { return false };
    let is_bpf = |name: &std::path::PathBuf| name.as_os_str().as_encoded_bytes().starts_with(b"anon_inode:bpf");
    descriptors.flatten().any(|descriptor| {
        std::fs::read_link(descriptor.path()).is_ok_and(|name| is_bpf(&name))
            && std::fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()))
                .is_ok_and(|info| is_link_of(&info, program))
    })
}

/// Does the text of a descriptor say that it is an XDP or tcx link of this program?
fn is_link_of(info: &str, program: u32) -> bool {
    let value = |key: &str| {
        let found = info.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == key);
        found.map(|(_, value)| value.trim())
    };
    matches!(value("link_type"), Some("xdp" | "tcx"))
        && value("prog_id").and_then(|id| id.parse().ok()) == Some(program)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    const LINK: &str =
        "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\t0123\nprog_id:\t17\nifindex:\t4\n";

    #[test]
    fn the_holder_of_a_link_is_found_by_the_programs_number() {
        let proc = std::env::temp_dir().join(format!("towpath-link-{}", std::process::id()));
        for (pid, link, info) in [
            ("self", "anon_inode:bpf_link", LINK.to_owned()),
            ("7", "anon_inode:bpf_link", LINK.replace("17", "16")),
            ("8", "anon_inode:bpf_link", LINK.replace("xdp", "cgroup")),
            ("9", "/dev/null", LINK.to_owned()),
            ("10", "anon_inode:bpf_link", LINK.to_owned()),
        ] {
            let process = proc.join(pid);
            std::fs::create_dir_all(process.join("fd")).unwrap();
            std::fs::create_dir_all(process.join("fdinfo")).unwrap();
            symlink(link, process.join("fd/5")).unwrap();
            std::fs::write(process.join("fdinfo/5"), info).unwrap();
        }
        assert_eq!((of_program(&proc, 17), of_program(&proc, 18)), (Some(10), None));
        std::fs::remove_dir_all(&proc).unwrap();
    }
}
