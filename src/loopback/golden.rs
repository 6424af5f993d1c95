//! The recorded session of a real server, replayed against the core: every reply must be the
//! recorded one, byte for byte.
//!
//! What varies between runs is handed to the core (cluster id, version, port, peer address, the
//! commit times of the recording). What still differs:
//!
//! * `raw_096` describes options: keys, kinds and defaults are compared, descriptions are ours.

use std::collections::BTreeMap;
use std::path::Path;

use iggy_binary_protocol::responses::system::DescribeOptionsResponse;
use iggy_binary_protocol::{Operation, WireDecode};

use super::core::{Core, Delivery, Effect, Flavour, Inbound, Settings};
use super::frame::{Framing, Header, RequestHead, framing};

const EXPECTED_EXCHANGES: usize = 52;

/// Frames of a recording by sequence number.
fn recording(set: &str) -> BTreeMap<u32, (String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/iggy");
    let mut frames = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the golden frames are there") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(set).filter(|_| name.ends_with(".bin")) else {
            continue;
        };
        let number = rest[..3].parse().expect("set, number, rest");
        #[allow(clippy::disallowed_methods)] // a test reads its fixtures
        let bytes = std::fs::read(&path).expect("a readable frame");
        frames.insert(number, (name, bytes));
    }
    frames
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("inside the frame")
}

fn settings(frames: &BTreeMap<u32, (String, Vec<u8>)>) -> Settings {
    Settings {
        version: "0.9.0-edge.5".to_owned(),
        flavour: Flavour::Edge5,
        cluster: u128::from_le_bytes(number_at(&frames[&14].1, 32)),
        port: u16::from_le_bytes(number_at(&frames[&12].1, 256 + 45)),
        ..Settings::default()
    }
}

fn inbound(frame: &[u8]) -> Inbound {
    let header: Header = number_at(frame, 0);
    assert_eq!(framing(&header), Framing::Request(frame.len() - 256));
    Inbound::decode(RequestHead::read(&header), frame[256..].to_vec())
}

#[test]
fn recorded_session_is_answered_byte_for_byte() {
    let frames = recording("raw_");
    let mut core = Core::new(settings(&frames));
    let connection = core.connect("127.0.0.1:39386".to_owned());
    let mut now = 1;
    let mut exchanges = 0;
    for (number, (name, request)) in frames.iter().filter(|(number, _)| *number % 2 == 1) {
        let (_, expected) = &frames[&(number + 1)];
        let stamped = u64::from_le_bytes(number_at(expected, 192));
        let reply = expected[60] == 8;
        now = if reply && stamped != 0 { stamped } else { now };
        let effects = core.handle(connection, inbound(request), now);
        let [Effect::Reply(frame, Delivery::Now)] = effects.as_slice() else {
            panic!("{name}: expected one reply, got {effects:?}");
        };
        let seen = frame.to_vec();
        if *number == 95 {
            assert_same_catalogue(&seen, expected);
        } else {
            let first = seen.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!((seen.len(), first), (expected.len(), None), "reply to {name}");
        }
        exchanges += 1;
    }
    assert_eq!(exchanges, EXPECTED_EXCHANGES);
}

fn assert_same_catalogue(seen: &[u8], expected: &[u8]) {
    let shape = |frame: &[u8]| {
        let (response, _) = DescribeOptionsResponse::decode(&frame[256..]).expect("a catalogue");
        response.entries.into_iter().map(|e| (e.key, e.kind, e.default_value)).collect::<Vec<_>>()
    };
    assert_eq!(shape(seen), shape(expected));
    let mut header: Header = number_at(seen, 0);
    header[48..52].copy_from_slice(&expected[48..52]);
    assert_eq!(header, number_at(expected, 0));
}

#[test]
fn requests_of_the_official_client_are_all_accepted() {
    let frames = recording("sdk_");
    let mut core = Core::new(Settings::default());
    let connection = core.connect("127.0.0.1:1".to_owned());
    // From 43 on the recording is of another connection whose login was left out.
    let requests = frames.iter().filter(|(number, _)| *number % 2 == 1 && **number < 43);
    let mut statuses = Vec::new();
    for (number, (name, request)) in requests {
        let effects = core.handle(connection, inbound(request), u64::from(*number));
        let [Effect::Reply(frame, Delivery::Now)] = effects.as_slice() else {
            panic!("{name}: expected one reply, got {effects:?}");
        };
        let seen = frame.to_vec();
        let status = u32::from_le_bytes(number_at(&seen, 216));
        let framed = Operation::CreateStream as u8..=Operation::LeaveConsumerGroup as u8;
        let code = if framed.contains(&request[176]) && seen.len() == 268 {
            u32::from_le_bytes(number_at(&seen, 264))
        } else {
            0
        };
        if status + code != 0 {
            statuses.push((*number, status, code));
        }
    }
    assert_eq!(statuses, [(9, 0, 1012), (21, 3007, 0)]);
}
