//! Fuzzing of the script parser: each script of `testing/packetdrill/scripts` with pieces cut, duplicated and moved.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn collect(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            into.push(path);
        }
    }
}

#[test]
fn fuzz_bent_scripts() {
    let mut files = Vec::new();
    collect(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts"), &mut files);
    files.sort();
    let texts: Vec<Vec<char>> = files.iter().map(|f| std::fs::read_to_string(f).unwrap().chars().collect()).collect();
    for (file, text) in files.iter().zip(&texts) {
        let read = towpath_packetdrill::check(&text.iter().collect::<String>());
        assert!(read.is_ok(), "{}: {read:?}", file.display());
    }
    type Edit = (u16, u8, u16, u8, Option<char>);
    bolero::check!().with_type::<(u16, Vec<Edit>)>().with_iterations(3_000).for_each(|(nth, edits)| {
        let mut text = texts[usize::from(*nth) % texts.len()].clone();
        for &(at, cut, from, len, with) in edits.iter().take(4) {
            let at = usize::from(at) % (text.len() + 1);
            let end = (at + usize::from(cut % 32)).min(text.len());
            let other = &texts[usize::from(from) % texts.len()];
            let start = usize::from(from) % (other.len() + 1);
            let piece = with.map_or_else(
                || other[start..(start + usize::from(len % 32)).min(other.len())].to_vec(),
                |with| vec![with],
            );
            text.splice(at..end, piece);
        }
        let _ = towpath_packetdrill::check(&text.iter().collect::<String>());
    });
}
