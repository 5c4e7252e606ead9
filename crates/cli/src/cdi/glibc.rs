//! This host's glibc, which runs the loader in containers that have none.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use towpath_hook::library;

/// glibc's linker, where every program for x86-64 looks for it.
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

/// The linker and the libraries that these files need, each by its name, or why there are none.
pub fn files(of: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>, String> {
    gather(of, Path::new(LINKER), &directories(&fs::read_to_string("/proc/self/maps").unwrap_or_default()))
}

/// Where this program has its own libraries from, by its map of memory.
fn directories(maps: &str) -> Vec<PathBuf> {
    let files = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let mut all: Vec<_> =
        files.filter(|file| file.contains(".so")).filter_map(|file| Path::new(file).parent()).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(PathBuf::from).collect()
}

fn gather(of: &[PathBuf], linker: &Path, directories: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>, String> {
    let name = linker.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !linker.exists() {
        return Err(format!("{} is not there", linker.display()));
    }
    let (mut found, mut next) = (BTreeMap::from([(name.to_owned(), linker.to_owned())]), of.to_vec());
    while let Some(file) = next.pop() {
        for needed in library::needs(&file) {
            if found.contains_key(&needed) {
                continue;
            }
            let place = directories.iter().map(|directory| directory.join(&needed)).find(|path| path.exists());
            let place =
                place.ok_or_else(|| format!("{} needs {needed}, which is not where glibc is", file.display()))?;
            next.push(place.clone());
            found.insert(needed, place);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_this_program_needs_is_found_with_the_linker() {
        let own = std::env::current_exe().unwrap();
        let found = files(std::slice::from_ref(&own)).unwrap();
        assert!(found["libc.so.6"].is_absolute() && found.contains_key("ld-linux-x86-64.so.2"), "{found:?}");
        assert!(found.values().all(|path| path.exists()));
        let why = gather(std::slice::from_ref(&own), Path::new("/no/ld.so"), &[]).unwrap_err();
        assert_eq!(why, "/no/ld.so is not there");
        let why = gather(&[own], Path::new(LINKER), &[]).unwrap_err();
        assert!(why.contains(" needs lib"), "{why}");
    }

    #[test]
    fn directories_are_those_of_libraries() {
        let maps = "7f0 r-xp 00 08:01 1 /usr/lib/a/libc.so.6\n7f1 r--p 00 08:01 2 /usr/lib/a/libm.so.6\n\
            7f2 r-xp 00 08:01 3 /bin/towpath\n7f3 rw-p 00 00:00 0 [heap]\n";
        assert_eq!(directories(maps), [PathBuf::from("/usr/lib/a")]);
    }
}
