//! Keys and their effect, by table; `tests/screens` compares what is drawn.

use kube::runtime::watcher::Event as Change;
use serde_json::json;
use yoke_api::cluster::Phase;

use super::*;
use crate::tui::screen::text::TEXT_MAX;

fn identity() -> Identity {
    Identity {
        tenant: "acme".into(),
        key: "laptop".into(),
        fingerprint: "SHA256:x".into(),
    }
}

fn cluster(name: &str) -> Cluster {
    Cluster::new(name, Default::default())
}

fn asleep(name: &str) -> Cluster {
    let mut cluster = cluster(name);
    cluster.spec.state = DesiredState::Asleep;
    cluster
}

/// A Cluster whose spec says `Running` and that sleeps until a request wakes it.
fn dozing(name: &str) -> Cluster {
    let mut cluster = cluster(name);
    cluster.status.get_or_insert_default().phase = Some(Phase::Asleep);
    cluster
}

fn listed(screen: &mut Screen, clusters: Vec<Cluster>) {
    screen.follow_clusters(Change::Init);
    for cluster in clusters {
        screen.follow_clusters(Change::InitApply(cluster));
    }
    screen.follow_clusters(Change::InitDone);
}

fn screen(clusters: Vec<Cluster>) -> Screen {
    let mut screen = Screen::new(&identity());
    listed(&mut screen, clusters);
    screen
}

/// Presses the letters of a word, and `\r`, `\x1b`, `\t`, `↑`, `↓`, `⌫`, `^` (Ctrl-C); returns the
/// deed of the last.
fn press(screen: &mut Screen, keys: &str) -> Option<Action> {
    let mut last = None;
    for key in keys.chars() {
        assert_eq!(last, None, "before {key:?} of {keys:?}");
        last = screen.press(match key {
            '\r' => Key::Enter,
            '\x1b' => Key::Escape,
            '\t' => Key::Tab,
            '↑' => Key::Up,
            '↓' => Key::Down,
            '⌫' => Key::Backspace,
            '^' => Key::Interrupt,
            letter => Key::Char(letter),
        });
    }
    last
}

fn line(line: &str) -> Option<Action> {
    let (line, shown) = (line.to_owned(), AnswerDisplay::Note);
    Some(Action::Execute { line, shown })
}

fn chosen(screen: &Screen) -> Option<&str> {
    screen.clusters.chosen().map(|(name, _)| name)
}

#[test]
fn keys_become_command_lines() {
    let long = "n".repeat(60);
    for (rule, keys, expected) in [
        ("made with what is given", "cnew\r", line("create new")),
        (
            "all fields",
            "cnew\t1.35.4\t1Gi\r",
            line("create new --version v1.35.4 --storage 1Gi"),
        ),
        ("fields in a ring", "c\t\t\tnew↑↓\r", line("create new")),
        ("typed wrong, then right", "cNEW\r⌫⌫⌫new\r", line("create new")),
        ("what no name has is not taken", "cn'\"; ü\\w\r", line("create nw")),
        ("no name", "c\r", None),
        ("a name that none can have", "c1a\r", None),
        ("too long a name", &format!("c{long}\r"), None),
        ("no version", "ca\tnew\r", None),
        ("no quantity", "ca\t\tmuch\r", None),
        ("not made after all", "cnew\x1b\r", None),
        ("deleted once its name is typed", "da\r", line("delete a --yes")),
        ("not without it", "d\r", None),
        ("not with another's", "db\r", None),
        ("not with more than it", "daa\r", None),
        (
            "deleted by its own name, after another was typed",
            "db\r⌫a\r",
            line("delete a --yes"),
        ),
        ("not deleted after all", "da\x1b", None),
        ("asleep", "s", line("sleep a")),
        ("awake", "↓s", line("wake b")),
        ("though it is asked to run", "↓↓s", line("wake c")),
        ("from its own page", "\rs", line("sleep a")),
        ("leaves", "q", Some(Action::Quit)),
        ("leaves from anywhere", "cnew^", Some(Action::Quit)),
        ("a letter of a name is no key", "cq", None),
        ("help goes away by any key", "?q", None),
        ("back, and then leaves", "\rqq", Some(Action::Quit)),
    ] {
        let mut screen = screen(vec![cluster("a"), asleep("b"), dozing("c")]);
        assert_eq!(press(&mut screen, keys), expected, "{rule}: {keys:?}");
    }
    let mut screen = screen(vec![cluster("a")]);
    let (line, shown) = ("kubeconfig a".to_owned(), AnswerDisplay::Print);
    assert_eq!(press(&mut screen, "kp"), Some(Action::Execute { line, shown }));
}

#[test]
fn a_join_is_asked_for_with_what_the_command_takes() {
    for (rule, keys, expected) in [
        ("as the command", "j\r", Some("join a --json")),
        (
            "all fields",
            "j3\t1h\t30m\r",
            Some("join a --uses 3 --ttl 1h --reap-after 30m --json"),
        ),
        ("from its own page", "\rj\r", Some("join a --json")),
        ("too many", "j101\r", None),
        ("none", "j0\r", None),
        ("no time", "j\t15\r", None),
        ("too long a time", "j\t25h\r", None),
        ("too short a time", "j\t\t0m\r", None),
        ("not made after all", "j\x1b", None),
    ] {
        let mut screen = screen(vec![cluster("a")]);
        let expected = expected.map(|line| {
            let (line, shown) = (line.to_owned(), AnswerDisplay::Join);
            crate::commands::parse::parse(line.as_bytes()).unwrap();
            Action::Execute { line, shown }
        });
        assert_eq!(press(&mut screen, keys), expected, "{rule}: {keys:?}");
    }
}

#[test]
fn nodes_are_shown_where_they_were_asked_for() {
    let table = "NAME STATUS\nw1 Ready\x1b[2J\n";
    let (line, shown) = ("nodes a".to_owned(), AnswerDisplay::Nodes);
    let asked = Some(Action::Execute { line, shown });
    for (rule, keys, expected) in [
        (
            "from the list",
            "n",
            Mode::Nodes("a".into(), vec!["NAME STATUS".into(), "w1 Ready [2J".into()]),
        ),
        ("whoever went back stays there", "\rn", Mode::List),
    ] {
        let mut screen = screen(vec![cluster("a")]);
        assert_eq!(press(&mut screen, keys), asked, "{rule}");
        if expected == Mode::List {
            press(&mut screen, "\x1b");
        }
        assert_eq!(screen.answer(table, AnswerDisplay::Nodes), None, "{rule}");
        assert_eq!(screen.mode, expected, "{rule}");
    }
    // A second request while one is in progress changes nothing on the screen.
    for (keys, expected) in [
        ("nn", Mode::Nodes("a".into(), vec![])),
        ("s\rn", Mode::Status("a".into())),
    ] {
        let mut screen = screen(vec![cluster("a")]);
        let (first, rest) = keys.split_at(1);
        assert!(press(&mut screen, first).is_some(), "{keys:?}");
        assert_eq!(press(&mut screen, rest), None, "{keys:?}");
        assert_eq!(screen.mode, expected, "{keys:?}");
    }
}

#[test]
fn join_command_is_kept_or_revoked() {
    let answer = r#"{"name": "a-x", "line": "yoke-worker join yoke1.e30", "expires": "2026-03-01T12:15:00Z"}"#;
    let asked = || {
        let mut screen = screen(vec![cluster("a")]);
        assert!(press(&mut screen, "j\r").is_some());
        screen
    };
    // Escape while it is being created cancels it, and does not leave the screen.
    assert_eq!(press(&mut asked(), "\x1b"), Some(Action::Cancel));
    for (rule, key, expected, note) in [
        ("taken back", "x", line("revoke a-x"), ""),
        (
            "kept",
            "\x1b",
            None,
            "It is valid until 2026-03-01T12:15:00Z; to revoke it: revoke a-x",
        ),
        ("kept, and left", "^", Some(Action::Quit), ""),
    ] {
        let mut screen = asked();
        let page = screen.answer(answer, AnswerDisplay::Join).unwrap();
        assert!(page.starts_with("yoke-worker join yoke1.e30\n\n"), "{page}");
        assert_eq!(press(&mut screen, key), expected, "{rule}");
        assert_eq!(screen.note, note, "{rule}");
    }
    // Keys that a user types for a form must not revoke the token.
    for (rule, keys, back) in [
        ("a name", "c", "\x1b"),
        ("a name to delete", "d", "\x1b"),
        ("another one", "j", "\x1b"),
    ] {
        let mut screen = asked();
        press(&mut screen, keys);
        assert_eq!(screen.answer(answer, AnswerDisplay::Join), None, "{rule}");
        assert_eq!(screen.form().unwrap().problem(), WAITS, "{rule}");
        assert_eq!(press(&mut screen, "x"), None, "{rule}");
        assert_eq!(screen.take_page(), None, "{rule}");
        assert_eq!(
            press(&mut screen, "\r"),
            None,
            "{rule}: no second answer comes before it"
        );
        assert_eq!(press(&mut screen, back), None, "{rule}");
        let page = screen.take_page().unwrap();
        assert!(page.starts_with("yoke-worker join yoke1.e30\n\n"), "{rule}: {page}");
        assert_eq!(press(&mut screen, "x"), line("revoke a-x"), "{rule}");
    }
    let mut screen = asked();
    press(&mut screen, "c");
    screen.answer(answer, AnswerDisplay::Join);
    assert_eq!(press(&mut screen, "^"), Some(Action::Quit));
    assert!(screen.last_page().unwrap().starts_with("yoke-worker join"));
    // After the page is left, `x` does nothing.
    let mut screen = asked();
    screen.answer(answer, AnswerDisplay::Join);
    assert_eq!(press(&mut screen, "qx"), None);
}

#[test]
fn one_command_runs_at_a_time() {
    let mut screen = screen(vec![cluster("a"), cluster("b")]);
    assert_eq!(press(&mut screen, "s"), line("sleep a"));
    assert_eq!(press(&mut screen, "↓s"), None);
    assert!(screen.note.contains("Another command is in progress"));
    // A form stays open until it can be sent.
    assert_eq!(press(&mut screen, "cnew\r"), None);
    assert!(matches!(&screen.mode, Mode::Create(form) if form.problem().contains("Another command is in progress")));
    press(&mut screen, "\x1b");
    screen.finish("Cluster a is going to sleep\n");
    assert_eq!(screen.note, "Cluster a is going to sleep");
    assert_eq!(press(&mut screen, "s"), line("sleep b"));
    screen.finish("error: no\nhint: try \x1b[2Jagain\n");
    assert_eq!(screen.note, "error: no · hint: try  [2Jagain");
}

#[test]
fn nothing_is_done_without_a_cluster() {
    let mut screen = screen(vec![]);
    assert_eq!(press(&mut screen, "dsk\r↑↓"), None);
    assert_eq!(screen.mode, Mode::List);
}

#[test]
fn choice_stays_with_its_cluster() {
    let mut screen = screen(vec![cluster("b"), cluster("d"), cluster("f")]);
    assert_eq!(chosen(&screen), Some("b"));
    press(&mut screen, "↓");
    for (rule, change, expected) in [
        ("one before it", Change::Apply(cluster("a")), "d"),
        ("one before it goes", Change::Delete(cluster("b")), "d"),
        ("itself", Change::Apply(asleep("d")), "d"),
        ("gone", Change::Delete(cluster("d")), "f"),
        ("gone, and the last", Change::Delete(cluster("f")), "a"),
    ] {
        screen.follow_clusters(change);
        assert_eq!(chosen(&screen), Some(expected), "{rule}");
    }
    press(&mut screen, "cnew\r");
    screen.follow_clusters(Change::Apply(cluster("b")));
    assert_eq!(chosen(&screen), Some("a"));
    screen.follow_clusters(Change::Apply(cluster("new")));
    assert_eq!(chosen(&screen), Some("new"), "one that was made is chosen");
    screen.finish("Cluster new is made");
    press(&mut screen, "clate\r");
    press(&mut screen, "↑");
    screen.follow_clusters(Change::Apply(cluster("late")));
    assert_eq!(chosen(&screen), Some("b"), "somebody chose another one meanwhile");
    listed(&mut screen, vec![cluster("x"), cluster("y")]);
    assert_eq!(chosen(&screen), Some("y"), "nothing of an old list is left");
    listed(&mut screen, vec![]);
    assert_eq!(chosen(&screen), None);
}

#[test]
fn trouble_lasts_until_all_are_listed() {
    let mut screen = screen(vec![cluster("a")]);
    screen.report_trouble("watching: the host's API cannot be reached");
    screen.follow_clusters(Change::Init);
    assert!(screen.trouble.is_some());
    assert_eq!(chosen(&screen), Some("a"), "what is known is shown meanwhile");
    screen.follow_clusters(Change::InitDone);
    assert_eq!((screen.trouble, screen.clusters.len()), (None, 0));
}

fn event(uid: &str, second: u8, message: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"uid": uid}, "involvedObject": {"name": "a"}, "reason": "R", "message": message,
        "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
    }))
    .unwrap()
}

#[test]
fn latest_events_come_first_and_once() {
    let mut screen = screen(vec![]);
    for (uid, second, message) in [
        ("1", 1, "one"),
        ("3", 3, "three"),
        ("2", 2, "two\x1b[31m"),
        ("1", 4, "one again"),
    ] {
        screen.follow_events(Change::Apply(event(uid, second, message)));
    }
    let texts: Vec<_> = screen.events.lines().map(|line| line.text.as_str()).collect();
    assert_eq!(texts, ["one again", "three", "two [31m"]);
}

#[test]
fn stored_rows_and_texts_are_bounded() {
    let mut screen = screen((0..600).map(|number| cluster(&format!("c{number}"))).collect());
    assert_eq!((screen.clusters.len(), screen.clusters.has_more()), (500, true));
    let text = "m".repeat(10_000);
    for number in 0..300 {
        screen.follow_events(Change::Apply(event(&number.to_string(), 1, &text)));
    }
    let lengths: Vec<_> = screen.events.lines().map(|line| line.text.len()).collect();
    assert_eq!(lengths, [TEXT_MAX; 100]);
    listed(&mut screen, vec![cluster("a")]);
    assert!(!screen.clusters.has_more());
}

#[test]
fn left_out_cluster_appears_when_there_is_room() {
    let all = |numbers: std::ops::Range<u16>| numbers.map(|number| cluster(&format!("c{number:03}"))).collect();
    // Either a shown Cluster is deleted, or the one that was left out.
    for (gone, left) in [("c000", 1..501), ("c500", 0..500)] {
        let mut screen = screen(all(0..501));
        assert!(screen.clusters.get("c500").is_none() && !screen.wants_list());
        screen.follow_clusters(Change::Delete(cluster(gone)));
        assert!(screen.wants_list(), "{gone}");
        // The shown rows stay until the list is complete.
        screen.follow_clusters(Change::Init);
        assert!(screen.clusters.has_more() && !screen.wants_list(), "{gone}");
        listed(&mut screen, all(left));
        assert_eq!(
            (screen.clusters.len(), screen.clusters.has_more()),
            (500, false),
            "{gone}"
        );
        screen.follow_clusters(Change::Delete(cluster("c100")));
        assert!(!screen.wants_list(), "none is left out");
    }
}
