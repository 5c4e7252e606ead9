//! Files that no other user can have written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The text of a file of at most `most_bytes` that only root or this user can have written. `None`: it is longer, or
/// another user can.
pub fn own_text(path: &Path, most_bytes: u64) -> io::Result<Option<String>> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(None);
    }
    // Without O_NONBLOCK, opening a pipe would wait for its other end.
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let about = file.metadata()?;
    let whose = [0, rustix::process::geteuid().as_raw()].contains(&about.uid());
    if !about.is_file() || !whose || about.mode() & 0o022 != 0 || about.len() > most_bytes {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(most_bytes).read_to_string(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_short_file_of_ones_own_is_read_and_a_pipe_makes_nobody_wait() {
        let folder = std::env::temp_dir().join(format!("towpath-own-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link, pipe) = (folder.join("file"), folder.join("link"), folder.join("pipe"));
        fs::write(&file, "text").unwrap();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(own_text(&file, 4).unwrap().as_deref(), Some("text"));
        assert_eq!(own_text(&file, 3).unwrap(), None, "too long");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(own_text(&link, 4).unwrap(), None, "a link");
        mode(0o664);
        assert_eq!(own_text(&file, 4).unwrap(), None, "others can write it");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(own_text(&pipe, 4).unwrap(), None, "a pipe");
        assert_eq!(own_text(&folder.join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }
}
