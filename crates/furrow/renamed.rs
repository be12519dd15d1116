//! Flags and commands that an earlier release knew under another name: using one is refused with
//! the new name.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flag of an earlier release, and its name today.
const FLAGS: &[(&str, &str)] = &[
    ("--air", "--simulate-browser"),
    ("--air-settle", "--simulate-settle"),
    ("--patience-millis", "--timeout-millis"),
];

/// Command of an earlier release, and the program that it is today.
const PROGRAMS: &[(&str, &str)] = &[("bench", "furrow-bench")];

/// What to say of a command line that uses a flag or a command of an earlier release.
pub(crate) fn explain(error: &clap::Error) -> Option<String> {
    let (context, names, change) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, FLAGS, "renamed"),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, PROGRAMS, "now a separate program"),
        _ => return None,
    };
    let Some(ContextValue::String(used)) = error.get(context) else { return None };
    let (old, new) = names.iter().find(|(old, _)| old == used)?;
    Some(format!("{old}: {change}; write {new}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::command_line::Cli;

    fn is_known(command: &clap::Command, flag: &str) -> bool {
        let own = command.get_arguments().any(|argument| argument.get_long() == Some(&flag[2..]));
        own || command.get_subcommands().any(|command| is_known(command, flag))
    }

    fn explained(arguments: &[&str]) -> Option<String> {
        explain(&Cli::try_parse_from(arguments).unwrap_err())
    }

    #[test]
    fn every_old_flag_names_one_of_today() {
        for (old, new) in FLAGS {
            assert!(is_known(&Cli::command(), new) && !is_known(&Cli::command(), old), "{old} {new}");
        }
        let renamed = explained(&["furrow", "run", "job.toml", "--air=4000"]);
        assert_eq!(renamed.as_deref(), Some("--air: renamed; write --simulate-browser"));
        let renamed = explained(&["furrow", "replay", "runs/x", "--patience-millis", "5"]);
        assert_eq!(renamed.as_deref(), Some("--patience-millis: renamed; write --timeout-millis"));
        assert_eq!(explained(&["furrow", "run", "job.toml", "--fast"]), None);
        assert_eq!(explained(&["furrow", "run"]), None);
    }

    #[test]
    fn a_command_that_became_a_program_is_refused_with_its_name() {
        let want = Some("bench: now a separate program; write furrow-bench");
        for arguments in [&["bench"][..], &["bench", "farm", "--rounds", "1"], &["help", "bench"]] {
            let explained = explained(&[&["furrow"][..], arguments].concat());
            assert_eq!(explained.as_deref(), want, "{arguments:?}");
        }
        assert_eq!(explained(&["furrow", "benchmark"]), None);
    }
}
