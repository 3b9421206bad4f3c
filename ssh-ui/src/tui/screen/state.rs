//! State of the screen: the pages, and what a key does on each.

use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher;
use yoke_api::Cluster;
use yoke_api::cluster::DesiredState;

use super::clusters::Clusters;
use super::events::Events;
use super::form::{Form, Pressed};
use super::keys::Key;
use super::page::{self, Page, Token};
use super::text::clip;
use crate::identity::key_registry::Identity;

const BUSY: &str = "Another command is in progress: press the key again in a moment.";
const WAITS: &str = "The answer is there: Escape shows it.";
/// Maximum number of lines of a table of Nodes; no screen shows more.
const NODES: usize = 80;
/// Rows that Page Up and Page Down move.
const PAGE: usize = 10;

/// Action that the caller must execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Execute this command line, and pass the result to [`Screen::answer`] or [`Screen::finish`].
    Execute {
        /// A command line as after `ssh HOST`.
        line: String,
        /// How to show the answer.
        shown: AnswerDisplay,
    },
    /// Stop waiting for the command in progress, which undoes it.
    Cancel,
    /// Redraw the whole screen.
    Redraw,
    /// End the interface.
    Quit,
}

/// Where an answer is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerDisplay {
    /// In the status line of the screen.
    Note,
    /// In the user's own shell, below its earlier output.
    Print,
    /// In the user's own shell, as the page of a join command.
    Join,
    /// In the page of a Cluster's Nodes.
    Nodes,
}

/// The page that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The list of Clusters.
    List,
    /// The details of one Cluster.
    Status(String),
    /// Only events.
    Events,
    Help,
    /// The Nodes of a Cluster; empty until they are received.
    Nodes(String, Vec<String>),
    Kubeconfig(String),
    Create(Form),
    Join(String, Form),
    Delete(String, Form),
    /// An answer was printed and the screen is hidden. Contains the JoinToken if the answer was a
    /// join command.
    Away(Option<Token>),
}

/// The state of the interface.
#[derive(Clone, Debug)]
pub struct Screen {
    pub(super) title: String,
    pub(super) clusters: Clusters,
    pub(super) events: Events,
    pub(super) mode: Mode,
    pub(super) note: String,
    /// The command line in progress.
    pub(super) doing: Option<String>,
    /// A page to print once no form is open.
    pub(super) page: Option<Page>,
    /// Why the shown data may be outdated.
    pub(super) trouble: Option<String>,
}

impl Screen {
    /// Creates the interface of a client, without any data yet.
    pub fn new(identity: &Identity) -> Self {
        Self {
            title: clip(&format!("{} · {}", identity.tenant, identity.key)),
            clusters: Clusters::default(),
            events: Events::default(),
            mode: Mode::List,
            note: String::new(),
            doing: None,
            page: None,
            trouble: None,
        }
    }

    /// Applies an event of the watch of Clusters.
    pub fn follow_clusters(&mut self, event: watcher::Event<Cluster>) {
        if matches!(event, watcher::Event::InitDone) {
            self.trouble = None;
        }
        self.clusters.follow(event);
    }

    /// Returns whether the caller must restart the watch, because only a new list can fill the
    /// rows.
    pub fn wants_list(&self) -> bool {
        self.clusters.is_short
    }

    /// Applies an event of the watch of events.
    pub fn follow_events(&mut self, event: watcher::Event<Event>) {
        self.events.follow(event);
    }

    /// Reports that the watch of Clusters failed and is retried. The known Clusters stay.
    pub fn report_trouble(&mut self, why: &str) {
        self.trouble = Some(clip(why));
    }

    /// Shows a progress line of the command in progress.
    pub fn show_progress(&mut self, progress: &str) {
        self.note = clip(progress.trim_end());
    }

    /// Handles the answer of the command in progress. Returns text to print, as
    /// [`Screen::take_page`] does.
    pub fn answer(&mut self, text: &str, shown: AnswerDisplay) -> Option<String> {
        self.page = Some(match shown {
            AnswerDisplay::Note => {
                self.finish(text);
                return None;
            }
            AnswerDisplay::Nodes => {
                self.finish("");
                if let Mode::Nodes(_, lines) = &mut self.mode {
                    *lines = text.lines().take(NODES).map(clip).collect();
                }
                return None;
            }
            AnswerDisplay::Print => page::build_plain(text),
            AnswerDisplay::Join => page::build_join(text),
        });
        self.finish("");
        if let Some(form) = self.form() {
            form.refuse(WAITS.to_owned());
        }
        self.take_page()
    }

    /// Returns the page to print now; the next key returns to the screen. A page waits while a form
    /// is open, because a letter that was typed for the form would act on the page.
    pub fn take_page(&mut self) -> Option<String> {
        if self.form().is_some() {
            return None;
        }
        let page = self.page.take()?;
        self.mode = Mode::Away(page.token);
        Some(page.text)
    }

    /// Returns the page that was not printed yet, when the interface ends.
    pub fn last_page(&mut self) -> Option<String> {
        self.page.take().map(|page| page.text)
    }

    fn form(&mut self) -> Option<&mut Form> {
        match &mut self.mode {
            Mode::Create(form) | Mode::Join(_, form) | Mode::Delete(_, form) => Some(form),
            _ => None,
        }
    }

    /// Returns why no other command can be started yet.
    fn busy(&self) -> Option<&'static str> {
        let waits = self.page.as_ref().map(|_| WAITS);
        self.doing.as_ref().map(|_| BUSY).or(waits)
    }

    /// Shows the result of the command in progress, and marks it as finished.
    pub fn finish(&mut self, text: &str) {
        self.doing = None;
        let lines: Vec<_> = text.lines().collect();
        self.note = clip(&lines.join(" · "));
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Interrupt => return Some(Action::Quit),
            Key::Redraw if !matches!(self.mode, Mode::Away(_)) => return Some(Action::Redraw),
            _ => {}
        }
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::List => self.press_in_list(key),
            Mode::Help => None,
            Mode::Nodes(name, lines) => match key {
                Key::Char('n') => {
                    self.mode = Mode::Nodes(name.clone(), lines);
                    self.press_on(name, DesiredState::Running, key)
                }
                _ => None,
            },
            Mode::Status(name) => self.press_in_status(name, key),
            Mode::Events => self.press_in_events(key),
            Mode::Kubeconfig(name) => match key {
                Key::Char('p') => self.execute(format!("kubeconfig {name}"), AnswerDisplay::Print),
                _ => None,
            },
            Mode::Join(name, form) => self.press_in_join(name, form, key),
            Mode::Away(token) => self.press_when_away(token?, key),
            Mode::Create(form) => self.press_in_create(form, key),
            Mode::Delete(name, form) => self.press_in_delete(name, form, key),
        }
    }

    fn press_in_list(&mut self, key: Key) -> Option<Action> {
        let index = self.clusters.index();
        self.note.clear();
        match key {
            Key::Up => self.clusters.choose(index.saturating_sub(1)),
            Key::Down => self.clusters.choose(index + 1),
            Key::PageUp => self.clusters.choose(index.saturating_sub(PAGE)),
            Key::PageDown => self.clusters.choose(index + PAGE),
            Key::Home => self.clusters.choose(0),
            Key::End => self.clusters.choose(usize::MAX),
            Key::Escape if self.doing.as_deref().is_some_and(is_join) => return Some(Action::Cancel),
            Key::Escape => "Press q to leave.".clone_into(&mut self.note),
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('e') => self.mode = Mode::Events,
            Key::Char('c') => self.mode = Mode::Create(Form::create()),
            key => {
                let (name, state) = self.clusters.chosen().map(|(name, row)| (name.to_owned(), row.state))?;
                return self.press_on(name, state, key);
            }
        }
        None
    }

    /// Handles a key that acts on one Cluster.
    fn press_on(&mut self, name: String, state: DesiredState, key: Key) -> Option<Action> {
        match key {
            Key::Enter => self.mode = Mode::Status(name),
            Key::Char('d') => self.mode = Mode::Delete(name, Form::confirm()),
            Key::Char('j') => self.mode = Mode::Join(name, Form::join()),
            Key::Char('k') => self.mode = Mode::Kubeconfig(name),
            Key::Char('n') => {
                let asked = self.execute(format!("nodes {name}"), AnswerDisplay::Nodes);
                if asked.is_some() {
                    self.mode = Mode::Nodes(name, Vec::new());
                }
                return asked;
            }
            Key::Char('s') => {
                let verb = match state {
                    DesiredState::Running => "sleep",
                    DesiredState::Asleep => "wake",
                };
                return self.execute(format!("{verb} {name}"), AnswerDisplay::Note);
            }
            _ => {}
        }
        None
    }

    fn press_in_status(&mut self, name: String, key: Key) -> Option<Action> {
        match (key, self.clusters.get(&name).map(|row| row.state)) {
            (Key::Escape | Key::Enter | Key::Char('q'), _) | (_, None) => None,
            (Key::Char('s' | 'n'), Some(state)) => {
                self.mode = Mode::Status(name.clone());
                self.press_on(name, state, key)
            }
            (Key::Char('d' | 'j' | 'k'), Some(state)) => self.press_on(name, state, key),
            (_, Some(_)) => {
                self.mode = Mode::Status(name);
                None
            }
        }
    }

    fn press_in_events(&mut self, key: Key) -> Option<Action> {
        if !matches!(key, Key::Escape | Key::Enter | Key::Char('q' | 'e')) {
            self.mode = Mode::Events;
        }
        None
    }

    fn press_in_create(&mut self, mut form: Form, key: Key) -> Option<Action> {
        match form.press(key) {
            Pressed::Back => None,
            Pressed::Edited => {
                self.mode = Mode::Create(form);
                None
            }
            Pressed::Done => match form.to_create() {
                Ok(line) if self.busy().is_none() => {
                    self.clusters.expect(form.first());
                    self.execute(line, AnswerDisplay::Note)
                }
                refused => {
                    let busy = self.busy().unwrap_or_default().to_owned();
                    form.refuse(refused.err().unwrap_or(busy));
                    self.mode = Mode::Create(form);
                    None
                }
            },
        }
    }

    fn press_in_delete(&mut self, name: String, mut form: Form, key: Key) -> Option<Action> {
        match (form.press(key), self.busy()) {
            (Pressed::Back, _) => return None,
            (Pressed::Done, Some(busy)) => form.refuse(busy.to_owned()),
            (Pressed::Done, None) if form.first() == name => {
                return self.execute(format!("delete {name} --yes"), AnswerDisplay::Note);
            }
            (Pressed::Done, None) => form.refuse("The name does not match: nothing is deleted.".to_owned()),
            (Pressed::Edited, _) => {}
        }
        self.mode = Mode::Delete(name, form);
        None
    }

    fn press_in_join(&mut self, name: String, mut form: Form, key: Key) -> Option<Action> {
        match (form.press(key), self.busy()) {
            (Pressed::Back, _) => return None,
            (Pressed::Done, Some(busy)) => form.refuse(busy.to_owned()),
            (Pressed::Done, None) => match form.to_join(&name) {
                Ok(line) => return self.execute(line, AnswerDisplay::Join),
                Err(why) => form.refuse(why),
            },
            (Pressed::Edited, _) => {}
        }
        self.mode = Mode::Join(name, form);
        None
    }

    fn press_when_away(&mut self, token: Token, key: Key) -> Option<Action> {
        if key == Key::Char('x') {
            return self.execute(format!("revoke {}", token.name), AnswerDisplay::Note);
        }
        self.note = clip(&token.kept);
        None
    }

    /// Starts a command, unless one is in progress. The key is not queued.
    fn execute(&mut self, line: String, shown: AnswerDisplay) -> Option<Action> {
        if self.doing.is_some() {
            BUSY.clone_into(&mut self.note);
            return None;
        }
        self.note.clear();
        self.doing = Some(line.clone());
        Some(Action::Execute { line, shown })
    }
}

/// Returns whether a line creates a JoinToken, the only command that can be cancelled.
pub(super) fn is_join(line: &str) -> bool {
    line.starts_with("join ")
}

#[cfg(test)]
mod tests;
