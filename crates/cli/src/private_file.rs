//! Files for nobody but this user.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a new file, and puts it in the place of what has this name. A file that was there may be another user's, be
/// readable by all, or be open somewhere: none of that holds for the new one.
pub fn replace(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let new = path.with_file_name(format!(".towpath-{:016x}", u64::from_ne_bytes(random)));
    let file = create_new(&new)?;
    let placed = write(&file).and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed.map(|()| file)
}

/// A file that was not there.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Opens what is to be written, for a name that a user gives. Pipes and devices are opened as they are, also behind a link
/// (`/dev/fd/63`). Another's link leads to no file, so none is overwritten there.
pub fn open(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            let file = OpenOptions::new().write(true).open(path)?;
            // Looked at once more: it may have been exchanged meanwhile.
            if file.metadata()?.is_file() {
                return Err(io::Error::other("a link leads to a file; name the file itself (- is standard output)"));
            }
            Ok(file)
        }
        _ => replace(path, |_| Ok(())),
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    /// A new folder, which goes with the value.
    pub struct Folder(pub PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A file that everybody may read and write, and that somebody has open.
    pub fn anybodys(path: &Path) -> File {
        fs::write(path, "mine").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        File::open(path).unwrap()
    }

    /// The file of this name has this text, is this user's alone, and `before` is still what it was.
    pub fn is_private(path: &Path, text: &str, mut before: &File) {
        let (found, mut old) = (fs::symlink_metadata(path).unwrap(), String::new());
        assert!(found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw());
        assert_eq!(found.mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(path).unwrap(), text);
        before.read_to_string(&mut old).unwrap();
        assert_eq!(old, "mine", "who had it open sees nothing of the new one");
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_takes_the_place_of_one_that_others_may_read() {
        let folder = Folder::new("replace");
        let path = folder.0.join("report");
        let before = anybodys(&path);
        fs::hard_link(&path, folder.0.join("kept")).unwrap();
        replace(&path, |mut file| file.write_all(b"private")).unwrap();
        is_private(&path, "private", &before);
        assert_eq!(names(&folder.0), ["kept", "report"]);
        // A link is replaced, and what it leads to is not touched.
        symlink(folder.0.join("kept"), folder.0.join("link")).unwrap();
        replace(&folder.0.join("link"), |mut file| file.write_all(b"private")).unwrap();
        is_private(&folder.0.join("link"), "private", &File::open(folder.0.join("kept")).unwrap());
    }

    #[test]
    fn what_could_not_be_written_leaves_the_file_before_and_nothing_else() {
        let folder = Folder::new("unwritten");
        let path = folder.0.join("report");
        anybodys(&path);
        assert!(replace(&path, |_| Err(io::ErrorKind::StorageFull.into())).is_err());
        fs::create_dir(folder.0.join("sub")).unwrap();
        assert!(replace(&folder.0.join("sub"), |_| Ok(())).is_err());
        assert_eq!((names(&folder.0).len(), fs::read_to_string(&path).unwrap().as_str()), (2, "mine"));
    }

    #[test]
    fn pipes_and_devices_are_opened_as_they_are_and_no_link_leads_to_a_file() {
        let folder = Folder::new("open");
        let file = open(Path::new("/dev/null")).unwrap();
        assert!(!file.metadata().unwrap().is_file());
        let link = |name: &str, to: &Path| {
            let link = folder.0.join(name);
            symlink(to, &link).unwrap();
            link
        };
        assert!(!open(&link("null", Path::new("/dev/null"))).unwrap().metadata().unwrap().is_file());
        let path = folder.0.join("capture");
        let before = anybodys(&path);
        assert!(open(&link("other", &path)).unwrap_err().to_string().contains("name the file itself"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        open(&path).unwrap().write_all(b"frames").unwrap();
        is_private(&path, "frames", &before);
    }
}
