//! A blocking client of an Iggy server, one request at a time: what fills an upstream topic, asks
//! a real server how far a copy is, produces at a steady rate, and opens connections for the
//! copying peer.
#![allow(clippy::disallowed_methods)] // owns a socket

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::Duration;

use iggy_binary_protocol::requests::streams::DeleteStreamRequest;
use iggy_binary_protocol::{WireEncode, WireIdentifier, WireName};

use crate::iggy_wire::frame::{HEADER_LEN, RequestHeader};
use crate::iggy_wire::session::{Credentials, Delivery, Outgoing, Session};
use crate::iggy_wire::{Reply, Request, ServerError};

/// A server that is silent for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Operation byte.
const OP_DELETE_STREAM: u8 = 130;

/// Where a server is and who logs in there. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port`.
    pub address: String,
    /// User name.
    pub username: String,
    /// Its password.
    pub password: String,
}

/// A logged-in connection.
pub struct Client {
    socket: TcpStream,
    session: Session,
    id: u128,
}

impl Endpoint {
    /// A broker in this process.
    pub fn local(address: impl ToString) -> Endpoint {
        let iggy = || "iggy".to_owned();
        Endpoint { address: address.to_string(), username: iggy(), password: iggy() }
    }

    /// As it is written.
    pub fn shown(&self) -> String {
        format!("{}:{}@{}", self.username, self.password, self.address)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// `host:port` or `user:password@host:port`.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        let (who, address) = text.rsplit_once('@').unwrap_or(("iggy:iggy", text));
        let (username, password) = who.split_once(':').ok_or("expected user:password@host:port")?;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        port.ok_or("expected host:port, or user:password@host:port")?;
        Ok(Endpoint {
            address: address.to_owned(),
            username: username.to_owned(),
            password: password.to_owned(),
        })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.username, self.address)
    }
}

impl Client {
    /// Dials and logs in.
    pub fn connect(endpoint: &Endpoint) -> io::Result<Client> {
        let socket = TcpStream::connect(&endpoint.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let id = fastrand::u128(1 << 64..);
        let credentials = Credentials::Password {
            username: endpoint.username.clone(),
            password: endpoint.password.clone().into(),
        };
        let session = Session::new(id, fastrand::u64(1..1 << 60), credentials);
        let mut client = Client { socket, session, id };
        let login = client.session.login().map_err(io::Error::other)?;
        client.write(&login)?;
        match client.read()? {
            Delivery::LoggedIn { .. } => Ok(client),
            other => Err(io::Error::other(format!("the login was answered with {other:?}"))),
        }
    }

    /// One request and its answer.
    pub fn ask(&mut self, request: &Request) -> io::Result<Result<Reply, ServerError>> {
        let (number, outgoing) = self.session.request(request).map_err(io::Error::other)?;
        self.write(&outgoing)?;
        loop {
            match self.read()? {
                Delivery::Reply { number: answered, result } if answered == number => {
                    return Ok(result);
                }
                Delivery::Stray { .. } => {}
                other => return Err(io::Error::other(format!("a request got {other:?}"))),
            }
        }
    }

    /// The same where a refusal is an error.
    pub fn expect(&mut self, request: &Request) -> io::Result<Reply> {
        let answer = self.ask(request)?;
        answer.map_err(|error| io::Error::other(format!("the server refused: {error}")))
    }

    /// Deletes a stream with everything in it. Ends the connection: the session does not know of
    /// this request.
    pub fn delete_stream(mut self, stream: &str) -> io::Result<()> {
        let name = WireName::new(stream).map_err(io::Error::other)?;
        let body = DeleteStreamRequest { stream_id: WireIdentifier::String(name) }.to_bytes();
        let header = RequestHeader {
            size: u32::try_from(HEADER_LEN + body.len()).map_err(io::Error::other)?,
            client: self.id,
            request_checksum: 0,
            request: 1 << 61,
            operation: OP_DELETE_STREAM,
            // The server goes by the session of the connection; it only must not be 0.
            session: 1,
            code: 0,
        };
        self.socket.write_all(&header.encode())?;
        self.socket.write_all(&body)?;
        // Whatever it answers, it has done what it does.
        self.socket.read_exact(&mut [0; HEADER_LEN])
    }

    /// The socket and the session on it.
    pub fn into_parts(self) -> (TcpStream, Session) {
        (self.socket, self.session)
    }

    fn write(&mut self, outgoing: &Outgoing) -> io::Result<()> {
        outgoing.parts().try_for_each(|part| self.socket.write_all(part))
    }

    fn read(&mut self) -> io::Result<Delivery> {
        let mut header = [0; HEADER_LEN];
        self.socket.read_exact(&mut header)?;
        let incoming = self.session.on_header(&header).map_err(io::Error::other)?;
        let mut body = vec![0; incoming.body_len];
        self.socket.read_exact(&mut body)?;
        self.session.on_reply(&incoming, body.into()).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_carry_who_logs_in() {
        let plain: Endpoint = "host:8090".parse().unwrap();
        assert_eq!(plain, Endpoint::local("host:8090"));
        let named: Endpoint = "me:a@b:c@host:1".parse().unwrap();
        assert_eq!((named.username.as_str(), named.password.as_str()), ("me", "a@b:c"));
        assert_eq!(named.shown().parse::<Endpoint>(), Ok(named.clone()));
        assert!(!format!("{named:?}").contains("a@b"));
        for wrong in ["host", "host:port", "me@host:1", ""] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
