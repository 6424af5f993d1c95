//! The names in the subject of an X.509 certificate, which TLS libraries do not look at any more
//! and certificates made as Postgres' manual shows still rely on. Pure; a malformed certificate
//! has no names.
//!
//! ```text
//! Certificate ::= SEQUENCE { tbs, signatureAlgorithm, signature }
//! tbs ::= SEQUENCE { [0] version?, serial, signature, issuer, validity, subject, key,
//!                    [1]?, [2]?, [3] extensions? }
//! subject ::= SEQUENCE OF SET OF SEQUENCE { OID, string }
//! ```

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// True if the subject's common name names `host`. Asked only where the certificate has no
/// alternative names at all, as libpq does; `*.` stands for one label.
pub fn common_name_matches(der: &[u8], host: &str) -> bool {
    let Some(tbs) = Tbs::read(der) else { return false };
    if contains_oid(tbs.extensions, ALTERNATIVE_NAMES) {
        return false;
    }
    let mut names = tbs.subject;
    while let Some((set, rest)) = expect(names, SET) {
        names = rest;
        let named = expect(set, SEQUENCE).and_then(|(pair, _)| expect(pair, OID));
        let Some((COMMON_NAME, value)) = named else { continue };
        let Some((_, text, _)) = element(value) else { continue };
        if std::str::from_utf8(text).is_ok_and(|pattern| name_matches(pattern, host)) {
            return true;
        }
    }
    false
}

struct Tbs<'a> {
    subject: &'a [u8],
    extensions: &'a [u8],
}

impl<'a> Tbs<'a> {
    fn read(der: &'a [u8]) -> Option<Tbs<'a>> {
        let (certificate, _) = expect(der, SEQUENCE)?;
        let (tbs, _) = expect(certificate, SEQUENCE)?;
        let rest = expect(tbs, VERSION).map_or(tbs, |(_, rest)| rest);
        let (_, rest) = expect(rest, INTEGER)?;
        let (_signature, rest) = expect(rest, SEQUENCE)?;
        let (_issuer, rest) = expect(rest, SEQUENCE)?;
        let (_validity, rest) = expect(rest, SEQUENCE)?;
        let (subject, rest) = expect(rest, SEQUENCE)?;
        let (_key, mut rest) = expect(rest, SEQUENCE)?;
        let mut extensions: &[u8] = &[];
        while let Some((tag, content, behind)) = element(rest) {
            if tag == EXTENSIONS {
                extensions = content;
            }
            rest = behind;
        }
        Some(Tbs { subject, extensions })
    }
}

/// Extensions are a sequence of sequences that begin with their OID.
fn contains_oid(extensions: &[u8], wanted: &[u8]) -> bool {
    let Some((mut list, _)) = expect(extensions, SEQUENCE) else { return false };
    while let Some((extension, rest)) = expect(list, SEQUENCE) {
        if expect(extension, OID).is_some_and(|(oid, _)| oid == wanted) {
            return true;
        }
        list = rest;
    }
    false
}

fn name_matches(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return !pattern.is_empty();
    }
    match (pattern.strip_prefix("*."), host.split_once('.')) {
        (Some(domain), Some((label, rest))) => {
            !label.is_empty() && domain.contains('.') && domain.eq_ignore_ascii_case(rest)
        }
        _ => false,
    }
}

/// The content of the element at the front, if it has this tag, and what follows.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (seen, content, rest) = element(bytes)?;
    (seen == tag).then_some((content, rest))
}

/// Tag, content and what follows, of a definite-length DER element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], mut rest) = bytes.split_first_chunk::<2>()?;
    let length = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x84 => {
            let (size, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = behind;
            size.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[&str], cn: &str) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, cn);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn a_common_name_counts_only_without_alternative_names() {
        let bare = certificate(&[], "db.example.org");
        assert!(common_name_matches(&bare, "DB.example.org"));
        assert!(!common_name_matches(&bare, "example.org"));
        let named = certificate(&["other.org"], "db.example.org");
        assert!(!common_name_matches(&named, "db.example.org"));
    }

    #[test]
    fn a_star_is_exactly_one_label() {
        assert!(name_matches("*.example.org", "a.example.org"));
        assert!(!name_matches("*.example.org", "a.b.example.org"));
        assert!(!name_matches("*.example.org", ".example.org"));
        assert!(!name_matches("*.org", "example.org"));
        assert!(!name_matches("", ""));
    }

    #[test]
    fn cut_and_garbled_certificates_have_no_facts() {
        let der = certificate(&[], "db");
        for end in 0..der.len() {
            assert!(!common_name_matches(&der[..end], "db"));
        }
        let mut seed = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut garbled = der.clone();
            let at = seed.usize(..garbled.len());
            garbled[at] = seed.u8(..);
            // Must not panic, whatever it finds.
            let _ = common_name_matches(&garbled, "db");
        }
    }
}
