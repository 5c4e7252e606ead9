//! A probe in the format of SystemTap's `sys/sdt.h`, version 3: one `nop`, and a note in the program's file that says where it
//! is and where its arguments are then.

/// Puts a probe here. `$memory`: `nomem`, or `readonly` if an argument is a pointer. `$arguments`: `SIZE@PLACE` of each, the size in
/// bytes and negative for signed numbers.
///
/// Of code that the linker leaves out the note stays, with an address near 0. Nothing runs there, so a tracer waits there in vain.
///
/// The compiler is told that nothing is written and no flag changed. So all that a probe does is to keep its arguments in registers.
macro_rules! sdt {
    ($memory:ident, $name:literal, $arguments:expr $(, $($operands:tt)*)?) => {
        // SAFETY: the one instruction is a `nop`, and what else is here goes to sections that no code reads.
        unsafe {
            sdt!(@asm $memory concat!(
                "990: nop\n",
                ".pushsection .note.stapsdt,\"?\",\"note\"\n",
                ".balign 4\n",
                ".4byte 992f-991f, 994f-993f, 3\n",
                "991: .asciz \"stapsdt\"\n",
                "992: .balign 4\n",
                "993: .8byte 990b\n",
                ".8byte _.stapsdt.base\n",
                // No semaphore: nothing asks whether anybody traces.
                ".8byte 0\n",
                ".asciz \"towpath\"\n",
                ".asciz \"", $name, "\"\n",
                ".asciz \"", $arguments, "\"\n",
                "994: .balign 4\n",
                ".popsection\n",
                // By its address tracers see how far the program was moved.
                ".ifndef _.stapsdt.base\n",
                ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n",
                ".weak _.stapsdt.base\n",
                ".hidden _.stapsdt.base\n",
                "_.stapsdt.base: .space 1\n",
                ".size _.stapsdt.base, 1\n",
                ".popsection\n",
                ".endif",
            ) $(, $($operands)*)?)
        }
    };
    // Tracers read the names of registers as the AT&T syntax has them.
    (@asm $memory:ident $text:expr $(, $($operands:tt)*)?) => {{
        #[cfg(target_arch = "x86_64")]
        ::core::arch::asm!($text, $($($operands)*,)? options($memory, nostack, preserves_flags, att_syntax));
        #[cfg(not(target_arch = "x86_64"))]
        ::core::arch::asm!($text, $($($operands)*,)? options($memory, nostack, preserves_flags));
    }};
}

/// What stands before a constant among the arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! immediate {
    () => {
        "4@$"
    };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! immediate {
    () => {
        "4@"
    };
}

pub(crate) use {immediate, sdt};
