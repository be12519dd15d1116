//! The `furrow` program. All of it is in the library, of which `furrow-bench` uses a part.

use std::process::ExitCode;

fn main() -> ExitCode {
    let status = furrow::run_command_line();
    furrow::end_soon();
    status
}
