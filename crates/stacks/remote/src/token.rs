//! The token: a file that both sides of a TCP link have a copy of. It holds a private key (Ed25519). In TLS each side
//! proves that it has the key, and believes a peer only with the very same one.

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, open};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::{CertifiedKey, SigningKey};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Begins the line with the key.
const MARK: &str = "towpath-token-1 ";
/// Most bytes of a file.
const LONGEST: u64 = 4096;

/// Why a token cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// There is such a file.
    #[error("{file}: there is a file already, and a token replaces none; remove it, or name another", file = .0.display())]
    Exists(PathBuf),
    /// There is no such file.
    #[error(
        "{file}: no such file; make a token with \"towpath kernel-stack --make-token {file}\", and copy it to both sides",
        file = .0.display()
    )]
    Missing(PathBuf),
    /// Others may read or write it.
    #[error(
        "{file}: others may read or write it (mode {1:04o}), so it proves nothing; make a new one, or \"chmod 600 {file}\" \
         if nobody has read it",
        file = .0.display()
    )]
    Open(PathBuf, u32),
    /// It is another user's.
    #[error(
        "{file}: it belongs to uid {1}, who may change it; give it to this side's user with \"chown\"",
        file = .0.display()
    )]
    Foreign(PathBuf, u32),
    /// It is something else.
    #[error(
        "{file}: it is no token; make one with \"towpath kernel-stack --make-token FILE\", and name that file",
        file = .0.display()
    )]
    Other(PathBuf),
    /// A call has failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A token.
#[derive(Clone)]
pub struct Token(Arc<CertifiedKey>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Makes a new token in a new file, which only this user can read.
    pub fn make(file: &Path) -> Result<(), TokenError> {
        let failed = |source| TokenError::Io { path: file.into(), source };
        let random = ring::rand::SystemRandom::new();
        let key = ring::signature::Ed25519KeyPair::generate_pkcs8(&random)
            .map_err(|_| failed(io::Error::other("the kernel gives no random numbers")))?;
        let digits: String = key.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "# A token of towpath. A program that can read it may use the kernel stacks that have it, as root would.\n\
             {MARK}{digits}\n"
        );
        let mut to = match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
            Ok(to) => to,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(TokenError::Exists(file.into())),
            Err(error) => return Err(failed(error)),
        };
        // The umask may have left less of the mode.
        let kept = fchmod(&to, Mode::RUSR | Mode::WUSR).map_err(io::Error::from);
        kept.and_then(|()| to.write_all(text.as_bytes())).and_then(|()| to.sync_all()).map_err(|error| {
            let _ = std::fs::remove_file(file);
            failed(error)
        })
    }

    /// Reads a token. The file must be this user's or root's, and nobody else may read or write it.
    pub fn load(file: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: file.into(), source };
        // Without waiting, whatever is there.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = open(file, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOENT => TokenError::Missing(file.into()),
            other => failed(other.into()),
        })?;
        let about = fstat(&from).map_err(|error| failed(error.into()))?;
        if !FileType::from_raw_mode(about.st_mode).is_file() {
            return Err(TokenError::Other(file.into()));
        }
        if about.st_mode & 0o077 != 0 {
            return Err(TokenError::Open(file.into(), about.st_mode & 0o7777));
        }
        if about.st_uid != 0 && about.st_uid != rustix::process::geteuid().as_raw() {
            return Err(TokenError::Foreign(file.into(), about.st_uid));
        }
        let mut text = Vec::new();
        std::fs::File::from(from).take(LONGEST).read_to_end(&mut text).map_err(failed)?;
        Self::parse(&text).ok_or_else(|| TokenError::Other(file.into()))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let digits = text.lines().find_map(|line| line.strip_prefix(MARK))?.trim().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let (pairs, rest) = digits.as_chunks::<2>();
        let key = pairs.iter().map(|pair| byte(pair)).collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())?;
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).ok()?;
        let public = CertificateDer::from(key.public_key()?.to_vec());
        Some(Self(Arc::new(CertifiedKey::new(vec![public], key))))
    }

    /// The key pair, with the public key in a certificate's place (RFC 7250).
    pub(crate) fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }
    /// The public key.
    pub(crate) fn public(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        SigningKey::public_key(&*self.0.key)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("towpath-token-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_token_is_the_users_alone_and_another_one_each_time() {
        let folder = folder("made");
        let (one, two) = (folder.join("one"), folder.join("two"));
        Token::make(&one).unwrap();
        Token::make(&two).unwrap();
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o7777, 0o600);
        let [one_key, two_key, again] = [&one, &two, &one].map(|file| Token::load(file).unwrap());
        assert_eq!(one_key.public(), again.public());
        assert_ne!(one_key.public(), two_key.public());
        assert_eq!(format!("{one_key:?}"), "Token", "no secret gets into a log");
        let text = fs::read(&one).unwrap();
        assert!(Token::make(&one).unwrap_err().to_string().contains("replaces none"));
        assert_eq!(fs::read(&one).unwrap(), text, "it is still the same");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let folder = folder("open");
        let file = folder.join("token");
        Token::make(&file).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o660, 0o610] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let why = Token::load(&file).unwrap_err().to_string();
            assert!(why.contains(&format!("{mode:04o}")) && why.contains("chmod 600"), "{why}");
        }
        fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        Token::load(&file).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_token_of_another_user_is_refused() {
        // Only root can give a file away.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = folder("foreign");
        let file = folder.join("token");
        Token::make(&file).unwrap();
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        let why = Token::load(&file).unwrap_err();
        assert!(matches!(why, TokenError::Foreign(_, 65_534)), "{why}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_else_is_taken_for_a_token() {
        let folder = folder("else");
        let file = folder.join("token");
        assert!(Token::load(&file).unwrap_err().to_string().contains("--make-token"), "there is none");
        Token::make(&file).unwrap();
        let whole = fs::read_to_string(&file).unwrap();
        let key = whole.lines().last().unwrap().to_owned();
        let texts = [
            String::new(),
            "secret".into(),
            MARK.into(),
            key.replace("token-1", "token-2"),
            key[..key.len() - 1].into(),
            key[..key.len() - 2].into(),
            format!("{key}00"),
            key.replace("towpath-token-1 30", "towpath-token-1 zz"),
            key.replace("towpath-token-1 30", "towpath-token-1 +0"),
        ];
        for text in texts {
            fs::write(&file, &text).unwrap();
            assert!(matches!(Token::load(&file), Err(TokenError::Other(_))), "{text:?}");
        }
        fs::write(&file, format!("{key}\n")).unwrap();
        Token::load(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(Token::load(&file), Err(TokenError::Other(_))), "a directory");
        fs::remove_dir_all(&folder).unwrap();
    }
}
