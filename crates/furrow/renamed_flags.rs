//! Flags that an earlier release knew under another name: using one is refused with the new name.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flag of an earlier release, and its name today.
const RENAMED: &[(&str, &str)] = &[
    ("--air", "--simulate-browser"),
    ("--air-settle", "--simulate-settle"),
    ("--patience-millis", "--timeout-millis"),
];

/// What to say of a command line that uses a flag of an earlier release.
pub fn explain(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(used)) = error.get(ContextKind::InvalidArg) else { return None };
    let (old, new) = RENAMED.iter().find(|(old, _)| old == used)?;
    Some(format!("{old}: renamed; write {new}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::Cli;

    fn is_known(command: &clap::Command, flag: &str) -> bool {
        let own = command.get_arguments().any(|argument| argument.get_long() == Some(&flag[2..]));
        own || command.get_subcommands().any(|command| is_known(command, flag))
    }

    #[test]
    fn every_old_flag_names_one_of_today() {
        for (old, new) in RENAMED {
            assert!(is_known(&Cli::command(), new) && !is_known(&Cli::command(), old), "{old} {new}");
        }
        let explained = |arguments: &[&str]| explain(&Cli::try_parse_from(arguments).unwrap_err());
        let renamed = explained(&["furrow", "run", "job.toml", "--air=4000"]);
        assert_eq!(renamed.as_deref(), Some("--air: renamed; write --simulate-browser"));
        let renamed = explained(&["furrow", "replay", "runs/x", "--patience-millis", "5"]);
        assert_eq!(renamed.as_deref(), Some("--patience-millis: renamed; write --timeout-millis"));
        assert_eq!(explained(&["furrow", "run", "job.toml", "--fast"]), None);
        assert_eq!(explained(&["furrow", "run"]), None);
    }
}
