//! Identities as they are issued, written and read, and each way in which one is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use furrow_rollout::{Id, Run};
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::certificate::{Unverified, verify};
use crate::{Authority, Identity, IdentityError, Peer, PeerError, PeerRole, Validity};

const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    temp: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn authority(&self, name: &str) -> Authority {
        Authority::open_or_create(&self.path(name), &Id::new("r1").unwrap()).unwrap()
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// An error with all its causes.
fn text(error: &IdentityError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[test]
fn every_role_gets_a_certificate_that_names_it() {
    let fixture = Fixture::new();
    let authority = fixture.authority("identity");
    for role in PeerRole::ALL {
        let issued = authority.issue(role, "w-1.a").unwrap();
        let certificate = der(issued.certificate_pem());
        let peer = Peer::of_certificate(&certificate).unwrap();
        assert_eq!(peer, Peer::of_run(Id::<Run>::new("r1").unwrap(), role, "w-1.a"));
        assert_eq!(PeerRole::parse(role.as_str()), Some(role));
        let now = SystemTime::now();
        let root = der(issued.authority_pem());
        // Two days of difference between clocks, in both directions of a start.
        for at in [now, now - 47 * HOUR, now + 47 * HOUR] {
            assert!(verify(&certificate, &root, at).is_ok(), "{role}");
        }
        assert!(matches!(verify(&certificate, &root, now - 49 * HOUR), Err(Unverified::NotValidNow(_))));
    }
}

#[test]
fn an_authority_stays_over_starts_and_is_this_users_alone() {
    let fixture = Fixture::new();
    let first = fixture.authority("identity").issue(PeerRole::Env, "a").unwrap();
    let again = fixture.authority("identity");
    assert_eq!(again.run().as_str(), "r1");
    let second = again.issue(PeerRole::Env, "a").unwrap();
    assert_eq!(first.authority_pem(), second.authority_pem());
    assert!(verify(&der(second.certificate_pem()), &der(first.authority_pem()), SystemTime::now()).is_ok());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&fixture.path("identity")), 0o700);
    for name in ["authority.pem", "authority.key"] {
        assert_eq!(mode(&fixture.path("identity").join(name)), 0o600, "{name}");
    }
}

#[test]
fn processes_that_create_one_at_once_get_the_same() {
    let fixture = Fixture::new();
    let issued: Vec<Identity> = std::thread::scope(|scope| {
        let made = (0..8).map(|_| scope.spawn(|| fixture.authority("identity").issue(PeerRole::Client, "c")));
        let made: Vec<_> = made.collect();
        made.into_iter().map(|one| one.join().unwrap().unwrap()).collect()
    });
    assert!(issued.iter().all(|one| one.authority_pem() == issued[0].authority_pem()));
}

#[test]
fn an_identity_of_another_authority_or_time_does_not_verify() {
    let fixture = Fixture::new();
    let ours = fixture.authority("ours");
    let theirs = fixture.authority("theirs");
    let root = der(ours.issue(PeerRole::Env, "a").unwrap().authority_pem());
    let now = SystemTime::now();
    let at = |from, until| ours.issue_for(PeerRole::Env, "a", Validity { from, until }).unwrap();
    let cases = [
        (at(now - HOUR, now + HOUR), "valid"),
        (theirs.issue(PeerRole::Env, "a").unwrap(), "other"),
        (at(now - 3 * HOUR, now - HOUR), "time"),
        (at(now + HOUR, now + 3 * HOUR), "time"),
    ];
    for (index, (identity, want)) in cases.iter().enumerate() {
        let got = match verify(&der(identity.certificate_pem()), &root, now) {
            Ok(()) => "valid",
            Err(Unverified::NotValidNow(_)) => "time",
            Err(Unverified::Other(_)) => "other",
        };
        assert_eq!(got, *want, "case {index}");
    }
}

/// Certificates as this crate never issues them, signed by anybody.
fn forged(uris: &[&str]) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    let issuer = Issuer::from_params(&params, &key);
    params.signed_by(&key, &issuer).unwrap().der().to_vec()
}

#[test]
fn a_certificate_names_one_role_or_nobody() {
    let long = format!("furrow://r/env/{}", "a".repeat(129));
    let unknown = |uri: &str| PeerError::UnknownRole { uri: uri.chars().take(60).collect() };
    let cases: &[(&[&str], PeerError)] = &[
        (&[], PeerError::NoRole),
        (&["https://somewhere/env/a"], PeerError::NoRole),
        (&["furrow://r/env/a", "furrow://r/client/a"], PeerError::SeveralRoles { count: 2 }),
        (&["furrow://r/env/a", "https://somewhere/"], PeerError::SeveralRoles { count: 2 }),
        (&["furrow://r"], unknown("furrow://r")),
        (&["furrow://r/root/a"], unknown("furrow://r/root/a")),
        (&["furrow://r/Env/a"], unknown("furrow://r/Env/a")),
        (&["furrow://r/env/"], unknown("furrow://r/env/")),
        (&["furrow://r/env/a/b"], unknown("furrow://r/env/a/b")),
        (&["furrow:///env/a"], unknown("furrow:///env/a")),
        (&["furrow://r/env/../a"], unknown("furrow://r/env/../a")),
        (&["spiffe://example.org/ns/rl/sa/furrow"], unknown("spiffe://example.org/ns/rl/sa/furrow")),
        (&["spiffe://example.org/r/env/a"], unknown("spiffe://example.org/r/env/a")),
        (&["spiffe://example.org/furrow/r/root/a"], unknown("spiffe://example.org/furrow/r/root/a")),
        (&["spiffe://example.org/furrow/r/env/a/b"], unknown("spiffe://example.org/furrow/r/env/a/b")),
        (&["spiffe://example.org/furrow/r/env/"], unknown("spiffe://example.org/furrow/r/env/")),
        (&["spiffe://Example.org/furrow/r/env/a"], unknown("spiffe://Example.org/furrow/r/env/a")),
        (&["spiffe://example.org:443/furrow/r/env/a"], unknown("spiffe://example.org:443/furrow/r/env/a")),
        (&["spiffe:///furrow/r/env/a"], unknown("spiffe:///furrow/r/env/a")),
        (&["spiffe://example.org/../furrow/r/env/a"], unknown("spiffe://example.org/../furrow/r/env/a")),
        (&["spiffe://example.org//furrow/r/env/a"], unknown("spiffe://example.org//furrow/r/env/a")),
        (&["spiffe://furrow/r/env/a"], unknown("spiffe://furrow/r/env/a")),
        (&[&long], unknown(&long)),
    ];
    for (uris, want) in cases {
        assert_eq!(Peer::of_certificate(&forged(uris)).as_ref(), Err(want), "{uris:?}");
    }
    for uri in [
        "furrow://r/env/a",
        "spiffe://example.org/furrow/r/env/a",
        "spiffe://td-1.example_org/ns/rl/furrow/r.2/policy/gpu-1",
        "spiffe://example.org/furrow/furrow/furrow/client/furrow",
    ] {
        let peer = Peer::of_certificate(&forged(&[uri])).unwrap();
        assert_eq!(peer.to_string(), uri, "what was read is what is shown");
    }
    assert!(matches!(Peer::of_certificate(b"junk"), Err(PeerError::Malformed { .. })));
    let large = "a".repeat(9000);
    let got = Peer::of_certificate(&forged(&[&format!("furrow://r/env/{large}")]));
    assert!(matches!(got, Err(PeerError::TooLarge { .. })), "{got:?}");
}

#[test]
fn a_certificate_covers_its_name_and_what_continues_it() {
    let peer = Peer::of_run(Id::new("r").unwrap(), PeerRole::Env, "gpu1");
    for (worker, want) in [
        ("gpu1", true),
        ("gpu1.7f3a", true),
        ("gpu12", false),
        ("gpu1-a", false),
        ("gpu", false),
        ("", false),
    ] {
        assert_eq!(peer.covers(worker), want, "{worker:?}");
    }
}

#[test]
fn only_names_of_workers_stand_in_certificates() {
    let authority = Fixture::new().authority("identity");
    for name in ["", ".a", "a/b", "a b", "a\n", "é", &"a".repeat(129)] {
        let refused = authority.issue(PeerRole::Env, name).unwrap_err();
        assert!(matches!(refused, IdentityError::Name { .. }), "{name:?}: {refused}");
    }
}

#[test]
fn another_machine_gets_an_identity_for_one_role() {
    let fixture = Fixture::new();
    let authority = fixture.authority("identity");
    let out = fixture.path("gpu1");
    authority.issue(PeerRole::Policy, "gpu1").unwrap().write(&out).unwrap();
    assert!(!out.join("authority.key").exists(), "the authority's key stays where it is");
    let found = Identity::find(&out, PeerRole::Policy, "ignored").unwrap();
    assert_eq!(found.peer().to_string(), "furrow://r1/policy/gpu1");
    let refused = text(&Identity::find(&out, PeerRole::Env, "e").unwrap_err());
    assert!(
        refused.contains("identity of furrow://r1/policy/gpu1") && refused.contains("issue env NAME"),
        "{refused}"
    );
    let own = Identity::find(&fixture.path("identity"), PeerRole::Env, "e").unwrap();
    assert_eq!(own.peer().to_string(), "furrow://r1/env/e");
    let absent = text(&Identity::find(&fixture.path("none"), PeerRole::Env, "e").unwrap_err());
    assert!(
        absent.contains("none holds no identity") && absent.contains("furrow identity issue"),
        "{absent}"
    );
}

/// Changes one file of a folder and expects an error that names it and says what to do.
#[track_caller]
fn check_damage(folder: &str, file: &str, change: impl FnOnce(&Path), want: &[&str]) {
    let fixture = Fixture::new();
    let authority = fixture.authority("identity");
    authority.issue(PeerRole::Env, "a").unwrap().write(&fixture.path("issued")).unwrap();
    fixture.authority("other").issue(PeerRole::Env, "a").unwrap().write(&fixture.path("foreign")).unwrap();
    let dir = fixture.path(folder);
    change(&dir.join(file));
    let found = Identity::find(&dir, PeerRole::Env, "a");
    let Err(error) = found else { panic!("{folder}/{file} was accepted, want {want:?}") };
    let error = text(&error);
    for part in want.iter().chain(&[file]) {
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
    }
    assert!(!error.contains("PRIVATE KEY"), "{error}");
}

#[test]
fn a_damaged_file_is_named_with_its_remedy() {
    const REPLACE: &str = "remove the folder and start again";
    const ISSUE: &str = "furrow identity issue";
    let empty = |path: &Path| fs::write(path, "").unwrap();
    let junk = |path: &Path| {
        fs::write(path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    };
    let large = |path: &Path| fs::write(path, "x".repeat(70_000)).unwrap();
    let readable = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    let gone = |path: &Path| fs::remove_file(path).unwrap();
    let linked = |path: &Path| {
        fs::rename(path, path.with_extension("moved")).unwrap();
        std::os::unix::fs::symlink(path.with_extension("moved"), path).unwrap();
    };
    let from = |folder: &'static str| {
        move |path: &Path| {
            let other = path.parent().unwrap().with_file_name(folder).join(path.file_name().unwrap());
            fs::copy(other, path).unwrap();
        }
    };
    check_damage("identity", "authority.pem", empty, &["is damaged", REPLACE]);
    check_damage("identity", "authority.pem", junk, &["is damaged", REPLACE]);
    check_damage("identity", "authority.pem", linked, &["symbolic link"]);
    check_damage("identity", "authority.key", empty, &["is damaged", REPLACE]);
    check_damage("identity", "authority.key", junk, &["is damaged", REPLACE]);
    check_damage("identity", "authority.key", large, &["larger than"]);
    check_damage("identity", "authority.key", readable, &["mode is 644", "chmod 600"]);
    check_damage("identity", "authority.key", gone, &["cannot read"]);
    check_damage("identity", "authority.key", linked, &["symbolic link"]);
    check_damage("identity", "authority.key", from("other"), &["not the key of authority.pem", REPLACE]);
    check_damage("issued", "identity.pem", empty, &["is damaged", ISSUE]);
    check_damage(
        "issued",
        "identity.pem",
        from("foreign"),
        &["identity.key", "not the key of identity.pem", ISSUE],
    );
    check_damage("issued", "identity.key", from("foreign"), &["not the key of identity.pem", ISSUE]);
    check_damage("issued", "identity.key", readable, &["mode is 644", "chmod 600"]);
    check_damage("issued", "authority.pem", from("foreign"), &["does not come from authority.pem", ISSUE]);
    check_damage("issued", "authority.pem", gone, &["cannot read"]);
}

#[test]
fn an_expired_identity_is_refused_where_it_is_read() {
    let fixture = Fixture::new();
    let now = SystemTime::now();
    let over = Validity { from: now - 3 * HOUR, until: now - HOUR };
    let dir = fixture.path("over");
    fixture.authority("identity").issue_for(PeerRole::Env, "a", over).unwrap().write(&dir).unwrap();
    let refused = text(&Identity::find(&dir, PeerRole::Env, "a").unwrap_err());
    assert!(refused.contains("identity.pem is not valid now") && refused.contains("clock"), "{refused}");
}

#[test]
fn a_folder_that_others_may_look_into_is_refused() {
    let fixture = Fixture::new();
    fixture.authority("identity");
    let dir = fixture.path("identity");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = text(&Authority::open(&dir).unwrap_err());
    assert!(refused.contains("chmod 700"), "{refused}");
}

#[test]
fn no_key_is_printed() {
    let authority = Fixture::new().authority("identity");
    let issued = authority.issue(PeerRole::Env, "a").unwrap();
    let printed = format!("{authority:?} {issued:?}");
    assert!(!printed.contains("KEY"), "{printed}");
}
