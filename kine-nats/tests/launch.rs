//! `yoke-launch`, as the containers of other images run it.

#![allow(clippy::unwrap_used, reason = "a test's helper")]

use std::process::{Command, Output};

const LAUNCH: &str = env!("CARGO_BIN_EXE_yoke-launch");
const SHOW: [&str; 3] = ["50", "cat", "/proc/self/timerslack_ns"];

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn a_started_process_has_the_timer_slack() {
    assert_eq!(run(LAUNCH, &SHOW).stdout, b"50000000\n");
    assert_eq!(run("cat", &SHOW[2..]).stdout, b"50000\n", "the default");
}

#[test]
fn the_launcher_installs_over_a_running_copy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("yoke-launch");
    let installed = file.to_str().unwrap();
    assert!(run(LAUNCH, &["install", installed]).status.success());
    assert!(run(installed, &["install", installed]).status.success());
    assert_eq!(run(installed, &SHOW).stdout, b"50000000\n");
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1);
}

/// An image of Kubernetes contains nothing but its program.
#[test]
fn the_launcher_needs_no_shared_library() {
    let output = run("ldd", &[LAUNCH]);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(text.contains("statically linked"), "{text}");
}

#[test]
fn unknown_arguments_are_rejected() {
    let beside = |store: &'static str, server: &'static str| -> [&str; 10] {
        [
            "--writer", store, "--after", server, "--name", "n", "--ca", "ca", "50", "cat",
        ]
    };
    for arguments in [
        &["0", "cat"][..],
        &["50ms", "cat"],
        &["50"],
        &["install"],
        &["await", "nowhere", "n", "ca"],
        &["await", "127.0.0.1:1", "", "ca"],
        &beside("nowhere", "127.0.0.1:1"),
        &beside("127.0.0.1:1", "nowhere"),
        &["--writer", "127.0.0.1:1", "50", "cat"],
        &["--writer", "127.0.0.1:1", "--after", "127.0.0.1:1", "50", "cat"],
        // Without a program.
        &beside("127.0.0.1:1", "127.0.0.1:1")[..9],
        &[],
    ] {
        let output = run(LAUNCH, arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("usage: yoke-launch"), "{message}");
    }
    let output = run(LAUNCH, &["await", "127.0.0.1:1", "n", "/there/is/no/such/file"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("/there/is/no/such/file"), "{message}");
    let output = run(LAUNCH, &["50", "/there/is/no/such/program"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("NotFound"), "{message}");
}
