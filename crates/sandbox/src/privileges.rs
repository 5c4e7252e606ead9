//! Capabilities, and `no_new_privs`.

use rustix::io;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// Names of the capabilities that somebody may keep.
const NAMES: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "net_admin"),
    (CapabilitySet::NET_RAW, "net_raw"),
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    (CapabilitySet::BPF, "bpf"),
];

/// Gives up all capabilities but those of `keep`, for this thread and those that it starts later. No program that it
/// starts gets any back. Returns those that are left.
pub fn keep_only(keep: CapabilitySet) -> io::Result<CapabilitySet> {
    thread::set_no_new_privs(true)?;
    let held = thread::capabilities(None)?;
    let left = held.permitted & keep;
    thread::clear_ambient_capability_set()?;
    // This needs CAP_SETPCAP. Who does not have it starts no program that could get more, by `no_new_privs`.
    for capability in CapabilitySet::all().iter() {
        if !left.contains(capability) && thread::capability_is_in_bounding_set(capability).unwrap_or(false) {
            let _ = thread::remove_capability_from_bounding_set(capability);
        }
    }
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    thread::set_capabilities(None, sets)?;
    Ok(left)
}

/// `net_admin, net_raw`, or `none`.
pub fn names(set: CapabilitySet) -> String {
    let named: Vec<&str> = NAMES.iter().filter(|(one, _)| set.contains(*one)).map(|(_, name)| *name).collect();
    if named.is_empty() { "none".into() } else { named.join(", ") }
}

/// May this thread use BPF maps that it holds, without CAP_BPF? Kernels before 5.19 ask for it if
/// `kernel.unprivileged_bpf_disabled` is set.
pub fn maps_need_capability() -> bool {
    let Ok(held) = thread::capabilities(None) else { return true };
    let without = |set: CapabilitySet| set - (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    let lowered = CapabilitySets { effective: without(held.effective), ..held };
    let again = CapabilitySets { effective: held.effective, ..held };
    if thread::set_capabilities(None, lowered).is_err() {
        return true;
    }
    /// `BPF_MAP_LOOKUP_ELEM`.
    const LOOKUP: libc::c_int = 1;
    // The attributes of a look-up: no map, no key, no value, no flags. The first field is not a descriptor.
    let attributes: [u64; 4] = [u64::from(u32::MAX), 0, 0, 0];
    // SAFETY: the kernel reads no more than the given length of `attributes`, and writes nothing without a map.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, LOOKUP, attributes.as_ptr(), size_of_val(&attributes) as libc::c_uint) };
    let refused = result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    let _ = thread::set_capabilities(None, again);
    refused
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_given_up_is_gone_for_this_thread_and_those_that_it_starts() {
        std::thread::spawn(|| {
            let held = thread::capabilities(None).unwrap().permitted;
            let left = keep_only(CapabilitySet::NET_RAW).unwrap();
            assert_eq!(left, held & CapabilitySet::NET_RAW);
            assert!(thread::no_new_privs().unwrap());
            let again = thread::set_capabilities(
                None,
                CapabilitySets { effective: left, permitted: CapabilitySet::NET_ADMIN, inheritable: left },
            );
            assert_eq!(again, Err(io::Errno::PERM));
            let inherited = std::thread::spawn(|| thread::capabilities(None).unwrap().permitted).join().unwrap();
            assert_eq!(inherited, left);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn capabilities_are_as_before_after_the_question_about_maps() {
        let before = thread::capabilities(None).unwrap();
        maps_need_capability();
        assert_eq!(thread::capabilities(None).unwrap(), before);
    }

    #[test]
    fn those_that_are_kept_have_names() {
        assert_eq!(names(CapabilitySet::empty()), "none");
        assert_eq!(names(CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN), "net_admin, net_raw");
    }
}
