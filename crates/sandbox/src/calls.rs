//! System calls, by a seccomp filter: a list of those that may be made, with conditions on their arguments. For a program
//! of others it is a list of those that may not.

use crate::refused;
use std::io;

/// A condition on one half of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Number of the argument, from 0.
    pub argument: u8,
    /// Is it the upper half? The kernel looks at that of pointers and lengths, and not at that of an `int`.
    pub upper: bool,
    /// The bits that are looked at.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

/// The argument is an `int` of this value.
pub fn is(argument: u8, value: u32) -> Condition {
    masked(argument, u32::MAX, value)
}

/// These bits of the argument's lower half have this value.
pub fn masked(argument: u8, mask: u32, value: u32) -> Condition {
    Condition { argument, upper: false, mask, value }
}

/// None of these bits of the argument is set.
pub fn has_none(argument: u8, mask: u32) -> Condition {
    masked(argument, mask, 0)
}

/// All of these bits of the argument are set.
pub fn has_all(argument: u8, mask: u32) -> Condition {
    masked(argument, mask, mask)
}

/// The argument is a null pointer.
pub fn is_null(argument: u8) -> [Condition; 2] {
    [is(argument, 0), Condition { upper: true, ..is(argument, 0) }]
}

/// What the filter says of a system call.
#[derive(Clone, Debug)]
enum Rule {
    /// It may be made if all conditions of one of these hold.
    Allow(libc::c_long, Vec<Vec<Condition>>),
    /// The kernel says that it does not have it. The caller knows another way.
    Absent(libc::c_long),
    /// It fails with this errno if the condition holds, and nobody is told. Later rules say what else may be.
    Fails(libc::c_long, Condition, i32),
}

/// The calls that may be made.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    rules: Vec<Rule>,
}

impl Calls {
    /// These may be made, whatever their arguments.
    pub fn allow(&mut self, numbers: &[libc::c_long]) {
        self.rules.extend(numbers.iter().map(|number| Rule::Allow(*number, vec![Vec::new()])));
    }
    /// These may not be made.
    pub fn forbid(&mut self, numbers: &[libc::c_long]) {
        self.rules.extend(numbers.iter().map(|number| Rule::Allow(*number, Vec::new())));
    }
    /// This one may be made if all conditions of one of the alternatives hold.
    pub fn allow_if(&mut self, number: libc::c_long, alternatives: &[&[Condition]]) {
        self.rules.push(Rule::Allow(number, alternatives.iter().map(|all| all.to_vec()).collect()));
    }
    /// This one fails with an errno, uncounted, if the condition holds. A rule that allows it comes after this one.
    pub fn fails_if(&mut self, number: libc::c_long, condition: Condition, errno: i32) {
        self.rules.push(Rule::Fails(number, condition, errno));
    }
    /// This one fails with ENOSYS.
    pub fn absent(&mut self, number: libc::c_long) {
        self.rules.push(Rule::Absent(number));
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

impl Condition {
    /// Where its half of the argument stands. The lower half comes first: both architectures are little-endian.
    fn offset(&self) -> u32 {
        ARGUMENTS + 8 * u32::from(self.argument) + 4 * u32::from(self.upper)
    }
}

fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Goes on if the loaded word is `k`, else jumps over `over` instructions.
fn unless(k: u32, over: usize) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_IF, jt: 0, jf: over as u8, k }
}

/// The filter. `refused` is the answer to calls that a rule refuses, and `other` to those that no rule names.
fn program(calls: &Calls, refused: u32, other: u32) -> Vec<libc::sock_filter> {
    let refuse = instruction(RETURN, refused);
    let mut program = vec![instruction(LOAD, ARCH), unless(ARCHITECTURE, 1), instruction(LOAD, NUMBER)];
    // Another architecture's numbers mean other calls.
    program[1] = libc::sock_filter { code: JUMP_IF, jt: 1, jf: 0, k: ARCHITECTURE };
    program.insert(2, refuse);
    for rule in &calls.rules {
        let (number, body) = match rule {
            Rule::Absent(number) => (*number, vec![instruction(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32)]),
            Rule::Allow(number, alternatives) => (*number, body(alternatives, refuse)),
            Rule::Fails(number, condition, errno) => {
                let fail = instruction(RETURN, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned());
                let argument = instruction(LOAD, condition.offset());
                let mask = instruction(AND, condition.mask);
                // The rules that follow look at the number.
                (*number, vec![argument, mask, unless(condition.value, 1), fail, instruction(LOAD, NUMBER)])
            }
        };
        program.push(unless(number as u32, body.len()));
        program.extend(body);
    }
    program.push(instruction(RETURN, other));
    program
}

fn body(alternatives: &[Vec<Condition>], refuse: libc::sock_filter) -> Vec<libc::sock_filter> {
    let allow = instruction(RETURN, libc::SECCOMP_RET_ALLOW);
    let mut body = Vec::new();
    for conditions in alternatives {
        // Three instructions for each, and the answer.
        let length = 3 * conditions.len() + 1;
        for (number, condition) in conditions.iter().enumerate() {
            body.push(instruction(LOAD, condition.offset()));
            body.push(instruction(AND, condition.mask));
            body.push(unless(condition.value, length - 3 * (number + 1)));
        }
        body.push(allow);
        if conditions.is_empty() {
            return body;
        }
    }
    body.push(refuse);
    body
}

/// From now on no thread of this process makes another call than these. The calling thread must have `no_new_privs`;
/// the others get it.
pub fn keep_only(calls: &Calls) -> io::Result<()> {
    if ARCHITECTURE == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not for this kind of processor"));
    }
    refused::handle()?;
    install(&program(calls, libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_TRAP))
}

/// From now on no thread of this process, and no program that it starts, makes a call that a rule refuses. It fails with
/// EPERM, and nobody is told. The calling thread must have `no_new_privs`.
pub fn give_up(calls: &Calls) -> io::Result<()> {
    if ARCHITECTURE == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not for this kind of processor"));
    }
    install(&program(calls, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, libc::SECCOMP_RET_ALLOW))
}

fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program is as long as `filter` says, and the kernel only reads it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    match done {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has a filter of its own"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Runs the filter as the kernel would, and returns its answer.
    fn run(program: &[libc::sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut word) = (0, 0);
        for _ in 0..program.len() {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD => {
                    word = match k {
                        NUMBER => number,
                        ARCH => arch,
                        k => (arguments[(k - ARGUMENTS) as usize / 8] >> (k % 8 * 8)) as u32,
                    }
                }
                AND => word &= k,
                JUMP_IF => at += usize::from(if word == k { jt } else { jf }),
                RETURN => return k,
                code => panic!("instruction {code}"),
            }
        }
        panic!("the program does not end")
    }

    fn example() -> Calls {
        let mut calls = Calls::default();
        calls.allow(&[0, 1]);
        calls.fails_if(41, is(0, 3), libc::EACCES);
        calls.allow_if(41, &[&[is(0, 1)], &[is(0, 16), has_none(1, 0xf0), is(2, 4)]]);
        calls.allow_if(56, &[&[has_all(0, 0x11)]]);
        calls.allow_if(302, &[&is_null(2)]);
        calls.absent(435);
        calls
    }

    #[test]
    fn a_call_is_allowed_by_number_and_arguments() {
        let program = program(&example(), libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_TRAP);
        let ask = |number, a: u64, b: u64, c: u64| run(&program, ARCHITECTURE, number, [a, b, c, 0, 0, 0]);
        let (allow, refuse) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_TRAP);
        assert_eq!([ask(0, 9, 9, 9), ask(1, 0, 0, 0), ask(2, 0, 0, 0)], [allow, allow, refuse]);
        assert_eq!([ask(41, 1, 0xff, 9), ask(41, 2, 0, 0), ask(41, 17, 3, 0)], [allow, refuse, refuse]);
        assert_eq!([ask(41, 16, 3, 4), ask(41, 16, 0x13, 4), ask(41, 16, 3, 5)], [allow, refuse, refuse]);
        assert_eq!([ask(56, 0x11, 0, 0), ask(56, 0x33, 0, 0), ask(56, 0x10, 0, 0)], [allow, allow, refuse]);
        assert_eq!(ask(41, 3, 0, 0), libc::SECCOMP_RET_ERRNO | libc::EACCES as u32);
        assert_eq!(ask(435, 0, 0, 0), libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
        // An address whose lower half is 0 is an address.
        assert_eq!([ask(302, 1, 1, 0), ask(302, 0, 0, 1), ask(302, 0, 0, 1 << 32)], [allow, refuse, refuse]);
        assert_eq!(ask(0x4000_0000, 0, 0, 0), refuse, "x32");
        assert_eq!(run(&program, ARCHITECTURE ^ 1, 0, [0; 6]), refuse, "another architecture");
    }

    #[test]
    fn of_a_program_of_others_only_what_is_named_is_refused() {
        let mut calls = Calls::default();
        calls.forbid(&[165, 0x4000_0000]);
        calls.allow_if(41, &[&[is(0, 1)]]);
        let (allow, refuse) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        let program = program(&calls, refuse, allow);
        let ask = |number, a: u64| run(&program, ARCHITECTURE, number, [a, 0, 0, 0, 0, 0]);
        assert_eq!([ask(165, 0), ask(0, 0), ask(41, 1), ask(41, 2)], [refuse, allow, allow, refuse]);
        assert_eq!(run(&program, ARCHITECTURE ^ 1, 0, [0; 6]), refuse, "another architecture");
    }
}
