//! Draws the boxes above the page: help, a kubeconfig, a form.

use ratatui::Frame;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::style::{BOLD, REVERSED};
use crate::tui::screen::form::{Field, Form};
use crate::tui::screen::state::{Mode, Screen};

/// Maximum width of a box.
const WIDTH: u16 = 62;

const HELP: &str = "\
Up, Down  choose a Cluster
Enter     details of one Cluster
c         create a Cluster
d         delete it
j         join a worker to it
k         its kubeconfig
n         its Nodes
s         put it to sleep, or wake it
q         leave; so does Ctrl-C
e         events
Ctrl-L    redraw the screen

The same without a screen: ssh HOST help";

/// Draws the open box, if there is one.
pub(super) fn draw(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    match &screen.mode {
        Mode::List | Mode::Status(_) | Mode::Events | Mode::Nodes(..) | Mode::Away(_) => {}
        Mode::Help => draw_text(frame, area, "Help", HELP),
        Mode::Kubeconfig(name) => {
            let has_one = screen.clusters.get(name).is_some_and(|row| row.has_kubeconfig);
            let text = match has_one {
                true => format!(
                    "From your own shell:\n  scp HOST:{name}.kubeconfig .\n  ssh HOST kubeconfig {name} > FILE\n\n\
                     p prints it here, below what was on your screen before."
                ),
                false => "The Cluster has no kubeconfig yet.".to_owned(),
            };
            draw_text(frame, area, &format!("Kubeconfig of {name}"), &text);
        }
        Mode::Create(form) => {
            let text = "Empty: the host's default.\nTab: next  Enter: create  Esc: back";
            draw_form(frame, area, "New Cluster", form, text);
        }
        Mode::Join(name, form) => {
            let text = "Empty: one worker, 15m, never reaped.\nTab: next  Enter: create  Esc: back";
            draw_form(frame, area, &format!("A worker for {name}"), form, text);
        }
        Mode::Delete(name, form) => {
            let text = "Everything in it will be lost.\nType its name, then Enter. Esc: back";
            draw_form(frame, area, &format!("Delete {name}?"), form, text);
        }
    }
}

fn draw_text(frame: &mut Frame<'_>, area: Rect, title: &str, text: &str) {
    let lines = text.lines().map(Line::raw).collect();
    draw_box(frame, area, title, lines);
}

fn draw_form(frame: &mut Frame<'_>, area: Rect, title: &str, form: &Form, text: &str) {
    let (fields, at) = form.fields();
    let label = fields.iter().map(|field| field.label.len()).max().unwrap_or_default() + 2;
    let room = usize::from(centered(area, 0).width.saturating_sub(2)).saturating_sub(label + 1);
    // Shows the end of a text that is too long, because the cursor is there.
    let shown = |text: &str| text[text.len().saturating_sub(room)..].to_owned();
    let to_line = |(index, field): (usize, &Field)| {
        let style = if index == at { REVERSED } else { Style::new() };
        Line::from(vec![
            Span::styled(format!("{:<label$}", format!("{}:", field.label)), BOLD),
            Span::styled(format!("{:<room$} ", shown(&field.text)), style),
        ])
    };
    let mut lines: Vec<_> = fields.iter().enumerate().map(to_line).collect();
    lines.push(match form.problem() {
        "" => Line::default(),
        problem => Line::styled(problem.to_owned(), BOLD.fg(Color::Red)),
    });
    lines.extend(text.lines().map(Line::raw));
    let inner = draw_box(frame, area, title, lines);
    let typed = fields.get(at).map_or(0, |field| shown(&field.text).len());
    let cursor = Position {
        x: inner.x + u16::try_from(label + typed).unwrap_or(0),
        y: inner.y + u16::try_from(at).unwrap_or(0),
    };
    if inner.contains(cursor) {
        frame.set_cursor_position(cursor);
    }
}

/// Draws a box and returns its inner area.
fn draw_box(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<Line<'_>>) -> Rect {
    let inner = usize::from(centered(area, 0).width.saturating_sub(2)).max(1);
    let height: usize = lines.iter().map(|line| wrapped_height(line, inner)).sum();
    let outer = centered(area, u16::try_from(height + 2).unwrap_or(u16::MAX));
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(outer);
    frame.render_widget(Clear, outer);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), outer);
    inner
}

/// Returns a box of this height in the middle of the screen, limited to its size.
fn centered(area: Rect, height: u16) -> Rect {
    let (width, height) = (area.width.min(WIDTH), area.height.min(height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

/// Returns the number of rows of a line that is wrapped between words.
fn wrapped_height(line: &Line<'_>, width: usize) -> usize {
    let text = line.to_string();
    let (mut rows, mut column) = (1, 0);
    for word in text.split_inclusive(' ') {
        let wide = Span::raw(word.trim_end()).width();
        if column > 0 && column + wide > width {
            rows += 1;
            column = 0;
        }
        rows += wide.saturating_sub(1) / width;
        column += Span::raw(word).width();
    }
    rows
}
