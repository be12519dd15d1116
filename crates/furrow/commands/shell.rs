//! `furrow completions` and `furrow man`: what a shell and `man` know about the commands.

use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;

use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that completes the commands; its script is printed
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write the pages to, furrow.1 and one page a command
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    output::raw(&script);
    Ok(())
}

pub(crate) fn man(args: &ManArgs, command: clap::Command) -> Result<(), CommandFailure> {
    let written = write_pages(&args.dir, command).map_err(|why| {
        CommandFailure::Input(vec![format!("{}: cannot write manual pages: {why}", args.dir.display())])
    })?;
    output::line(format!("{written} pages in {}; read one with `man -l`", args.dir.display()));
    Ok(())
}

/// Writes a page for each command and each of its subcommands: `furrow-tasks-list.1`.
fn write_pages(dir: &Path, command: clap::Command) -> std::io::Result<usize> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)?;
    let is_page = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "1");
    Ok(std::fs::read_dir(dir)?.flatten().filter(is_page).count())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::command_line::Cli;

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let folder = tempfile::tempdir().unwrap();
        let written = write_pages(&folder.path().join("man"), Cli::command()).unwrap();
        assert!(written > 25, "{written}");
        let page = std::fs::read_to_string(folder.path().join("man/furrow-tasks-check.1")).unwrap();
        assert!(page.contains("demonstrated task in a") && page.contains("seeds"), "{page}");
    }

    #[test]
    fn every_shell_gets_a_script_that_knows_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "furrow", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("checkpoint") && script.contains("simulate-browser"), "{shell}");
        }
    }
}
