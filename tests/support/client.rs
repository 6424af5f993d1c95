//! A blocking client for tests, on the product's own session: one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use iggy_binary_protocol::WireEncode;
use tidegate::iggy_wire::decode::outcome;
use tidegate::iggy_wire::frame::{HEADER_LEN, RequestHeader, ServerHeader};
use tidegate::iggy_wire::session::{Credentials, Delivery, Outgoing, Session};
use tidegate::iggy_wire::{Reply, Request, ServerError};

/// Silence for this long is a failed test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A logged-in connection.
pub struct Client {
    socket: TcpStream,
    session: Session,
    id: u128,
    number: u64,
}

impl Client {
    /// Dials and logs in as `iggy`.
    pub fn connect(address: &str) -> io::Result<Client> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (id, start) = (fastrand::u128(1 << 64..), fastrand::u64(1..1 << 60));
        let credentials =
            Credentials::Password { username: "iggy".to_owned(), password: "iggy".into() };
        let session = Session::new(id, start, credentials);
        let mut client = Client { socket, session, id, number: 0 };
        let login = client.session.login().map_err(io::Error::other)?;
        client.write(&login)?;
        match client.read()? {
            Delivery::LoggedIn { session, .. } => client.number = session.max(start),
            other => return Err(io::Error::other(format!("login: {other:?}"))),
        }
        Ok(client)
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
                other => return Err(io::Error::other(format!("{request:?}: {other:?}"))),
            }
        }
    }

    /// A metadata operation that the product never sends. Ends the connection: the session does
    /// not know of this number.
    pub fn operate(
        mut self,
        operation: u8,
        body: &impl WireEncode,
    ) -> io::Result<Result<Bytes, ServerError>> {
        let body = body.to_bytes();
        let size = u32::try_from(HEADER_LEN + body.len()).map_err(io::Error::other)?;
        let number = self.number + 1;
        let header = RequestHeader {
            size,
            client: self.id,
            request_checksum: 0,
            request: number,
            operation,
            session: self.session_id(),
            code: 0,
        };
        self.socket.write_all(&header.encode())?;
        self.socket.write_all(&body)?;
        let (header, body) = self.read_frame()?;
        match ServerHeader::parse(&header).map_err(io::Error::other)? {
            Some(ServerHeader::Reply(reply)) if reply.request == number => {
                outcome(&reply, body).map_err(io::Error::other)
            }
            other => Err(io::Error::other(format!("operation {operation}: {other:?}"))),
        }
    }

    /// The server goes by the session that is bound to the connection, it only must not be 0.
    fn session_id(&self) -> u64 {
        1
    }

    fn write(&mut self, outgoing: &Outgoing) -> io::Result<()> {
        outgoing.parts().try_for_each(|part| self.socket.write_all(part))
    }

    fn read(&mut self) -> io::Result<Delivery> {
        let (header, body) = self.read_frame()?;
        let incoming = self.session.on_header(&header).map_err(io::Error::other)?;
        self.session.on_reply(&incoming, body).map_err(io::Error::other)
    }

    fn read_frame(&mut self) -> io::Result<([u8; HEADER_LEN], Bytes)> {
        let mut header = [0; HEADER_LEN];
        self.socket.read_exact(&mut header)?;
        let incoming = self.session.on_header(&header).map_err(io::Error::other)?;
        let mut body = vec![0; incoming.body_len];
        self.socket.read_exact(&mut body)?;
        Ok((header, body.into()))
    }
}
