//! TLS to a Postgres server: what is trusted, and a session driven by hand.
//!
//! Rules of libpq: a root certificate makes every mode that encrypts check the chain; `verify-ca`
//! and `verify-full` need one, the host's own if none is given; only `verify-full` checks the
//! name, against the alternative names or, where there are none, the common name. A certificate
//! that is itself in the root file is trusted as it is, as a self-signed one usually is.
//!
//! The session moves bytes between buffers and never touches a socket: reads go into the
//! connection's own buffer, and the server's certificate is at hand for channel binding.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use super::certificate;
use super::intake::Intake;
use crate::pg_wire::end_point;
use crate::shard::event::TlsFault;

/// Registered name of the protocol.
const ALPN: &[u8] = b"postgresql";

/// Certificates of the host, read once per process.
static HOST_ROOTS: OnceLock<Result<Vec<CertificateDer<'static>>, String>> = OnceLock::new();

/// How much of the server's identity is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing: encryption only.
    Nothing,
    /// Who signed it.
    Chain,
    /// Who signed it, and whom it names.
    ChainAndName,
}

/// Whose signatures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots<'a> {
    /// Those the host trusts.
    Host,
    /// Those in this file.
    File(&'a Path),
}

/// What a session is made from.
pub struct Wish<'a> {
    /// How much is checked.
    pub check: Check,
    /// Against what.
    pub roots: Roots<'a>,
    /// Our certificate and its key, where the server wants one.
    pub client: Option<(&'a Path, &'a Path)>,
    /// Host name or address as configured.
    pub host: &'a str,
    /// The first bytes are TLS, without a question before.
    pub direct: bool,
}

/// A failed session: of which kind, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// Kind.
    pub fault: TlsFault,
    /// What was seen.
    pub why: String,
}

/// One TLS session.
pub struct Session {
    tls: ClientConnection,
    verifier: Arc<Verifier>,
}

impl Session {
    /// Reads the files and begins a handshake; nothing is sent before [`Session::take_output`].
    pub fn begin(wish: &Wish<'_>) -> Result<Session, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Verifier::new(wish, &provider)?);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| setup(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone());
        let mut config = match wish.client {
            Some((certificate, key)) => {
                let key_der = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|error| setup(format!("{}: no usable key: {error}", key.display())))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, key_der)
                    .map_err(|error| setup(format!("{}: {error}", certificate.display())))?
            }
            None => builder.with_no_client_auth(),
        };
        if wish.direct {
            config.alpn_protocols = vec![ALPN.to_vec()];
        }
        let name = match ServerName::try_from(wish.host.to_owned()) {
            Ok(name) => name,
            Err(_) if wish.check == Check::ChainAndName => {
                return Err(setup(format!("{:?} cannot be the name of a host", wish.host)));
            }
            // Not checked, and not fit to be told.
            Err(_) => {
                config.enable_sni = false;
                ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
            }
        };
        let mut tls = ClientConnection::new(Arc::new(config), name)
            .map_err(|error| setup(error.to_string()))?;
        tls.set_buffer_limit(None);
        Ok(Session { tls, verifier })
    }

    /// True until both sides agree.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// True if the server chose the protocol that was offered to it with [`Wish::direct`].
    pub fn agreed_on_protocol(&self) -> bool {
        self.tls.alpn_protocol() == Some(ALPN)
    }

    /// Decrypts what arrived behind what `intake` has, which awaits a message of `need` bytes.
    /// False when the server has said that nothing follows.
    pub fn receive(
        &mut self,
        mut arrived: &[u8],
        intake: &mut Intake,
        need: usize,
    ) -> Result<bool, TlsError> {
        let mut ended = false;
        while !arrived.is_empty() && !ended {
            // It reads from memory.
            let taken = self.tls.read_tls(&mut arrived).map_err(|error| handshake(&error))?;
            let state = self.tls.process_new_packets().map_err(|error| explain(&error))?;
            ended = state.peer_has_closed() || taken == 0;
            self.drain(intake, need);
        }
        Ok(!ended)
    }

    /// Encrypts; the bytes are in [`Session::take_output`].
    pub fn send(&mut self, bytes: &[u8]) {
        // Without a limit it takes everything.
        let _ = self.tls.writer().write_all(bytes);
    }

    /// Says that nothing follows.
    pub fn send_close(&mut self) {
        self.tls.send_close_notify();
    }

    /// True when there is something to write.
    pub fn has_output(&self) -> bool {
        self.tls.wants_write()
    }

    /// Appends what is to be written to the socket.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() {
            // It writes into memory.
            if self.tls.write_tls(out).is_err() {
                return;
            }
        }
    }

    /// What binds a login to this session; `None` where the certificate has no hash, or the
    /// server did not prove that it is its own.
    pub fn server_end_point(&self) -> Option<Vec<u8>> {
        if self.verifier.unproven.load(Ordering::Relaxed) {
            return None;
        }
        end_point::server_end_point(self.tls.peer_certificates()?.first()?)
    }

    fn drain(&mut self, intake: &mut Intake, need: usize) {
        let mut reader = self.tls.reader();
        loop {
            let taken = match reader.fill_buf() {
                Ok([]) | Err(_) => return,
                Ok(chunk) => {
                    intake.append(chunk, need);
                    chunk.len()
                }
            };
            reader.consume(taken);
        }
    }
}

/// Checks certificates as libpq does.
#[derive(Debug)]
struct Verifier {
    check: Check,
    roots: RootCertStore,
    /// The root file as it is: a certificate in it is trusted without a signature by another.
    pinned: Vec<CertificateDer<'static>>,
    host: String,
    provider: Arc<CryptoProvider>,
    /// The certificate cannot be read far enough to check the server's signature with it.
    unproven: AtomicBool,
}

impl Verifier {
    fn new(wish: &Wish<'_>, provider: &Arc<CryptoProvider>) -> Result<Verifier, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut pinned = Vec::new();
        match (wish.check, wish.roots) {
            (Check::Nothing, _) => {}
            (_, Roots::Host) => {
                roots.add_parsable_certificates(host_roots()?.iter().cloned());
            }
            (_, Roots::File(path)) => {
                pinned = certificates(path)?;
                // One that cannot sign others is still pinned.
                roots.add_parsable_certificates(pinned.iter().cloned());
            }
        }
        Ok(Verifier {
            check: wish.check,
            roots,
            pinned,
            host: wish.host.to_owned(),
            provider: provider.clone(),
            unproven: AtomicBool::new(false),
        })
    }

    fn check_chain(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.pinned.iter().any(|pinned| pinned == leaf) {
            return Ok(());
        }
        let parsed = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, others, now, algorithms)
    }

    fn check_name(&self, leaf: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
        match verify_server_name(&ParsedCertificate::try_from(leaf)?, name) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if certificate::common_name_matches(leaf, &self.host) => Ok(()),
            outcome => outcome,
        }
    }

    /// Where nothing is checked, a certificate of an old kind is no reason to refuse; it only
    /// cannot bind the login.
    fn judge(
        &self,
        outcome: Result<HandshakeSignatureValid, Error>,
        leaf: &CertificateDer<'_>,
    ) -> Result<HandshakeSignatureValid, Error> {
        if outcome.is_err()
            && self.check == Check::Nothing
            && ParsedCertificate::try_from(leaf).is_err()
        {
            self.unproven.store(true, Ordering::Relaxed);
            return Ok(HandshakeSignatureValid::assertion());
        }
        outcome
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.check != Check::Nothing {
            self.check_chain(end_entity, intermediates, now)?;
        }
        if self.check == Check::ChainAndName {
            self.check_name(end_entity, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        self.judge(verify_tls12_signature(message, cert, dss, algorithms), cert)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        self.judge(verify_tls13_signature(message, cert, dss, algorithms), cert)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn host_roots() -> Result<&'static [CertificateDer<'static>], TlsError> {
    let found = HOST_ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        match (found.certs.is_empty(), found.errors.first()) {
            (true, Some(error)) => Err(format!("the host's authorities cannot be read: {error}")),
            (true, None) => Err("this host trusts no authority; set sslrootcert".to_owned()),
            (false, _) => Ok(found.certs),
        }
    });
    found.as_deref().map_err(|why| setup(why.clone()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(setup(format!("{} holds no certificate in PEM form", path.display()))),
        Err(error) => Err(setup(format!("{}: {error}", path.display()))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| setup(format!("{}: {error}", path.display())))
}

fn setup(why: String) -> TlsError {
    TlsError { fault: TlsFault::Setup, why }
}

fn handshake(error: &io::Error) -> TlsError {
    TlsError { fault: TlsFault::Handshake, why: error.to_string() }
}

fn explain(error: &Error) -> TlsError {
    use CertificateError as C;
    let fault = match error {
        Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => TlsFault::WrongAuthority,
        Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            TlsFault::WrongName
        }
        Error::InvalidCertificate(
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
        ) => TlsFault::WrongTime,
        Error::InvalidCertificate(_) => TlsFault::BadCertificate,
        Error::AlertReceived(_) => TlsFault::RefusedByServer,
        _ => TlsFault::Handshake,
    };
    TlsError { fault, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::shard::driver::pg::intake::Front;

    struct Server {
        tls: ServerConnection,
        ca_pem: String,
    }

    fn server(change: impl FnOnce(&mut CertificateParams)) -> Server {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["db.test".to_owned()]).unwrap();
        change(&mut params);
        let leaf = params.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key.into())
            .unwrap();
        Server { tls: ServerConnection::new(Arc::new(config)).unwrap(), ca_pem }
    }

    fn session(server: &Server, check: Check) -> Session {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &server.ca_pem).unwrap();
        let roots = Roots::File(file.path());
        let wish = Wish { check, roots, client: None, host: "db.test", direct: false };
        Session::begin(&wish).unwrap()
    }

    /// Moves bytes both ways, `step` at a time, until nothing moves.
    fn exchange(
        server: &mut Server,
        session: &mut Session,
        intake: &mut Intake,
        step: usize,
    ) -> Result<bool, TlsError> {
        let mut goes_on = true;
        loop {
            let mut up = Vec::new();
            session.take_output(&mut up);
            let mut rest = up.as_slice();
            while !rest.is_empty() {
                server.tls.read_tls(&mut rest).unwrap();
                // The client's complaint arrives here; the client's own error is what counts.
                let _ = server.tls.process_new_packets();
            }
            let mut down = Vec::new();
            while server.tls.wants_write() {
                server.tls.write_tls(&mut down).unwrap();
            }
            for piece in down.chunks(step) {
                goes_on &= session.receive(piece, intake, 0)?;
            }
            if up.is_empty() && down.is_empty() {
                return Ok(goes_on);
            }
        }
    }

    #[test]
    fn records_may_arrive_in_any_pieces_and_the_end_is_told() {
        for step in [1, 5, 4096, 1 << 20] {
            let mut server = server(|_| ());
            let mut session = session(&server, Check::ChainAndName);
            let mut intake = Intake::default();
            exchange(&mut server, &mut session, &mut intake, step).unwrap();
            assert!(!session.is_handshaking() && session.server_end_point().is_some());
            let mut message = b"d\0\x04\x93\xe4".to_vec();
            message.resize(1 + 300_004, b'x');
            server.tls.set_buffer_limit(None);
            server.tls.writer().write_all(&message).unwrap();
            server.tls.send_close_notify();
            let goes_on = exchange(&mut server, &mut session, &mut intake, step).unwrap();
            assert!(!goes_on, "pieces of {step}");
            let Ok(Front::Chunk(chunk)) = intake.chunk(1 << 20, 1 << 20) else { panic!("cut") };
            assert_eq!(chunk, message, "pieces of {step}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_has_a_name_only_where_it_is_checked() {
        let outcome = |check: Check, change: fn(&mut CertificateParams)| {
            let mut server = server(change);
            let mut session = session(&server, check);
            let outcome = exchange(&mut server, &mut session, &mut Intake::default(), 4096);
            outcome.map(|_| ()).map_err(|error| error.fault)
        };
        let expired = |params: &mut CertificateParams| params.not_after = date_time_ymd(2001, 1, 1);
        assert_eq!(outcome(Check::Chain, expired), Err(TlsFault::WrongTime));
        assert_eq!(outcome(Check::Nothing, expired), Ok(()));
        let other_name = |params: &mut CertificateParams| params.subject_alt_names.clear();
        assert_eq!(outcome(Check::ChainAndName, other_name), Err(TlsFault::WrongName));
        assert_eq!(outcome(Check::Chain, other_name), Ok(()));
        let mut stranger = server(|_| ());
        let mut session = session(&server(|_| ()), Check::Chain);
        let error = exchange(&mut stranger, &mut session, &mut Intake::default(), 4096);
        assert_eq!(error.unwrap_err().fault, TlsFault::WrongAuthority);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "not a certificate").unwrap();
        for roots in [Roots::File(Path::new("/nonexistent/ca.crt")), Roots::File(file.path())] {
            let Roots::File(path) = roots else { unreachable!() };
            let check = Check::Chain;
            let wish = Wish { check, roots, client: None, host: "db", direct: false };
            let Err(error) = Session::begin(&wish) else { panic!("it begins") };
            assert_eq!(error.fault, TlsFault::Setup);
            assert!(error.why.contains(path.to_str().unwrap()), "{}", error.why);
        }
    }
}
