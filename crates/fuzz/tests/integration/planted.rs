//! Broken promises are found: a panic, an overflow, too much memory, too much time.

use std::process::Command;

#[test]
fn each_broken_promise_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for (input, says) in [
        ("panic", "planted"),
        ("overflow", "attempt to add with overflow"),
        ("memory", "2097152 bytes allocated at once, at most 1048576 are promised"),
        ("time", "of processor time, at most 50ms"),
        ("none", "Executed"),
    ] {
        let file = folder.path().join(input);
        std::fs::write(&file, input).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow-fuzz"));
        command.env("FURROW_FUZZ_TARGET", "planted").env("FURROW_FUZZ_CPU_MILLIS", "50");
        let output = command.arg(&file).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), input == "none", "{input}: {text}");
        assert!(text.contains(says), "{input}: {text}");
    }
}
