//! The channel binding `tls-server-end-point` (RFC 5929): a hash of the server's certificate,
//! by the hash function the certificate is signed with, MD5 and SHA-1 replaced by SHA-256.
//!
//! ```text
//! Certificate ::= SEQUENCE { tbs SEQUENCE, algorithm SEQUENCE { oid, parameters }, signature }
//! RSASSA-PSS parameters ::= SEQUENCE { [0] SEQUENCE { oid of the hash, … }, … }; absent: SHA-1
//! ```

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

/// The binding of a certificate in DER. `None` where the algorithm has no hash of its own
/// (Ed25519) or is unknown: such a certificate cannot be bound to.
pub fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, inner, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, behind_tbs) = element(inner)?;
    let (_, algorithm, _) = element(behind_tbs).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, oid, parameters) = element(algorithm).filter(|(tag, ..)| *tag == OID)?;
    let hash = match oid {
        RSA_PSS => pss_hash(parameters)?,
        other => signature_hash(other)?,
    };
    Some(match hash {
        Hash::Sha224 => Sha224::digest(certificate).to_vec(),
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

#[derive(Clone, Copy)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

const SEQUENCE: u8 = 0x30;
const OID: u8 = 0x06;
const FIRST_PARAMETER: u8 = 0xa0;

/// 1.2.840.113549.1.1.10
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];

fn signature_hash(oid: &[u8]) -> Option<Hash> {
    match oid {
        // 1.2.840.113549.1.1: RSA with MD5, SHA-1, SHA-256, -384, -512, -224
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, last] => match last {
            0x04 | 0x05 | 0x0b => Some(Hash::Sha256),
            0x0c => Some(Hash::Sha384),
            0x0d => Some(Hash::Sha512),
            0x0e => Some(Hash::Sha224),
            _ => None,
        },
        // 1.2.840.10045.4.1: ECDSA with SHA-1
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01] => Some(Hash::Sha256),
        // 1.2.840.10045.4.3: ECDSA with SHA-224, -256, -384, -512
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, last] => match last {
            0x01 => Some(Hash::Sha224),
            0x02 => Some(Hash::Sha256),
            0x03 => Some(Hash::Sha384),
            0x04 => Some(Hash::Sha512),
            _ => None,
        },
        _ => None,
    }
}

fn pss_hash(parameters: &[u8]) -> Option<Hash> {
    let (_, fields, _) = element(parameters).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let Some((_, hash, _)) = element(fields).filter(|(tag, ..)| *tag == FIRST_PARAMETER) else {
        return Some(Hash::Sha256);
    };
    let (_, algorithm, _) = element(hash).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, oid, _) = element(algorithm).filter(|(tag, ..)| *tag == OID)?;
    match oid {
        // 1.3.14.3.2.26
        [0x2b, 0x0e, 0x03, 0x02, 0x1a] => Some(Hash::Sha256),
        // 2.16.840.1.101.3.4.2
        [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, last] => match last {
            0x01 => Some(Hash::Sha256),
            0x02 => Some(Hash::Sha384),
            0x03 => Some(Hash::Sha512),
            0x04 => Some(Hash::Sha224),
            _ => None,
        },
        _ => None,
    }
}

/// The first element: tag, content, and what is behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if *first >= 0x80 {
        let digits = usize::from(*first & 0x7f);
        // Longer lengths are no certificate, and none is of indefinite length.
        if digits == 0 || digits > 4 {
            return None;
        }
        let (bytes, behind) = rest.split_at_checked(digits)?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = behind;
    }
    let (content, behind) = rest.split_at_checked(length)?;
    Some((*tag, content, behind))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Made by OpenSSL: algorithm, certificate, first bytes of the binding as OpenSSL hashes it.
    const CERTIFICATES: &[(&str, &str, Option<[u8; 4]>, usize)] = &[
        (
            "ECDSA with SHA-384",
            "MIIBZjCCAQ2gAwIBAgIUVFw9QSjYLrI/oNq+TNq/ltA+mEswCgYIKoZIzj0EAwMwDDEKMAgGA1UEAwwB\
             ZDAeFw0yNjExMzAyMjE2MTNaFw0zNjExMjcyMjE2MTNaMAwxCjAIBgNVBAMMAWQwWTATBgcqhkjOPQIB\
             BggqhkjOPQMBBwNCAAQlswILxOC5hfZp78mO77ynQaZCHCD2firEn0JJefaT/7BxM2YrJRLo8LISi4pj\
             LprHnMJ2G7u3m11QesV0meULo00wSzAdBgNVHQ4EFgQUm0FgzLIxBqo3UyBGFKKaLXqPDs4wHwYDVR0j\
             BBgwFoAUm0FgzLIxBqo3UyBGFKKaLXqPDs4wCQYDVR0TBAIwADAKBggqhkjOPQQDAwNHADBEAiBIdaw0\
             BZHN59h5NpYK4WIw1IMtgVBBZp0ZFdOLOs5BhQIgRa8ogTO+igR+nJvbwam0JLBywloG3riDhbG7v4lD\
             hBs=",
            Some([0x24, 0x88, 0xba, 0x20]),
            48,
        ),
        (
            "ECDSA with SHA-1",
            "MIIBZTCCAQygAwIBAgIUIdORnXdoNHXpyxw226KkWO+jpxAwCQYHKoZIzj0EATAMMQowCAYDVQQDDAFk\
             MB4XDTI2MTEzMDIyMTYxM1oXDTM2MTEyNzIyMTYxM1owDDEKMAgGA1UEAwwBZDBZMBMGByqGSM49AgEG\
             CCqGSM49AwEHA0IABHYWIGeqzhs1/g8oc9ciSwcCUoI9NhCGD+nuUVhdthZYnSRKlHnhh5hG+FOaZjad\
             CFecf/i0YeHRGqwTEqdCoDajTTBLMB0GA1UdDgQWBBRhcxqcNq+qyYPYn4fTS13yjet7azAfBgNVHSME\
             GDAWgBRhcxqcNq+qyYPYn4fTS13yjet7azAJBgNVHRMEAjAAMAkGByqGSM49BAEDSAAwRQIhAMNRV0Ad\
             ZVBI5ZzuQkgfIDMZFxWzPbv+PjGr4NuLgu2CAiAh2YOW2BJ3Snl46tAJTFH2l31u1qo8tmIt8sewb5bD\
             eQ==",
            Some([0x0b, 0xaa, 0xcd, 0xf7]),
            32,
        ),
        (
            "RSA with SHA-512",
            "MIIB7jCCAVegAwIBAgIUZEtSlkVn+78MVSsQjuHE5LTaDvQwDQYJKoZIhvcNAQENBQAwDDEKMAgGA1UE\
             AwwBZDAeFw0yNjExMzAyMjE2MTNaFw0zNjExMjcyMjE2MTNaMAwxCjAIBgNVBAMMAWQwgZ8wDQYJKoZI\
             hvcNAQEBBQADgY0AMIGJAoGBAMDjjGllA1KAAKp2Cm2PPae+y5tjfZACUr2NDDSgtLMv1j6oAbNRZYJ5\
             VfxqGiS4O+to4agv8cAmNPWgKAgDl5ubJZ+CV/45t+FKyt8JkHqaVhzUbCPHp0ecypoegv0hRXT0Hz29\
             EH5yKlmAdDgmHppyyNqE/PXHulRbkJk8AixBAgMBAAGjTTBLMB0GA1UdDgQWBBSB69OldYsRImjj+Geh\
             ju5E6VPovjAfBgNVHSMEGDAWgBSB69OldYsRImjj+Gehju5E6VPovjAJBgNVHRMEAjAAMA0GCSqGSIb3\
             DQEBDQUAA4GBALIsot5xDMh4f3llPXGzJ4V87yuBgjjlyio0Bd/Dz4Tclfm5ExseKo/x7gROpmGftZJR\
             Pv/I5+8qaTlgeKFk+HOowO9d4qyFdpXnSc1ewNQ8TtBzAkQtrCWSkXc8iHTAGLTOostWpN1WjlIoxWkd\
             AlVBiig3iyCG2PqCyhoKUCL/",
            Some([0xd1, 0x92, 0x93, 0xc8]),
            64,
        ),
        (
            "RSASSA-PSS with SHA-512",
            "MIICTDCCAYagAwIBAgIUK/91u2YmfBfBibj/qXd4qnTNCLgwPAYJKoZIhvcNAQEKMC+gDzANBglghkgB\
             ZQMEAgMFAKEcMBoGCSqGSIb3DQEBCDANBglghkgBZQMEAgMFADAMMQowCAYDVQQDDAFkMB4XDTI2MTEz\
             MDIyMTYxM1oXDTM2MTEyNzIyMTYxM1owDDEKMAgGA1UEAwwBZDCBnzANBgkqhkiG9w0BAQEFAAOBjQAw\
             gYkCgYEAqJC17VShJGn9lekIZoAwl0I6+3gU9X2js49159kZHzZuiZnrjQFWw6hCUrct+rmGBaYL8Z+n\
             yaKfyOBuhStuPS1niiMjKXA8j9zP+cn//ErZSvjXIB2tYVfqoKnqOnScPesozKGHrfV6Oq8KUFaxj4tC\
             9igGIbFpW5+AiF0ve/0CAwEAAaNNMEswHQYDVR0OBBYEFCajEBDpY/t+7dni6nQrtFJbP4KCMB8GA1Ud\
             IwQYMBaAFCajEBDpY/t+7dni6nQrtFJbP4KCMAkGA1UdEwQCMAAwPAYJKoZIhvcNAQEKMC+gDzANBglg\
             hkgBZQMEAgMFAKEcMBoGCSqGSIb3DQEBCDANBglghkgBZQMEAgMFAAOBgQB+3LhhV9VdCvyTcTtzv81o\
             p66YN61Bs8no3ErquYVz7jHR2nPK62Cp6qDUWtA36RrhWs6QmSEW3zBHchlcs6bgydjwRRn7z0x6i+J+\
             JbByjHv5+gSxL5X4ejEp4W6FC9pOEgPkWp/L0p05psG+jhP/x7dqNVsPCS2Tl+5iQlRrFw==",
            Some([0x63, 0x80, 0x48, 0xa9]),
            64,
        ),
        (
            "RSASSA-PSS with its default, SHA-1",
            "MIIB+DCCAVygAwIBAgIUPeZzQa8R00Nbo1jf30Tl3UQvVu4wEgYJKoZIhvcNAQEKMAWiAwIBajAMMQow\
             CAYDVQQDDAFkMB4XDTI2MTEzMDIyMTYxM1oXDTM2MTEyNzIyMTYxM1owDDEKMAgGA1UEAwwBZDCBnzAN\
             BgkqhkiG9w0BAQEFAAOBjQAwgYkCgYEAz/on1H7Yx7+/Dwz7t8DTw0Cb5me6np0wL+6xxHAc6vw6xb67\
             O2JXsNrMVov06QUvDhZD1Ia8TKOS3cHG71fELqjS/8qRxldsnt/dYTnVoXm8hlJlnjHMK/KWYHQZ/cO0\
             hiw78NZ4ueCdWux6tQTTAbzZYk6wtaOLSzMvsSKvM0MCAwEAAaNNMEswHQYDVR0OBBYEFBGan30P0OmN\
             d7CpfjLIqXOIHEaWMB8GA1UdIwQYMBaAFBGan30P0OmNd7CpfjLIqXOIHEaWMAkGA1UdEwQCMAAwEgYJ\
             KoZIhvcNAQEKMAWiAwIBagOBgQAFDD73Sw6mo0siaYytg67Tt4ZM7R81jpxhlQtSUkM0jG6z/tY3d+22\
             qXjXUfxG7jUZt4Ex8K4AqRZJKVVS2SQL3w16ljaJPO/2HPqN3Xt6Dw2tX8ZCD4JGfgp1QTbDLz4mqNak\
             FgfzOTZ61On3MmRNVZCb7Y7x7VwNNnyHIjBGyA==",
            Some([0x46, 0xbc, 0x92, 0x81]),
            32,
        ),
        (
            "Ed25519",
            "MIIBJjCB2aADAgECAhR7mK7fXMFY7oaVMlJxOjRr9QivGjAFBgMrZXAwDDEKMAgGA1UEAwwBZDAeFw0y\
             NjExMzAyMjE2MTNaFw0zNjExMjcyMjE2MTNaMAwxCjAIBgNVBAMMAWQwKjAFBgMrZXADIQB9q6iFOkge\
             bksgJrtidSmGYv+OeTyUEZtF+xj8PTkIB6NNMEswHQYDVR0OBBYEFCqzEOI+LYXyMBEVOJMOBytMry+v\
             MB8GA1UdIwQYMBaAFCqzEOI+LYXyMBEVOJMOBytMry+vMAkGA1UdEwQCMAAwBQYDK2VwA0EAtCQU5+Ud\
             p6A7PX1mvnid7kCtoUqOn75a5JhK4Qb/L62VizyBHPGLRmkuQOOO/mPJgeAV3PZYc2WpfklbMzOxCA==",
            None,
            0,
        ),
    ];

    fn certificates() -> impl Iterator<Item = (&'static str, Vec<u8>, Option<[u8; 4]>, usize)> {
        CERTIFICATES.iter().map(|(name, text, start, length)| {
            (*name, STANDARD.decode(text).unwrap(), *start, *length)
        })
    }

    #[test]
    fn the_certificate_is_hashed_as_it_is_signed() {
        for (name, der, start, length) in certificates() {
            let hash = server_end_point(&der);
            assert_eq!(hash.as_ref().map(Vec::len).unwrap_or_default(), length, "{name}");
            let seen = hash.as_deref().and_then(|hash| hash.first_chunk::<4>().copied());
            assert_eq!(seen, start, "{name}");
        }
    }

    #[test]
    fn no_cut_and_no_flipped_byte_panics() {
        for (name, der, ..) in certificates() {
            for length in 0..der.len() {
                assert_eq!(server_end_point(&der[..length]), None, "{name} cut at {length}");
            }
            for at in 0..der.len() {
                let mut bad = der.clone();
                bad[at] ^= 0xff;
                server_end_point(&bad);
            }
        }
    }
}
