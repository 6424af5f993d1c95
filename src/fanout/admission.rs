//! Which destinations are admitted, and what becomes of messages whose destination is not (A2 to
//! A4, R7). Names are names: `7` is the topic called 7.

use crate::config::{AdmissionMode, AdmissionPlan, OnAdmissionFailure};
use crate::iggy_wire::build::encode_header;

/// Longest name, bytes.
pub const LONGEST_NAME: usize = 255;

/// Why a message is not sent to its destination (T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The table of destinations is full.
    Cap,
    /// The denylist names it.
    Denylist,
    /// The allowlist does not name it.
    Unknown,
    /// Iggy has no such name.
    InvalidName,
    /// The destination keeps failing.
    CircuitOpen,
    /// The topic has no such partition.
    PartitionIdOutOfRange,
    /// The message fits no frame.
    TooLarge,
}

impl Reason {
    /// Every reason, in the order of [`Reason::index`].
    pub const ALL: [Reason; 7] = [
        Reason::Cap,
        Reason::Denylist,
        Reason::Unknown,
        Reason::InvalidName,
        Reason::CircuitOpen,
        Reason::PartitionIdOutOfRange,
        Reason::TooLarge,
    ];

    /// The label of metrics, headers and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Cap => "cap",
            Reason::Denylist => "denylist",
            Reason::Unknown => "unknown",
            Reason::InvalidName => "invalid_name",
            Reason::CircuitOpen => "circuit_open",
            Reason::PartitionIdOutOfRange => "partition_id_out_of_range",
            Reason::TooLarge => "too_large",
        }
    }

    /// Its place in [`Reason::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What becomes of a message that is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It waits, and nothing of its destination passes it.
    Keep,
    /// It is counted and forgotten.
    Drop,
    /// It goes to the dead-letter topic.
    DeadLetter,
}

/// What becomes of it: an outage or a full table must not lose rows unless the operator said so
/// himself (A4).
pub fn disposition(plan: &AdmissionPlan, reason: Reason) -> Disposition {
    let passing = matches!(reason, Reason::CircuitOpen | Reason::Cap);
    match plan.on_failure {
        _ if passing && !plan.written_by_operator => Disposition::Keep,
        OnAdmissionFailure::Error => Disposition::Keep,
        OnAdmissionFailure::Drop => Disposition::Drop,
        OnAdmissionFailure::DeadLetter => Disposition::DeadLetter,
    }
}

/// A destination as names that Iggy takes, or why it is not admitted.
pub fn judge<'n>(
    plan: &AdmissionPlan,
    stream: &'n [u8],
    topic: &'n [u8],
) -> Result<(&'n str, &'n str), Reason> {
    let names = name(stream).zip(name(topic));
    let (stream, topic) = names.ok_or(Reason::InvalidName)?;
    if plan.admits(stream, topic) {
        return Ok((stream, topic));
    }
    Err(match plan.mode {
        _ if plan.is_mirrored(stream, topic) => Reason::Denylist,
        AdmissionMode::Denylist => Reason::Denylist,
        AdmissionMode::Allowlist | AdmissionMode::Open => Reason::Unknown,
    })
}

/// A name that Iggy takes: text of 1 to 255 bytes, not blank, without control characters.
pub fn name(bytes: &[u8]) -> Option<&str> {
    if bytes.is_empty() || bytes.len() > LONGEST_NAME {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.trim().is_empty() && !text.contains(char::is_control)).then_some(text)
}

/// User headers that tell a dead letter's reason and where it was meant to go. A name that does
/// not fit a header is cut to what does.
pub fn dead_letter_headers(out: &mut Vec<u8>, reason: Reason, stream: &[u8], topic: &[u8]) {
    encode_header(out, "tidegate_reason", reason.as_str());
    for (key, value) in [("tidegate_stream", stream), ("tidegate_topic", topic)] {
        let text = String::from_utf8_lossy(value);
        let end = text.floor_char_boundary(LONGEST_NAME);
        encode_header(out, key, text.get(..end).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::TopicName;
    use crate::config::DestinationPattern;

    fn plan(mode: AdmissionMode, entries: &[(&str, &str)]) -> AdmissionPlan {
        let segment = |text: &str| (text != "*").then(|| text.to_owned());
        let entry = |(stream, topic): &(&str, &str)| DestinationPattern {
            stream: segment(stream),
            topic: segment(topic),
        };
        AdmissionPlan {
            mode,
            entries: entries.iter().map(entry).collect(),
            max_destinations: 256,
            max_concurrent_destinations: 16,
            on_failure: OnAdmissionFailure::Error,
            written_by_operator: false,
            dead_letter: None,
            mirrored: Vec::new(),
        }
    }

    fn judged(plan: &AdmissionPlan, stream: &str, topic: &str) -> Result<(), Reason> {
        judge(plan, stream.as_bytes(), topic.as_bytes()).map(drop)
    }

    #[test]
    fn lists_know_literals_and_whole_segments_only() {
        let entries = [("commerce", "orders"), ("identity", "*"), ("*", "audit")];
        let allow = plan(AdmissionMode::Allowlist, &entries);
        let deny = plan(AdmissionMode::Denylist, &entries);
        for (stream, topic, listed) in [
            ("commerce", "orders", true),
            ("commerce", "order", false),
            ("Commerce", "orders", false),
            ("identity", "anything", true),
            ("other", "audit", true),
            ("other", "audit2", false),
            ("*", "*", false),
        ] {
            let refused = |yes, reason| if yes { Err(reason) } else { Ok(()) };
            let place = format!("{stream}/{topic}");
            let allowed = judged(&allow, stream, topic);
            assert_eq!(allowed, refused(!listed, Reason::Unknown), "{place}");
            let denied = judged(&deny, stream, topic);
            assert_eq!(denied, refused(listed, Reason::Denylist), "{place}");
        }
        assert_eq!(judged(&plan(AdmissionMode::Open, &[]), "any", "thing"), Ok(()));
    }

    #[test]
    fn what_a_mirror_writes_to_is_refused_in_every_mode() {
        for mode in [AdmissionMode::Open, AdmissionMode::Allowlist, AdmissionMode::Denylist] {
            let allowed = if mode == AdmissionMode::Allowlist { &[("s", "*")][..] } else { &[] };
            let mut plan = plan(mode, allowed);
            assert_eq!(judged(&plan, "s", "copy"), Ok(()));
            plan.mirrored = vec![TopicName::new("s", "copy")];
            assert_eq!(judged(&plan, "s", "copy"), Err(Reason::Denylist), "{mode:?}");
            assert_eq!(judged(&plan, "s", "other"), Ok(()));
        }
    }

    #[test]
    fn a_number_is_a_name_and_blanks_are_none() {
        let long = "x".repeat(256);
        for good in ["7", "0", "a/b", "ünï", "Orders", "a b", " a", &long[1..]] {
            assert_eq!(name(good.as_bytes()), Some(good));
        }
        for bad in ["", " ", "\u{3000}\t", "a\nb", "a\0", "\u{7f}", &long] {
            assert_eq!(name(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(name(b"\xff\xfe"), None, "not UTF-8");
        let open = plan(AdmissionMode::Open, &[]);
        assert_eq!(judge(&open, b"s", b"\xc3"), Err(Reason::InvalidName));
    }

    #[test]
    fn an_outage_loses_nothing_unless_the_operator_wrote_it() {
        let mut plan = plan(AdmissionMode::Open, &[]);
        for (on_failure, usual) in [
            (OnAdmissionFailure::Error, Disposition::Keep),
            (OnAdmissionFailure::Drop, Disposition::Drop),
            (OnAdmissionFailure::DeadLetter, Disposition::DeadLetter),
        ] {
            plan.on_failure = on_failure;
            for reason in Reason::ALL {
                let passing = matches!(reason, Reason::Cap | Reason::CircuitOpen);
                plan.written_by_operator = true;
                assert_eq!(disposition(&plan, reason), usual);
                plan.written_by_operator = false;
                let expected = if passing { Disposition::Keep } else { usual };
                assert_eq!(disposition(&plan, reason), expected, "{}", reason.as_str());
            }
        }
    }

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }

    #[test]
    fn a_dead_letter_says_why_and_whereto_whatever_the_name() {
        let mut out = Vec::new();
        let long = "ü".repeat(200);
        dead_letter_headers(&mut out, Reason::InvalidName, b"", long.as_bytes());
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("tidegate_reason") && text.contains("invalid_name"));
        assert!(!text.contains("tidegate_stream"), "an empty value is no header");
        assert!(text.contains(&"ü".repeat(127)) && !text.contains(&"ü".repeat(128)));
    }
}
