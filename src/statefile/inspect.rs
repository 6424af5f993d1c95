//! What people and the start of the daemon read out of several state files.

/// `<source>.<shard>.state`.
pub fn file_name(source: &str, shard: u16) -> String {
    format!("{source}.{shard}.state")
}

/// Source and shard of a state file's name; `None` for any other name, temp files included.
pub fn parse_file_name(name: &str) -> Option<(&str, u16)> {
    let (source, shard) = name.strip_suffix(".state")?.rsplit_once('.')?;
    let number: u16 = shard.parse().ok()?;
    // One spelling per file: "07" or "+7" is not a name of ours.
    (!source.is_empty() && number.to_string() == shard).then_some((source, number))
}
