//! Commands that were probably meant: clap compares letters at their positions, so for a short name
//! with two letters swapped it suggests a longer one or nothing.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Below this, more than half of the letters differ.
const ALIKE: f64 = 0.5;

/// The same error with the most similar command as a tip.
pub(crate) fn with_suggestion(
    mut error: clap::Error,
    root: &clap::Command,
    arguments: &[String],
) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(used)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let parent = parent_of(used, root, arguments);
    let alike = |name: &&str| strsim::normalized_damerau_levenshtein(used, name);
    let names = parent.get_subcommands().map(clap::Command::get_name);
    let best = names.max_by(|one, other| alike(one).total_cmp(&alike(other)));
    if let Some(name) = best.filter(|name| alike(name) >= ALIKE).map(str::to_owned) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name]));
    }
    error
}

/// The command whose subcommand was misspelt.
fn parent_of<'a>(used: &str, root: &'a clap::Command, arguments: &[String]) -> &'a clap::Command {
    let before = arguments.iter().skip(1).take_while(|argument| *argument != used);
    before.fold(root, |command, argument| command.find_subcommand(argument).unwrap_or(command))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::command_line::Cli;

    #[test]
    fn a_misspelt_command_gets_the_nearest_one() {
        for (arguments, want) in [
            (&["rnu"][..], Some("'run'")),
            (&["chekc"], Some("'check'")),
            (&["tasks", "lsit"], Some("'list'")),
            (&["records", "verfy", "x"], Some("'verify'")),
            (&["qqqqqqqq"], None),
        ] {
            let arguments: Vec<String> =
                ["furrow"].iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
            let error = Cli::try_parse_from(&arguments).unwrap_err();
            let text = with_suggestion(error, &Cli::command(), &arguments).to_string();
            match want {
                Some(name) => {
                    assert!(text.contains("similar") && text.contains(name), "{arguments:?}: {text}");
                }
                None => assert!(!text.contains("similar"), "{text}"),
            }
        }
    }
}
