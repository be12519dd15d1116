//! Identities from outside as they are read, and each way in which one is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use furrow_testkit::outside::{OutsideAuthority, OutsideFiles, OutsideRequest};

use super::*;
use crate::RevokedPeer;

const ENV: &str = "spiffe://example.org/furrow/night/env/gpu1";
const COORDINATOR: &str = "spiffe://example.org/furrow/night/coordinator/head";
const HOUR: Duration = Duration::from_secs(3600);

/// An error with all its causes.
fn text(error: &IdentityError) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

fn read(files: &OutsideFiles) -> Result<Identity, String> {
    let dir = tempfile::tempdir().unwrap();
    files.write(dir.path());
    Identity::find(dir.path(), PeerRole::Env, "ignored").map_err(|error| text(&error))
}

fn night() -> Id<Run> {
    Id::new("night").unwrap()
}

#[test]
fn an_identity_from_outside_is_its_uri() {
    let authority = OutsideAuthority::new("cluster");
    let found = read(&authority.issue(&OutsideRequest::now(&[ENV]))).unwrap();
    assert_eq!(found.peer().to_string(), ENV);
    assert_eq!((found.peer().role, found.peer().name.as_str()), (PeerRole::Env, "gpu1"));
    assert!(found.peer().covers("gpu1.7f3a"));
    assert!(found.outside_dir().is_some(), "it is read again when it is renewed");
    // Issued by an authority below, verified with a bundle of several.
    let below = authority.certify("below").certify("further below");
    let mut files = below.issue(&OutsideRequest::now(&["spiffe://example.org/ns/rl/furrow/night/env/gpu1"]));
    files.bundle_pem = format!("{}{}", OutsideAuthority::new("another").pem(), files.bundle_pem);
    let found = read(&files).unwrap();
    assert_eq!(found.peer().domain, TrustDomain::parse("example.org/ns/rl"));
}

#[test]
fn what_cannot_be_used_is_named_with_its_remedy() {
    let authority = OutsideAuthority::new("cluster");
    let now = SystemTime::now();
    let issue = |request: &OutsideRequest<'_>| authority.issue(request);
    let named = |uris: &[&str]| issue(&OutsideRequest::now(uris));
    let good = named(&[ENV]);
    let with = |change: &dyn Fn(&mut OutsideFiles)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    let timed = |from, until| issue(&OutsideRequest { from, until, ..OutsideRequest::now(&[ENV]) });
    let unserving = OutsideRequest {
        serves: false,
        ..OutsideRequest::now(&["spiffe://example.org/furrow/night/policy/gpu1"])
    };
    let other = OutsideAuthority::new("other");
    let unsigned = authority.certify("below").issue(&OutsideRequest::now(&[ENV]));
    let leaf = unsigned.certificate_pem.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    let table: Vec<(&str, OutsideFiles, &[&str])> = vec![
        ("no URI", named(&[]), &["names no role", "spiffe://DOMAIN/furrow/RUN/ROLE/NAME", RENEW]),
        ("two URIs", named(&[ENV, "spiffe://example.org/x"]), &["has 2 URIs", RENEW]),
        (
            "a run's own URI",
            named(&["furrow://night/env/gpu1"]),
            &["one from outside names spiffe://", RENEW],
        ),
        ("no role", named(&["spiffe://example.org/furrow/night/root/gpu1"]), &["with a known role"]),
        (
            "another role",
            named(&["spiffe://example.org/furrow/night/policy/gpu1"]),
            &["night/policy/gpu1", "this process is a env"],
        ),
        ("expired", timed(now - 3 * HOUR, now - HOUR), &["is not valid now", "clock", RENEW]),
        ("not valid yet", timed(now + HOUR, now + 3 * HOUR), &["is not valid now"]),
        (
            "another issuer",
            with(&|files| files.bundle_pem = other.pem().to_owned()),
            &["tls.crt is damaged", "ca.crt does not verify it as a client's", RENEW],
        ),
        (
            "a missing link of the chain",
            OutsideFiles { certificate_pem: leaf.to_owned(), ..unsigned.clone() },
            &["ca.crt does not verify it"],
        ),
        ("no server's", issue(&unserving), &["ca.crt does not verify it as a server's"]),
        (
            "another key",
            with(&|files| files.key_pem = named(&[ENV]).key_pem),
            &["tls.key is damaged", "not the key of tls.crt"],
        ),
        ("no key", with(&|files| files.key_pem = files.certificate_pem.clone()), &["tls.key is damaged"]),
        ("no bundle", with(&|files| files.bundle_pem.clear()), &["ca.crt is damaged", "no certificate"]),
        ("no certificate", with(&|files| files.certificate_pem.clear()), &["tls.crt is damaged"]),
        ("a large file", with(&|files| files.bundle_pem = "x".repeat(70_000)), &["ca.crt", "larger than"]),
    ];
    for (what, files, parts) in table {
        let Err(refused) = read(&files) else { panic!("{what} was accepted") };
        assert!(parts.iter().all(|part| refused.contains(part)), "{what}: {refused}");
        assert!(!refused.contains("PRIVATE"), "{refused}");
    }
    assert!(read(&good).is_ok());
}

#[test]
fn a_key_that_every_user_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    OutsideAuthority::new("cluster").write(dir.path(), ENV);
    let [certificate, key, _] = Identity::outside_files(dir.path());
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&certificate, 0o444);
    set(&key, 0o444);
    let refused = text(&Identity::read_outside(dir.path()).unwrap_err());
    assert!(refused.contains("tls.key") && refused.contains("mode is 444"), "{refused}");
    assert!(refused.contains("chmod 600") && refused.contains("defaultMode: 0440"), "{refused}");
    set(&key, 0o440);
    Identity::read_outside(dir.path()).unwrap();
    fs::remove_file(dir.path().join("ca.crt")).unwrap();
    let refused = text(&Identity::read_outside(dir.path()).unwrap_err());
    assert!(refused.contains("cannot read") && refused.contains("ca.crt"), "{refused}");
}

#[test]
fn a_coordinator_needs_a_certificate_of_its_own_run() {
    let authority = OutsideAuthority::new("cluster");
    let read = |uri: &str| {
        let dir = tempfile::tempdir().unwrap();
        authority.write(dir.path(), uri);
        Identity::of_outside_coordinator(dir.path(), &night()).map_err(|error| text(&error))
    };
    assert_eq!(read(COORDINATOR).unwrap().peer().to_string(), COORDINATOR);
    let refused = read("spiffe://example.org/furrow/day/coordinator/head").unwrap_err();
    assert!(refused.contains("this run is night; its URI ends with furrow/night/ROLE/NAME"), "{refused}");
    let refused = read(ENV).unwrap_err();
    assert!(refused.contains("this process is a coordinator"), "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let refused = text(&Identity::of_outside_coordinator(empty.path(), &night()).unwrap_err());
    assert!(refused.contains("holds no tls.crt") && refused.contains("FURROW_IDENTITY"), "{refused}");
}

#[test]
fn a_run_with_certificates_from_outside_issues_none() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("identity");
    let before = Authority::open_or_create(&dir, &night()).unwrap();
    drop(before);
    assert_eq!(Authority::trust_domain(&dir).unwrap(), None);
    let domain = TrustDomain::parse("example.org/ns/rl").unwrap();
    Authority::take_outside(&dir, &domain).unwrap();
    assert_eq!(Authority::trust_domain(&dir).unwrap(), Some(domain));
    let refused = |error: IdentityError| {
        let refused = text(&error);
        assert!(refused.contains("certificates of spiffe://example.org/ns/rl alone"), "{refused}");
        assert!(refused.contains("identity/trust-domain") && refused.contains("--identity"), "{refused}");
    };
    refused(Authority::open(&dir).unwrap_err());
    refused(Authority::open_or_create(&dir, &night()).unwrap_err());
    refused(Identity::find(&dir, PeerRole::Client, "c").unwrap_err());
    // A peer is revoked by its role and name, wherever its certificate is from.
    Authority::check_is_in(&dir).unwrap();
    assert!(Authority::revoke(&dir, RevokedPeer::parse("env/gpu1").unwrap()).unwrap());
    fs::write(dir.join(TRUST_DOMAIN), "Example.org\n").unwrap();
    let damaged = text(&Authority::open(&dir).unwrap_err());
    assert!(damaged.contains("names no trust domain") && damaged.contains("remove it"), "{damaged}");
    fs::remove_file(dir.join(TRUST_DOMAIN)).unwrap();
    Authority::open(&dir).unwrap();
    let new = temp.path().join("new");
    Authority::take_outside(&new, &TrustDomain::parse("example.org").unwrap()).unwrap();
    assert!(Authority::is_in(&new), "workers of this machine do not wait for an authority");
    refused_everywhere(&new);
}

fn refused_everywhere(dir: &Path) {
    assert!(matches!(Authority::open(dir), Err(IdentityError::Outside { .. })));
    assert!(!dir.join("authority.key").exists());
}

#[test]
fn peers_of_another_domain_or_run_are_others() {
    let peer = |uri: &str| {
        let files = OutsideAuthority::new("cluster").issue(&OutsideRequest::now(&[uri]));
        let der = CertificateDer::from_pem_slice(files.certificate_pem.as_bytes()).unwrap();
        Peer::of_certificate(&der).unwrap()
    };
    let own = peer(COORDINATOR);
    for (uri, want) in [
        (ENV, true),
        ("spiffe://example.org/furrow/day/env/gpu1", false),
        ("spiffe://example.com/furrow/night/env/gpu1", false),
        ("spiffe://example.org/ns/rl/furrow/night/env/gpu1", false),
        ("spiffe://example.org/furrow/furrow/night/env/gpu1", false),
        ("furrow://night/env/gpu1", false),
    ] {
        assert_eq!(peer(uri).is_of_same_run(&own), want, "{uri}");
    }
}
