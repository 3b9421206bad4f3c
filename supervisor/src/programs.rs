//! Finds programs that are installed on the machine.

use std::path::{Path, PathBuf};

/// Search path for programs. The `PATH` of a service may lack folders that an administrator's has.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the path of an installed program.
pub fn find_program(name: &str) -> Option<PathBuf> {
    PATH.split(':')
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}
