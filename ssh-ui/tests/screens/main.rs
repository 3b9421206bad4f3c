//! Golden screens, as a terminal shows the output. `UPDATE=1` rewrites them and their pictures.

// Clippy exempts tests from these lints, but not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod picture;

use std::num::NonZero;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher::Event as Change;
use ratatui::layout::Size;
use serde_json::json;
use yoke_api::Cluster;
use yoke_ssh_ui::identity::key_registry::Identity;
use yoke_ssh_ui::tui::screen::keys::Keys;
use yoke_ssh_ui::tui::screen::{Action, AnswerDisplay, Screen, draw};
use yoke_ssh_ui::tui::terminal::{ENTER, LEAVE, Terminal, TerminalCapabilities};

const NOW: &str = "2026-03-01T12:00:00Z";
const RICH: TerminalCapabilities = TerminalCapabilities {
    colour: true,
    unicode: true,
};

const PLAIN: TerminalCapabilities = TerminalCapabilities {
    colour: false,
    unicode: false,
};

/// A client's terminal with the interface.
struct TestTerminal {
    screen: Screen,
    drawn: ratatui::Terminal<Terminal>,
    seen: vt100::Parser,
}

impl TestTerminal {
    fn new(columns: u16, rows: u16, capabilities: TerminalCapabilities) -> Self {
        let identity = Identity {
            tenant: "acme".into(),
            key: "laptop".into(),
            fingerprint: "SHA256:x".into(),
        };
        let size = Size::new(columns, rows);
        let mut seen = vt100::Parser::new(cells(rows), cells(columns), 0);
        seen.process(b"$ ssh HOST\r\n");
        seen.process(ENTER.as_bytes());
        let Ok(drawn) = ratatui::Terminal::new(Terminal::new(size, capabilities));
        Self {
            screen: Screen::new(&identity),
            drawn,
            seen,
        }
    }

    fn list(&mut self, clusters: Vec<Cluster>) {
        self.screen.follow_clusters(Change::Init);
        for cluster in clusters {
            self.screen.follow_clusters(Change::InitApply(cluster));
        }
        self.screen.follow_clusters(Change::InitDone);
    }

    /// Presses keys, and draws a frame after each.
    fn press(&mut self, keys: &str) -> Option<Action> {
        let mut parser = Keys::default();
        let mut last = None;
        for byte in keys.bytes() {
            for key in parser.read(&[byte]) {
                last = self.screen.press(key);
                self.draw();
            }
        }
        if let Some(key) = parser.give_up() {
            last = self.screen.press(key);
        }
        self.draw();
        last
    }

    fn draw(&mut self) {
        let (screen, now) = (&self.screen, NOW.parse::<Timestamp>().unwrap());
        let Ok(_) = self.drawn.draw(|frame| draw(screen, frame, now));
        let frame = self.drawn.backend_mut().take();
        self.seen.process(frame.as_bytes());
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.seen.screen_mut().set_size(cells(rows), cells(columns));
        self.drawn.backend_mut().resize(Size::new(columns, rows));
        self.draw();
    }

    /// Prints a join command below the screen, as the interface does.
    fn print_join(&mut self) {
        let word = "eyJzZXJ2ZXIiOiJkZW1vLThjMWYwMmFhLmV4YW1wbGUub3JnOjY0NDMi".repeat(6);
        let line = format!("yoke-worker join yoke1.{word}");
        let answer = json!({"name": "demo-x7k2p", "line": line, "expires": "2026-03-01T12:15:00Z"});
        let page = self.screen.answer(&answer.to_string(), AnswerDisplay::Join).unwrap();
        self.seen.process(LEAVE.as_bytes());
        self.seen.process(page.replace('\n', "\r\n").as_bytes());
    }

    /// Returns to the screen, as the interface does.
    fn come_back(&mut self) {
        self.seen.process(ENTER.as_bytes());
        let Ok(()) = self.drawn.clear();
    }

    /// Draws a frame and returns the visible text.
    fn text(&mut self) -> String {
        self.draw();
        self.seen_text()
    }

    fn seen_text(&self) -> String {
        let (_, columns) = self.seen.screen().size();
        let rows = self.seen.screen().rows(0, columns.get());
        rows.map(|row| format!("{}\n", row.trim_end())).collect()
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

fn cluster(name: &str, created: &str, status: serde_json::Value) -> Cluster {
    serde_json::from_value(json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "acme", "creationTimestamp": created},
        "spec": {"state": if status["phase"] == "Asleep" { "Asleep" } else { "Running" }}, "status": status,
    }))
    .unwrap()
}

fn ready(is_ready: bool, message: &str) -> serde_json::Value {
    let (status, reason) = if is_ready {
        ("True", "AsExpected")
    } else {
        ("False", "PodPending")
    };
    json!([{"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}])
}

fn endpoint(name: &str) -> serde_json::Value {
    json!({"url": format!("https://{name}.example.org:6443"), "serverName": name, "address": "https://192.0.2.7:6443",
        "audience": "x", "issuer": "x"})
}

fn clusters() -> Vec<Cluster> {
    vec![
        cluster(
            "demo",
            "2026-02-20T12:00:00Z",
            json!({"version": "v1.35.4", "phase": "Running", "endpoint": endpoint("demo-8c1f02aa"),
                "kubeconfigRef": {"name": "demo-kubeconfig"},
                "usage": {"awakeSeconds": 0, "awakeSince": "2026-02-20T12:00:08Z", "pricePerHour": "0.02 EUR"}, "conditions": ready(true, "The API answers.")}),
        ),
        cluster(
            "nightly",
            "2026-03-01T11:59:56Z",
            json!({"phase": "Provisioning", "conditions": ready(false, "The pod of the control plane starts.")}),
        ),
        cluster(
            "staging",
            "2026-02-27T12:00:00Z",
            json!({"version": "v1.35.4", "phase": "Asleep", "endpoint": endpoint("staging-17d0e3b4"),
                "kubeconfigRef": {"name": "staging-kubeconfig"},
                "usage": {"awakeSeconds": 30_000, "pricePerHour": "0.02 EUR"}, "conditions": ready(true, "It sleeps, as asked for.")}),
        ),
    ]
}

fn event(uid: &str, about: &str, time: &str, kind: &str, reason: &str, message: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"uid": uid}, "involvedObject": {"name": about}, "reason": reason, "message": message, "type": kind,
        "lastTimestamp": time,
    }))
    .unwrap()
}

fn full(columns: u16, rows: u16, capabilities: TerminalCapabilities) -> TestTerminal {
    let mut terminal = TestTerminal::new(columns, rows, capabilities);
    terminal.list(clusters());
    for (number, (about, time, kind, reason, message)) in [
        ("demo", "2026-03-01T11:20:00Z", "Normal", "Ready", "The API answers."),
        (
            "nightly",
            "2026-03-01T11:59:57Z",
            "Normal",
            "CertificatesIssued",
            "All certificates are there.",
        ),
        (
            "nightly",
            "2026-03-01T11:59:59Z",
            "Warning",
            "PodPending",
            "The pod of the control plane starts.",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let event = event(&number.to_string(), about, time, kind, reason, message);
        terminal.screen.follow_events(Change::Apply(event));
    }
    terminal
}

/// The screen after a request for Nodes.
fn nodes(columns: u16, rows: u16) -> TestTerminal {
    let mut terminal = full(columns, rows, RICH);
    terminal.press("\rn");
    let row = |number: u8| format!("worker-{number}   Ready    <none>   {number}h    v1.35.4\n");
    let table: String = (1..=9).map(row).collect();
    let table = format!("NAME       STATUS   ROLES    AGE   VERSION\n{table}");
    assert_eq!(terminal.screen.answer(&table, AnswerDisplay::Nodes), None);
    terminal
}

/// The screen after a join command was printed.
fn joined(columns: u16, rows: u16) -> TestTerminal {
    let mut terminal = full(columns, rows, RICH);
    terminal.press("j2\t1h\r");
    terminal.print_join();
    terminal
}

fn many(columns: u16, rows: u16) -> TestTerminal {
    let mut terminal = TestTerminal::new(columns, rows, RICH);
    let status =
        json!({"version": "v1.35.4", "phase": "Running", "nodes": 3, "conditions": ready(true, "The API answers.")});
    let named = |number: u8| cluster(&format!("c{number:02}"), "2026-02-27T12:00:00Z", status.clone());
    terminal.list((0..40).map(named).collect());
    terminal
}

fn hostile() -> TestTerminal {
    let mut terminal = TestTerminal::new(80, 24, RICH);
    let long = "a".repeat(63);
    let message = "準備中 🚀 \u{1b}[2J\u{1b}]0;owned\u{7} \u{202e}desrever\u{202c} e\u{301} — \u{9b}31m fin";
    let status = json!({"version": "v1.35.4\u{1b}[5m", "phase": "Unavailable", "endpoint": endpoint("界界界"),
        "conditions": ready(false, message)});
    terminal.list(vec![cluster("a", NOW, json!({})), cluster(&long, NOW, status)]);
    terminal.screen.follow_events(Change::Apply(event(
        "1",
        "界\u{1b}[H",
        NOW,
        "Normal",
        "R\u{7}",
        message,
    )));
    terminal.press("\u{1b}[B");
    terminal
}

fn golden(name: &str, text: &str) {
    let path = folder().join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "{name}: `UPDATE=1 cargo test -p yoke-ssh-ui --test screens` rewrites it"
    );
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens")
}

#[test]
fn screens_are_as_they_were_reviewed() {
    let shown = |mut terminal: TestTerminal, keys: &str| {
        terminal.press(keys);
        terminal.text()
    };
    for (name, text) in [
        ("list", shown(full(80, 24, RICH), "")),
        ("list-wide", shown(full(120, 30, RICH), "\u{1b}[B")),
        ("list-narrow", shown(full(40, 10, RICH), "\u{1b}[B")),
        ("list-ascii", shown(full(80, 24, PLAIN), "\u{1b}[B\u{1b}[B")),
        ("list-empty", {
            let mut terminal = TestTerminal::new(80, 24, RICH);
            terminal.list(vec![]);
            shown(terminal, "")
        }),
        ("list-reading", shown(TestTerminal::new(80, 24, RICH), "")),
        ("list-many", shown(many(80, 24), &"\u{1b}[B".repeat(25))),
        ("list-lost", {
            let mut terminal = full(80, 24, RICH);
            terminal
                .screen
                .report_trouble("watching your Clusters: the host's API cannot be reached");
            shown(terminal, "")
        }),
        ("hostile", shown(hostile(), "")),
        ("hostile-status", shown(hostile(), "\r")),
        ("tiny", shown(full(19, 4, RICH), "")),
        ("help", shown(full(80, 24, RICH), "?")),
        ("help-narrow", shown(full(40, 10, RICH), "?")),
        ("status", shown(full(80, 24, RICH), "\r")),
        ("status-narrow", shown(full(40, 10, RICH), "\r")),
        ("events", shown(full(80, 24, RICH), "e")),
        ("kubeconfig", shown(full(80, 24, RICH), "k")),
        ("kubeconfig-none", shown(full(80, 24, RICH), "\u{1b}[Bk")),
        ("create", shown(full(80, 24, RICH), "cdemo2\t1.35")),
        ("create-wrong", shown(full(80, 24, RICH), "c1st\r")),
        ("create-asked", shown(full(80, 24, RICH), "cnew\r")),
        (
            "create-narrow",
            shown(full(40, 10, RICH), &format!("c{}-end", "n".repeat(59))),
        ),
        ("nodes", nodes(80, 24).text()),
        ("nodes-narrow", nodes(40, 10).text()),
        ("join", shown(full(80, 24, RICH), "j2\t1h")),
        ("join-wrong", shown(full(80, 24, RICH), "j\t2d\r")),
        ("join-asked", {
            let mut terminal = full(80, 24, RICH);
            terminal.press("j2\r");
            terminal.screen.show_progress("   0s  The token is being drawn.\n");
            terminal.text()
        }),
        ("join-narrow", shown(full(40, 10, RICH), "j2\t1h")),
        ("join-line", joined(80, 24).seen_text()),
        ("join-kept", {
            let mut terminal = joined(80, 24);
            terminal.come_back();
            shown(terminal, "q")
        }),
        ("delete", shown(full(80, 24, RICH), "ddem")),
        ("delete-wrong", shown(full(80, 24, RICH), "dnightly\r")),
        ("delete-narrow", shown(full(40, 10, RICH), "ddem")),
    ] {
        golden(name, &text);
    }
}

#[test]
fn pictures_show_the_screens() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/book/src/tenant/ssh.md")).unwrap();
    let docs = root.join("docs/book/src/screens");
    let pressed = |keys: &str| {
        let mut terminal = full(80, 24, RICH);
        terminal.press(keys);
        terminal
    };
    for (name, terminal) in [
        ("list", pressed("")),
        ("status", pressed("\r")),
        ("create", pressed("cdemo2\t1.35")),
        ("join", pressed("j2\t1h")),
        ("join-line", joined(80, 24)),
        ("delete", pressed("ddem")),
    ] {
        let picture = picture::to_svg(terminal.seen.screen());
        let file = docs.join(format!("{name}.svg"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&docs).unwrap();
            std::fs::write(&file, &picture).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            picture == expected,
            "{name}: `UPDATE=1 cargo test -p yoke-ssh-ui --test screens` rewrites it"
        );
        assert!(
            page.contains(&format!("../screens/{name}.svg")),
            "docs/book/src/tenant/ssh.md does not show {name}"
        );
    }
}

#[test]
fn every_size_can_be_drawn() {
    let modes = ["", "?", "\r", "e", "k", "n", "cnew\t1\r", "j0\t1\r", "ddemo1\r"];
    for keys in modes {
        let mut terminal = full(80, 24, RICH);
        terminal.press(keys);
        for columns in (1..=30).chain([40, 63, 79, 81, 300]) {
            for rows in (1..=12).chain([16, 24, 100]) {
                terminal.resize(columns, rows);
                terminal.press("\u{1b}[B");
            }
        }
    }
}

#[test]
fn a_new_size_redraws_the_screen() {
    let mut resized = full(120, 40, RICH);
    resized.press("\r");
    resized.resize(60, 20);
    let mut fresh = full(60, 20, RICH);
    fresh.press("\r");
    assert_eq!(resized.text(), fresh.text());
}

#[test]
fn terminal_is_left_as_it_was_found() {
    let mut terminal = full(80, 24, RICH);
    terminal.press("cname");
    assert!(terminal.seen.screen().alternate_screen() && !terminal.seen.screen().hide_cursor());
    terminal.press("\u{1b}");
    assert!(terminal.seen.screen().hide_cursor());
    terminal.seen.process(LEAVE.as_bytes());
    let screen = terminal.seen.screen();
    assert_eq!(screen.contents().trim_end(), "$ ssh HOST");
    assert!(!screen.alternate_screen() && !screen.hide_cursor());
    assert_eq!(
        (screen.fgcolor(), screen.bold(), screen.inverse()),
        (vt100::Color::Default, false, false)
    );
}

#[test]
fn nothing_of_others_is_obeyed() {
    let mut terminal = hostile();
    terminal.draw();
    let text = terminal.text();
    assert!(text.contains("準備中 🚀"), "{text}");
    assert!(text.contains(" Yoke  acme"), "nothing was cleared: {text}");
    assert!(
        text.chars()
            .all(|character| character == '\n' || !character.is_control()),
        "{text:?}"
    );
    assert!(!text.contains('\u{202e}'));
}
