//! Planted bugs, each tried in a process of its own: one that writes where it must not may kill that process and no other.

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
use crate::family::{Bug, Family, Kind};
use crate::place::Library;
use crate::shim::{Optimised, compiled, side_by_side};

/// What a child is told: the file of its family, the library, the variant in it.
const TOLD: [&str; 3] = ["FURROW_PLANTED_FILE", "FURROW_PLANTED_LIBRARY", "FURROW_PLANTED_VARIANT"];
/// What a child's line on the comparison begins with.
const DIFFERS: &str = "the comparison says: ";
const PASSES: &str = "the comparison passes";

/// A comparison of planted bugs takes seconds on a busy machine; one that takes this long never ends.
const DEADLINE: Duration = Duration::from_secs(90);

/// What became of a planted bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The comparison noticed it; what differs.
    Differs(String),
    /// The process died of this signal.
    Died(i32),
    /// The process had not ended at the deadline.
    Endless,
    /// Nothing noticed it.
    Passes,
}

impl Display for Outcome {
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
pub struct Planted {
    file: &'static str,
    library: PathBuf,
}

impl Planted {
    /// Plants each bug in a copy of the family's text and compiles the copies together.
    #[track_caller]
    pub fn build(family: &Family) -> Self {
        let text = family.planted_in();
        let plant = |bug: &Bug| {
            let times = text.matches(bug.find).count();
            assert_eq!(times, 1, "{}: {:?} stands there {times} times", family.file, bug.find);
            text.replace(bug.find, bug.put)
        };
        let copies: Vec<String> = family.bugs.iter().map(plant).collect();
        let text = side_by_side(family.file, &copies);
        Self {
            file: family.file,
            library: compiled(&format!("planted-{}", family.file), &text, Optimised::Little),
        }
    }

    /// Runs the comparison on the copy with this bug.
    #[track_caller]
    pub fn try_bug(&self, number: usize, deadline: Duration) -> Outcome {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "planted::child_that_tries_a_bug", "--ignored", "--nocapture"]);
        let told: [OsString; 3] = [self.file.into(), self.library.clone().into(), number.to_string().into()];
        command.envs(TOLD.into_iter().zip(told));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (tell, lines) = sync_channel(1);
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).unwrap();
            tell.send(String::from_utf8_lossy(&text).into_owned())
        });
        let told = lines.recv_timeout(deadline);
        if told == Err(RecvTimeoutError::Timeout) {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        reader.join().unwrap().unwrap();
        let Ok(told) = told else { return Outcome::Endless };
        if let Some(signal) = status.signal() {
            return Outcome::Died(signal);
        }
        // Behind the harness' own words on the same line.
        let line = told.lines().find_map(|line| Some(&line[line.find("the comparison ")?..]));
        match line.map(|line| line.strip_prefix(DIFFERS).ok_or(line)) {
            Some(Ok(difference)) => Outcome::Differs(difference.to_owned()),
            Some(Err(PASSES)) => Outcome::Passes,
            _ => panic!("{}, bug {number}: the child ended with {status} and said {told:?}", self.file),
        }
    }
}

impl Family {
    /// Each planted bug makes the comparison fail, or its process.
    #[track_caller]
    pub fn finds_its_bugs(&self) {
        let planted = Planted::build(self);
        let passing = self
            .bugs
            .iter()
            .enumerate()
            .filter(|(number, _)| planted.try_bug(*number, DEADLINE) == Outcome::Passes);
        let passing: Vec<String> = passing
            .map(|(_, Bug { kind, find, put })| {
                format!("{}: {kind:?} bug passes: {find:?} made {put:?}", self.file)
            })
            .collect();
        assert!(passing.is_empty(), "{}", passing.join("\n"));
    }
}

#[test]
#[ignore = "the child of the tests that plant bugs"]
fn child_that_tries_a_bug() {
    let [Ok(file), Ok(library), Ok(variant)] = TOLD.map(env::var) else { return };
    let family = FAMILIES.iter().find(|family| family.file == file).unwrap();
    let mut library = Library::open(Path::new(&library), variant.parse().unwrap());
    match family.compare(&mut library) {
        Err(difference) => println!("{DIFFERS}{}", difference.lines().next().unwrap_or_default()),
        Ok(()) => println!("{PASSES}"),
    }
}

/// Edits of a file of which is known what becomes of them.
const TRIAL: Family = Family {
    file: "squared_relu.cu",
    check: |_| unreachable!("a child finds the file's own comparison"),
    bugs: &[
        Bug { kind: Kind::Formula, find: "values[v] < 0.0f ? 0.0f :", put: "values[v] < 0.0f ? 0.0f:" },
        Bug { kind: Kind::Formula, find: "values[v] < 0.0f ? 0.0f :", put: "values[v] < 0.0f ? 1.0f :" },
        Bug {
            kind: Kind::Index,
            find: "    const unsigned long long step",
            put: "    *(volatile int*)8 = 0;\n    const unsigned long long step",
        },
        Bug { kind: Kind::Index, find: "i += step", put: "i += step - step" },
    ],
};

#[test]
fn what_becomes_of_a_bug_is_told() {
    const SIGSEGV: i32 = 11;
    let planted = Planted::build(&TRIAL);
    let outcome = |number| planted.try_bug(number, DEADLINE);
    assert_eq!(outcome(0), Outcome::Passes, "an edit that changes nothing");
    let differs = outcome(1);
    assert!(matches!(&differs, Outcome::Differs(what) if what.contains("not 0")), "{differs}");
    assert_eq!(outcome(2), Outcome::Died(SIGSEGV));
    assert_eq!(planted.try_bug(3, Duration::from_secs(2)), Outcome::Endless);
}
