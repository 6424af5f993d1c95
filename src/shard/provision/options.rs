//! Which options a destination topic is created with (M8): those of the upstream topic that the
//! destination's catalogue knows; the rest is named, not dropped in silence.

use std::collections::BTreeSet;

use crate::iggy_wire::{TopicInfo, TopicOption};

/// Keys worth copying, in the order they are sent. What is not here is the server's own business
/// (preallocation) or has no counterpart (partition count is an argument).
const COPIED: [&str; 9] = [
    "compression_algorithm",
    "message_expiry",
    "max_topic_size",
    "segment_size",
    "durability",
    "consumer_offset_durability",
    "enforce_fsync",
    "messages_required_to_save",
    "size_of_messages_required_to_save",
];

/// The options to create with, and the keys of those that the destination does not know.
pub fn options_for(
    upstream: &TopicInfo,
    catalogue: &BTreeSet<String>,
) -> (Vec<TopicOption>, Vec<&'static str>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    for key in COPIED {
        match value_of(upstream, key) {
            Some(value) if catalogue.contains(key) => {
                kept.push(TopicOption { key: key.into(), value });
            }
            Some(_) => left_out.push(key),
            None => {}
        }
    }
    (kept, left_out)
}

/// The value in the server's text form; `None` where the server's default is meant.
fn value_of(topic: &TopicInfo, key: &str) -> Option<String> {
    let number = |value: u64| (value != 0).then(|| value.to_string());
    let listed = topic.options.iter().find(|option| option.key == key);
    match (listed, key) {
        // An edge server's way of saying that there is nothing to ask for.
        (Some(option), "enforce_fsync") if option.value == "false" => None,
        (Some(option), _) => Some(option.value.clone()),
        (None, "compression_algorithm") => match topic.compression {
            1 => Some("none".into()),
            2 => Some("gzip".into()),
            _ => None,
        },
        (None, "message_expiry") => number(topic.message_expiry),
        (None, "max_topic_size") => number(topic.max_size),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(options: &[(&str, &str)]) -> TopicInfo {
        let option = |(key, value): &(&str, &str)| TopicOption {
            key: (*key).into(),
            value: (*value).into(),
        };
        TopicInfo {
            name: "t".into(),
            created_at: 1,
            partitions_count: 1,
            message_expiry: 3_600_000_000,
            compression: 2,
            max_size: 0,
            size: 0,
            messages_count: 0,
            options: options.iter().map(option).collect(),
            partitions: Vec::new(),
        }
    }

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn what_the_destination_knows_is_copied_and_the_rest_is_named() {
        let upstream = topic(&[("durability", "persisted"), ("segment_size", "1048576")]);
        let known = keys(&["compression_algorithm", "message_expiry", "segment_size"]);
        let (kept, left_out) = options_for(&upstream, &known);
        let kept: Vec<_> = kept.iter().map(|o| (o.key.as_str(), o.value.as_str())).collect();
        assert_eq!(
            kept,
            [
                ("compression_algorithm", "gzip"),
                ("message_expiry", "3600000000"),
                ("segment_size", "1048576"),
            ]
        );
        assert_eq!(left_out, ["durability"]);
    }

    #[test]
    fn a_server_default_is_neither_copied_nor_missed() {
        let upstream = topic(&[("enforce_fsync", "false")]);
        let (kept, left_out) = options_for(&upstream, &keys(&[]));
        assert_eq!(kept, []);
        assert_eq!(left_out, ["compression_algorithm", "message_expiry"]);
    }

    #[test]
    fn an_explicit_option_wins_over_the_field_and_the_derived_one() {
        let upstream = topic(&[("message_expiry", "5"), ("message_expiry", "9")]);
        let (kept, _) = options_for(&upstream, &keys(&["message_expiry"]));
        assert_eq!(kept, [TopicOption { key: "message_expiry".into(), value: "5".into() }]);
    }
}
