//! The copying routine of AArch64. The program's memory is touched nowhere else, so a fault of an instruction between its labels
//! is a fault of a copy.

use towpath_client::sys::Sys;

core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden towpath_user_copy",
    ".hidden towpath_user_copy_end",
    ".hidden towpath_user_copy_fault",
    ".globl towpath_user_copy",
    ".globl towpath_user_copy_end",
    ".globl towpath_user_copy_fault",
    ".type towpath_user_copy, %function",
    "towpath_user_copy:",
    // Behind the last byte of either side.
    "add x3, x1, x2",
    "add x4, x0, x2",
    "cmp x2, #16",
    "b.lo 3f",
    "cmp x2, #64",
    "b.hi 5f",
    "cmp x2, #32",
    "b.hi 6f",
    "ldr q0, [x1]",
    "ldur q1, [x3, #-16]",
    "str q0, [x0]",
    "stur q1, [x4, #-16]",
    "mov w0, #0",
    "ret",
    "6:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x3, #-32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x4, #-32]",
    "mov w0, #0",
    "ret",
    // More than 64: by 64, and the last 64 once more.
    "5:",
    "sub x5, x3, #64",
    "4:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "add x1, x1, #64",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x0, x0, #64",
    "cmp x1, x5",
    "b.lo 4b",
    "ldp q0, q1, [x5]",
    "ldp q2, q3, [x5, #32]",
    "stp q0, q1, [x4, #-64]",
    "stp q2, q3, [x4, #-32]",
    "mov w0, #0",
    "ret",
    "3:",
    "cmp x2, #8",
    "b.lo 7f",
    "ldr x5, [x1]",
    "ldur x6, [x3, #-8]",
    "str x5, [x0]",
    "stur x6, [x4, #-8]",
    "mov w0, #0",
    "ret",
    "7:",
    "cbz x2, 9f",
    "8:",
    "ldrb w5, [x1], #1",
    "strb w5, [x0], #1",
    "cmp x1, x3",
    "b.ne 8b",
    "9:",
    "mov w0, #0",
    "ret",
    "towpath_user_copy_end:",
    "towpath_user_copy_fault:",
    "mov w0, #1",
    "ret",
    ".size towpath_user_copy, . - towpath_user_copy",
);

unsafe extern "C" {
    // Returns 0, or 1 after a fault. Some bytes may have been copied then. It uses no stack.
    fn towpath_user_copy(to: *mut u8, from: *const u8, count: usize) -> u32;
    fn towpath_user_copy_end();
    fn towpath_user_copy_fault();
}

/// The address at which to continue after a fault of the instruction at this one. `None` = the fault is not of a copy.
pub fn way_out(instruction: usize) -> Option<usize> {
    let (begin, end) = (towpath_user_copy as *const () as usize, towpath_user_copy_end as *const () as usize);
    (begin..end).contains(&instruction).then_some(towpath_user_copy_fault as *const () as usize)
}

/// Copies `count` bytes, of which one side is the program's. EFAULT: some may have been copied.
///
/// # Safety
/// The library's side must have `count` bytes. The program's side may be any address, but no memory that Rust has
/// references to.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) -> Sys<()> {
    // SAFETY: the caller vouches for the library's side, and a fault on the program's side ends the copy. The compiler does not see
    // what the routine does, so it keeps no byte of either side.
    if unsafe { towpath_user_copy(to, from, count) } == 0 { Ok(()) } else { Err(libc::EFAULT) }
}
