//! The certificate authority of one run, in `<run>/identity`.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use furrow_rollout::{Id, Run};
use rcgen::{CertificateParams, Issuer, KeyPair, PublicKeyData};

use crate::certificate::{Validity, authority_params, decode, has_key, peer_params};
use crate::error::REPLACE_AUTHORITY;
use crate::files::{AUTHORITY_CERTIFICATE, TRUST_DOMAIN, read_text};
use crate::identity::Identity;
use crate::peer::{Peer, is_name, run_of_authority};
use crate::{IdentityError, PeerRole};

const AUTHORITY_KEY: &str = "authority.key";

/// A process gets a certificate at each start, and no run lasts a year.
const ISSUED_DAYS: u64 = 365;

/// An authority outlives what it issues.
const AUTHORITY_DAYS: u64 = 3650;

/// Issues the certificates of one run.
pub struct Authority {
    run: Id<Run>,
    certificate_pem: String,
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    /// The folder of a run's authority.
    pub fn dir_of_run(run_dir: &Path) -> PathBuf {
        run_dir.join("identity")
    }

    /// Whether a folder holds an authority, or says that the run takes certificates from outside.
    pub fn is_in(dir: &Path) -> bool {
        [AUTHORITY_CERTIFICATE, TRUST_DOMAIN].iter().any(|name| dir.join(name).symlink_metadata().is_ok())
    }

    /// Refuses a folder of no run.
    pub fn check_is_in(dir: &Path) -> Result<(), IdentityError> {
        match Self::is_in(dir) {
            true => Ok(()),
            false => Err(IdentityError::Absent { dir: dir.to_owned() }),
        }
    }

    /// Opens the authority of a folder, or creates one for a run. Two processes that do so at the
    /// same time get the same one.
    pub fn open_or_create(dir: &Path, run: &Id<Run>) -> Result<Self, IdentityError> {
        furrow_storage::create_private_dir(dir).map_err(IdentityError::file("create", dir))?;
        let _lock = Self::lock(dir)?;
        match Self::open(dir) {
            Err(IdentityError::Absent { .. }) => Self::create(dir, run),
            opened => opened,
        }
    }

    /// Excludes other processes that change the folder, until the file is dropped.
    pub(crate) fn lock(dir: &Path) -> Result<File, IdentityError> {
        let lock = dir.join("lock");
        let options = OpenOptions::new().write(true).create(true).truncate(false).clone();
        let locked = furrow_storage::open(&lock, &options).and_then(|file| file.lock().map(|()| file));
        locked.map_err(IdentityError::file("lock", &lock))
    }

    /// Creates an authority. The certificate is written last: without it there is no authority.
    fn create(dir: &Path, run: &Id<Run>) -> Result<Self, IdentityError> {
        let params = authority_params(run, Validity::days(AUTHORITY_DAYS))?;
        let key = KeyPair::generate()?;
        let certificate_pem = params.self_signed(&key)?.pem();
        for (name, text) in
            [(AUTHORITY_KEY, key.serialize_pem()), (AUTHORITY_CERTIFICATE, certificate_pem.clone())]
        {
            let path = dir.join(name);
            furrow_storage::replace_private(&path, text.as_bytes())
                .map_err(IdentityError::file("write", &path))?;
        }
        Ok(Self { run: run.clone(), certificate_pem, params, key })
    }

    /// Opens the authority of a folder.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        Self::check_is_in(dir)?;
        furrow_storage::check_private_dir(dir).map_err(IdentityError::file("use", dir))?;
        if let Some(domain) = Self::trust_domain(dir)? {
            return Err(IdentityError::Outside { dir: dir.to_owned(), domain });
        }
        let certificate_path = dir.join(AUTHORITY_CERTIFICATE);
        let key_path = dir.join(AUTHORITY_KEY);
        let certificate_pem = read_text(&certificate_path)?;
        let key_pem = read_text(&key_path)?;
        let damaged = |path: &Path, why: String| IdentityError::Damaged {
            path: path.to_owned(),
            why,
            remedy: REPLACE_AUTHORITY,
        };
        let certificate = decode(&certificate_path, &certificate_pem, REPLACE_AUTHORITY)?;
        let run =
            run_of_authority(&certificate).map_err(|why| damaged(&certificate_path, why.to_string()))?;
        let key = KeyPair::from_pem(&key_pem).map_err(|why| damaged(&key_path, why.to_string()))?;
        if !has_key(&certificate, &key.subject_public_key_info()) {
            return Err(damaged(&key_path, format!("it is not the key of {AUTHORITY_CERTIFICATE}")));
        }
        let params = authority_params(&run, Validity::days(AUTHORITY_DAYS))?;
        Ok(Self { run, certificate_pem, params, key })
    }

    /// The run that it issues certificates for.
    pub fn run(&self) -> &Id<Run> {
        &self.run
    }

    /// Issues an identity to a process of this name.
    pub fn issue(&self, role: PeerRole, name: &str) -> Result<Identity, IdentityError> {
        self.issue_for(role, name, Validity::days(ISSUED_DAYS))
    }

    /// Issues an identity that is valid at a certain time.
    pub fn issue_for(
        &self,
        role: PeerRole,
        name: &str,
        validity: Validity,
    ) -> Result<Identity, IdentityError> {
        if !is_name(name) {
            return Err(IdentityError::Name { name: name.chars().take(60).collect() });
        }
        let key = KeyPair::generate()?;
        let peer = self.peer(role, name);
        let certificate_pem = self.certify_for(&peer, validity, &key)?;
        Ok(Identity::new(peer, self.certificate_pem.clone(), certificate_pem, key.serialize_pem()))
    }

    /// A certificate, in PEM, for a key that stays with its owner.
    pub(crate) fn certify(
        &self,
        role: PeerRole,
        name: &str,
        key: &impl PublicKeyData,
    ) -> Result<String, IdentityError> {
        self.certify_for(&self.peer(role, name), Validity::days(ISSUED_DAYS), key)
    }

    fn certify_for(
        &self,
        peer: &Peer,
        validity: Validity,
        key: &impl PublicKeyData,
    ) -> Result<String, IdentityError> {
        let issuer = Issuer::from_params(&self.params, &self.key);
        Ok(peer_params(peer, validity)?.signed_by(key, &issuer)?.pem())
    }

    fn peer(&self, role: PeerRole, name: &str) -> Peer {
        Peer::of_run(self.run.clone(), role, name)
    }

    /// The authority's own certificate, in PEM.
    pub(crate) fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("run", &self.run).finish_non_exhaustive()
    }
}
