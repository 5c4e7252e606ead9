//! What is known of accesses to memory.

use cranelift_codegen::ir::MemFlagsData;

/// Accesses of programs: not aligned, and never a fault.
pub(crate) const ACCESS: MemFlagsData = MemFlagsData::new().with_notrap();
/// What does not change while a program runs.
pub(crate) const FIXED: MemFlagsData = MemFlagsData::trusted().with_readonly().with_can_move();
