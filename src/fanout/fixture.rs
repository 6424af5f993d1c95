//! Plans and rows of the unit tests.

use std::sync::Arc;

use super::route::Columns;
use crate::config::{self, CapturePlan, SecretError, Secrets};

struct NoSecrets;

impl Secrets for NoSecrets {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }
    fn file(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }
}

/// The plan of a capture with these lines in its table and behind it.
pub(super) fn plan(lines: &str) -> Arc<CapturePlan> {
    let text = format!(
        "[daemon]\nstate_dir = \"s\"\n[clusters.west]\naddress = \"w:1\"\ntoken = \"t\"\n\
         [sources.shop]\nkind = \"postgres_cdc\"\nto = \"west\"\n\
         connection = \"postgresql://u@db/shop\"\ntables = \"*\"\n{lines}\n"
    );
    let plan = config::parse(&text, "t.toml", &NoSecrets);
    plan.unwrap_or_else(|errors| panic!("{errors}")).captures.remove(0)
}

/// Columns `topic` and `stream` with defaults, then these lines in `[routing]`.
pub(super) fn routed(lines: &str) -> Arc<CapturePlan> {
    plan(&format!(
        "[sources.shop.routing]\ntopic_column = \"topic\"\nstream_column = \"stream\"\n\
         default_topic = \"unknown\"\ndefault_stream = \"default\"\n{lines}"
    ))
}

/// A row of text columns.
pub(super) struct Row<'a>(pub Vec<Option<&'a [u8]>>);

impl Columns for Row<'_> {
    fn text(&self, index: usize) -> Option<&[u8]> {
        self.0.get(index).copied().flatten()
    }
}

/// A row of these texts.
pub(super) fn row<'a>(texts: &[Option<&'a str>]) -> Row<'a> {
    Row(texts.iter().map(|text| text.map(str::as_bytes)).collect())
}
