//! The body of `POST /sources/{key}/cdc/abandon-batch` (C5), read without mercy: what it asks for
//! loses data, so nothing in it is guessed.

use serde::Deserialize;

use crate::pg_wire::Lsn;
use crate::shard::order::Abandon;

/// What a caller must send, for the answers to those who did not.
const FORM: &str = r#"{"oldest": "<LSN>", "through": "<LSN>" or "current", "confirm": "<key>"}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    oldest: String,
    through: String,
    confirm: Option<String>,
}

/// What is to be given up of the source `key`; else what to correct. Nothing has changed then.
pub(super) fn read(key: &str, body: &[u8]) -> Result<Abandon, String> {
    let body: Body = serde_json::from_slice(body)
        .map_err(|error| format!("the body cannot be read: {error}; expected {FORM}"))
        .map_err(unchanged)?;
    let Body { oldest, through, confirm } = body;
    if confirm.as_deref() != Some(key) {
        let seen = confirm.map_or("missing".to_owned(), |seen| format!("{:?}", shortened(&seen)));
        return Err(unchanged(format!(
            "this gives up changes for good: their rows will never reach a destination. \
             `confirm` is {seen}; set it to {key:?} if that is what you want"
        )));
    }
    let position = |name: &str, text: &str| -> Result<u64, String> {
        let lsn: Lsn = text.parse().map_err(|error| unchanged(format!("`{name}`: {error}")))?;
        Ok(lsn.0)
    };
    let oldest = position("oldest", &oldest)?;
    let through = match through.as_str() {
        "current" => None,
        text => Some(position("through", text)?),
    };
    if let Some(through) = through.filter(|through| *through < oldest) {
        let (oldest, through) = (Lsn(oldest), Lsn(through));
        let text = format!("`through` is {through}, before `oldest`, {oldest}");
        return Err(unchanged(text));
    }
    Ok(Abandon { oldest, through })
}

fn unchanged(text: String) -> String {
    format!("{text}; nothing was changed")
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmed_range_is_read() {
        for (through, expected) in [("16/B374D848", Some(0x16_B374_D848)), ("current", None)] {
            let body =
                format!(r#"{{"oldest": "16/A0", "through": "{through}", "confirm": "shop"}}"#);
            let range = read("shop", body.as_bytes());
            assert_eq!(range, Ok(Abandon { oldest: 0x16_0000_00A0, through: expected }));
        }
        let same = br#"{"confirm":"shop","oldest":"0/10","through":"0/10"}"#;
        assert_eq!(read("shop", same), Ok(Abandon { oldest: 16, through: Some(16) }));
    }

    #[test]
    fn nothing_is_given_up_by_mistake() {
        for (body, words) in [
            ("", "expected {\"oldest\""),
            ("oldest=0/10&through=current", "expected {\"oldest\""),
            ("[]", "expected {\"oldest\""),
            (r#"{"oldest":"0/10","through":"current"}"#, "set it to \"shop\""),
            (r#"{"oldest":"0/10","through":"current","confirm":null}"#, "is missing"),
            (r#"{"oldest":"0/10","through":"current","confirm":"shops"}"#, "is \"shops\""),
            (r#"{"oldest":"0/10","through":"current","confirm":true}"#, "invalid type"),
            (r#"{"oldest":"0/10","confirm":"shop"}"#, "missing field `through`"),
            (r#"{"through":"current","confirm":"shop"}"#, "missing field `oldest`"),
            (r#"{"oldest":16,"through":"current","confirm":"shop"}"#, "invalid type"),
            (r#"{"oldest":"16","through":"current","confirm":"shop"}"#, "`oldest`: \"16\" is not"),
            (r#"{"oldest":"0/10","through":"now","confirm":"shop"}"#, "`through`: \"now\" is not"),
            (r#"{"oldest":"0/10","through":"Current","confirm":"shop"}"#, "`through`"),
            (r#"{"oldest":"0/10","through":null,"confirm":"shop"}"#, "invalid type"),
            (r#"{"oldest":"0/10","through":"0/F","confirm":"shop"}"#, "before `oldest`"),
            (r#"{"oldest":"0/1","through":"0/2","confirm":"shop","force":1}"#, "unknown field"),
            (r#"{"oldest":"0/1","oldest":"0/2","through":"0/3","confirm":"shop"}"#, "duplicate"),
            (r#"{"oldest":"0/1","through":"0/2","confirm":"shop"} x"#, "trailing"),
        ] {
            let error = read("shop", body.as_bytes()).expect_err(body);
            assert!(error.contains(words), "{body}: {error}");
            assert!(error.ends_with("; nothing was changed"), "{body}: {error}");
        }
    }
}
