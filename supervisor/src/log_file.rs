//! Log files of bounded size.

use std::fs;
use std::path::Path;

/// Renames a log with more than `limit` bytes to `<name>.log.1`, which replaces the log that was
/// rotated before. Ignores a failure: a log that is too long must not stop its program.
pub fn rotate(log: &Path, limit: u64) {
    if fs::metadata(log).is_ok_and(|found| found.len() > limit) {
        let _ = fs::rename(log, log.with_extension("log.1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_above_the_limit_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let (log, rotated) = (dir.path().join("x.log"), dir.path().join("x.log.1"));
        rotate(&log, 4);
        fs::write(&log, "four").unwrap();
        rotate(&log, 4);
        assert!(!rotated.exists());
        fs::write(&log, "fives").unwrap();
        rotate(&log, 4);
        assert!(!log.exists());
        assert_eq!(fs::read_to_string(rotated).unwrap(), "fives");
    }
}
