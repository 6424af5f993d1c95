//! The broker over sockets: every fault, and stop, pause and restart.
#![allow(clippy::disallowed_methods)] // tests measure time and use threads

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iggy_binary_protocol::Operation;

use super::testing::{
    Peer, STREAM, TOPIC, confirmed, eventually, head, ids, login_body, polled, request_frame,
    send_body,
};
use super::{
    Control, ControlError, EvictionReason, Fault, Message, Restart, Scope, Server, ServerOptions,
    Times,
};

const SHORT: Duration = Duration::from_millis(60);

fn broker() -> (Server, Control) {
    broker_with(ServerOptions::default())
}

fn broker_with(options: ServerOptions) -> (Server, Control) {
    let server = Server::start(options).expect("a free port");
    let control = server.control();
    assert!(control.create_topic(STREAM, TOPIC, 2));
    (server, control)
}

fn peer(control: &Control) -> Peer {
    Peer::new(control.address(), 77)
}

#[test]
fn watched_arrivals_are_those_that_were_acked() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.watch_arrivals(true);
    control.fault_once(Fault::Reject { code: 57, applied: false }, Scope::sends());
    assert_eq!(peer.send(0, 1, 2).status, 57);
    assert_eq!(confirmed(&peer.send(0, 1, 2)), 0);
    eventually("the count", || control.acked().messages == 2);
    let arrivals = control.take_arrivals();
    let origins: Vec<u64> = arrivals.iter().map(|arrival| arrival.origin % 1_000).collect();
    assert_eq!(origins, [0, 1]);
    assert!(arrivals.iter().all(|arrival| arrival.acked == control.acked().last));
    assert!(control.take_arrivals().is_empty());
}

#[test]
fn dropped_request_is_neither_applied_nor_answered() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::DropRequest, Scope::sends());
    peer.start_send(0, 1, 2);
    assert!(peer.is_silent(SHORT));
    assert_eq!(control.unacked_sends(), 1);
    assert_eq!(confirmed(&peer.send(0, 10, 1)), 0);
    assert_eq!(ids(&control), [10]);
    let counters = control.counters(STREAM, TOPIC, 0).expect("the partition");
    assert_eq!((counters.sends_received, counters.sends_applied), (2, 1));
}

#[test]
fn dropped_reply_is_applied() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::DropReply, Scope::sends().topic(STREAM, TOPIC).partition(0));
    assert_eq!(confirmed(&peer.send(1, 5, 1)), 0);
    peer.start_send(0, 1, 2);
    assert_eq!(confirmed(&peer.send(0, 3, 1)), 2);
    assert_eq!(ids(&control), [1, 2, 3]);
    assert_eq!(control.applied_faults().len(), 1);
}

#[test]
fn rejection_says_nothing_about_what_was_applied() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault(Fault::Reject { code: 58, applied: false }, Scope::sends(), Times::Next(2));
    control.fault_once(Fault::Reject { code: 57, applied: true }, Scope::sends());
    let codes: Vec<_> = (1..=4).map(|id| peer.send(0, id, 1).status).collect();
    assert_eq!(codes, [58, 58, 57, 0]);
    assert_eq!(ids(&control), [3, 4]);
    control.fault_once(Fault::Reject { code: 41, applied: false }, Scope::polls());
    assert_eq!(peer.poll(0, 0, 10).status, 41);
}

#[test]
fn transient_rejection_of_a_login_is_in_the_result_section() {
    let (_server, control) = broker();
    control.fault_once(Fault::Reject { code: 58, applied: false }, Scope::logins());
    let mut socket = TcpStream::connect(control.address()).expect("a connection");
    let frame = request_frame(&head(5, Operation::Register, 0, 0), &login_body());
    socket.write_all(&frame).expect("a live socket");
    let mut reply = [0; 268];
    socket.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[216..220], [0; 4]);
    assert_eq!(reply[256..], [1, 0, 0, 0, 0, 0, 0, 0, 58, 0, 0, 0]);
}

#[test]
fn held_replies_wait_for_their_release() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault(Fault::HoldReply, Scope::sends(), Times::Next(2));
    let numbers = [peer.start_send(0, 1, 1), peer.start_send(0, 2, 1)];
    eventually("both replies are held", || control.held() == 2);
    assert_eq!(control.unacked_sends(), 2);
    assert_eq!(ids(&control), [1, 2]);
    assert_eq!(polled(&peer.poll(0, 0, 10)), Ok(vec![0, 1]));
    assert_eq!(control.release_held(), 2);
    let replies = [peer.read(), peer.read()].map(|reply| reply.expect("a reply").request);
    assert_eq!(replies, numbers);
    eventually("nothing is unacked", || control.unacked_sends() == 0);
}

#[test]
fn slow_reply_comes_late_and_is_overtaken() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::Slow(5 * SHORT), Scope::sends());
    let started = Instant::now();
    let slow = peer.start_send(0, 1, 1);
    assert_eq!(confirmed(&peer.send(1, 2, 1)), 0);
    eventually("only the slow one is unacked", || control.unacked_sends() == 1);
    assert_eq!(peer.read().expect("a reply").request, slow);
    assert!(started.elapsed() >= 5 * SHORT);
}

#[test]
fn trickled_reply_arrives_whole_and_alone() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    peer.send(0, 1, 3);
    let every = Duration::from_millis(1);
    control.fault_once(Fault::SlowReply { piece: 16, every }, Scope::polls());
    let started = Instant::now();
    let slow = peer.start_poll(0, 0, 10);
    eventually("the slow reply began", || !control.applied_faults().is_empty());
    let next = peer.start_poll(1, 0, 10);
    let replies = [peer.read(), peer.read()].map(|reply| reply.expect("a reply"));
    let slow_reply = replies.iter().find(|reply| reply.request == slow).expect("both arrive");
    assert_eq!(polled(slow_reply), Ok(vec![0, 1, 2]));
    assert!(replies.iter().any(|reply| reply.request == next));
    assert!(started.elapsed() >= 30 * every);
}

#[test]
fn cut_reply_ends_the_connection_in_the_middle_of_a_frame() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::CutMidFrame { after: 270 }, Scope::sends());
    peer.start_send(0, 1, 1);
    let mut rest = Vec::new();
    peer.socket.read_to_end(&mut rest).expect("an orderly close");
    assert_eq!(rest.len(), 270);
    assert_eq!(ids(&control), [1]);
    eventually("the connection is gone", || control.connections() == 0);
}

#[test]
fn eviction_ends_the_session_and_keeps_the_connection() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::Evict(EvictionReason::SessionTooLow), Scope::sends());
    let reply = peer.send(0, 1, 1);
    assert_eq!((reply.command, reply.reason), (13, 7));
    let reply = peer.send(0, 2, 1);
    assert_eq!((reply.command, reply.reason), (13, 1));
    assert!(ids(&control).is_empty());
    peer.write(Operation::Register, 0, 0, &login_body());
    assert_eq!(peer.read().expect("a login reply").command, 8);
    assert_eq!(confirmed(&peer.send(0, 3, 1)), 0);

    assert_eq!(control.evict_all(EvictionReason::StaleClient), 1);
    let unsolicited = peer.read().expect("an eviction");
    assert_eq!((unsolicited.command, unsolicited.reason), (13, 13));
}

#[test]
fn stray_reply_comes_first_under_a_number_nobody_asked_with() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::StrayReply, Scope::sends());
    let number = peer.start_send(0, 1, 1);
    let stray = peer.read().expect("a stray reply");
    assert_ne!(stray.request, number);
    assert_ne!(confirmed(&stray), 0);
    let truth = peer.read().expect("a reply");
    assert_eq!((truth.request, confirmed(&truth)), (number, 0));
}

#[test]
fn corrupted_message_fails_its_checksum_only_where_asked() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    peer.send(0, 1, 3);
    peer.send(0, 4, 3);
    control.fault(Fault::CorruptRecord { offset: 4 }, Scope::polls(), Times::UntilCleared);
    assert_eq!(polled(&peer.poll(0, 0, 4)), Ok(vec![0, 1, 2, 3]));
    let error = polled(&peer.poll(0, 0, 10)).expect_err("a flipped byte");
    assert!(error.to_string().contains("offset 4"), "{error}");
    assert_eq!(control.applied_faults().len(), 1);
    control.clear_all();
    control.fault_once(Fault::CorruptChecksum, Scope::polls());
    let error = polled(&peer.poll(0, 0, 10)).expect_err("a flipped byte");
    assert!(error.to_string().contains("batch checksum"), "{error}");
    assert_eq!(polled(&peer.poll(0, 0, 10)), Ok(vec![0, 1, 2, 3, 4, 5]));
}

#[test]
fn late_append_comes_after_its_connection_is_gone() {
    let (_server, control) = broker();
    let mut first = peer(&control);
    control.fault_once(Fault::LateAppend { after: SHORT }, Scope::sends());
    first.start_send(0, 1, 2);
    assert_eq!(first.read(), None);
    let mut second = Peer::new(control.address(), 78);
    assert!(ids(&control).is_empty());
    assert_eq!(control.pending_late_appends(), 1);
    assert_eq!(confirmed(&second.send(0, 10, 1)), 0);
    eventually("the late send is appended", || control.pending_late_appends() == 0);
    assert_eq!(ids(&control), [10, 1, 2]);
    let counters = control.counters(STREAM, TOPIC, 0).expect("the partition");
    assert_eq!((counters.sends_received, counters.sends_applied), (2, 2));
}

#[test]
fn wrong_range_and_empty_confirmation_happen_once() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::EmptyConfirmation, Scope::sends());
    let reply = peer.send(0, 1, 4);
    assert_eq!((reply.status, reply.body.len()), (0, 0));
    assert_eq!(ids(&control).len(), 4);
    control.fault_once(Fault::WrongRange { from: 3 }, Scope::polls());
    assert_eq!(polled(&peer.poll(0, 1, 10)), Ok(vec![3]));
    assert_eq!(polled(&peer.poll(0, 1, 10)), Ok(vec![1, 2, 3]));
}

#[test]
fn invalid_batch_meets_silence_or_the_configured_status() {
    let mut broken = send_body(0, 1, 1);
    *broken.last_mut().expect("a body") ^= 1;
    let (_server, control) = broker();
    let mut silent = peer(&control);
    silent.write(Operation::SendMessages, 0, 9, &broken);
    assert!(silent.is_silent(SHORT));
    let options = ServerOptions { invalid_batch_status: Some(4), ..ServerOptions::default() };
    let (_server, control) = broker_with(options);
    let mut told = peer(&control);
    told.write(Operation::SendMessages, 0, 9, &broken);
    assert_eq!(told.read().expect("a reply").status, 4);
    assert!(ids(&control).is_empty());
}

#[test]
fn restart_loses_the_tail_and_answers_empty_while_starting() {
    let (_server, control) = broker();
    let mut first = peer(&control);
    first.send(0, 1, 3);
    first.send(0, 4, 3);
    let address = control.address();
    let starting_for = Duration::from_millis(300);
    let restart = Restart { lose_tail: 2, starting_for, downtime: SHORT };
    let started = Instant::now();
    control.restart(restart).expect("the same port");
    assert!(started.elapsed() >= SHORT);
    assert_eq!(first.read(), None);
    assert_eq!(control.address(), address);
    let mut second = Peer::new(address, 78);
    let starting = second.poll(0, 0, 10);
    assert_eq!(starting.body, [0; 16]);
    eventually("the partition is there", || {
        polled(&Peer::new(address, 79).poll(0, 0, 10)) == Ok(vec![0, 1, 2, 3])
    });
    assert_eq!(confirmed(&second.send(0, 9, 1)), 4);
    assert_eq!(ids(&control), [1, 2, 3, 4, 9]);
}

#[test]
fn stopped_broker_refuses_connections_until_started() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.stop();
    assert_eq!(peer.read(), None);
    assert_eq!(control.connections(), 0);
    let refused = TcpStream::connect(control.address()).expect_err("a closed port");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    control.start().expect("the same port");
    control.start().expect("starting twice is starting once");
    Peer::new(control.address(), 78);
}

#[test]
fn paused_broker_keeps_sockets_and_says_nothing() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    control.pause();
    let number = peer.start_send(0, 1, 1);
    assert!(peer.is_silent(SHORT));
    assert!(ids(&control).is_empty());
    control.resume();
    assert_eq!(peer.read().expect("a reply").request, number);
    assert_eq!(ids(&control), [1]);
    control.pause();
    peer.start_send(0, 2, 1);
    control.stop();
    control.resume();
    control.start().expect("the same port");
    assert_eq!(peer.read(), None);
    assert_eq!(ids(&control), [1]);
}

#[test]
fn oversized_and_unknown_frames_close_the_connection() {
    let (_server, control) = broker();
    let frame = |size: u32, command: u8| {
        let mut frame = request_frame(&head(5, Operation::NonReplicated, 1, 1), &[]);
        frame[48..52].copy_from_slice(&size.to_le_bytes());
        frame[60] = command;
        frame
    };
    for (size, command) in [((64 << 20) + 1, 5), (255, 5), (256, 30)] {
        let mut peer = peer(&control);
        peer.socket.write_all(&frame(size, command)).expect("a live socket");
        assert_eq!(peer.read(), None, "size {size} command {command}");
    }
    let mut peer = peer(&control);
    peer.socket.write_all(&frame(256, 6)).expect("a live socket");
    assert_eq!(confirmed(&peer.send(0, 1, 1)), 0);
}

#[test]
fn pipelined_sends_and_polls_are_answered_in_order() {
    let (_server, control) = broker();
    let mut peer = peer(&control);
    let mut numbers = Vec::new();
    for id in 0..200 {
        numbers.push(peer.start_send(0, id, 1));
        numbers.push(peer.start_poll(0, id, 1));
    }
    for (index, number) in numbers.into_iter().enumerate() {
        let reply = peer.read().expect("a reply");
        assert_eq!(reply.request, number);
        if index % 2 == 1 {
            assert_eq!(polled(&reply), Ok(vec![index as u64 / 2]));
        }
    }
}

#[test]
fn control_appends_resets_and_names_what_it_does_not_know() {
    let (_server, control) = broker();
    let message = |id: u128| Message {
        id,
        origin_timestamp: 1_700_000_000_000_000 + id as u64,
        payload: Bytes::from(vec![7; id as usize]),
        user_headers: Bytes::from_static(b"\x02\x01\0\0\0k\x02\x01\0\0\0v"),
    };
    let base = control.append(STREAM, TOPIC, 1, &[message(0), message(5)]);
    assert_eq!(base, Ok(0));
    let stored = control.dump(STREAM, TOPIC, 1, 1, 10).expect("the partition");
    assert_eq!(stored.len(), 1);
    let (read, written) = (&stored[0], message(5));
    assert_eq!((read.offset, read.id), (1, 5));
    assert_eq!(read.origin_timestamp, written.origin_timestamp);
    assert_eq!((&read.payload, &read.user_headers), (&written.payload, &written.user_headers));
    let created_at = control.created_at(STREAM, TOPIC);
    control.reset_log(STREAM, TOPIC, 1).expect("the partition");
    assert_eq!(control.end(STREAM, TOPIC, 1), Ok(0));
    assert_eq!(control.created_at(STREAM, TOPIC), created_at);
    let unknown = control.end(STREAM, "nope", 0).expect_err("no such topic");
    assert_eq!(unknown, ControlError::Unknown("s/nope".to_owned()));
    let bad = control.create_topic_with(STREAM, "x", 1, &[("nope", "1")]);
    assert!(matches!(bad, Err(ControlError::Refused(_))));
    control.delete_topic(STREAM, TOPIC).expect("the topic");
    assert!(control.append(STREAM, TOPIC, 0, &[message(1)]).is_err());
}

#[test]
fn size_limit_drops_the_oldest_segments() {
    let options =
        ServerOptions { segment_bytes: 1000, max_topic_bytes: 5000, ..ServerOptions::default() };
    let (_server, control) = broker_with(options);
    let mut peer = peer(&control);
    for id in 0..40 {
        assert_eq!(confirmed(&peer.send(0, id, 1)), id);
    }
    let earliest = control.earliest(STREAM, TOPIC, 0).expect("the partition");
    assert!((20..40).contains(&earliest), "earliest {earliest}");
    assert_eq!(polled(&peer.poll(0, 0, 1)), Ok(vec![earliest]));
}

#[test]
fn shutdown_ends_every_thread_even_while_paused_with_held_replies() {
    let (server, control) = broker();
    let mut peer = peer(&control);
    control.fault_once(Fault::HoldReply, Scope::sends());
    peer.start_send(0, 1, 1);
    eventually("the reply is held", || control.held() == 1);
    control.pause();
    peer.start_send(0, 2, 1);
    server.shutdown();
    assert_eq!(control.connections(), 0);
    assert_eq!(peer.read(), None);
    assert!(TcpStream::connect(control.address()).is_err());
}
