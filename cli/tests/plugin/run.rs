//! `run`: the command, its Cluster, and signals to both.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use yoke_test_support::eventually;

use crate::fixtures::{KUBECONFIG, cluster, ready, secret};
use crate::host::Host;
use crate::running::{LIMIT, Running};

/// Prefix of the paths of its Clusters.
const MADE: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/clusters/run-";

/// Starts a script with a Cluster whose API answers at once.
async fn begin(host: &Host, options: &str, script: &str) -> (Running, Value) {
    let path = host.path("script");
    std::fs::write(&path, script).unwrap();
    let running = host.begin(&format!("run {options} -- /bin/sh {} an-argument", path.display()));
    let asked = make_ready(host).await;
    (running, asked)
}

/// Makes the Cluster of the run ready, and returns it.
async fn make_ready(host: &Host) -> Value {
    host.until_watched().await;
    let path = host.find(MADE).unwrap();
    let asked = host.object(&path).unwrap();
    let name = asked["metadata"]["name"].as_str().unwrap();
    let mut kubeconfig = secret();
    kubeconfig["metadata"]["name"] = format!("{name}-kubeconfig").into();
    host.set(&format!("/api/v1/namespaces/t/secrets/{name}-kubeconfig"), kubeconfig);
    host.set(&path, cluster(name, &[ready()]));
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_a_cluster_for_as_long_as_it_runs() {
    let host = Host::start().await;
    let script = "stat -c %a $KUBECONFIG; echo $KUBECONFIG; cat $KUBECONFIG; echo $YOKE_CLUSTER $1; exit 7";
    let (running, asked) = begin(&host, "--ttl 90m --class spot", script).await;
    assert_eq!(asked["spec"]["ttl"], "90m");
    assert_eq!(asked["spec"]["class"], "spot");
    let said = running.end().await;
    let lines: Vec<&str> = said.out.split('\n').collect();
    assert_eq!((said.code, lines[0]), (7, "600"), "{said:?}");
    assert!(said.out.contains(KUBECONFIG), "{said:?}");
    let name = asked["metadata"]["name"].as_str().unwrap();
    assert!(said.out.ends_with(&format!("{name} an-argument\n")), "{said:?}");
    assert!(
        !std::path::Path::new(lines[1]).exists(),
        "a kubeconfig is left: {said:?}"
    );
    assert!(!said.err.contains("error"), "the command has said why: {said:?}");
    assert_eq!(host.find(MADE), None);

    let host = Host::start().await;
    let (running, asked) = begin(&host, "", "true").await;
    assert_eq!(asked["spec"]["ttl"], "1h");
    assert_eq!(running.end().await.code, 0);
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_answer_names_the_cluster_that_may_exist() {
    let host = Host::start().await;
    host.stall("clusters");
    let running = host.begin("run --request-timeout 1s -- /bin/true");
    running.until_err("within 1s; trying again\n").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.err.contains(
            " may have been created; the host deletes it when its --ttl has passed\nerror: creating a Cluster "
        ),
        "{said:?}"
    );
    let nobody = host.run("run --server https://127.0.0.1:1 -- /bin/true").await;
    assert!(!nobody.err.contains("may have been created"), "{nobody:?}");
    assert_eq!(nobody.code, 1, "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_of_a_failed_request_is_deleted() {
    let error = "error: creating a Cluster for the command: the host fails\n";
    let host = Host::start().await;
    host.do_and_fail("POST", &[500]);
    let said = host.run("run -- /bin/true").await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.ends_with(&format!(" is being deleted\n{error}")), "{said:?}");
    assert_eq!(host.find(MADE), None, "{said:?}");

    let host = Host::start().await;
    host.fail("POST", &[500]);
    let said = host.run("run -- /bin/true").await;
    assert_eq!((said.code, said.err.as_str()), (1, error), "there was none");
    let asked = host.requests();
    let deletions = asked.iter().filter(|line| line.starts_with(&format!("DELETE {MADE}")));
    assert_eq!(
        (asked.len(), deletions.count()),
        (3, 2),
        "it may have been on its way: {asked:?}"
    );

    // The last answer says nothing about the earlier requests.
    let host = Host::start().await;
    host.do_and_fail("POST", &[504]);
    host.fail("POST", &[403]);
    let said = host.run("run -- /bin/true").await;
    assert!(said.code == 1 && said.err.contains(" is being deleted\n"), "{said:?}");
    assert_eq!(host.find(MADE), None, "{said:?}");

    let host = Host::start().await;
    host.do_and_fail("POST", &[500]);
    host.fail("DELETE", &[403]);
    let said = host.run("run -- /bin/true").await;
    let name = host.find(MADE).unwrap().rsplit('/').next().unwrap().to_owned();
    let told = format!("Cluster {name} may have been created; the host deletes it when its --ttl has passed\n{error}");
    assert!(said.code == 1 && said.err.ends_with(&told), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_request_finds_the_created_cluster() {
    let host = Host::start().await;
    host.do_and_fail("POST", &[504]);
    let (running, _) = begin(&host, "", "true").await;
    let said = running.end().await;
    assert_eq!(said.code, 0, "{said:?}");
    let asked = host.requests().iter().filter(|line| line.starts_with("POST")).count();
    assert_eq!((asked, host.find(MADE)), (2, None), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_can_be_looked_into() {
    for (script, code, kept) in [("false", 1, true), ("true", 0, false), ("kill -9 $$", 137, true)] {
        let host = Host::start().await;
        let (running, asked) = begin(&host, "--keep-on-failure", script).await;
        let said = running.end().await;
        assert_eq!(said.code, code, "{script}: {said:?}");
        assert_eq!(host.find(MADE).is_some(), kept, "{script}: {said:?}");
        let name = asked["metadata"]["name"].as_str().unwrap();
        let tells = said.err.contains(&format!("kubectl yoke delete cluster {name} -n t"));
        assert_eq!(tells, kept, "{script}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_run_deletes_its_cluster() {
    // A signal during the wait for the API.
    for (signal, code) in [
        (Signal::HUP, 129),
        (Signal::INT, 130),
        (Signal::QUIT, 131),
        (Signal::TERM, 143),
    ] {
        let host = Host::start().await;
        let running = host.begin("run -- /bin/true");
        host.until_watched().await;
        running.signal(signal);
        let said = running.end().await;
        assert_eq!(said.code, code, "{said:?}");
        assert_eq!(host.find(MADE), None, "{said:?}");
    }
    // A signal during the command: the command receives it and decides how to end.
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
    ] {
        let host = Host::start().await;
        let script = format!("trap 'echo heard; exit 9' {name}; echo begun; while true; do sleep 0.05; done");
        let (running, _) = begin(&host, "", &script).await;
        running.until_out("begun\n").await;
        running.signal(signal);
        let said = running.end().await;
        assert_eq!((said.code, said.out.as_str()), (9, "begun\nheard\n"), "{said:?}");
        assert_eq!(host.find(MADE), None, "{said:?}");
    }
}

/// Ctrl-C ends both processes at once; on a loaded machine the command may end first.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_is_deleted_after_a_command_that_ended_first() {
    for _ in 0..5 {
        let host = Host::start().await;
        let (running, _) = begin(&host, "", "echo $$ begun; exec sleep 60").await;
        running.until_out("begun\n").await;
        let said = running.said();
        let command = said
            .split(' ')
            .next()
            .and_then(|pid| Pid::from_raw(pid.parse().ok()?))
            .unwrap();
        running.signal(Signal::STOP);
        running.signal(Signal::INT);
        kill_process(command, Signal::INT).unwrap();
        let stat = format!("/proc/{}/stat", command.as_raw_nonzero());
        let state = async || std::fs::read_to_string(&stat);
        eventually("the command to be a zombie", LIMIT, state, |stat| stat.contains(") Z "))
            .await
            .unwrap();
        running.signal(Signal::CONT);
        let said = running.end().await;
        assert_eq!(said.code, 130, "{said:?}");
        assert_eq!(host.find(MADE), None, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_skips_the_deletion() {
    let host = Host::start().await;
    let (running, _) = begin(&host, "", "echo begun; exec sleep 60").await;
    running.until_out("begun\n").await;
    host.stall("DELETE");
    running.signal(Signal::TERM);
    host.until_asked("DELETE").await;
    running.signal(Signal::INT);
    running.until_err("interrupt again to leave that to the host\n").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert_eq!(said.code, 143, "{said:?}");
    assert!(said.err.ends_with("when its --ttl has passed\n"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_retried() {
    let host = Host::start().await;
    host.fail("DELETE", &[500, 429, 500]);
    let (running, _) = begin(&host, "", "exit 7").await;
    let said = running.end().await;
    assert!(said.code == 7 && said.err.ends_with(" is being deleted\n"), "{said:?}");
    assert_eq!(said.err.matches("; trying again\n").count(), 1, "{said:?}");
    assert_eq!(host.find(MADE), None, "{said:?}");

    // A signal ends the retries.
    let host = Host::start().await;
    host.fail("DELETE", &[500; 100]);
    let (running, _) = begin(&host, "", "exit 7").await;
    running.until_err("the host fails; trying again\n").await;
    running.signal(Signal::INT);
    running.until_err("interrupt again").await;
    running.signal(Signal::INT);
    let said = running.end().await;
    assert!(
        said.code == 7 && said.err.ends_with("when its --ttl has passed\n"),
        "{said:?}"
    );

    // A final answer ends the retries, and so does a missing object.
    for (code, told) in [
        (403, "the host fails; the host deletes it when its --ttl has passed\n"),
        (404, " was already deleted\n"),
    ] {
        let host = Host::start().await;
        host.fail("DELETE", &[code]);
        let (running, _) = begin(&host, "", "exit 7").await;
        let said = running.end().await;
        assert!(said.code == 7 && said.err.ends_with(told), "{said:?}");
        assert!(!said.err.contains("trying again"), "{said:?}");
    }
}

/// `timeout` creates a process group of its own, which the terminal does not signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_interrupts_commands_in_groups_of_their_own() {
    let host = Host::start().await;
    let path = host.path("script");
    std::fs::write(
        &path,
        "trap 'echo heard; exit 9' INT; echo begun; while true; do sleep 0.05; done",
    )
    .unwrap();
    let mut running = host.begin_at_terminal(&format!("run -- /usr/bin/timeout 10m /bin/sh {}", path.display()));
    make_ready(&host).await;
    running.until_out("begun\r\n").await;
    running.press(b"\x03").await;
    let said = running.end().await;
    assert!(said.code == 9 && said.out.contains("heard\r\n"), "{said:?}");
    assert_eq!(host.find(MADE), None, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unready_cluster_is_deleted() {
    let host = Host::start().await;
    let said = host.run("run --timeout 1s -- /bin/true").await;
    assert_eq!(said.code, 1, "{said:?}");
    for part in [
        "error: the command was not run: ",
        "hint: wait longer with --timeout",
        "is being deleted",
    ] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    assert!(!said.err.contains("the host continues"), "{said:?}");
    assert_eq!(host.find(MADE), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_cluster_is_made_for_what_cannot_be_run() {
    let host = Host::start().await;
    for (line, code, part) in [
        ("run -- /nowhere/command", 127, "command /nowhere/command was not found"),
        ("run -- /", 126, "cannot run /"),
        ("run -- no-such-command", 127, "command no-such-command was not found"),
        ("run", 2, "required"),
        ("run --ttl 1d -- /bin/true", 2, "a time in minutes or hours"),
        ("run --ttl 0m -- /bin/true", 2, "a time in minutes or hours"),
        ("run --ttl 10000h -- /bin/true", 2, "a time in minutes or hours"),
        ("run /bin/true", 2, "unexpected argument"),
    ] {
        let said = host.run(line).await;
        assert!(said.code == code && said.err.contains(part), "{line}: {said:?}");
    }
    assert_eq!(host.requests(), Vec::<String>::new());

    let path = host.path("script");
    std::fs::write(&path, "not a program").unwrap();
    let line = format!("run -- {}", path.display());
    let said = host.run(&line).await;
    assert!(said.code == 126 && said.err.contains("ermission denied"), "{said:?}");
    assert_eq!(host.requests(), Vec::<String>::new());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let running = host.begin(&line);
    make_ready(&host).await;
    let said = running.end().await;
    assert!(said.code == 126 && said.err.contains("error: cannot run "), "{said:?}");
    assert_eq!(host.find(MADE), None, "{said:?}");
}
