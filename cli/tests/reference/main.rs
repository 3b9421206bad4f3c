//! The book's page of the plugin, made from the command line's own definitions.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};
use yoke_test_support::page::check_section;

/// Heading of the options that every command has.
const COMMON: &str = "Options of kubectl";

#[test]
fn the_book_lists_every_command() {
    let mut command = yoke_cli::Arguments::command();
    command.build();
    let mut page = String::new();
    add(&command, &mut page);
    let _ = writeln!(page, "## {COMMON}\n\nEvery command takes them.\n");
    add_options(
        command.get_arguments().filter(|argument| is_common(argument)),
        &mut page,
    );
    check_section(
        "reference/cli.md",
        "commands",
        &page,
        "cargo test -p yoke-cli --test reference",
    );
}

fn add(command: &Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let _ = writeln!(page, "## {name}\n");
    if let Some(about) = command.get_about() {
        let _ = writeln!(page, "{about}\n");
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    let own = command
        .get_arguments()
        .filter(|argument| !is_common(argument) && is_shown(argument));
    add_options(own, page);
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(page, "```text\n{}\n```\n", after.to_string().trim());
    }
    let shown = |child: &&Command| !child.is_hide_set() && child.get_name() != "help";
    let children: Vec<_> = command.get_subcommands().filter(shown).collect();
    if !children.is_empty() {
        let _ = writeln!(page, "| command | does |\n|---|---|");
        for child in &children {
            let about = child.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {about} |", child.get_name());
        }
        let _ = writeln!(page);
    }
    for child in children {
        add(child, page);
    }
}

fn is_common(argument: &Arg) -> bool {
    argument.get_help_heading() == Some(COMMON)
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

fn add_options<'a>(arguments: impl Iterator<Item = &'a Arg>, page: &mut String) {
    let rows: Vec<_> = arguments.map(row).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "| argument | default | meaning |\n|---|---|---|\n{}\n",
        rows.join("\n")
    );
}

fn row(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.first().map(|name| name.to_string());
    let takes_value = argument.get_action().takes_values();
    let mut name = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("--{long}, -{short}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => value
            .clone()
            .unwrap_or_else(|| argument.get_id().to_string().to_uppercase()),
    };
    if let Some(value) = value.filter(|_| takes_value && argument.get_long().is_some()) {
        let _ = write!(name, " {value}");
    }
    let default = argument
        .get_default_values()
        .iter()
        .filter_map(|value| value.to_str())
        .collect::<Vec<_>>()
        .join(" ");
    let default = if default.is_empty() || !takes_value {
        String::new()
    } else {
        format!("`{default}`")
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<_> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let values = match values.is_empty() || argument.get_action().takes_values() && values == ["`true`", "`false`"] {
        true => String::new(),
        false => format!(". One of {}.", values.join(", ")),
    };
    format!("| `{name}` | {default} | {}{values} |", help.replace('|', "\\|"))
}
