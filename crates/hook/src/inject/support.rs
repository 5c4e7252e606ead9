//! Tells whether the processor and the kernel of this machine allow injection.

use crate::raw::raw;

/// `AT_HWCAP2`: programs may use the instructions for the FS and GS bases.
pub const HWCAP2_FSGSBASE: u64 = 2;

/// Can programs be injected into on this machine?
pub fn possible() -> Result<(), String> {
    // SAFETY: the call only reads.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err("this processor or kernel has no FSGSBASE".into());
    }
    // An impossible selector gives EFAULT if the kernel has the call, and EINVAL if not. It changes nothing.
    // SAFETY: the kernel refuses the address.
    match unsafe { raw(libc::SYS_prctl, [59, 1, 0, 0, 1 << 63, 0]) } {
        errno if errno == -i64::from(libc::EINVAL) => {
            Err("this kernel has no Syscall User Dispatch (Linux 5.11)".into())
        }
        _ => Ok(()),
    }
}
