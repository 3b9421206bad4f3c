//! Finds what a removed stack left on the computer. It searches in other ways than `down` removes.
//! So it reveals what `down` misses, and components that start to write elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{is_dead_socket, list_entries};
use crate::layout::Layout;

/// Paths where components write, or would write by default. Small text files there are read too.
/// There are more paths than `down` cleans, to find what `down` does not know.
const FIXED_PLACES: &[&str] = &[
    "/etc/cni",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];

const READ_LIMIT: u64 = 1 << 20;

/// One line for each remaining object that names this clone's stack.
pub fn find(layout: &Layout) -> Vec<String> {
    let (dev, name) = (format!("{}/", layout.dev().display()), layout.stack_name());
    let mut left = Vec::new();
    for process in list_entries(Path::new("/proc")) {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        // This command itself runs from `.dev/bin`.
        let own = process.ends_with(std::process::id().to_string());
        if !own && program.starts_with(dev.as_bytes()) {
            left.push(format!(
                "process {}: {}",
                process.display(),
                String::from_utf8_lossy(program)
            ));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_stack = |line: &&str| line.contains(&dev) || line.contains(&name);
    left.extend(mounts.lines().filter(of_stack).map(|line| format!("mount {line}")));
    for place in ["/sys/class/net", "/sys/fs/cgroup"] {
        let named = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().contains(layout.id()))
        };
        let groups = list_entries(Path::new(place));
        let below = groups.iter().flat_map(|group| list_entries(group));
        left.extend(
            groups
                .iter()
                .cloned()
                .chain(below)
                .filter(named)
                .map(|path| path.display().to_string()),
        );
    }
    for place in FIXED_PLACES {
        find_files(Path::new(place), &[&dev, &name], &mut left);
    }
    left
}

fn find_files(dir: &Path, names: &[&str], left: &mut Vec<String>) {
    for path in list_entries(dir) {
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let names_stack = |text: &str| names.iter().any(|name| text.contains(name));
        let found = names_stack(&path.to_string_lossy())
            || fs::read_link(&path).is_ok_and(|target| names_stack(&target.to_string_lossy()))
            || (meta.is_file()
                && meta.len() <= READ_LIMIT
                && fs::read(&path).is_ok_and(|bytes| names_stack(&String::from_utf8_lossy(&bytes))))
            || is_dead_socket(&path);
        if found {
            left.push(path.display().to_string());
        } else if meta.is_dir() {
            find_files(&path, names, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use yoke_test_support::eventually_blocking;

    use super::*;

    #[test]
    fn files_links_and_dead_sockets_of_a_stack_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("deep/er")).unwrap();
        fs::write(at("deep/er/state"), "{\"bundle\": \"/clone/.dev/x\"}").unwrap();
        fs::write(at("other"), "{\"bundle\": \"/clone/.device/x\"}").unwrap();
        std::os::unix::fs::symlink("/clone/.dev/log", at("link")).unwrap();
        fs::write(at("yoke-12345678"), "").unwrap();
        let listening = UnixListener::bind(at("alive.sock")).unwrap();
        drop(UnixListener::bind(at("dead.sock")).unwrap());
        // A process that another test is forking holds the socket open until it executes its
        // program.
        let observe = || Ok::<_, Infallible>(is_dead_socket(&at("dead.sock")));
        eventually_blocking("the socket to be dead", Duration::from_secs(5), observe, |dead| *dead).unwrap();
        let mut left = Vec::new();
        find_files(dir.path(), &["/clone/.dev/", "yoke-12345678"], &mut left);
        left.sort();
        let expected =
            ["dead.sock", "deep/er/state", "link", "yoke-12345678"].map(|name| at(name).display().to_string());
        assert_eq!(left, expected);
        drop(listening);
    }
}
