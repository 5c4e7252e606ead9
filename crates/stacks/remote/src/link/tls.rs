//! Bytes encrypted by TLS 1.3 (RFC 8446), with a [`Token`] on both sides. Each side shows the token's public key, without
//! a certificate (RFC 7250), and signs the handshake with its private key. So a peer that is believed has the token, and
//! what it reads is what this side has sent.

use crate::link::Broken;
use crate::link::byte_stream::{ByteStream, Plain};
use crate::token::Token;
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ServerConnection};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Connection, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme, version,
};
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Bytes read from the socket at a time.
const TAKEN: usize = 128 << 10;
/// A name must be given, and none is sent.
const NAME: &str = "towpath";

/// Why a peer is not believed, or not understood.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The peer has another token.
    #[error("the other side has another token: give both a copy of one file with --token")]
    OtherToken,
    /// The peer does not speak TLS.
    #[error("the other side does not speak TLS: give it a copy of this side's token with --token")]
    Plain,
    /// The peer has ended the connection in the middle of the handshake.
    #[error(
        "the other side has ended the TLS handshake: it is no kernel stack with --token, or too many wait for it; its \
         log says which"
    )]
    Ended,
    /// The handshake takes too long.
    #[error(
        "the other side does not answer the TLS handshake: it is no kernel stack, or the network drops the packets"
    )]
    Slow,
    /// Something else.
    #[error("TLS: {0}")]
    Other(Error),
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(_)
            | Error::NoCertificatesPresented
            | Error::AlertReceived(AlertDescription::AccessDenied | AlertDescription::CertificateRequired) => {
                Self::OtherToken
            }
            other => Self::Other(other),
        }
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Tls(error.into())
    }
}

/// A socket on which everything is encrypted.
pub struct Tls {
    socket: Plain,
    connection: Mutex<Connection>,
    /// Encrypted bytes that are being sent.
    outgoing: Mutex<Vec<u8>>,
    incoming: Mutex<Incoming>,
}

/// Encrypted bytes: those from `from` to `to` are still to be decrypted.
struct Incoming {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Tls {
    /// The side that has connected. Returns when the peer has proved that it has the token.
    pub fn connect(socket: OwnedFd, token: &Token) -> Result<Self, Broken> {
        let name = ServerName::try_from(NAME).map_err(|_| Error::General("the name".into()))?;
        Self::begin(socket, ClientConnection::new(Arc::new(client(token)?), name)?.into(), HANDSHAKE_LIMIT)
    }
    /// The side that has accepted. Returns when the peer has proved that it has the token.
    pub fn accept(socket: OwnedFd, token: &Token) -> Result<Self, Broken> {
        Self::accept_within(socket, token, HANDSHAKE_LIMIT)
    }
    /// The same, within this time.
    pub fn accept_within(socket: OwnedFd, token: &Token, limit: Duration) -> Result<Self, Broken> {
        Self::begin(socket, ServerConnection::new(Arc::new(server(token)?))?.into(), limit)
    }

    fn begin(socket: OwnedFd, mut connection: Connection, limit: Duration) -> Result<Self, Broken> {
        let socket = Plain::new(socket)?;
        handshake(&socket, &mut connection, Instant::now() + limit)?;
        // One send is encrypted as a whole, however long it is.
        connection.set_buffer_limit(None);
        let incoming = Incoming { bytes: vec![0; TAKEN], from: 0, to: 0 };
        Ok(Self {
            socket,
            connection: Mutex::new(connection),
            outgoing: Mutex::default(),
            incoming: Mutex::new(incoming),
        })
    }

    /// Decrypts what has come. Returns the number of bytes.
    fn decrypt(&self, incoming: &mut Incoming, to: &mut [u8]) -> Result<usize, Broken> {
        let (mut connection, mut count) = (lock(&self.connection), 0);
        loop {
            while count < to.len() {
                match connection.reader().read(&mut to[count..]) {
                    Ok(0) if count == 0 => return Err(Broken::Ended),
                    Ok(0) => return Ok(count),
                    Ok(some) => count += some,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            if count == to.len() || incoming.from == incoming.to {
                return Ok(count);
            }
            incoming.from += connection.read_tls(&mut &incoming.bytes[incoming.from..incoming.to])?;
            connection.process_new_packets()?;
        }
    }
}

impl ByteStream for Tls {
    fn send(&self, bytes: &[u8]) -> Result<(), Broken> {
        let mut encrypted = lock(&self.outgoing);
        {
            // Not held while the socket takes them: the thread that receives would wait as well.
            let mut connection = lock(&self.connection);
            connection.writer().write_all(bytes)?;
            while connection.wants_write() {
                connection.write_tls(&mut *encrypted)?;
            }
        }
        self.socket.send(&encrypted)?;
        encrypted.clear();
        Ok(())
    }
    fn receive(&self, to: &mut [u8], timeout: Duration) -> Result<usize, Broken> {
        let mut incoming = lock(&self.incoming);
        match self.decrypt(&mut incoming, to)? {
            0 => {}
            count => return Ok(count),
        }
        (incoming.from, incoming.to) = (0, self.socket.receive(&mut incoming.bytes, timeout)?);
        self.decrypt(&mut incoming, to)
    }
    fn close(&self) {
        self.socket.close();
    }
}

/// Reads and writes for the handshake.
struct Socket<'a>(&'a Plain);

impl Read for Socket<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0.fd(), to)?)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0.fd(), from)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn handshake(socket: &Plain, connection: &mut Connection, until: Instant) -> Result<(), Broken> {
    let wait = |what| match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(Broken::Tls(TlsError::Slow)),
        left => socket.await_event(what, left).map(drop),
    };
    let mut understood = false;
    loop {
        while connection.wants_write() {
            if done(connection.write_tls(&mut Socket(socket)))?.is_none() {
                wait(PollFlags::OUT)?;
            }
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        // Before each read: a peer that sends a byte at a time gains no time by it.
        wait(PollFlags::IN)?;
        match done(connection.read_tls(&mut Socket(socket)))? {
            Some(0) => return Err(TlsError::Ended.into()),
            Some(_) => {}
            None => continue,
        }
        if let Err(error) = connection.process_new_packets() {
            // The peer learns why, if there is room for it.
            while connection.wants_write() && connection.write_tls(&mut Socket(socket)).is_ok() {}
            return Err(match error {
                Error::InvalidMessage(_) if !understood => TlsError::Plain.into(),
                error => error.into(),
            });
        }
        understood = true;
    }
}

/// The count of a read or write; `None` if it must be tried again.
fn done(result: io::Result<usize>) -> Result<Option<usize>, Broken> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::INTR) => Ok(None),
            Some(Errno::CONNRESET | Errno::PIPE) => Err(TlsError::Ended.into()),
            _ => Err(error.into()),
        },
    }
}

/// The algorithms, with TLS 1.3 only.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn client(token: &Token) -> Result<ClientConfig, Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SameToken(token.clone())))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(token.key())));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

fn server(token: &Token) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(SameToken(token.clone())))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(token.key())));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Believes peers that have the private key of this very token. A handshake is signed for one of the two roles, so a
/// peer cannot show this side's own signature to it.
#[derive(Debug)]
struct SameToken(Token);

impl SameToken {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let same = self.0.public().is_some_and(|public| public.as_ref() == shown.as_ref());
        if same { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }
    fn signed(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(shown)?;
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &provider().signature_verification_algorithms)
    }
}

/// TLS 1.2 is not spoken.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
}

impl ServerCertVerifier for SameToken {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, shown, signature)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for SameToken {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, shown, signature)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Locks a mutex. A panic under it leaves a stream that the peer will find broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Both sides, with a new token.
    fn both() -> (Tls, Tls) {
        let file = std::env::temp_dir().join(format!("towpath-tls-keys-{}", std::process::id()));
        Token::make(&file).unwrap();
        let token = Token::load(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| Tls::accept(b.into(), &token).unwrap());
            (Tls::connect(a.into(), &token).unwrap(), accepting.join().unwrap())
        })
    }

    /// The next bytes, of which there are `count`.
    fn received(from: &Tls, count: usize) -> Vec<u8> {
        let (mut got, mut part) = (Vec::new(), [0; 777]);
        while got.len() < count {
            let some = from.receive(&mut part, Duration::from_secs(30)).unwrap();
            assert!(some > 0, "{} of {count} bytes", got.len());
            got.extend(&part[..some]);
        }
        got
    }

    /// After 2^24 records rustls takes new keys, and asks the peer for new ones (RFC 8446, 5.5). The peer's answer goes
    /// with its next bytes.
    #[test]
    fn keys_are_renewed_under_traffic() {
        let (a, b) = both();
        for turn in 0..10u8 {
            for (from, to) in [(&a, &b), (&b, &a)] {
                let bytes: Vec<u8> = (0..50_000u32).map(|n| (n as u8).wrapping_mul(turn)).collect();
                lock(&from.connection).refresh_traffic_keys().unwrap();
                from.send(&bytes).unwrap();
                assert!(received(to, bytes.len()) == bytes);
            }
        }
    }
}
