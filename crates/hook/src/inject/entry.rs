//! The switch from the program into the library and back. Nothing here may touch the program's stack, thread-local
//! storage or vector registers, and a signal between any two instructions must be harmless.
//!
//! A system call of the program arrives here with its registers unchanged, but for RCX. That has the return address,
//! and the instruction clobbers it anyway. The GS base points at the thread's [`Block`]. The stack is switched at once
//! to the library's. Calls that are not caught are made from there. All others go to [`dispatch`](super::dispatch) with
//! the library's FS base (its thread-local storage), with the vector registers saved, and with the thread's selector on
//! ALLOW.

use super::block::Block;
use crate::by_number::NUMBERS;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, AtomicUsize};

/// The program's registers at a system call, in their order on the library's stack.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Frame {
    pub fs: u64,
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r9: u64,
    pub r8: u64,
    pub r10: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the call, and afterwards its result.
    pub rax: u64,
    /// The address at which the program goes on.
    pub rip: u64,
    pub rsp: u64,
}

const _: () = assert!(size_of::<Frame>() == 128);

impl Frame {
    /// The call's arguments.
    pub fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }
}

/// The most stack that a signal handler of the program uses.
const HANDLER_STACK: usize = 1 << 20;
/// What is left to it of the library's stack, if it runs there.
const HANDLER_SHARE: usize = 128 << 10;
/// 1 for system calls that go to [`dispatch`](super::dispatch).
pub static CAUGHT: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];
/// `extern "C" fn(&mut Frame) -> u64`, which carries out those calls.
pub static DISPATCH: AtomicUsize = AtomicUsize::new(0);
/// `extern "C" fn() -> *const Frame`, which the child of a vfork calls first.
pub static CHILD_OF_VFORK: AtomicUsize = AtomicUsize::new(0);
/// Signals are numbered from 1.
pub const SIGNALS: usize = 65;
/// The program's handler of each signal.
pub static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// The state components that are saved: x87, SSE, AVX and AVX-512, if this machine has them.
pub static COMPONENTS: AtomicUsize = AtomicUsize::new(0);
/// Does this machine have XSAVEC?
pub static COMPACT: AtomicU8 = AtomicU8::new(0);

/// The components that `COMPONENTS` may name. The library never changes others (PKRU, AMX tiles).
pub const VECTOR_COMPONENTS: usize = 0xe7;

unsafe extern "C" {
    /// The beginning of the code whose system calls are always let through.
    pub static towpath_code_begin: u8;
    /// The end of that code.
    pub static towpath_code_end: u8;
    /// The entry of the program's system calls.
    pub static towpath_entry: u8;
    /// The kernel's handler for all signals that the program handles.
    pub static towpath_signal: u8;
    /// The code to which signal handlers return.
    pub static towpath_restorer: u8;
    /// Becomes the program with the registers of `frame`, on this thread. `stack` is its library stack; 0 = the present
    /// one. Returns when the thread's last system call is [`towpath_leave_thread`].
    pub fn towpath_launch(frame: *const Frame, stack: u64);
    /// Makes the thread's `towpath_launch` return.
    pub fn towpath_leave_thread() -> !;
    /// `rt_sigreturn` with a frame at `rsp` that the program has made.
    pub fn towpath_sigreturn(rsp: u64) -> !;
    /// A `clone` whose child shares this memory and runs first. `call` has the number and six arguments.
    pub fn towpath_vfork(call: *const [u64; 7]) -> i64;
}

/// Goes on at the entry if the handler above this frame still runs. Its label numbers may be used again behind it.
macro_rules! enter_if_running {
    ($frame:literal) => {
        concat!(
            "mov %gs:{",
            $frame,
            "}, %r11\n",
            "cmp %gs:{stack_low}, %r11\n",
            "jb 21f\n",
            "cmp %gs:{stack_high}, %r11\n",
            "ja 21f\n",
            "cmp %gs:{stack_low}, %rsp\n",
            "jb 22f\n",
            "cmp %r11, %rsp\n",
            "jbe 19b\n",
            "jmp 22f\n",
            "21:\n",
            "sub %rsp, %r11\n",
            "cmp ${handler_stack}, %r11\n",
            "jbe 19b\n",
            "22:",
        )
    };
}

global_asm!(
    ".pushsection .text.towpath_entry,\"ax\",@progbits",
    ".p2align 6",
    ".globl towpath_code_begin, towpath_code_end, towpath_entry, towpath_signal, towpath_restorer",
    ".globl towpath_launch, towpath_leave_thread, towpath_sigreturn, towpath_vfork",
    ".hidden towpath_code_begin, towpath_code_end, towpath_entry, towpath_signal, towpath_restorer",
    ".hidden towpath_launch, towpath_leave_thread, towpath_sigreturn, towpath_vfork",
    "towpath_code_begin:",
    //
    "towpath_entry:",
    "cmpq $0, %gs:{outer}",
    "jne 20f",
    "19:",
    "mov %rsp, %r11",
    "mov %gs:{top}, %rsp",
    "push %r11",
    "push %rcx",
    "cmp ${numbers}, %rax",
    "jae 1f",
    "lea {caught}(%rip), %rcx",
    "cmpb $0, (%rcx,%rax)",
    "jne 2f",
    "1:",
    "syscall",
    "pop %rcx",
    "pop %rsp",
    "jmp *%rcx",
    "2:",
    "push %rax",
    "push %rdi",
    "push %rsi",
    "push %rdx",
    "push %r10",
    "push %r8",
    "push %r9",
    "push %rbx",
    "push %rbp",
    "push %r12",
    "push %r13",
    "push %r14",
    "push %r15",
    "rdfsbase %rcx",
    "push %rcx",
    "mov %rcx, %gs:{program_fs}",
    "mov %rsp, %rbx",
    "movb $0, %gs:{selector}",
    "mov %gs:{library_fs}, %rcx",
    "wrfsbase %rcx",
    "sub $2816, %rsp",
    "and $-64, %rsp",
    // The header must be zero where the save does not write it.
    "xor %eax, %eax",
    "mov %rax, 512(%rsp)",
    "mov %rax, 520(%rsp)",
    "mov %rax, 528(%rsp)",
    "mov %rax, 536(%rsp)",
    "mov %rax, 544(%rsp)",
    "mov %rax, 552(%rsp)",
    "mov %rax, 560(%rsp)",
    "mov %rax, 568(%rsp)",
    "xor %edx, %edx",
    "mov {components}(%rip), %eax",
    "cmpb $0, {compact}(%rip)",
    "je 3f",
    "xsavec (%rsp)",
    "jmp 4f",
    "3:",
    "xsave (%rsp)",
    "4:",
    "cld",
    "mov %rbx, %rdi",
    "call *{dispatch}(%rip)",
    "mov %rax, 104(%rbx)",
    "xor %edx, %edx",
    "mov {components}(%rip), %eax",
    "xrstor (%rsp)",
    "mov %rbx, %rsp",
    // The frame is at the stack pointer.
    "5:",
    "movb $1, %gs:{selector}",
    "pop %rcx",
    "wrfsbase %rcx",
    "pop %r15",
    "pop %r14",
    "pop %r13",
    "pop %r12",
    "pop %rbp",
    "pop %rbx",
    "pop %r9",
    "pop %r8",
    "pop %r10",
    "pop %rdx",
    "pop %rsi",
    "pop %rdi",
    "pop %rax",
    "pop %rcx",
    "pop %rsp",
    "jmp *%rcx",
    // A handler had interrupted the library when this code ran last. It still runs if the stack pointer is below its
    // frame, or below the frame of the outermost handler. Otherwise it was left by `siglongjmp`, and the interrupted
    // call is abandoned. A handler with its frame on the library's stack runs on no other.
    "20:",
    enter_if_running!("outer"),
    enter_if_running!("inner"),
    "movq $0, %gs:{outer}",
    "mov %gs:{base_top}, %r11",
    "mov %r11, %gs:{top}",
    "jmp 19b",
    //
    "towpath_launch:",
    "push %rbx",
    "push %rbp",
    "push %r12",
    "push %r13",
    "push %r14",
    "push %r15",
    "mov %rsp, %gs:{base}",
    "test %rsi, %rsi",
    "jz 6f",
    "mov %rsi, %rsp",
    "6:",
    "and $-64, %rsp",
    "mov %rsp, %gs:{top}",
    "mov %rsp, %gs:{base_top}",
    // As on every other way out, the frame is just below the top.
    "7:",
    "mov $15, %ecx",
    "8:",
    "push (%rdi,%rcx,8)",
    "dec %rcx",
    "jns 8b",
    "jmp 5b",
    //
    "towpath_leave_thread:",
    "mov %gs:{base}, %rsp",
    "pop %r15",
    "pop %r14",
    "pop %r13",
    "pop %r12",
    "pop %rbp",
    "pop %rbx",
    "ret",
    //
    "towpath_sigreturn:",
    "movb $1, %gs:{selector}",
    "mov %gs:{program_fs}, %rcx",
    "wrfsbase %rcx",
    "mov %rdi, %rsp",
    "mov $15, %eax",
    "syscall",
    "ud2",
    //
    "towpath_vfork:",
    "push %rbx",
    "push %rbp",
    "push %r12",
    "push %r13",
    "push %r14",
    "mov %gs:{top}, %r12",
    "mov %gs:{program_fs}, %r13",
    "mov %rsp, %r14",
    // The child uses this stack below the part that its parent still needs.
    "lea -256(%rsp), %rcx",
    "and $-64, %rcx",
    "mov %rcx, %gs:{top}",
    "mov %rdi, %rbx",
    "mov (%rbx), %rax",
    "mov 8(%rbx), %rdi",
    "mov 16(%rbx), %rsi",
    "mov 24(%rbx), %rdx",
    "mov 32(%rbx), %r10",
    "mov 40(%rbx), %r8",
    "mov 48(%rbx), %r9",
    "syscall",
    "test %rax, %rax",
    "jz 9f",
    "movb $0, %gs:{selector}",
    "mov %r13, %gs:{program_fs}",
    "mov %r12, %gs:{top}",
    "pop %r14",
    "pop %r13",
    "pop %r12",
    "pop %rbp",
    "pop %rbx",
    "ret",
    "9:",
    "mov %gs:{top}, %rsp",
    "call *{child}(%rip)",
    "mov %rax, %rdi",
    "mov %gs:{top}, %rsp",
    "jmp 7b",
    //
    // Arguments: signal, information, context. The interrupted code is the program or the library.
    "towpath_signal:",
    "push %rbx",
    "push %rbp",
    "push %r12",
    "push %r13",
    "push %r14",
    "push %r15",
    "sub $8, %rsp",
    "rdfsbase %rbx",
    "movzbl %gs:{selector}, %ebp",
    "mov %gs:{top}, %r12",
    "mov %gs:{program_fs}, %r13",
    "mov %gs:{outer}, %r14",
    "mov %gs:{inner}, %r15",
    "mov 160(%rdx), %rax", // RSP in ucontext_t
    "cmp %gs:{stack_low}, %rax",
    "jb 13f",
    "cmp %gs:{stack_high}, %rax",
    "ja 13f",
    // The library was interrupted: its stack must be kept. The signal's own frame may also lie on it, further down. Then the
    // handler runs there, too, and is left its share, or half of what is free if that is less.
    "cmp %gs:{stack_low}, %rsp",
    "jb 10f",
    "cmp %gs:{stack_high}, %rsp",
    "ja 10f",
    "mov %rsp, %rax",
    "add %gs:{stack_low}, %rax",
    "shr $1, %rax",
    "lea -{share}(%rsp), %rcx",
    "cmp %rcx, %rax",
    "cmovb %rcx, %rax",
    "10:",
    "sub $256, %rax",
    "and $-64, %rax",
    "mov %rax, %gs:{top}",
    "mov %rsp, %gs:{inner}",
    "test %r14, %r14",
    "jnz 11f",
    "mov %rsp, %gs:{outer}",
    "jmp 11f",
    // The code around the handler of another signal may have been interrupted, on the program's alternate stack. That signal
    // may have interrupted the library. How far its stack is used is not known here, so half of what is free is left
    // to it.
    "13:",
    "test %ebp, %ebp",
    "jz 14f",
    "mov 168(%rdx), %rax", // RIP in ucontext_t
    "lea towpath_signal(%rip), %rcx",
    "cmp %rcx, %rax",
    "jb 11f",
    "lea towpath_code_end(%rip), %rcx",
    "cmp %rcx, %rax",
    "jae 11f",
    "14:",
    "mov %r12, %rax",
    "add %gs:{stack_low}, %rax",
    "shr $1, %rax",
    "jmp 10b",
    "11:",
    "cmp %gs:{library_fs}, %rbx",
    "jne 12f",
    "wrfsbase %r13",
    "12:",
    "movb $1, %gs:{selector}",
    "movslq %edi, %rcx",
    "lea {handlers}(%rip), %rax",
    "mov (%rax,%rcx,8), %rax",
    "call *%rax",
    "movb %bpl, %gs:{selector}",
    "mov %r12, %gs:{top}",
    "mov %r13, %gs:{program_fs}",
    "mov %r15, %gs:{inner}",
    "mov %r14, %gs:{outer}",
    "wrfsbase %rbx",
    "add $8, %rsp",
    "pop %r15",
    "pop %r14",
    "pop %r13",
    "pop %r12",
    "pop %rbp",
    "pop %rbx",
    "ret",
    //
    ".p2align 4",
    "nop",
    "towpath_restorer:",
    "mov $15, %rax",
    "syscall",
    "ud2",
    "towpath_code_end:",
    ".popsection",
    top = const core::mem::offset_of!(Block, top),
    library_fs = const core::mem::offset_of!(Block, library_fs),
    selector = const core::mem::offset_of!(Block, selector),
    program_fs = const core::mem::offset_of!(Block, program_fs),
    stack_low = const core::mem::offset_of!(Block, stack_low),
    stack_high = const core::mem::offset_of!(Block, stack_high),
    base = const core::mem::offset_of!(Block, base),
    base_top = const core::mem::offset_of!(Block, base_top),
    outer = const core::mem::offset_of!(Block, outer),
    inner = const core::mem::offset_of!(Block, inner),
    handler_stack = const HANDLER_STACK,
    share = const HANDLER_SHARE,
    numbers = const NUMBERS,
    caught = sym CAUGHT,
    dispatch = sym DISPATCH,
    components = sym COMPONENTS,
    compact = sym COMPACT,
    handlers = sym HANDLERS,
    child = sym CHILD_OF_VFORK,
    options(att_syntax)
);
