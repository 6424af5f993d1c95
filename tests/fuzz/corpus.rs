//! What the targets begin with: recordings of `tests/golden`, files of `tests/fuzz/corpus`, and
//! runs of choices.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::iggy_wire::build::{Message, build_record};
use tidegate::pg_wire::Lsn;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Files of a folder with their names, in order.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    paths.iter().map(read).collect()
}

/// Inputs that once broke a promise.
pub fn crashes(target: &str) -> Vec<(String, Vec<u8>)> {
    files(&tests().join("fuzz/crashes").join(target))
}

pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        files(&tests().join("fuzz/corpus").join(target)).into_iter().map(|(_, f)| f).collect();
    seeds.extend(match target {
        "iggy_frames" => golden("iggy", ".bin").into_iter().map(|(_, bytes)| bytes).collect(),
        "iggy_records" => records(),
        "pgoutput" => recorded(&["changes_v1", "stream", "phases", "values_binary", "values_text"]),
        "test_decoding" => recorded(&["changes_lines", "phases_lines", "values_lines"]),
        "values" => values(),
        "state_file" => golden("state", ".state").into_iter().map(|(_, bytes)| bytes).collect(),
        "capture_stream" => streams(),
        "iggy_relay" | "mirror_events" | "capture_events" => choices(),
        _ => Vec::new(),
    });
    seeds
}

fn golden(folder: &str, end: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = files(&tests().join("golden").join(folder));
    found.retain(|(name, _)| name.ends_with(end));
    found
}

/// Bodies of polls, without what stands before the records, and a record that was built.
fn records() -> Vec<Vec<u8>> {
    let replies = golden("iggy", ".bin").into_iter().filter(|(name, _)| name.contains("_rep_op2_"));
    let bodies = replies.filter_map(|(_, bytes)| bytes.get(256 + 16..).map(<[u8]>::to_vec));
    let mut records: Vec<Vec<u8>> = bodies.filter(|body| body.len() > 256 + 48).collect();
    let payloads = [&b"a"[..], b"", b"four"];
    let message = |(n, payload)| Message {
        id: u128::from(n),
        origin_timestamp: 1_000 + n,
        payload,
        user_headers: b"",
    };
    let mut messages: Vec<Message<'_>> = (0_u64..).zip(payloads).map(message).collect();
    messages.retain(|message| !message.payload.is_empty());
    let built = build_record(&messages).expect("a record");
    records.push([built.stored(0, 0, 5), built.stored(0, 2, 6)].concat());
    records
}

/// Some lines of each recording: log position and message.
fn lines(kinds: &[&str], most: usize) -> Vec<Vec<(Lsn, Vec<u8>)>> {
    let listed = |name: &str| kinds.iter().any(|kind| name.ends_with(&format!("_{kind}.tsv")));
    let found = golden("postgres", ".tsv").into_iter().filter(|(name, _)| listed(name));
    let read = |text: Vec<u8>| {
        let text = String::from_utf8(text).expect("text");
        let line = |line: &str| {
            let lsn = line.split('\t').next()?.parse().ok()?;
            Some((lsn, unhex(line.rsplit('\t').next()?)?))
        };
        text.lines().filter_map(line).take(most).collect()
    };
    found.map(|(_, text)| read(text)).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

fn recorded(kinds: &[&str]) -> Vec<Vec<u8>> {
    lines(kinds, 150).into_iter().flatten().map(|(_, message)| message).collect()
}

/// Values of every type in both forms, behind a byte that chooses a type.
fn values() -> Vec<Vec<u8>> {
    let text = golden("postgres", "_numbers.tsv").pop().expect("a recording").1;
    let text = String::from_utf8(text).expect("text");
    let mut values = Vec::new();
    for (nth, line) in text.lines().enumerate().step_by(23) {
        let mut cells = line.split('\t').skip(1);
        let choice = u8::try_from(nth % 251).expect("small");
        let (form, bytes) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        values.push([&[choice], form.as_bytes()].concat());
        values.push([&[choice][..], &unhex(bytes).unwrap_or_default()].concat());
    }
    let known: [(u8, &[u8]); 8] = [
        (8, b"{\"a\": [1, null]}"),
        (12, b"{1,NULL,\"a b\",{}}"),
        (13, b"[0:1][-1:1]={{1,2,3},{4,5,NULL}}"),
        (19, b"2024-01-02 03:04:05.12+05:30"),
        (21, b"1 year 2 mons -3 days 04:05:06.7"),
        (24, b"-0.000123456789012345678901234567890"),
        (25, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (1, b"\\xdeadbeef"),
    ];
    values.extend(known.iter().map(|(choice, value)| [&[*choice][..], *value].concat()));
    values
}

/// Runs of messages as the server sends them, each behind its length.
fn streams() -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    let kinds = ["changes_v1", "stream", "phases", "values_text"];
    for (choice, kinds) in [(0, &kinds[..]), (1, &["changes_lines", "values_lines"][..])] {
        for run in lines(kinds, 400).iter().flat_map(|run| run.chunks(60)) {
            let mut bytes = vec![choice, choice, 0];
            for (lsn, message) in run {
                let body = [b"w", &lsn.0.to_be_bytes()[..], &[0; 16], message].concat();
                let Ok(length) = u16::try_from(body.len()) else { continue };
                bytes.extend(length.to_be_bytes());
                bytes.extend(body);
            }
            streams.push(bytes);
        }
    }
    streams
}

/// Numbers nobody chose, of several lengths.
fn choices() -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(11);
    let run = |length: usize| (0..length).map(|_| rng.u8(..)).collect();
    [20, 40, 80, 150, 300, 600].into_iter().cycle().take(24).map(run).collect()
}
