//! The forms of the interface. Pure.

use yoke_api::KubernetesVersion;
use yoke_api::join_token::{LONGEST, SHORTEST};
use yoke_view::input::{parse_duration, parse_quantity};

use super::keys::Key;
use crate::commands::parse::parse_new_name;

/// Maximum length of a field, in characters; no name is longer.
const FIELD_MAX: usize = 63;

/// Input fields, and the index of the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    fields: Vec<Field>,
    at: usize,
    problem: String,
}

/// One input field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Label of the field.
    pub label: &'static str,
    /// Text that was typed.
    pub text: String,
}

/// Result of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressed {
    /// The form is complete.
    Done,
    /// The form is cancelled.
    Back,
    /// The form stays open.
    Edited,
}

impl Form {
    /// Returns the form of a new Cluster. Empty fields get the host's defaults.
    pub fn create() -> Self {
        Self::of(&["Name", "Version", "Storage"])
    }

    /// Returns the form of a JoinToken. Empty fields get the defaults of the `join` command.
    pub fn join() -> Self {
        Self::of(&["Uses", "TTL", "Reap after"])
    }

    /// Returns the form in which a user types a name as confirmation.
    pub fn confirm() -> Self {
        Self::of(&["Name"])
    }

    fn of(labels: &[&'static str]) -> Self {
        let field = |label: &&'static str| Field {
            label,
            text: String::new(),
        };
        Self {
            fields: labels.iter().map(field).collect(),
            at: 0,
            problem: String::new(),
        }
    }

    /// Returns the fields, and the index of the one that receives the input.
    pub fn fields(&self) -> (&[Field], usize) {
        (&self.fields, self.at)
    }

    /// Returns the error in the input, or an empty text.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// Returns the text of the first field.
    pub fn first(&self) -> &str {
        self.fields.first().map_or("", |field| &field.text)
    }

    /// Shows an error in the input.
    pub fn refuse(&mut self, why: String) {
        self.problem = why;
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Pressed {
        self.problem.clear();
        let count = self.fields.len();
        match key {
            Key::Enter => return Pressed::Done,
            Key::Escape => return Pressed::Back,
            Key::Tab | Key::Down => self.at = (self.at + 1) % count,
            Key::BackTab | Key::Up => self.at = (self.at + count - 1) % count,
            key => {
                if let Some(field) = self.fields.get_mut(self.at) {
                    edit(&mut field.text, key);
                }
            }
        }
        Pressed::Edited
    }

    /// Builds the command line that creates the Cluster, or returns the error in the input.
    pub fn to_create(&self) -> Result<String, String> {
        let [name, version, storage] = self.fields.as_slice() else {
            return Err("this form makes no Cluster".to_owned());
        };
        let mut line = format!("create {}", parse_new_name(&name.text)?);
        if !version.text.is_empty() {
            let version: KubernetesVersion = version
                .text
                .parse()
                .map_err(|_| "expected a version such as v1.35.4".to_owned())?;
            line += &format!(" --version {version}");
        }
        if !storage.text.is_empty() {
            line += &format!(" --storage {}", parse_quantity(&storage.text)?.0);
        }
        Ok(line)
    }

    /// Builds the command line that creates a JoinToken for a Cluster, or returns the error in the
    /// input.
    pub fn to_join(&self, name: &str) -> Result<String, String> {
        let [uses, ttl, reap_after] = self.fields.as_slice() else {
            return Err("this form makes no JoinToken".to_owned());
        };
        let mut line = format!("join {name}");
        if !uses.text.is_empty() {
            let number = uses.text.parse().ok().filter(|number| (1..=100).contains(number));
            let number: i32 = number.ok_or("expected a number from 1 to 100")?;
            line += &format!(" --uses {number}");
        }
        for (option, field) in [("ttl", ttl), ("reap-after", reap_after)] {
            if !field.text.is_empty() {
                line += &format!(" --{option} {}", check_time(&field.text)?);
            }
        }
        Ok(line + " --json")
    }
}

/// Checks a time against the range of a JoinToken.
fn check_time(text: &str) -> Result<&str, String> {
    let is_good = parse_duration(text).is_ok_and(|time| (SHORTEST..=LONGEST).contains(&time));
    match is_good && text.ends_with(['m', 'h']) {
        true => Ok(text),
        false => Err("expected a time from 1m to 24h".to_owned()),
    }
}

/// Edits a line of text. Accepts only characters that occur in names, versions and quantities.
pub(crate) fn edit(text: &mut String, key: Key) {
    match key {
        Key::Backspace => {
            text.pop();
        }
        Key::Char(character)
            if text.len() < FIELD_MAX && (character.is_ascii_alphanumeric() || matches!(character, '-' | '.')) =>
        {
            text.push(character);
        }
        _ => {}
    }
}
