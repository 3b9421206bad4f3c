//! What is typed into the interface. Pure.

use yoke_api::KubernetesVersion;
use yoke_api::join_token::{LONGEST, SHORTEST};
use yoke_view::input::{parse_duration, parse_quantity};

use super::keys::Key;
use crate::command::parse_new_name;

/// Characters that a field takes: no name is longer.
const FIELD_MAX: usize = 63;

/// Fields, one of which takes what is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    fields: Vec<Field>,
    at: usize,
    problem: String,
}

/// One line to be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// What belongs there.
    pub label: &'static str,
    /// What was typed.
    pub text: String,
}

/// What a key did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressed {
    /// It is filled.
    Done,
    /// It is not wanted any more.
    Back,
    /// It goes on.
    Edited,
}

impl Form {
    /// A Cluster to be made. What is left empty is the host's to choose.
    pub fn create() -> Self {
        Self::of(&["Name", "Version", "Storage"])
    }

    /// Leave to join. What is left empty is as with the command.
    pub fn join() -> Self {
        Self::of(&["Uses", "TTL", "Reap after"])
    }

    /// A name to be typed again.
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

    /// The fields, and which of them takes what is typed.
    pub fn fields(&self) -> (&[Field], usize) {
        (&self.fields, self.at)
    }

    /// Why what was typed is wrong, if it was said.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// What is in the first field.
    pub fn first(&self) -> &str {
        self.fields.first().map_or("", |field| &field.text)
    }

    /// Says why what was typed is wrong.
    pub fn refuse(&mut self, why: String) {
        self.problem = why;
    }

    /// A key was pressed.
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

    /// The command line that makes the Cluster, or why there is none.
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

    /// The command line that makes a JoinToken for a Cluster, or why there is none.
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

/// A time as a JoinToken takes it.
fn check_time(text: &str) -> Result<&str, String> {
    let is_good = parse_duration(text).is_ok_and(|time| (SHORTEST..=LONGEST).contains(&time));
    match is_good && text.ends_with(['m', 'h']) {
        true => Ok(text),
        false => Err("expected a time from 1m to 24h".to_owned()),
    }
}

/// Changes a line of text as a key says. Only what a name, a version or a quantity can have is taken.
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
