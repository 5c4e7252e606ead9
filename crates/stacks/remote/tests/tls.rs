//! TCP between two sides: a peer without the token gets nothing and tells nothing, on either side and on the way.
#![allow(clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnection, ResolvesClientCert};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme, Stream as Blocking,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_remote::link::inbox;
use towpath_remote::link::stream::{HEADER, Stream};
use towpath_remote::link::tls::{Tls, TlsError};
use towpath_remote::token::Token;
use towpath_remote::{Broken, Link};
use towpath_ring::span::Span;

const SECRET: &[u8] = b"a payload that nobody else may read";
const KEY: u32 = inbox::KEYS;

/// A token, and its file's text.
fn token() -> (Token, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file: PathBuf = std::env::temp_dir().join(format!("towpath-tls-{}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    Token::make(&file).unwrap();
    let made = (Token::load(&file).unwrap(), std::fs::read_to_string(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    made
}

/// The private key of a token.
fn private(text: &str) -> Vec<u8> {
    let digits = text.lines().last().unwrap().split(' ').nth(1).unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// A wire that keeps a copy of everything, and can change it.
#[derive(Clone, Default)]
struct Wire {
    seen: Arc<Mutex<Vec<u8>>>,
    /// Changes a bit of everything that comes.
    changes: Arc<Mutex<bool>>,
}

impl Wire {
    /// Two ends with somebody between them.
    fn ends(&self) -> (OwnedFd, OwnedFd) {
        let ((a, near), (far, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
            let this = self.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    this.seen.lock().unwrap().extend(&bytes[..count]);
                    if *this.changes.lock().unwrap() {
                        bytes[count - 1] ^= 1;
                    }
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
        (a.into(), b.into())
    }
    fn has(&self, what: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(what.len()).any(|window| window == what)
    }
}

/// Both sides of a handshake.
fn both(ends: (OwnedFd, OwnedFd), tokens: (&Token, &Token)) -> (Result<Tls, Broken>, Result<Tls, Broken>) {
    let theirs = tokens.1.clone();
    let accepting = std::thread::spawn(move || Tls::accept(ends.1, &theirs));
    let connected = Tls::connect(ends.0, tokens.0);
    (connected, accepting.join().unwrap())
}

/// Waits for bytes in memory, or for the end.
fn arrival(link: &dyn Link) -> Result<(), Broken> {
    let (mut arrivals, until) = (Vec::new(), Instant::now() + Duration::from_secs(30));
    while arrivals.is_empty() {
        assert!(Instant::now() < until, "nothing comes");
        link.wait(&mut arrivals, Duration::from_millis(100))?;
    }
    Ok(())
}

#[test]
fn nothing_that_crosses_can_be_read_on_the_way() {
    let (token, text) = token();
    for encrypted in [true, false] {
        let wire = Wire::default();
        let ends = wire.ends();
        let (a, b): (Box<dyn Link>, Box<dyn Link>) = if encrypted {
            let (a, b) = both(ends, (&token, &token));
            (Box::new(Stream::over(a.unwrap())), Box::new(Stream::over(b.unwrap())))
        } else {
            (Box::new(Stream::new(ends.0).unwrap()), Box::new(Stream::new(ends.1).unwrap()))
        };
        for (from, to) in [(&a, &b), (&b, &a)] {
            let memory = Span::fresh(1 << 20).unwrap();
            to.register(KEY, memory.clone()).unwrap();
            let bytes = SECRET.repeat(20_000);
            std::thread::scope(|scope| {
                scope.spawn(|| from.write_with_immediate(0, KEY, 0, &bytes, 7).and_then(|()| from.flush()).unwrap());
                arrival(&**to).unwrap();
            });
            let mut got = vec![0; bytes.len()];
            assert!(memory.read(0, &mut got) && got == bytes);
        }
        assert!(wire.seen.lock().unwrap().len() > 2 * 20_000 * SECRET.len());
        assert_eq!(wire.has(&SECRET[..8]), !encrypted, "the wire sees what is not encrypted");
        assert!(!wire.has(&private(&text)[16..48]));
    }
}

#[test]
fn a_changed_byte_ends_the_link_and_is_not_delivered() {
    let (token, _) = token();
    let wire = Wire::default();
    let (a, b) = both(wire.ends(), (&token, &token));
    let (a, b) = (Stream::over(a.unwrap()), Stream::over(b.unwrap()));
    let memory = Span::fresh(4096).unwrap();
    b.register(KEY, memory.clone()).unwrap();
    *wire.changes.lock().unwrap() = true;
    a.write_with_immediate(0, KEY, 0, SECRET, 7).unwrap();
    a.flush().unwrap();
    let why = arrival(&b).unwrap_err();
    assert!(matches!(why, Broken::Tls(TlsError::Other(Error::DecryptError))), "{why}");
    let mut got = [1; 64];
    assert!(memory.read(0, &mut got) && got == [0; 64]);
}

#[test]
fn sides_with_different_tokens_say_so() {
    let (one, two) = (token().0, token().0);
    let (client, server) = both(Wire::default().ends(), (&one, &two));
    for side in [client.map(drop), server.map(drop)] {
        let why = side.unwrap_err();
        assert!(matches!(why, Broken::Tls(TlsError::OtherToken)), "{why}");
        assert!(why.to_string().contains("--token"), "{why}");
    }
}

#[test]
fn a_side_with_a_token_and_one_without_say_so_and_do_not_wait() {
    let (token, _) = token();
    // A client without.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let client = Stream::new(ours.into()).unwrap();
    client.write_with_immediate(0, KEY, 0, SECRET, 7).unwrap();
    client.flush().unwrap();
    let why = Tls::accept(theirs.into(), &token).map(drop).unwrap_err();
    assert!(matches!(why, Broken::Tls(TlsError::Plain)), "{why}");
    let why = arrival(&client).unwrap_err();
    assert!(matches!(why, Broken::Encrypted) && why.to_string().contains("--token"), "{why}");
    // A server without.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || arrival(&Stream::new(theirs.into()).unwrap()));
    let why = Tls::connect(ours.into(), &token).map(drop).unwrap_err();
    assert!(matches!(why, Broken::Tls(TlsError::Ended)) && why.to_string().contains("--token"), "{why}");
    let why = serving.join().unwrap().unwrap_err();
    assert!(matches!(why, Broken::Encrypted), "{why}");
}

/// Believes every peer.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Anybody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A key pair that shows the public key of `shown` and signs with the private key of `signs`.
fn forged(shown: &str, signs: &str) -> Arc<CertifiedKey> {
    let pair = |text: &str| any_eddsa_type(&PrivatePkcs8KeyDer::from(private(text))).unwrap();
    let public = pair(shown).public_key().unwrap().to_vec();
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], pair(signs)))
}

#[test]
fn a_client_that_does_not_have_the_token_is_refused_whatever_it_shows() {
    let ((right, right_text), (_, wrong_text)) = (token(), token());
    let shows = |key| Some(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)) as Arc<dyn ResolvesClientCert>);
    let cases = [
        ("nothing", None, false),
        ("its own key", shows(forged(&wrong_text, &wrong_text)), false),
        ("the token's public key, which servers show to everybody", shows(forged(&right_text, &wrong_text)), false),
        ("the token", shows(forged(&right_text, &right_text)), true),
    ];
    for (what, key, is_let_in) in cases {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody));
        let config = match key {
            Some(key) => config.with_client_cert_resolver(key),
            None => config.with_no_client_auth(),
        };
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let right = right.clone();
        let accepting = std::thread::spawn(move || Tls::accept(theirs.into(), &right).map(drop));
        let name = ServerName::try_from("towpath").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        // Sends its part, and something at once.
        let _ = Blocking::new(&mut client, &mut ours).write_all(SECRET);
        let accepted = accepting.join().unwrap();
        assert_eq!(accepted.is_ok(), is_let_in, "{what}: {accepted:?}");
    }
}

#[test]
fn a_server_that_does_not_have_the_token_learns_nothing() {
    let ((right, right_text), (_, wrong_text)) = (token(), token());
    let keys = [
        (forged(&wrong_text, &wrong_text), false),
        (forged(&right_text, &wrong_text), false),
        (forged(&right_text, &right_text), true),
    ];
    for (key, is_believed) in keys {
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(Arc::new(Anybody))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            let mut server = ServerConnection::new(Arc::new(config)).unwrap();
            let (mut stream, mut got) = (Blocking::new(&mut server, &mut theirs), vec![0; HEADER + SECRET.len()]);
            stream.read_exact(&mut got).is_ok_and(|()| got.ends_with(SECRET))
        });
        let link = Tls::connect(ours.into(), &right).map(Stream::over);
        assert_eq!(link.is_ok(), is_believed);
        if let Ok(link) = &link {
            link.write(0, KEY, 0, SECRET).and_then(|()| link.flush()).unwrap();
        }
        assert_eq!(serving.join().unwrap(), is_believed, "it has read what was sent");
    }
}

#[test]
fn a_handshake_has_a_time_however_slowly_it_goes_on() {
    let (token, _) = token();
    const LIMIT: Duration = Duration::from_millis(300);
    // The beginning of a long ClientHello, after which a byte comes now and then, or nothing.
    let hello = [22, 3, 1, 32, 0, 1, 0, 31, 252, 3, 3];
    for trickles in [false, true] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let token = token.clone();
        let begun = Instant::now();
        let accepting = std::thread::spawn(move || Tls::accept_within(theirs.into(), &token, LIMIT).map(drop));
        if trickles {
            ours.write_all(&hello).unwrap();
            while ours.write_all(&[0]).is_ok() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let why = accepting.join().unwrap().unwrap_err();
        assert!(matches!(why, Broken::Tls(TlsError::Slow)) && begun.elapsed() >= LIMIT, "{why}");
    }
}
