//! How far browsers are shut off from the machine of this worker, and what would have to change for
//! more.

use std::fmt;
use std::process::Stdio;

use furrow_rollout::WallsLevel;

use super::error::BrowserError;
use super::user::{OwnerIds, as_user_inside, owner, privileges_problem};
use crate::config::BrowserConfig;
use crate::namespace::NetworkNamespace;

/// The walls around the browsers of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserWalls {
    /// What holds for every browser.
    pub level: WallsLevel,
    /// What a higher level needs.
    pub missing: Vec<MissingWall>,
    has_namespace: bool,
}

/// A wall that a worker cannot build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingWall {
    /// The part that browsers are without, such as "no new privileges".
    what: &'static str,
    why: String,
    remedy: &'static str,
    /// The highest level without it.
    level: WallsLevel,
}

impl fmt::Display for MissingWall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; {})", self.what, self.why, self.remedy)
    }
}

impl BrowserWalls {
    /// Finds out what this worker can build. Blocks for some milliseconds.
    pub(super) fn survey(config: &BrowserConfig) -> Result<Self, BrowserError> {
        let owner = owner(config)?;
        let network = network(owner, config);
        let has_namespace = network.is_none();
        let missing = [own_user(owner), sandbox(config), privileges(owner, config), network];
        Ok(Self::without(missing.into_iter().flatten().collect(), has_namespace))
    }

    fn without(missing: Vec<MissingWall>, has_namespace: bool) -> Self {
        let level = missing.iter().map(|wall| wall.level).min().unwrap_or(WallsLevel::Full);
        Self { level, missing, has_namespace }
    }

    /// Whether each browser has a network namespace.
    pub(super) fn has_namespace(&self) -> bool {
        self.has_namespace
    }

    /// Fails if the job asks for more.
    pub(super) fn check(&self, config: &BrowserConfig) -> Result<(), BrowserError> {
        let wanted = config.walls_min;
        if self.level >= wanted {
            return Ok(());
        }
        let missing = self.missing.iter().filter(|wall| wall.level < wanted);
        let missing = missing.map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(BrowserError::Walls { wanted, level: self.level, missing })
    }
}

fn own_user(owner: OwnerIds) -> Option<MissingWall> {
    owner.is_none().then(|| MissingWall {
        what: "a user of the browser's own",
        why: "this process is not root".into(),
        remedy: "start the worker as root, and its browsers run as env.browser_user",
        level: WallsLevel::Namespaces,
    })
}

fn sandbox(config: &BrowserConfig) -> Option<MissingWall> {
    (!config.sandbox).then(|| MissingWall {
        what: "Chromium's sandbox",
        why: "env.sandbox is false".into(),
        remedy: "leave env.sandbox out where the machine or container allows user namespaces",
        level: WallsLevel::Basic,
    })
}

fn privileges(owner: OwnerIds, config: &BrowserConfig) -> Option<MissingWall> {
    privileges_problem(owner, config).map(|why| MissingWall {
        what: "no new privileges",
        why: why.to_owned(),
        remedy: "allow user namespaces to ordinary users (user.max_user_namespaces, \
                 kernel.apparmor_restrict_unprivileged_userns = 0, or the container's seccomp profile)",
        level: WallsLevel::Basic,
    })
}

fn network(owner: OwnerIds, config: &BrowserConfig) -> Option<MissingWall> {
    network_problem(owner, config).map(|why| MissingWall {
        what: "a network of the browser's own",
        why,
        remedy: "start the worker as root with CAP_SYS_ADMIN, or allow user namespaces to ordinary users",
        level: WallsLevel::Basic,
    })
}

/// Why no browser could start in a network namespace and reach a filter there: tries what each of
/// them will do.
fn network_problem(owner: OwnerIds, config: &BrowserConfig) -> Option<String> {
    if !config.may_have_network {
        return Some("it was left out for a comparison".into());
    }
    let (namespace, _helper) = match NetworkNamespace::start() {
        Ok(started) => started,
        Err(error) => return Some(error.to_string()),
    };
    let reached = || {
        let listener = namespace.listen()?;
        namespace.connect(listener.local_addr()?.port())
    };
    if let Err(error) = reached() {
        return Some(format!("no connection inside: {error}"));
    }
    // Chromium's sandbox makes namespaces of its own.
    let has_sandbox = config.sandbox && privileges_problem(owner, config).is_none();
    let program: &[&str] = if has_sandbox { &["unshare", "--user", "true"] } else { &["true"] };
    let mut trial = as_user_inside(Some(&namespace), owner, config);
    match trial.args(program).current_dir("/").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("nsenter: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::EnvFile;

    fn wall(level: WallsLevel) -> MissingWall {
        MissingWall { what: "a wall", why: format!("why {}", level.as_str()), remedy: "do it", level }
    }

    #[test]
    fn the_level_is_that_of_the_weakest_part() {
        use WallsLevel::{Basic, Full, Namespaces};
        for (missing, level) in [
            (vec![], Full),
            (vec![Namespaces], Namespaces),
            (vec![Basic], Basic),
            (vec![Namespaces, Basic], Basic),
            (vec![Basic, Namespaces], Basic),
        ] {
            let walls = BrowserWalls::without(missing.iter().copied().map(wall).collect(), true);
            assert_eq!(walls.level, level, "{missing:?}");
        }
    }

    #[test]
    fn a_job_that_asks_for_more_is_refused_with_what_is_missing_for_that() {
        let check = |missing: &[WallsLevel], wanted: &str| {
            let file = EnvFile { walls: wanted.into(), ..EnvFile::default() };
            let config = file.check(Path::new("/")).unwrap().browser;
            let walls = BrowserWalls::without(missing.iter().copied().map(wall).collect(), true);
            walls.check(&config).map_err(|error| error.to_string())
        };
        let both = [WallsLevel::Namespaces, WallsLevel::Basic];
        for (missing, wanted) in
            [(&both[..], "report"), (&both[..1], "report"), (&both[..1], "namespaces"), (&[], "full")]
        {
            assert_eq!(check(missing, wanted), Ok(()), "{missing:?} {wanted}");
        }
        let error = check(&both, "namespaces").unwrap_err();
        assert!(error.contains("env.walls") && error.contains("\"namespaces\""), "{error}");
        assert!(error.contains("a wall (why basic; do it)") && !error.contains("why namespaces"), "{error}");
        let error = check(&both, "full").unwrap_err();
        assert!(error.contains("why basic") && error.contains("why namespaces"), "{error}");
        assert!(check(&both[..1], "full").is_err());
    }

    #[test]
    fn what_the_job_turns_off_is_missing() {
        let file = EnvFile { sandbox: false, ..EnvFile::default() };
        let walls = BrowserWalls::survey(&file.check(Path::new("/")).unwrap().browser).unwrap();
        assert_eq!(walls.level, WallsLevel::Basic);
        assert!(walls.missing.iter().any(|wall| wall.to_string().contains("env.sandbox is false")));
    }
}
