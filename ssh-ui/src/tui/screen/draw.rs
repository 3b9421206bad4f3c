//! Draws the state as cells, at any size. Every color repeats what a word says.

mod dialogue;
mod style;

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row as Cells, Table, TableState, Wrap};
use yoke_api::cluster::{DesiredState, Phase};
use yoke_view::render::{phase_text, seconds_text, span};

use self::style::{BOLD, REVERSED};
use super::clusters::Row;
use super::events;
use super::state::{Mode, Screen, is_join};

/// Smallest size at which the interface is drawn: columns and rows.
const SMALLEST: (u16, u16) = (20, 5);
/// Minimum heights for the message of the selected Cluster, and for events.
const ROOM_FOR_MESSAGE: u16 = 8;
const ROOM_FOR_EVENTS: u16 = 16;
const NONE: &str = "-";
const COST: &str = "COST";

/// A column of the list: its header, the screen width from which it is shown, and its value.
type Column = (&'static str, u16, fn(&str, &Row, Timestamp) -> Span<'static>);

const COLUMNS: [Column; 7] = [
    ("NAME", 0, |name, _, _| Span::raw(name.to_owned())),
    ("PHASE", 0, |_, row, _| phase(row)),
    ("VERSION", 50, |_, row, _| text(row.version.clone())),
    ("NODES", 70, |_, row, _| text(row.nodes.map(|nodes| nodes.to_string()))),
    ("AGE", 36, |_, row, now| {
        text(row.created.map(|created| span(created, now)))
    }),
    (COST, 92, |_, row, now| text(row.cost(now))),
    ("ENDPOINT", 64, |_, row, _| text(row.url.clone())),
];

/// Draws the interface.
pub fn draw(screen: &Screen, frame: &mut Frame<'_>, now: Timestamp) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let advice = "Too small: enlarge the window, or press q.";
        frame.render_widget(Paragraph::new(advice).wrap(Wrap { trim: true }), area);
        return;
    }
    let [head, body, note, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(screen, frame, head);
    match &screen.mode {
        Mode::Status(name) => draw_status(screen, name, frame, body, now),
        Mode::Nodes(name, lines) => draw_nodes(screen, name, lines, frame, body),
        Mode::Events => draw_events(screen, None, frame, body, now),
        _ => draw_list(screen, frame, body, now),
    }
    draw_note(screen, frame, note);
    frame.render_widget(Paragraph::new(build_foot(screen, foot.width)), foot);
    dialogue::draw(screen, frame, area);
}

fn draw_head(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let count = match (screen.clusters.len(), screen.clusters.has_more()) {
        (1, false) => "1 Cluster ".to_owned(),
        (count, false) => format!("{count} Clusters "),
        (count, true) => format!("more than {count} Clusters "),
    };
    let title = Line::raw(format!(" Yoke  {}", screen.title));
    frame.render_widget(Paragraph::new(title).style(REVERSED), area);
    if screen.clusters.is_listed && usize::from(area.width) > count.len() + 16 {
        frame.render_widget(Paragraph::new(Line::raw(count)).style(REVERSED).right_aligned(), {
            let width = 24.min(area.width / 2);
            Rect {
                x: area.right() - width,
                width,
                ..area
            }
        });
    }
}

fn draw_list(screen: &Screen, frame: &mut Frame<'_>, area: Rect, now: Timestamp) {
    let message = if area.height >= ROOM_FOR_MESSAGE - 3 { 2 } else { 0 };
    let events = if area.height >= ROOM_FOR_EVENTS - 3 {
        area.height / 3
    } else {
        0
    };
    let [list, message, events] = Layout::vertical([
        Constraint::Min(1),
        Constraint::Length(message + u16::from(events > 0)),
        Constraint::Length(events),
    ])
    .areas(area);
    draw_table(screen, frame, list, now);
    if let Some((name, row)) = screen.clusters.chosen() {
        let said = Paragraph::new(row.message.as_str()).wrap(Wrap { trim: true });
        frame.render_widget(said.block(section(name.to_owned())), message);
    }
    draw_events(screen, None, frame, events, now);
}

fn draw_table(screen: &Screen, frame: &mut Frame<'_>, area: Rect, now: Timestamp) {
    if screen.clusters.len() == 0 {
        let advice = match screen.clusters.is_listed {
            true => "\n  You have no Clusters. Press c to create one.",
            false => "\n  Reading your Clusters …",
        };
        frame.render_widget(Paragraph::new(advice).wrap(Wrap { trim: false }), area);
        return;
    }
    let has = |head| match head {
        "NODES" => screen.clusters.rows().any(|(_, row)| row.nodes.is_some()),
        COST => screen.clusters.rows().any(|(_, row)| row.cost(now).is_some()),
        _ => true,
    };
    let columns: Vec<_> = COLUMNS
        .into_iter()
        .filter(|(head, room, _)| area.width >= *room && has(head))
        .collect();
    let cells: Vec<Vec<_>> = screen
        .clusters
        .rows()
        .map(|(name, row)| columns.iter().map(|(_, _, show)| show(name, row, now)).collect())
        .collect();
    let to_width = |(at, (head, _, _)): (usize, &Column)| {
        let widest = cells.iter().map(|row| row[at].width()).max().unwrap_or_default();
        let wide = u16::try_from(widest.max(head.len())).unwrap_or(u16::MAX);
        match at {
            // The section below the list shows the complete name.
            0 => Constraint::Length(wide.min(area.width / 3)),
            _ if *head == "ENDPOINT" => Constraint::Fill(1),
            _ => Constraint::Length(wide),
        }
    };
    let widths: Vec<_> = columns.iter().enumerate().map(to_width).collect();
    let rows = cells.into_iter().map(|row| Cells::new(row.into_iter().map(Line::from)));
    let heads = columns.iter().map(|(head, _, _)| *head);
    let table = Table::new(rows, widths)
        .header(Cells::new(heads).style(BOLD))
        .column_spacing(2)
        .highlight_symbol("▸ ")
        .row_highlight_style(REVERSED);
    let mut state = TableState::new().with_selected(screen.clusters.index());
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_status(screen: &Screen, name: &str, frame: &mut Frame<'_>, area: Rect, now: Timestamp) {
    let Some(row) = screen.clusters.get(name) else {
        let gone = format!("\n  Cluster {name} is gone.");
        frame.render_widget(Paragraph::new(gone).block(section(name.to_owned())), area);
        return;
    };
    let fact = |label: &str, value: Span<'static>| Line::from(vec![Span::styled(format!("{label:<12}"), BOLD), value]);
    let ready = row.ready.map(|ready| if ready { "yes" } else { "no" }.to_owned());
    let kubeconfig = match row.has_kubeconfig {
        true => format!("scp HOST:{name}.kubeconfig ."),
        false => "not there yet".to_owned(),
    };
    let mut facts = vec![
        fact("Phase", phase(row)),
        fact("Ready", text(ready)),
        fact("Version", text(row.version.clone())),
        fact("Endpoint", text(row.url.clone())),
        fact("Address", text(row.address.clone())),
        fact("Storage", Span::raw(format!("at most {}", row.storage))),
        fact("Age", text(row.created.map(|created| span(created, now)))),
        fact("Kubeconfig", Span::raw(kubeconfig)),
    ];
    if let Some(usage) = &row.usage {
        facts.push(fact("Awake", Span::raw(seconds_text(usage.awake(now)))));
    }
    if let Some(cost) = row.cost(now) {
        facts.push(fact("Cost", Span::raw(cost)));
    }
    if let Some(nodes) = row.nodes {
        facts.insert(3, fact("Nodes", Span::raw(nodes.to_string())));
    }
    facts.push(Line::default());
    facts.push(Line::raw(row.message.clone()));
    let wanted = u16::try_from(facts.len() + 3).unwrap_or(u16::MAX);
    let [about, events] = Layout::vertical([Constraint::Max(wanted), Constraint::Min(0)]).areas(area);
    let facts = Paragraph::new(facts).wrap(Wrap { trim: true });
    frame.render_widget(facts.block(section(name.to_owned())), about);
    draw_events(screen, Some(name), frame, events, now);
}

fn draw_nodes(screen: &Screen, name: &str, nodes: &[String], frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<_> = nodes.iter().map(|line| Line::raw(line.as_str())).collect();
    if let (true, Some(head)) = (nodes.len() > 1, lines.first_mut()) {
        *head = std::mem::take(head).style(BOLD);
    }
    if nodes.is_empty() && screen.doing.is_some() {
        lines.push(Line::raw("Querying its API …"));
    }
    let room = usize::from(area.height.saturating_sub(1));
    if lines.len() > room && room > 1 {
        let left_out = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push(Line::raw(format!("… {left_out} more: ssh HOST nodes {name}")));
    }
    let title = section(format!("Nodes of {name}"));
    frame.render_widget(Paragraph::new(lines).block(title), area);
}

fn draw_events(screen: &Screen, about: Option<&str>, frame: &mut Frame<'_>, area: Rect, now: Timestamp) {
    let of_it = |line: &&events::Line| about.is_none_or(|name| line.about == name);
    let rows: Vec<_> = screen.events.lines().filter(of_it).take(area.height.into()).collect();
    let names = rows.iter().map(|line| Span::raw(line.about.as_str()).width()).max();
    let names = names.filter(|_| about.is_none()).unwrap_or_default().min(20);
    let lines = rows.iter().map(|line| {
        let age = line.time.map(|time| span(time, now)).unwrap_or_default();
        let mut spans = vec![Span::raw(format!("{age:>6}  "))];
        if about.is_none() {
            let name: String = line.about.chars().take(names).collect();
            spans.push(Span::raw(format!("{name:<names$}  ")));
        }
        let style = match line.is_warning {
            true => BOLD.fg(Color::Yellow),
            false => BOLD,
        };
        spans.push(Span::styled(line.reason.as_str(), style));
        spans.push(Span::raw(format!("  {}", line.text)));
        Line::from(spans)
    });
    let lines = Paragraph::new(lines.collect::<Vec<_>>());
    frame.render_widget(lines.block(section("Events".to_owned())), area);
}

fn draw_note(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let note = match (&screen.trouble, &screen.doing) {
        (_, Some(line)) if is_join(line) => {
            let line = line.trim_end_matches(" --json");
            Line::raw(format!(" {line} … {} (Esc cancels it)", screen.note))
        }
        (_, Some(line)) if screen.note.is_empty() => Line::raw(format!(" {line} …")),
        (Some(why), None) if screen.note.is_empty() => {
            Line::styled(format!(" {why}. Trying again …"), BOLD.fg(Color::Red))
        }
        _ => Line::raw(format!(" {}", screen.note)),
    };
    frame.render_widget(Paragraph::new(note), area);
}

/// Returns the keys and their actions, as many as fit. The key to leave is always shown.
fn build_foot(screen: &Screen, width: u16) -> Line<'static> {
    let sleeps = screen
        .clusters
        .chosen()
        .is_some_and(|(_, row)| row.state == DesiredState::Asleep);
    let sleep = if sleeps { "wake" } else { "sleep" };
    let (keys, last) = match screen.mode {
        Mode::List => (
            &[
                ("c", "create"),
                ("j", "join"),
                ("k", "kubeconfig"),
                ("s", sleep),
                ("Enter", "more"),
                ("e", "events"),
                ("d", "delete"),
            ][..],
            &[("?", "help"), ("q", "quit")][..],
        ),
        Mode::Status(_) => (
            &[
                ("j", "join"),
                ("k", "kubeconfig"),
                ("s", sleep),
                ("n", "nodes"),
                ("d", "delete"),
            ][..],
            &[("Esc", "back")][..],
        ),
        Mode::Nodes(..) => (&[("n", "ask again")][..], &[("Esc", "back")][..]),
        _ => (&[][..], &[("Esc", "back")][..]),
    };
    let wide = |keys: &[(&str, &str)]| keys.iter().map(|(key, what)| key.len() + what.len() + 3).sum::<usize>();
    let mut shown: Vec<_> = Vec::new();
    for key in keys {
        // The last entry needs no space after it.
        if wide(&shown) + wide(&[*key]) + wide(last) <= usize::from(width) + 1 {
            shown.push(*key);
        }
    }
    shown.extend(last);
    let spans = shown.into_iter().flat_map(|(key, what)| {
        let key = Span::styled(format!(" {key}"), BOLD.fg(Color::Cyan));
        [key, Span::raw(format!(" {what} "))]
    });
    spans.collect()
}

fn section(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(format!(" {title} "))
}

fn text(text: Option<String>) -> Span<'static> {
    Span::raw(text.unwrap_or_else(|| NONE.to_owned()))
}

fn phase(row: &Row) -> Span<'static> {
    let Some(phase) = row.phase else {
        return text(None);
    };
    let colour = match phase {
        Phase::Running => Color::Green,
        Phase::Provisioning | Phase::Updating => Color::Yellow,
        Phase::Refused | Phase::Unavailable => Color::Red,
        Phase::Asleep => Color::Blue,
        Phase::Deleting => Color::Magenta,
    };
    Span::styled(phase_text(phase), Style::new().fg(colour))
}
