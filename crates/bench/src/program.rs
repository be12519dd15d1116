//! The `furrow` program, which some benchmarks start and measure from outside.

use std::path::PathBuf;

use clap::Args;
use furrow::CommandFailure;

/// Which `furrow` to start.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The furrow program to measure [default: the one in the directory of furrow-bench]
    #[arg(long, value_name = "PROGRAM", env = "FURROW")]
    furrow: Option<PathBuf>,
}

impl ProgramArgs {
    /// The program's path; refuses one that is not there.
    pub(crate) fn find(&self) -> Result<PathBuf, CommandFailure> {
        let path = match &self.furrow {
            Some(named) => std::path::absolute(named)?,
            None => std::env::current_exe()?.with_file_name("furrow"),
        };
        if path.is_file() {
            return Ok(path);
        }
        let path = path.display();
        Err(CommandFailure::Input(vec![format!(
            "--furrow: there is no {path}; build it with `cargo build --release`, or name another one"
        )]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_refused_by_its_option() {
        let this = std::env::current_exe().unwrap();
        assert_eq!(ProgramArgs { furrow: Some(this.clone()) }.find().unwrap(), this);
        let Err(CommandFailure::Input(problems)) = ProgramArgs { furrow: Some("/no/furrow".into()) }.find()
        else {
            panic!("a program that is not there was accepted");
        };
        assert!(problems[0].starts_with("--furrow: there is no /no/furrow; "), "{problems:?}");
    }
}
