//! Proving who we are, and with SCRAM also who the server is.
//!
//! ```text
//! 'R' code:4 …  0 done | 3 cleartext | 5 md5 salt:4 | 10 SASL ( mechanism\0 ) … 0
//!               11 SASL challenge | 12 SASL outcome with the server's signature
//! 'p' …         the answer: password\0, or SASL data
//! ```
//!
//! Refused: a password in clear without TLS, an end of SCRAM without the server's signature, and
//! whatever is not bound to the TLS channel where that is required.

use std::fmt;

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as ScramBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};

use super::frame::Frame;
use super::reader::Reader;
use super::startup_error::StartupError;

/// `channel_binding`: whether SCRAM is tied to the TLS channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server can.
    #[default]
    Prefer,
    /// Or not at all.
    Require,
}

/// What there is to prove it with.
pub(super) struct Proof<'c> {
    pub user: &'c str,
    pub password: Option<&'c str>,
    pub tls: bool,
    /// `tls-server-end-point` of the server's certificate.
    pub end_point: Option<&'c [u8]>,
    pub binding: ChannelBinding,
    pub cleartext_allowed_without_tls: bool,
}

/// What follows from a request.
pub(super) enum AuthStep {
    Send(Vec<u8>),
    Continue,
    Accepted,
}

/// The exchange of one connection.
#[derive(Default)]
pub(super) struct Auth {
    state: State,
    /// SCRAM is tied to the channel.
    bound: bool,
}

#[derive(Default)]
enum State {
    #[default]
    Asked,
    PasswordSent,
    ScramBegun(Box<ScramSha256>),
    ScramAnswered(Box<ScramSha256>),
    ServerProven,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Asked => "asked",
            State::PasswordSent => "password sent",
            State::ScramBegun(_) => "SCRAM begun",
            State::ScramAnswered(_) => "SCRAM answered",
            State::ServerProven => "server proven",
        };
        write!(f, "Auth({state}, bound: {})", self.bound)
    }
}

impl Auth {
    /// Takes the body of an 'R' message.
    pub(super) fn request(
        &mut self,
        proof: &Proof<'_>,
        body: &[u8],
    ) -> Result<AuthStep, StartupError> {
        let mut reader = Reader::new(body);
        let code = reader.u32("authentication request")?;
        match (code, std::mem::take(&mut self.state)) {
            (0, state) => self.accepted(proof, state),
            (3, State::Asked) => self.cleartext(proof),
            (5, State::Asked) => self.md5(proof, reader.array("salt of an md5 request")?),
            (10, State::Asked) => self.sasl(proof, reader),
            (11, State::ScramBegun(mut scram)) => {
                scram.update(reader.rest()).map_err(StartupError::scram)?;
                let answer = Frame::new(b'p').bytes(scram.message()).end();
                self.state = State::ScramAnswered(scram);
                Ok(AuthStep::Send(answer))
            }
            (12, State::ScramAnswered(mut scram)) => {
                scram.finish(reader.rest()).map_err(StartupError::scram)?;
                self.state = State::ServerProven;
                Ok(AuthStep::Continue)
            }
            (3 | 5 | 10 | 11 | 12, _) => Err(StartupError::AuthOutOfTurn { code }),
            (code, _) => Err(StartupError::UnsupportedAuth { code, name: method_name(code) }),
        }
    }

    fn accepted(&self, proof: &Proof<'_>, state: State) -> Result<AuthStep, StartupError> {
        match state {
            State::Asked | State::PasswordSent | State::ServerProven => {}
            State::ScramBegun(_) | State::ScramAnswered(_) => {
                return Err(StartupError::ServerUnproven);
            }
        }
        if proof.binding == ChannelBinding::Require && !self.bound {
            return Err(StartupError::Unbound("the server let us in without it"));
        }
        Ok(AuthStep::Accepted)
    }

    fn cleartext(&mut self, proof: &Proof<'_>) -> Result<AuthStep, StartupError> {
        refuse_unbound(proof, "the server asks for the password itself")?;
        if !proof.tls && !proof.cleartext_allowed_without_tls {
            return Err(StartupError::CleartextWithoutTls);
        }
        self.send_password(password(proof, "a password in clear")?)
    }

    fn md5(&mut self, proof: &Proof<'_>, salt: [u8; 4]) -> Result<AuthStep, StartupError> {
        refuse_unbound(proof, "the server asks for an md5 hash")?;
        let password = password(proof, "an md5 hash of the password")?;
        let hash = md5_hash(proof.user.as_bytes(), password.as_bytes(), salt);
        self.send_password(&hash)
    }

    fn send_password(&mut self, text: &str) -> Result<AuthStep, StartupError> {
        self.state = State::PasswordSent;
        Ok(AuthStep::Send(Frame::new(b'p').text(text).end()))
    }

    fn sasl(&mut self, proof: &Proof<'_>, reader: Reader<'_>) -> Result<AuthStep, StartupError> {
        let offer = Offer::read(reader)?;
        let (mechanism, binding) = choose(proof, &offer)?;
        let password = password(proof, "SCRAM proof of the password")?;
        let scram = Box::new(ScramSha256::new(password.as_bytes(), binding));
        let first = scram.message();
        let length = u32::try_from(first.len()).unwrap_or(u32::MAX);
        let message = Frame::new(b'p').text(mechanism).u32(length).bytes(first).end();
        self.bound = mechanism == SCRAM_SHA_256_PLUS;
        self.state = State::ScramBegun(scram);
        Ok(AuthStep::Send(message))
    }
}

/// The mechanisms of a SASL request.
#[derive(Default)]
struct Offer {
    scram: bool,
    scram_plus: bool,
    names: Vec<String>,
}

impl Offer {
    fn read(mut reader: Reader<'_>) -> Result<Offer, StartupError> {
        let mut offer = Offer::default();
        loop {
            match reader.text("name of a SASL mechanism")? {
                "" => return Ok(offer),
                SCRAM_SHA_256 => offer.scram = true,
                SCRAM_SHA_256_PLUS => offer.scram_plus = true,
                other => offer.names.push(other.chars().take(40).collect()),
            }
        }
    }
}

/// The mechanism, and what its first message says about binding: done, impossible, or "I could,
/// you said you cannot" — by which the server notices that someone removed its offer.
fn choose(proof: &Proof<'_>, offer: &Offer) -> Result<(&'static str, ScramBinding), StartupError> {
    if offer.scram_plus && !proof.tls {
        return Err(StartupError::BindingWithoutTls);
    }
    let end_point = proof.end_point.filter(|_| proof.tls);
    match (proof.binding, end_point) {
        (ChannelBinding::Prefer | ChannelBinding::Require, Some(hash)) if offer.scram_plus => {
            Ok((SCRAM_SHA_256_PLUS, ScramBinding::tls_server_end_point(hash.to_vec())))
        }
        (ChannelBinding::Require, Some(_)) => {
            Err(StartupError::Unbound("the server does not offer it"))
        }
        (ChannelBinding::Require, None) if proof.tls => {
            Err(StartupError::Unbound("the server's certificate has no hash to bind to"))
        }
        (ChannelBinding::Require, None) => Err(StartupError::Unbound("the connection has no TLS")),
        _ if !offer.scram => {
            let names = offer.names.clone();
            Err(StartupError::NoMechanism { plus: offer.scram_plus, names })
        }
        (ChannelBinding::Prefer, Some(_)) => Ok((SCRAM_SHA_256, ScramBinding::unrequested())),
        _ => Ok((SCRAM_SHA_256, ScramBinding::unsupported())),
    }
}

fn refuse_unbound(proof: &Proof<'_>, why: &'static str) -> Result<(), StartupError> {
    if proof.binding == ChannelBinding::Require {
        return Err(StartupError::Unbound(why));
    }
    Ok(())
}

fn password<'c>(proof: &Proof<'c>, asked: &'static str) -> Result<&'c str, StartupError> {
    proof
        .password
        .filter(|password| !password.is_empty())
        .ok_or(StartupError::PasswordMissing { asked })
}

fn method_name(code: u32) -> &'static str {
    match code {
        2 => "Kerberos 5",
        6 => "SCM credentials",
        7 | 8 => "GSSAPI",
        9 => "SSPI",
        _ => "a method unknown to this program",
    }
}
