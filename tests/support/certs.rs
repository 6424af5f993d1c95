//! Certificates for tests: an authority, and what it signs.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SignatureAlgorithm,
};

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
pub struct Leaf {
    /// With what it may be presented.
    pub certificate_pem: String,
    /// PKCS #8.
    pub key_pem: String,
}

impl Authority {
    /// One whose signatures hash with SHA-256.
    pub fn new(name: &str) -> Authority {
        Authority::signing_with(name, &PKCS_ECDSA_P256_SHA256)
    }

    /// One whose signatures hash with SHA-384.
    pub fn with_sha384(name: &str) -> Authority {
        Authority::signing_with(name, &PKCS_ECDSA_P384_SHA384)
    }

    fn signing_with(name: &str, algorithm: &'static SignatureAlgorithm) -> Authority {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate and key of a server, made as the manual of Postgres shows: signed by itself,
    /// marked as an authority, with a common name and no alternative one.
    pub fn self_signed(common_name: &str) -> (String, String) {
        let authority = Authority::new(common_name);
        (authority.pem, authority.issuer.key().serialize_pem())
    }

    /// What a client trusts.
    pub fn certificate_pem(&self) -> String {
        self.pem.clone()
    }

    /// A server's certificate for these host names or addresses.
    pub fn issue(&self, names: &[&str]) -> Leaf {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let common_name = names.first().cloned().unwrap_or_default();
        self.sign(names, &common_name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client's certificate for a database user.
    pub fn issue_client(&self, user: &str) -> Leaf {
        self.sign(Vec::new(), user, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, names: Vec<String>, cn: &str, usage: ExtendedKeyUsagePurpose) -> Leaf {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, cn);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Leaf { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}
