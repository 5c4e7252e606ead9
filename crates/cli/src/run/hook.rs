//! The choice of the hook that catches a program's calls.

use std::path::{Path, PathBuf};
use towpath_hook::exec;
use towpath_hook::program::{self, HookMethod};

/// The user's choice of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HookChoice {
    /// By the program: `preload` for what is dynamically linked with glibc and makes no system calls of its own on
    /// sockets; `inject` for all else
    #[default]
    Auto,
    /// libc's functions, by LD_PRELOAD. What a program does without them is not seen
    Preload,
    /// System calls, all of them: also of static programs, Go, musl and JITs. x86-64, Linux 5.11 or newer
    Inject,
}

impl HookChoice {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Preload => "preload",
            Self::Inject => "inject",
        }
    }
}

/// The hook that a program gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Hook {
    /// The library is preloaded into it.
    Preload,
    /// The loader loads it.
    Inject {
        /// The loader.
        loader: PathBuf,
        /// Why not `Preload`.
        why: &'static str,
    },
}

impl Hook {
    /// The words after the program's name in `-v`.
    pub fn describe(&self) -> String {
        match self {
            Self::Preload => "is hooked by preload".into(),
            Self::Inject { why, .. } => format!("{why}: its system calls are hooked (inject)"),
        }
    }
}

/// The hook for a program, or why there is none.
pub fn choose(choice: HookChoice, program: &Path, library: &Path) -> Result<Hook, String> {
    let no = |why: &str| Err(format!("{}: {why}", program.display()));
    match (program::method_for(program), choice) {
        (HookMethod::None(why), _) => no(why),
        (HookMethod::Preload, HookChoice::Inject) => inject(program, library, "is to be injected into"),
        (HookMethod::Either(why), HookChoice::Inject) => inject(program, library, why),
        (HookMethod::Either(why), HookChoice::Auto) => inject(program, library, why).or(Ok(Hook::Preload)),
        (HookMethod::PreloadOnly(why), HookChoice::Inject) => no(&format!("{why}, so only preload can hook it")),
        (HookMethod::Preload | HookMethod::PreloadOnly(_) | HookMethod::Unknown | HookMethod::Either(_), _) => {
            Ok(Hook::Preload)
        }
        (HookMethod::Inject(why), HookChoice::Preload) => {
            no(&format!("{why}, so --hook preload would not see its sockets"))
        }
        (HookMethod::Inject(why), _) => inject(program, library, why),
    }
}

fn inject(program: &Path, library: &Path, why: &'static str) -> Result<Hook, String> {
    let no = |reason: String| Err(format!("{}: {why}, and {reason}", program.display()));
    if let Err(reason) = possible() {
        return no(reason);
    }
    let loader = library.with_file_name(exec::LOADER);
    if loader.exists() {
        Ok(Hook::Inject { loader, why })
    } else {
        no(format!("{} is not there; install it beside the library", loader.display()))
    }
}

#[cfg(target_arch = "x86_64")]
fn possible() -> Result<(), String> {
    towpath_hook::inject::possible()
}

#[cfg(not(target_arch = "x86_64"))]
fn possible() -> Result<(), String> {
    Err("programs can only be injected into on x86-64".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_dynamic_program_is_preloaded_into_unless_told_otherwise() {
        let (program, library) = (std::env::current_exe().unwrap(), Path::new("/no/such/libtowpath.so"));
        assert_eq!(choose(HookChoice::Auto, &program, library), Ok(Hook::Preload));
        assert_eq!(choose(HookChoice::Preload, &program, library), Ok(Hook::Preload));
        let error = choose(HookChoice::Inject, &program, library).unwrap_err();
        assert!(error.contains("is to be injected into, and "), "{error}");
    }
}
