//! Planted bugs, each tried in a process of its own: a bug that writes out of bounds may kill only
//! that process.

use std::env;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::FAMILIES;
use crate::family::{BugKind, KernelFamily, PlantedBug};
use crate::runner::KernelRunner;
use crate::shim::{OptimisationLevel, compiled, side_by_side};

/// Variables for a child: the file of its family, the library, the variant in it.
const CHILD_VARIABLES: [&str; 3] =
    ["FURROW_PLANTED_FILE", "FURROW_PLANTED_LIBRARY", "FURROW_PLANTED_VARIANT"];
/// Beginning of a child's line about the comparison.
const DIFFERS: &str = "the comparison says: ";
const PASSES: &str = "the comparison passes";

/// A comparison of planted bugs takes seconds on a busy machine; one that takes this long never
/// ends.
const DEADLINE: Duration = Duration::from_secs(90);

/// Outcome of a planted bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BugOutcome {
    /// The comparison detected it; the difference.
    Differs(String),
    /// The process died of this signal.
    Died(i32),
    /// The process had not ended at the deadline.
    Endless,
    Passes,
}

impl Display for BugOutcome {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(difference) => write!(to, "differs: {difference}"),
            Self::Died(signal) => write!(to, "died of signal {signal}"),
            Self::Endless => to.write_str("did not end"),
            Self::Passes => to.write_str("passes"),
        }
    }
}

/// A family's bugs in one library.
pub(crate) struct PlantedLibrary {
    file: &'static str,
    library: PathBuf,
}

impl PlantedLibrary {
    /// Plants each bug in a copy of the family's text and compiles the copies together.
    #[track_caller]
    pub(crate) fn build(family: &KernelFamily) -> Self {
        let text = family.planted_in();
        let plant = |bug: &PlantedBug| {
            let times = text.matches(bug.find).count();
            assert_eq!(times, 1, "{}: {:?} occurs {times} times, not once", family.file, bug.find);
            text.replace(bug.find, bug.put)
        };
        let copies: Vec<String> = family.bugs.iter().map(plant).collect();
        let text = side_by_side(family.file, &copies);
        Self {
            file: family.file,
            library: compiled(&format!("planted-{}", family.file), &text, OptimisationLevel::Little),
        }
    }

    /// Runs the comparison on the copy with this bug.
    #[track_caller]
    pub(crate) fn try_bug(&self, number: usize, deadline: Duration) -> BugOutcome {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "planted::child_that_tries_a_bug", "--ignored", "--nocapture"]);
        let values: [OsString; 3] =
            [self.file.into(), self.library.clone().into(), number.to_string().into()];
        command.envs(CHILD_VARIABLES.into_iter().zip(values));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, lines) = sync_channel(1);
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).unwrap();
            sender.send(String::from_utf8_lossy(&text).into_owned())
        });
        let output = lines.recv_timeout(deadline);
        if output == Err(RecvTimeoutError::Timeout) {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        reader.join().unwrap().unwrap();
        let Ok(output) = output else { return BugOutcome::Endless };
        if let Some(signal) = status.signal() {
            return BugOutcome::Died(signal);
        }
        // After the harness' own text on the same line.
        let line = output.lines().find_map(|line| Some(&line[line.find("the comparison ")?..]));
        match line.map(|line| line.strip_prefix(DIFFERS).ok_or(line)) {
            Some(Ok(difference)) => BugOutcome::Differs(difference.to_owned()),
            Some(Err(PASSES)) => BugOutcome::Passes,
            _ => panic!("{}, bug {number}: the child ended with {status} and printed {output:?}", self.file),
        }
    }
}

impl KernelFamily {
    /// Each planted bug makes the comparison fail, or its process.
    #[track_caller]
    pub(crate) fn finds_its_bugs(&self) {
        let planted = PlantedLibrary::build(self);
        let passing = self
            .bugs
            .iter()
            .enumerate()
            .filter(|(number, _)| planted.try_bug(*number, DEADLINE) == BugOutcome::Passes);
        let passing: Vec<String> = passing
            .map(|(_, PlantedBug { kind, find, put })| {
                format!("{}: {kind:?} bug is not detected: {find:?} replaced by {put:?}", self.file)
            })
            .collect();
        assert!(passing.is_empty(), "{}", passing.join("\n"));
    }
}

#[test]
#[ignore = "the child of the tests that plant bugs"]
fn child_that_tries_a_bug() {
    let [Ok(file), Ok(library), Ok(variant)] = CHILD_VARIABLES.map(env::var) else { return };
    let family = FAMILIES.iter().find(|family| family.file == file).unwrap();
    let mut library = KernelRunner::open(Path::new(&library), variant.parse().unwrap());
    match family.compare(&mut library) {
        Err(difference) => println!("{DIFFERS}{}", difference.lines().next().unwrap_or_default()),
        Ok(()) => println!("{PASSES}"),
    }
}

/// Edits of a file whose outcomes are known.
const TRIAL: KernelFamily = KernelFamily {
    file: "squared_relu.cu",
    check: |_| unreachable!("a child finds the file's own comparison"),
    bugs: &[
        PlantedBug {
            kind: BugKind::Formula,
            find: "values[v] < 0.0f ? 0.0f :",
            put: "values[v] < 0.0f ? 0.0f:",
        },
        PlantedBug {
            kind: BugKind::Formula,
            find: "values[v] < 0.0f ? 0.0f :",
            put: "values[v] < 0.0f ? 1.0f :",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "    const unsigned long long step",
            put: "    *(volatile int*)8 = 0;\n    const unsigned long long step",
        },
        PlantedBug { kind: BugKind::Index, find: "i += step", put: "i += step - step" },
    ],
};

#[test]
fn every_bug_outcome_is_reported() {
    const SIGSEGV: i32 = 11;
    let planted = PlantedLibrary::build(&TRIAL);
    let outcome = |number| planted.try_bug(number, DEADLINE);
    assert_eq!(outcome(0), BugOutcome::Passes, "an edit that changes nothing");
    let differs = outcome(1);
    assert!(matches!(&differs, BugOutcome::Differs(what) if what.contains("not 0")), "{differs}");
    assert_eq!(outcome(2), BugOutcome::Died(SIGSEGV));
    assert_eq!(planted.try_bug(3, Duration::from_secs(2)), BugOutcome::Endless);
}
