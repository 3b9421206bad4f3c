//! Prints a table of targets.

/// Prints the head of the table.
pub fn print_head() {
    println!("\n| target | measured | |\n|---|---|---|");
}

/// Prints a target beside the measured value.
pub fn print(target: &str, measured: &str, is_met: bool) {
    println!("| {target} | {measured} | {} |", if is_met { "met" } else { "missed" });
}
