//! A certificate authority outside of any run, as a cluster has one, and the folders that it fills.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Issues certificates with any URI, for any time.
pub struct OutsideAuthority {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
    /// Those between it and its root.
    between_pem: String,
    root_pem: String,
}

/// What a certificate says.
pub struct OutsideRequest<'a> {
    /// URIs of the certificate: SPIFFE's have one.
    pub uris: &'a [&'a str],
    /// From when it is valid.
    pub from: SystemTime,
    /// Until when it is valid.
    pub until: SystemTime,
    /// Whether a server may show it; a client always may.
    pub serves: bool,
}

/// The content of `tls.crt`, `tls.key` and `ca.crt`.
#[derive(Debug, Clone)]
pub struct OutsideFiles {
    pub certificate_pem: String,
    pub key_pem: String,
    pub bundle_pem: String,
}

impl<'a> OutsideRequest<'a> {
    /// A certificate for clients and servers that is valid now.
    pub fn now(uris: &'a [&'a str]) -> Self {
        let now = SystemTime::now();
        Self { uris, from: now - HOUR, until: now + HOUR, serves: true }
    }
}

impl OutsideAuthority {
    pub fn new(name: &str) -> Self {
        let params = authority_params(name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { params, key, pem: pem.clone(), between_pem: String::new(), root_pem: pem }
    }

    /// Another authority, which this one certifies.
    pub fn certify(&self, name: &str) -> Self {
        let params = authority_params(name);
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&self.params, &self.key);
        let pem = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let between_pem = format!("{pem}{}", self.between_pem);
        Self { params, key, pem, between_pem, root_pem: self.root_pem.clone() }
    }

    /// The certificate of the authority.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn issue(&self, request: &OutsideRequest<'_>) -> OutsideFiles {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "outside");
        let uri = |uri: &&str| SanType::URI((*uri).try_into().expect("a URI"));
        params.subject_alt_names = request.uris.iter().map(uri).collect();
        params.not_before = request.from.into();
        params.not_after = request.until.into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if request.serves {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        OutsideFiles {
            certificate_pem: format!("{}{}", certificate.pem(), self.between_pem),
            key_pem: key.serialize_pem(),
            bundle_pem: self.root_pem.clone(),
        }
    }

    /// Fills a folder for a process with this one URI.
    pub fn write(&self, dir: &Path, uri: &str) {
        self.issue(&OutsideRequest::now(&[uri])).write(dir);
    }
}

impl OutsideFiles {
    /// Writes the files as a mounted secret has them: the folder's names lead to those of a
    /// version, and one link is replaced for all of them.
    pub fn write(&self, dir: &Path) {
        fs::create_dir_all(dir).expect("a folder");
        let version = (0..).map(|number| format!("..version-{number}"));
        let version = version.into_iter().find(|name| !dir.join(name).exists()).expect("a free name");
        let folder = dir.join(&version);
        fs::create_dir(&folder).expect("a folder");
        let files =
            [("tls.crt", &self.certificate_pem), ("tls.key", &self.key_pem), ("ca.crt", &self.bundle_pem)];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).expect("a mode");
        }
        let link = |to: &str, name: &str| {
            let new = dir.join(format!("{name}.new"));
            std::os::unix::fs::symlink(to, &new).expect("a link");
            fs::rename(&new, dir.join(name)).expect("a link in its position");
        };
        link(&version, "..data");
        files.iter().for_each(|(name, _)| link(&format!("..data/{name}"), name));
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}
