//! Reading a line from left to right: names, types and values, each by its own quotes.

use super::{Expected, Quoted, Value};

/// What is left of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: line }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// What was read since the rest was `before`.
    pub(super) fn since(&self, before: &'a [u8]) -> &'a [u8] {
        before.get(..before.len().saturating_sub(self.rest.len())).unwrap_or_default()
    }

    pub(super) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Passes over `token` if it comes next.
    #[inline]
    pub(super) fn eat(&mut self, token: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    #[inline]
    pub(super) fn need(&mut self, token: &[u8], expected: Expected) -> Result<(), Expected> {
        if self.eat(token) { Ok(()) } else { Err(expected) }
    }

    pub(super) fn end(&self) -> Result<(), Expected> {
        if self.rest.is_empty() { Ok(()) } else { Err("the end of the line") }
    }

    pub(super) fn number(&mut self) -> Result<u32, Expected> {
        let digits = self.take_while(u8::is_ascii_digit);
        let text = std::str::from_utf8(digits).unwrap_or_default();
        text.parse().map_err(|_| "a number of at most 32 bits")
    }

    /// A name: in double quotes, or of letters, digits and `_` without them.
    pub(super) fn identifier(&mut self) -> Result<Quoted<'a>, Expected> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$');
        let name = if self.eat(b"\"") {
            let name = self.quoted(b'"')?;
            std::str::from_utf8(name.inside).map_err(|_| "a name in UTF-8")?;
            name
        } else {
            Quoted { inside: self.take_while(plain), doubled: None }
        };
        if name.inside.is_empty() { Err("a name") } else { Ok(name) }
    }

    /// A type as SQL writes it, up to the bracket that closes it.
    pub(super) fn type_name(&mut self) -> Result<&'a str, Expected> {
        let before = self.rest;
        loop {
            if self.eat(b"\"") {
                self.quoted(b'"')?;
            } else if !self.eat(b"[]") {
                let plain = |byte: &u8| !matches!(byte, b'"' | b'[' | b']');
                if self.take_while(plain).is_empty() {
                    break;
                }
            }
        }
        let name = self.since(before);
        if name.is_empty() {
            return Err("a type");
        }
        std::str::from_utf8(name).map_err(|_| "a type's name in UTF-8")
    }

    /// `null`, `unchanged-toast-datum`, `'…'`, `B'…'`, or a number or truth value as it is.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value<'a>, Expected> {
        if self.rest.starts_with(b"'") || self.eat(b"B") {
            return self.literal().map(Value::Text);
        }
        match self.take_while(|byte| *byte != b' ') {
            b"" => Err("a value"),
            b"null" => Ok(Value::Null),
            b"unchanged-toast-datum" => Ok(Value::Unchanged),
            bare => Ok(Value::Bare(bare)),
        }
    }

    /// `'…'`
    #[inline]
    pub(super) fn literal(&mut self) -> Result<Quoted<'a>, Expected> {
        self.need(b"'", "a value in quotes")?;
        self.quoted(b'\'')
    }

    /// What stands before the closing quote, which is passed over. A doubled quote does not
    /// close.
    fn quoted(&mut self, quote: u8) -> Result<Quoted<'a>, Expected> {
        const OPEN: Expected = "a closing quote";
        let text = self.rest;
        let (mut end, mut doubled) = (0usize, None);
        loop {
            let ahead = text.get(end..).ok_or(OPEN)?;
            let step = place_of(quote, ahead).ok_or(OPEN)?;
            end = end.saturating_add(step);
            let (inside, rest) = text.split_at_checked(end).ok_or(OPEN)?;
            match rest {
                [_, second, ..] if *second == quote => {
                    doubled = Some(quote);
                    end = end.saturating_add(2);
                }
                [_, rest @ ..] => {
                    self.rest = rest;
                    return Ok(Quoted { inside, doubled });
                }
                [] => return Err(OPEN),
            }
        }
    }

    fn take_while(&mut self, keep: impl Fn(&u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !keep(byte)).unwrap_or(self.rest.len());
        let (head, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, b""));
        self.rest = rest;
        head
    }
}

/// Place of the first `byte`, looked for eight bytes at a time.
fn place_of(byte: u8, text: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let wanted = ONES.wrapping_mul(u64::from(byte));
    let mut rest = text;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk) ^ wanted;
        if word.wrapping_sub(ONES) & !word & HIGH != 0 {
            break;
        }
        rest = after;
    }
    let tail = rest.iter().position(|other| *other == byte)?;
    text.len().checked_sub(rest.len())?.checked_add(tail)
}
