//! Why a command failed, and the exit status that follows from it.

use std::process::ExitCode;

use crate::output;

/// Why a command failed, which decides the exit status.
#[derive(Debug)]
pub enum CommandFailure {
    /// The input is wrong: each line names a key, its value and what would be right. Exit status 2.
    Input(Vec<String>),
    /// The work failed. Exit status 1.
    Work(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for CommandFailure {
    fn from(error: E) -> Self {
        CommandFailure::Work(error.into())
    }
}

/// Prints the problems of a command that failed, and returns its exit status.
pub fn exit_code(outcome: Result<(), CommandFailure>) -> ExitCode {
    match outcome.and_then(|()| check_output_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandFailure::Input(problems)) => {
            for problem in problems {
                output::error_line(&problem);
            }
            ExitCode::from(2)
        }
        Err(CommandFailure::Work(error)) => {
            output::error_line(&chain(&error));
            if is_machine_failure(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Fails if any output of the command was lost.
fn check_output_written() -> Result<(), CommandFailure> {
    match output::write_error() {
        Some(why) => Err(anyhow::anyhow!("the output cannot be written: {why}").into()),
        None => Ok(()),
    }
}

/// Whether the machine lacks what the job needs: on this machine the input is wrong, as a wrong key
/// would be.
fn is_machine_failure(error: &anyhow::Error) -> bool {
    let models = error.chain().filter_map(|cause| cause.downcast_ref::<furrow_policy::ModelError>());
    models.into_iter().any(furrow_policy::ModelError::is_lack_of_hardware)
}

/// An error and its causes on one line, without causes that repeat the text before them.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
