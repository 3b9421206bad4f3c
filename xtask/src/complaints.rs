//! Problems that checks found, and how a run prints them.

use anyhow::{Result, bail};

/// Problems that a check found, one sentence each. Empty if there are none.
pub(crate) type Complaints = Vec<String>;

/// Result of a check.
pub(crate) enum Outcome {
    Checked(Complaints),
    /// The check did not run, for this reason.
    Skipped(&'static str),
}

impl From<Complaints> for Outcome {
    fn from(complaints: Complaints) -> Self {
        Self::Checked(complaints)
    }
}

/// Prints the outcome of each check, and fails if there are complaints.
pub(crate) fn settle<const N: usize>(outcomes: [(&str, Outcome); N]) -> Result<()> {
    let mut count = 0;
    for (check, outcome) in outcomes {
        let complaints = match outcome {
            Outcome::Checked(complaints) => complaints,
            Outcome::Skipped(reason) => {
                println!("{check}: skipped, {reason}");
                continue;
            }
        };
        if complaints.is_empty() {
            println!("{check}: ok");
        }
        for complaint in complaints {
            count += 1;
            println!("{check}: {complaint}");
        }
    }
    match count {
        0 => Ok(()),
        1 => bail!("1 complaint"),
        n => bail!("{n} complaints"),
    }
}
