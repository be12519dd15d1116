//! Opens the files that a run writes below its directory: each as itself, never through a link, and
//! only if it belongs to this user.
//!
//! A run directory may be where others can write, or come out of an archive. A file there that is a
//! link leads a process that truncates, appends or overwrites to a file elsewhere, with that
//! process's rights. So every file that a run opens for writing passes [`open`], and every folder
//! it works in passes [`check_dir`]. Files that are only read (a data set, possibly another user's)
//! need not.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::Path;

/// Opens a file with these options. Refuses a symbolic link, a file with several names (hard
/// links), anything but a regular file, and a file of another user; the error says which.
///
/// `options` must not truncate: that would empty the file before it is checked. Truncate the
/// returned file.
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    // Without O_NONBLOCK a named pipe without a reader would block forever; on a regular file it
    // changes nothing.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(named_link)?;
    check_metadata(&file.metadata()?)?;
    Ok(file)
}

/// Creates a file, or empties an existing one once it passed the checks of [`open`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().write(true).create(true))?;
    file.set_len(0)?;
    Ok(file)
}

/// Reads an untrusted file: only a regular one, not through a link, and of at most `bytes_max`
/// bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_to_read(path)?, bytes_max)
}

fn read_at_most(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let why = format!("it is larger than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Opens a file for reading: only a regular one, not through a link. It may belong to another user
/// and have several names.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path).map_err(named_link)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(file) } else { Err(refused(&format!("it is {}", kind(&metadata)))) }
}

/// Reads a file with a secret: one of this user alone, which no other user may read.
pub fn read_private(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    check_private(&file.metadata()?)?;
    read_at_most(file, bytes_max)
}

/// Reads a file that another program keeps for this one, such as a secret that is mounted: it may
/// lie behind links and belong to another user. Where it is a secret, its owner and its group alone
/// may read it.
pub fn read_mounted(path: &Path, bytes_max: u64, is_secret: bool) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused(&format!("it is {}", kind(&metadata))));
    }
    let mode = metadata.mode() & 0o777;
    if is_secret && mode & 0o007 != 0 {
        let why = format!(
            "its mode is {mode:o}, so every user may read the secret; set it with `chmod 600`, or for the volume of a \
             Kubernetes secret with `defaultMode: 0440`"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    read_at_most(file, bytes_max)
}

/// Refuses a folder that other users may look into or that [`check_dir`] refuses.
pub fn check_private_dir(path: &Path) -> io::Result<()> {
    check_dir(path)?;
    check_private(&path.symlink_metadata()?)
}

/// Creates a folder that only this user may look into. One of this user that others may look into,
/// as some tools leave it that copy a run, becomes so again: each secret in it has its own mode.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_durable_dir(above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    check_dir(path)?;
    if check_private(&path.symlink_metadata()?).is_err() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    sync_name(path)
}

fn check_private(metadata: &Metadata) -> io::Result<()> {
    let mode = metadata.mode() & 0o777;
    let own_mode = if metadata.is_dir() { "700" } else { "600" };
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("its mode is {mode:o}, so other users may read the secret; set it with `chmod {own_mode}`"),
    ))
}

/// Replaces a file durably: a reader, also after a power cut, sees all of the old one or all of the
/// new one. In between it is called `<name>.tmp`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, None)
}

/// The same for a file with a secret, which only this user may read.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, Some(0o600))
}

fn replace_with(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let unfinished = path.with_file_name(name);
    let mut options = OpenOptions::new().write(true).create(true).clone();
    options.mode(mode.unwrap_or(0o666));
    let mut file = open(&unfinished, &options).map_err(|error| with_path(&unfinished, &error))?;
    if let Some(mode) = mode {
        // What an interrupted start left may have another mode.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path).map_err(|error| with_path(path, &error))?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Creates a folder and its parents and makes every new name durable. A folder that is there is
/// taken to be durable: one whose name could not be synced is removed again.
pub fn create_durable_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_durable_dir(above)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    sync_name(path).inspect_err(|_| drop(fs::remove_dir(path)))
}

/// Writes what a file holds once more, in place, and syncs it. A missing file passes.
///
/// Where a sync fails, Linux may drop what it should have written and keep it in memory all the
/// same, as if it were on the disk. A process that starts later reads it there, and no sync of that
/// process writes it: only a new write does.
pub fn write_again(path: &Path) -> io::Result<()> {
    let file = match open(path, OpenOptions::new().read(true).write(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let count = file.read_at(&mut piece, at)?;
        if count == 0 {
            return file.sync_all();
        }
        file.write_all_at(&piece[..count], at)?;
        at += count as u64;
    }
}

/// Makes the names of an existing folder and of those above it durable, as far as this user may
/// read them: who created them may not have done it.
pub fn sync_names_above(path: &Path) -> io::Result<()> {
    let absolute = std::path::absolute(path)?;
    for folder in absolute.ancestors().skip(1) {
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // A folder of another user, or a file system that syncs no folders.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied
                        | io::ErrorKind::ReadOnlyFilesystem
                        | io::ErrorKind::InvalidInput
                ) => {}
            other => other?,
        }
    }
    Ok(())
}

fn sync_name(path: &Path) -> io::Result<()> {
    match path.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => File::open(above)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Creates a folder and its parents, and checks it as [`check_dir`] does.
pub fn create_dir(path: &Path) -> io::Result<()> {
    check_dir(path)?;
    fs::create_dir_all(path)
}

/// Applies the same checks to a file that another library opens, such as a database. A missing file
/// passes.
pub fn check_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) => check_metadata(&metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a folder that is a link, is not a folder, or belongs to another user. A missing folder
/// passes.
pub fn check_dir(path: &Path) -> io::Result<()> {
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !metadata.is_dir() {
        return Err(refused(&format!("it is {}, not a folder", kind(&metadata))));
    }
    check_owner(&metadata)
}

fn named_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link"),
        _ => error,
    }
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Bytes that an unprivileged user may still write on the file system of `path`, or of its nearest
/// existing parent.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    // The parents of a relative path end in the current directory.
    let folders = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    let there = folders.chain([Path::new(".")]).find(|folder| folder.exists()).unwrap_or(path);
    let stat = rustix::fs::statvfs(there)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn check_metadata(metadata: &Metadata) -> io::Result<()> {
    if !metadata.is_file() {
        return Err(refused(&format!("it is {}", kind(metadata))));
    }
    // A file that was opened and then removed has no name left, so no other name can lead to it.
    if metadata.nlink() > 1 {
        // Not the error kind of a link or a pipe: the file itself exists and is whole.
        let why = format!("it has {} names (hard links): remove the others", metadata.nlink());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    check_owner(metadata)
}

fn check_owner(metadata: &Metadata) -> io::Result<()> {
    let owner = metadata.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner == own {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "it belongs to user {owner} and this process runs as user {own}; run as its owner, or change the owner"
        ),
    ))
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_file() => "a file",
        () => "a device",
    }
}

fn refused(what: &str) -> io::Error {
    let why =
        format!("{what}: a run opens only its own regular files; put the file itself here, or move it away");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("users"), "root").unwrap();
            fs::write(dir.path().join("own"), "mine").unwrap();
            fs::create_dir(dir.path().join("folder")).unwrap();
            symlink("users", dir.path().join("link")).unwrap();
            symlink("nothing", dir.path().join("dangling")).unwrap();
            symlink("folder", dir.path().join("folder-link")).unwrap();
            fs::hard_link(dir.path().join("users"), dir.path().join("second-name")).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                dir.path().join("pipe"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .unwrap();
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
    }

    /// Opens a name in every way a run does: all results must agree, and a refusal must change
    /// nothing.
    #[track_caller]
    fn check(name: &str, want: Result<(), &str>) {
        let fixture = Fixture::new();
        let path = fixture.path(name);
        let append = OpenOptions::new().append(true).create(true).clone();
        let both = OpenOptions::new().read(true).write(true).create(true).clone();
        for options in [append, both] {
            let opened = open(&path, &options).map(drop).map_err(|error| error.to_string());
            match (&opened, want) {
                (Ok(()), Ok(())) => {}
                (Err(why), Err(part)) if why.contains(part) => {}
                _ => panic!("{name}: {opened:?}, not {want:?}"),
            }
        }
        let checked = check_file(&path).map_err(|error| error.to_string());
        assert_eq!(checked.is_ok(), want.is_ok(), "{name}: {checked:?}");
        assert_eq!(fs::read_to_string(fixture.path("users")).unwrap(), "root", "{name}");
        assert!(!fixture.path("nothing").exists(), "{name}");
    }

    #[test]
    fn a_file_is_opened_as_itself_or_not_at_all() {
        check("own", Ok(()));
        check("new", Ok(()));
        check("link", Err("it is a symbolic link"));
        check("dangling", Err("it is a symbolic link"));
        check("users", Err("it has 2 names (hard links)"));
        check("second-name", Err("it has 2 names (hard links)"));
        check("pipe", Err(""));
        check("folder", Err(""));
    }

    #[test]
    fn a_file_that_was_opened_is_written_to() {
        let fixture = Fixture::new();
        let mut file = open(&fixture.path("own"), OpenOptions::new().append(true)).unwrap();
        file.write_all(b" alone").unwrap();
        assert_eq!(fs::read_to_string(fixture.path("own")).unwrap(), "mine alone");
    }

    #[test]
    fn only_a_small_regular_file_is_read() {
        let fixture = Fixture::new();
        assert_eq!(read(&fixture.path("own"), 4).unwrap(), b"mine");
        assert_eq!(read(&fixture.path("second-name"), 4).unwrap(), b"root");
        for (name, part) in [
            ("own", "larger than 3 bytes"),
            ("pipe", "a named pipe"),
            ("folder", "a folder"),
            ("link", "a symbolic link"),
        ] {
            let why = read(&fixture.path(name), 3).unwrap_err().to_string();
            assert!(why.contains(part), "{name}: {why}");
        }
        assert_eq!(read(&fixture.path("not-there"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_replaced_and_a_failure_names_its_path() {
        let fixture = Fixture::new();
        let path = fixture.path("own");
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!fixture.path("own.tmp").exists());
        symlink("users", fixture.path("own.tmp")).unwrap();
        let why = replace(&path, b"x").unwrap_err().to_string();
        assert!(why.contains("own.tmp: it is a symbolic link"), "{why}");
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(fixture.path("users")).unwrap()),
            (b"new".into(), b"root".into())
        );
    }

    #[test]
    fn a_file_that_is_written_again_is_as_before() {
        let fixture = Fixture::new();
        let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        fs::write(fixture.path("own"), &content).unwrap();
        write_again(&fixture.path("own")).unwrap();
        assert!(fs::read(fixture.path("own")).unwrap() == content);
        write_again(&fixture.path("not-there")).unwrap();
        assert!(write_again(&fixture.path("link")).is_err());
    }

    #[test]
    fn a_secret_is_its_users_alone() {
        let fixture = Fixture::new();
        let dir = fixture.path("secrets");
        create_private_dir(&dir).unwrap();
        create_private_dir(&dir).unwrap();
        let path = dir.join("key");
        fs::write(dir.join("key.tmp"), "what an interrupted start left").unwrap();
        replace_private(&path, b"secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        assert_eq!(read_private(&path, 6).unwrap(), b"secret");
        assert!(read_private(&path, 5).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let why = read_private(&path, 6).unwrap_err().to_string();
        assert!(why.contains("its mode is 640") && why.contains("chmod 600"), "{why}");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let why = check_private_dir(&dir).unwrap_err().to_string();
        assert!(why.contains("its mode is 755") && why.contains("chmod 700"), "{why}");
        create_private_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700, "a copy of a run is closed again");
        for name in ["link", "users", "folder-link"] {
            assert!(read_private(&fixture.path(name), 100).is_err(), "{name}");
            assert!(create_private_dir(&fixture.path(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_is_a_folder() {
        let fixture = Fixture::new();
        check_dir(&fixture.path("folder")).unwrap();
        check_dir(&fixture.path("not-there")).unwrap();
        for (name, part) in
            [("folder-link", "a symbolic link, not a folder"), ("own", "a file, not a folder")]
        {
            let why = check_dir(&fixture.path(name)).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
    }

    /// Only root can give a file away, so only root runs this part of the test.
    #[test]
    fn what_another_user_owns_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let fixture = Fixture::new();
        for name in ["own", "folder"] {
            std::os::unix::fs::chown(fixture.path(name), Some(65534), None).unwrap();
        }
        let part = "it belongs to user 65534 and this process runs as user 0";
        let why = open(&fixture.path("own"), OpenOptions::new().append(true)).unwrap_err().to_string();
        assert!(why.contains(part), "{why}");
        let why = check_dir(&fixture.path("folder")).unwrap_err().to_string();
        assert!(why.contains(part), "{why}");
    }

    #[test]
    fn a_disk_is_measured_where_the_path_will_be() {
        let dir = tempfile::tempdir().unwrap();
        let there = free_bytes(dir.path()).unwrap();
        let later = dir.path().join("runs/later");
        assert!(there > 0);
        // Other processes write meanwhile.
        assert!(free_bytes(&later).unwrap().abs_diff(there) < there / 4 + (1 << 30));
        assert!(free_bytes(Path::new("not-there")).unwrap() > 0);
    }
}
