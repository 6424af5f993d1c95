//! State files: any bytes are refused, or are the file of a state that is written and read again.

use tidegate::statefile::SourceState;
use tidegate::statefile::format::{BLOCK, HEADER_LEN, MAGIC, VERSION, decode, encode};
use tidegate::statefile::inspect::file_name;
use twox_hash::{XxHash3_64, XxHash3_128};

/// `data` as a file, and as the body of one whose header fits, in each version.
pub fn file(data: &[u8]) {
    again(decode(data, "state"));
    let body = data.get(HEADER_LEN..).filter(|_| data.starts_with(&MAGIC)).unwrap_or(data);
    let length = data.get(16..24).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let length = length.and_then(|length| usize::try_from(length).ok());
    // Of a damaged file the body without its padding; what is no file is all body.
    let body = length.and_then(|length| body.get(..length)).unwrap_or(body);
    for version in 0..=VERSION + 1 {
        let decoded = decode(&sealed(version, body), "state");
        assert!((1..=VERSION).contains(&version) || decoded.is_err());
        again(decoded);
    }
}

fn again(decoded: Result<SourceState, tidegate::statefile::format::FormatError>) {
    match decoded {
        Err(error) => assert!(!error.fault.advice().is_empty() && !error.to_string().is_empty()),
        Ok(state) => {
            let image = encode(&state);
            assert!(image.len().is_multiple_of(BLOCK));
            let name = file_name(&state.source, state.shard);
            assert_eq!(decode(&image, &name).expect("what was encoded"), state);
        }
    }
}

/// Layout: docs/state-format.md.
fn sealed(version: u32, body: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&version.to_le_bytes());
    file.extend_from_slice(&64_u32.to_le_bytes());
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&7_u64.to_le_bytes());
    file.extend_from_slice(&XxHash3_128::oneshot(body).to_le_bytes());
    file.extend_from_slice(&[0; 8]);
    file.extend_from_slice(&XxHash3_64::oneshot(&file).to_le_bytes());
    file.extend_from_slice(body);
    file.resize(file.len().next_multiple_of(BLOCK), 0);
    file
}
