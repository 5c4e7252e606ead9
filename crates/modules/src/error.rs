//! Why a module is refused.

/// Why an object is no module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is something else.
    #[error("this is no ELF object: compile it with `clang -O2 -g -target bpf -c prog.c -o prog.o`")]
    NotElf,
    /// It is for another machine.
    #[error(
        "this object is for the ELF machine {0}, and a module is for 247 (BPF): compile it with `clang -target bpf`"
    )]
    Machine(u16),
    /// It is damaged.
    #[error("this object is broken: {0}")]
    Broken(&'static str),
    /// It has no program of this kind.
    #[error("this object has no program in a section \"xdp\" (it has {0}): write SEC(\"xdp\") before the function")]
    NoProgram(String),
    /// It has several programs, and which is meant was not said, or there is none of this name.
    #[error("this object has the programs {0}: choose one")]
    Which(String),
    /// Something is named that the object does not have.
    #[error("{program}: \"{symbol}\" is not in this object: kernel functions and variables are not there in a module")]
    Extern {
        /// The program.
        program: String,
        /// What it names.
        symbol: String,
    },
    /// An instruction that modules do not have.
    #[error("{program}: instruction {at}: {why}")]
    Instruction {
        /// The program.
        program: String,
        /// The instruction's number.
        at: usize,
        /// What is wrong.
        why: String,
    },
    /// A map that modules do not have.
    #[error("map {map}: {why}")]
    Map {
        /// Its name.
        map: String,
        /// What is wrong.
        why: String,
    },
    /// A map that was given in the place of a new one is not as the object defines it.
    #[error("map {map} cannot be the pinned one: {why}")]
    Given {
        /// Its name.
        map: String,
        /// What is wrong.
        why: String,
    },
    /// It was compiled against types of some kernel, and nobody has put in the running kernel's.
    #[error(
        "this object has types of the kernel (CO-RE), whose places in the running kernel must be put in first: \
         `towpath module add` does it"
    )]
    Unrelocated,
    /// What it says of types of the kernel cannot be followed.
    #[error("relocation {number} of {section}, of a type of the kernel (CO-RE): {why}")]
    Relocation {
        /// The section of the program.
        section: String,
        /// The relocation's number there.
        number: usize,
        /// What is wrong.
        why: String,
    },
    /// The kernel's types cannot be read.
    #[error(
        "this object has types of the kernel (CO-RE), and the running kernel does not say how they look there: \
         {path}: {why}: use a kernel with CONFIG_DEBUG_INFO_BTF, or headers of <linux/...> instead of vmlinux.h"
    )]
    KernelTypes {
        /// The file.
        path: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Its maps together are too large.
    #[error("its maps would take {bytes} bytes for {groups} flow groups, more than {most}: give them fewer entries")]
    Memory {
        /// What they would take.
        bytes: u64,
        /// Flow groups, each with its copies of per-CPU maps.
        groups: usize,
        /// What they may take.
        most: u64,
    },
    /// The kernel's verifier refuses the program.
    #[error("the kernel's verifier refuses {program}: {why}\n{log}")]
    Verifier {
        /// The program.
        program: String,
        /// The kernel's errno.
        why: String,
        /// The end of its log.
        log: String,
    },
    /// The kernel does not make the map.
    #[error("the kernel refuses map {map}: {why}")]
    KernelMap {
        /// Its name.
        map: String,
        /// The kernel's errno.
        why: String,
    },
    /// It could not be compiled.
    #[error("{program} could not be compiled: {why}")]
    Compiler {
        /// The program.
        program: String,
        /// The compiler's words.
        why: String,
    },
}
